"""Where a run of tests has its temporary files and the data of its servers: in memory, where there is enough of it.

On a disk most tests would wait for syncs. A sync says something after a loss of power only, which no test has: what
tests say of syncs they say of settings and calls, and a killed process loses nothing that the kernel has.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

CHOSEN: Final = "TEST_TMPDIR"  # names another folder
MEMORY: Final = Path("/dev/shm")
MEMORY_FACTS: Final = Path("/proc/meminfo")
NEEDED_BYTES: Final = 4 * 1024**3
PREFIX: Final = "flowcatalyst-tests-"


class NoScratchError(Exception):
    """The folder that was chosen cannot be used."""


def choose(environment: Mapping[str, str], memory: Path = MEMORY) -> tuple[Path, str]:
    """The folder to make another one in, and why it is not one in memory, if so."""
    if chosen := environment.get(CHOSEN):
        if not os.access(chosen, os.W_OK | os.X_OK) or not Path(chosen).is_dir():
            raise NoScratchError(f"{CHOSEN} is {chosen}, which is no folder that can be written to: name another one")
        return Path(chosen), ""
    if not os.access(memory, os.W_OK | os.X_OK):
        why = f"there is no {memory} to write to"
    elif (there := os.statvfs(memory)).f_flag & os.ST_NOEXEC:
        why = f"no program can be started in {memory}"
    elif (free := min(there.f_bavail * there.f_frsize, _available_bytes())) < NEEDED_BYTES:
        why = f"{memory} has {free / 1024**3:.1f} GiB, less than the {NEEDED_BYTES / 1024**3:g} GiB they may take"
    else:
        return memory, ""
    return Path(tempfile.gettempdir()), why


@contextmanager
def scratch(say: Callable[[str], None]) -> Iterator[Path]:
    """A folder for all temporary files of this process and those it starts, until the end of the block."""
    root, why = choose(os.environ)
    if why:
        say(f"Tests have their files in {root}, where they wait for the disk: {why}. {CHOSEN} names another folder.")
    _remove_abandoned(root)
    folder, lock = _make(root)
    before = {name: os.environ.get(name) for name in ("TMPDIR", CHOSEN)}
    os.environ.update(dict.fromkeys(before, str(folder)))  # also for a run that a test starts: it is inside of this one
    tempfile.tempdir = None  # found anew
    try:
        yield folder
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(root: Path) -> tuple[Path, int]:
    """It gets its name when it is locked, which it is until this process ends: that is how others know it is used."""
    new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=root))
    new.chmod(0o711)  # PostgreSQL runs as another user and has a folder in it
    lock = os.open(new, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.rename(root / new.name.removeprefix("."))
    return folder, lock


def _remove_abandoned(root: Path) -> None:
    """What runs that were killed left behind."""
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, somebody else's, or gone by now
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _available_bytes() -> int:
    """What the machine can give without pushing others out."""
    facts = dict(line.split(":", 1) for line in MEMORY_FACTS.read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) * 1024
