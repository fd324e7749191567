"""Whether a router could keep its files in a folder, told without touching it."""

import errno
import os
from pathlib import Path

from flowcatalyst.control.storage_outages import LEAST_FREE_BYTES
from flowcatalyst.core.files import is_folder, is_there
from flowcatalyst.queues.embedded.store import owners_alive


def cannot_be_created(why: str) -> str:
    return f"cannot be created ({why}): choose another"


def problem_with_folder(folder: Path) -> str:
    """What keeps a router from writing into the folder, or from making it if it does not exist; empty if nothing."""
    folder = folder.absolute()
    if is_folder(folder):
        if os.access(folder, os.W_OK | os.X_OK):
            return ""
        return "cannot be written: change its permissions or choose another"
    nearest = _nearest(folder)
    if nearest == folder:
        return cannot_be_created("something else has that name")
    if not is_folder(nearest):
        return cannot_be_created(f"{nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return cannot_be_created(f"{nearest}: {os.strerror(errno.EACCES)}")
    # /proc and the like grant root every permission and refuse a folder all the same. They have no space for one; a
    # tmpfs without a limit has no blocks either, but files.
    there = os.statvfs(nearest)
    if there.f_blocks == 0 and there.f_files == 0:
        return cannot_be_created(f"{nearest} takes no folders")
    return ""


def lack_of_space(folder: Path) -> str:
    """What a full disk keeps from being written there; empty if it has some space."""
    nearest = _nearest(folder.absolute())
    disk = os.statvfs(nearest)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < LEAST_FREE_BYTES:  # without a limit there are no blocks to count
        return f"the disk is full, with {free // 1024} KiB left: free some space"
    if disk.f_files and not disk.f_favail:
        return "the disk has no place for another file: remove some"
    return ""


def removed_files(folder: Path) -> str:
    """Which file of the folder was removed although it is in use, or was when the router died; empty if none.
    Raises `ConfigurationError` if this user may not look."""
    queue = folder / "queue.db"
    if not is_there(queue) and owners_alive(queue):
        return (
            f"{queue} was removed while a process has it open, which still delivers what was in it: put it back before "
            "that process stops"
        )
    for log in sorted(folder.glob("*.db-wal")):
        file = log.with_name(log.name.removesuffix("-wal"))
        if not is_there(file):
            return f"{file} is missing, but {log.name} is there: somebody removed it; put it back or restore a backup"
    return ""


def emptied_files(folder: Path) -> dict[str, str]:
    """The files of messages and jobs that have no bytes, and what that means: none that was ever used is left so."""
    return {
        name: f"{folder / name} has 0 bytes: it is used as a new one; if there was anything in it, stop the router and "
        "restore a backup"
        for name in ("queue.db", "jobs.db")
        if is_there(folder / name) and (folder / name).stat().st_size == 0
    }


def _nearest(folder: Path) -> Path:
    """The folder, or what there is of the way to it."""
    return next(path for path in (folder, *folder.parents) if os.path.lexists(path))
