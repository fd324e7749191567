"""The entry point: Ctrl-C is no error, also while the rest is still being loaded, which takes a while."""

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    try:
        from flowcatalyst.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
