"""`flowcatalyst version`."""

from flowcatalyst import __version__


def version() -> None:
    """Print the version."""
    print(__version__)
