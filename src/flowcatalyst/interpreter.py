"""How Python itself is set up for a router."""

import gc
from typing import Final

# A router makes and drops thousands of small objects a second and almost no reference cycles. With the defaults the
# collector would look through all of them every few hundred messages, for nothing.
YOUNG_OBJECTS: Final = 20_000


def tune() -> None:
    """Call once, after imports: what exists by then stays for good and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
