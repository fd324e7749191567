"""`python -m tests`: all tests, in two runs at once.

Those of brokers mostly wait, so they need many processes and little of the machine; the others work, and are polite
about it (`nice`), since a broker that gets no answer in time would be a failure. Their progress is shown; what the
tests of brokers said comes last.
"""

import subprocess
import sys
import tempfile
from typing import Final

PYTEST: Final = [sys.executable, "-m", "pytest", "--dist", "loadgroup"]
BROKERS: Final = [*PYTEST, "-m", "brokers", "-n", "6", "-p", "no:schemathesis"]
# Each process reads all files, in ten seconds of a core.
OTHERS: Final = ["nice", "-n", "5", *PYTEST, "-m", "not brokers", "-n", "2"]


def main() -> int:
    """The exit code: that of the first run that failed."""
    with tempfile.TemporaryFile() as said, subprocess.Popen(BROKERS, stdout=said, stderr=said) as brokers:
        try:
            others = subprocess.run(OTHERS, check=False)
            print("Tests of brokers:", flush=True)
            brokers.wait()
        except KeyboardInterrupt:  # both runs have it too, and stop their servers
            return 130
        finally:
            brokers.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    return others.returncode or brokers.returncode


if __name__ == "__main__":
    sys.exit(main())
