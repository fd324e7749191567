"""What is there, for paths that people name."""

from pathlib import Path

from flowcatalyst.core.errors import ConfigurationError


class NoAccessError(ConfigurationError):
    """This user may not enter a folder, or not read or write a file."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path} cannot be used ({why}): name another, or use the rights of its owner")


def is_there(path: Path) -> bool:
    """Whether the path exists. Raises `NoAccessError` where `Path.exists` raises `PermissionError`: it lies behind a
    folder that this user may not enter, so that nobody can tell."""
    try:
        return path.exists()
    except PermissionError as error:
        raise NoAccessError(path, error.strerror or str(error)) from None


def is_folder(path: Path) -> bool:
    """Whether this user finds a folder there: what he may not look at is none."""
    try:
        return path.is_dir()
    except PermissionError:
        return False
