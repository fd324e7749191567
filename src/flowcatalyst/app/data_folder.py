"""Whether a router could keep its files in a folder, told without touching it."""

import errno
import os
from pathlib import Path


def cannot_be_created(why: str) -> str:
    return f"cannot be created ({why}): choose another"


def problem_with_folder(folder: Path) -> str:
    """What keeps a router from writing into the folder, or from making it if it does not exist; empty if nothing."""
    folder = folder.absolute()
    if folder.is_dir():
        if os.access(folder, os.W_OK | os.X_OK):
            return ""
        return "cannot be written: change its permissions or choose another"
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if nearest == folder:
        return cannot_be_created("something else has that name")
    if not nearest.is_dir():
        return cannot_be_created(f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return cannot_be_created(f"{nearest}: {os.strerror(errno.EACCES)}")
    # /proc and the like grant root every permission and refuse a folder all the same. They have no space for one; a
    # tmpfs without a limit has no blocks either, but files.
    there = os.statvfs(nearest)
    if there.f_blocks == 0 and there.f_files == 0:
        return cannot_be_created(f"{nearest} takes no folders")
    return ""
