"""How long a test waits for what has to happen before it fails."""

from typing import Final

# Only what never happens takes so long. A machine that is busy with something else is 20 times as slow as a quiet one.
PATIENCE_S: Final = 300.0
