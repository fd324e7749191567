"""The entry point: Ctrl-C is no error, also while the rest is still being loaded, which takes a while."""

import gc
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    try:
        gc.disable()  # until everything is loaded: nothing of it will ever be garbage
        _load_structlog()
        from flowcatalyst.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _load_structlog() -> None:
    """Without rich, which it would load for tracebacks that our logs do not have: an eighth of the time to start."""
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            import structlog  # noqa: F401
        finally:
            del sys.modules["rich"]
