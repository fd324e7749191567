"""A copy of all SQLite files of a folder in one tar file, taken at one moment, while others write to them.

The key that secrets in them are sealed with goes along, if it is a file of the folder: without it they are lost.
"""

import errno
import gzip
import lzma
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.files import NoAccessError, is_there
from flowcatalyst.storage.sqlite import BUSY_TIMEOUT_S, translate

_WHAT_TO_NAME: Final = "name a file that `flowcatalyst backup` wrote"
KEY_FILE: Final = "secret.key"

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*\.db|" + re.escape(KEY_FILE))
_COMPRESSED: Final = (".gz", ".tgz")
_OF_SQLITE: Final = ("", "-wal", "-shm", "-journal")

_OF_THE_COPY: Final = {  # errors of SQLite that only somebody who writes can have
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR_WRITE: errno.EIO,
    sqlite3.SQLITE_IOERR_FSYNC: errno.EIO,
    sqlite3.SQLITE_IOERR_DIR_FSYNC: errno.EIO,
    sqlite3.SQLITE_IOERR_TRUNCATE: errno.EIO,
}
_SOMEWHERE: Final = "name a file in a folder that exists and can be written"
_HINTS: Final = {errno.ENOSPC: "free some space, or name a file on another disk"}


def back_up(folder: Path, file: Path) -> Mapping[str, int]:
    """Write all databases of `folder`, and its key, to the new tar file `file`; their names and sizes. Raises
    `StorageError`, and `NoAccessError` for what this user may not read or write."""
    if is_there(folder) and not os.access(folder, os.R_OK | os.X_OK):
        raise NoAccessError(folder, os.strerror(errno.EACCES))
    databases = sorted(folder.glob("*.db")) if folder.is_dir() else []
    if not databases:
        raise StorageError(f"there is nothing to back up in {folder}: name the data folder of the router")
    if is_there(file):
        raise StorageError(f"{file} exists already: name a new file, or remove it first")
    with _while_writing(file), tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".backup-") as made:
        copies = Path(made)
        with _at_one_moment(databases) as sources:
            for path, source in zip(databases, sources, strict=True):
                copy = copies / path.name
                _copy(source, path, copy)
                _check(copy, str(path))
        key = folder / KEY_FILE  # later than the secrets: it was there before the first of them
        copied = [*databases, key] if key.exists() else databases
        if key in copied:
            shutil.copyfile(key, copies / key.name)
        archive = copies / "archive"
        with tarfile.open(archive, "w:gz" if file.suffix in _COMPRESSED else "w") as tar:
            for path in copied:
                tar.add(copies / path.name, path.name, filter=_without_owner)
        archive.chmod(0o600)
        with archive.open("rb") as written:
            os.fsync(written.fileno())
        os.link(archive, file)  # unlike a rename it never replaces what somebody made meanwhile
        return {path.name: (copies / path.name).stat().st_size for path in copied}


def _copy(source: sqlite3.Connection, path: Path, copy: Path) -> None:
    """Raises `OSError` if the copy cannot be written: that is no fault of the database at `path`, which is only
    read."""
    try:
        with closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        if (number := _OF_THE_COPY.get(error.sqlite_errorcode)) is not None:
            raise OSError(number, os.strerror(number)) from None
        raise translate(error, path) from None


def require_backup(file: Path) -> None:
    """Raise `StorageError` if there is no such file, `NoAccessError` if this user may not look."""
    if not is_there(file):
        raise StorageError(f"{file} does not exist: {_WHAT_TO_NAME}")


def restore(file: Path, folder: Path) -> Mapping[str, int]:
    """Put the files of a backup into `folder`; their names and sizes. Raises `StorageError` or `NoAccessError`, and
    then has changed nothing: also if one of the files is there already."""
    require_backup(file)
    with _while_reading(file), tarfile.open(file, "r:*") as tar:
        members = tar.getmembers()
        if not members or any(not one.isreg() or not _NAME.fullmatch(one.name) for one in members):
            raise StorageError(f"{file} is not a backup of FlowCatalyst: {_WHAT_TO_NAME}")
        for name in (f"{one.name}{suffix}" for one in members for suffix in _OF_SQLITE):
            if is_there(folder / name):
                raise StorageError(f"{folder / name} exists already: move it away, or restore into another folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".restore-") as made:
            for one in members:
                content = tar.extractfile(one)
                assert content is not None, "it is a regular file"
                with (Path(made) / one.name).open("xb") as copy:
                    shutil.copyfileobj(content, copy)
                if one.name != KEY_FILE:
                    _check(Path(made) / one.name, f"{one.name} of {file}")
            _move_all([Path(made) / one.name for one in members], folder)
        return {one.name: one.size for one in members}


def _move_all(files: Sequence[Path], folder: Path) -> None:
    """All of them, or none."""
    moved: list[Path] = []
    try:
        for file in files:
            file.chmod(0o600)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            os.link(file, folder / file.name)
            moved.append(folder / file.name)
    except BaseException:
        for path in moved:
            path.unlink()
        raise


@contextmanager
def _at_one_moment(databases: Sequence[Path]) -> Iterator[list[sqlite3.Connection]]:
    """Connections that all see their files as they were at one moment, when nobody was writing to any of them.

    A message that is on its way from one file to another is then in both of them, or in the first: in no order of
    copies taken one after the other would that be so both ways.
    """
    with ExitStack() as reading:
        sources = []
        with ExitStack() as locked:
            for path in databases:
                writer = locked.enter_context(closing(_connect(path)))
                with _translated(path):
                    writer.execute("BEGIN IMMEDIATE")
            for path in databases:
                source = reading.enter_context(closing(_connect(path)))
                with _translated(path):
                    source.execute("BEGIN")
                    source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # from here on it sees this moment
                sources.append(source)
        yield sources


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
    )


def _check(copy: Path, name: str) -> None:
    try:
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        found, version = str(error), 0
    if found != "ok" or version == 0:
        raise StorageError(f"{name} is damaged or was not made by FlowCatalyst: it cannot be copied")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from None


@contextmanager
def _while_writing(file: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not those that it is made of."""
    try:
        yield
    except PermissionError as error:
        raise NoAccessError(file, error.strerror or str(error)) from None
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, _SOMEWHERE)
        raise StorageError(f"{file} cannot be written ({error.strerror or error}): {hint}") from None


@contextmanager
def _while_reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        raise StorageError(f"{file} is not a backup of FlowCatalyst, or is damaged: {_WHAT_TO_NAME}") from None
    except PermissionError as error:
        raise NoAccessError(error.filename or file, error.strerror or str(error)) from None
    except OSError as error:
        raise StorageError(
            f"{error.filename or file} could not be read or written: {error.strerror or error}"
        ) from None
