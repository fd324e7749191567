"""One SQLite file, the one thread that writes to it, and one that reads.

Whatever is waiting when the thread comes round shares one transaction, and so one fsync (group commit). A request is
a plain function of the connection; it must be repeatable, because it runs again when a neighbour's failure rolls the
shared transaction back. Reads have a connection of their own, so that a long one and a long write do not wait for each
other.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from flowcatalyst.core.errors import StorageError, StorageUnavailableError
from flowcatalyst.storage.migrations import Migrations

T = TypeVar("T")

BUSY_TIMEOUT_S: Final = 10.0
CACHE_KIB: Final = 32 * 1024  # at most: what is at work in a large file
CHECKPOINT_PAGES: Final = 8000  # of the log, 32 MB: a page that changes often is copied to the file once for all
MAX_REQUESTS_PER_COMMIT: Final = 256  # bounds how long the first one of a batch waits for the others

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PASSING: Final = _BUSY | {sqlite3.SQLITE_FULL}
# The file cannot be written, whatever is to be written to it.
_BROKEN: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }
)
_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another process: try again later",
    sqlite3.SQLITE_LOCKED: "is locked by another process: try again later",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database: move it away or name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a backup or move it away",
    sqlite3.SQLITE_FULL: "cannot grow because the disk is full: free some space",
    sqlite3.SQLITE_READONLY: "cannot be written: check the permissions of the file and of its folder",
    sqlite3.SQLITE_PERM: "cannot be used: check the permissions of the file and of its folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and can be written",
    sqlite3.SQLITE_IOERR: "could not be read or written: check the disk",
}


@dataclass(slots=True, eq=False)
class Request:
    """A job on its way to the database and back."""

    job: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    writes: bool = True
    result: Any = None
    error: Exception | None = None


class SqliteWriter:
    """Runs jobs on the database file `path`, whose tables `migrations` creates or brings up to date."""

    def __init__(self, path: Path, migrations: Migrations) -> None:
        self.path = path
        self.commits = 0  # transactions committed so far
        self.failures = 0  # that did not, because the file could not be written
        self.failure = ""  # why the latest of those did not
        self._migrations = migrations
        self._requests: SimpleQueue[Request | None] = SimpleQueue()  # None asks the thread to end
        self._reads: SimpleQueue[Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._reader: threading.Thread | None = None  # from the first read on
        self._closed: asyncio.Future[None] | None = None
        self._accepts = False

    async def open(self) -> None:
        """Start the thread and open the file. A file that cannot be used is left as it is."""
        assert self._thread is None, "a writer is opened once"
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        opened = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, args=(opened,), name=f"sqlite {self.path.name}", daemon=True)
        self._accepts = True
        self._thread.start()
        try:
            await asyncio.shield(opened)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was submitted, close the file and end the thread."""
        if self._thread is None or self._closed is None:
            return
        if self._accepts:
            self._accepts = False
            self._reads.put(None)
            self._requests.put(None)
        await asyncio.shield(self._closed)
        self._thread.join()

    def submit(self, job: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> asyncio.Future[T]:
        """Queue a job. Its future is resolved after the commit; nobody may cancel it, so await it shielded."""
        if not self._accepts:
            raise StorageUnavailableError(f"{self.path} is closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._requests.put(Request(job, done, writes))
        return done

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What `job` returned, once it is durable. A cancelled caller does not undo the job."""
        return await asyncio.shield(self.submit(job))

    async def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """What a job that only reads returns. It sees what is committed now and waits for no write."""
        if not self._accepts:
            raise StorageUnavailableError(f"{self.path} is closed")
        if self._reader is None:
            self._reader = threading.Thread(target=self._serve_reads, name=f"read {self.path.name}", daemon=True)
            self._reader.start()
        done: asyncio.Future[T] = self._loop.create_future()
        self._reads.put(Request(job, done, writes=False))
        return await asyncio.shield(done)

    async def touch(self) -> None:
        """Write to the file without changing what it holds. Raises `StorageError` if that is not possible."""
        await self.run(lambda connection: connection.execute(f"PRAGMA user_version={self._migrations.newest}"))

    async def read_in_turn(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Like `read`, but on the writing connection and behind what was submitted before.

        For a look at that connection, or at whether it still works; never for a listing.
        """
        return await asyncio.shield(self.submit(job, writes=False))

    # From here on: in the threads.

    def _serve_reads(self) -> None:
        connection: sqlite3.Connection | None = None
        while (request := self._reads.get()) is not None:
            try:
                connection = connection or _open_for_reading(self.path)
                request.result = request.job(connection)
            except Exception as error:
                request.error = translate(error, self.path)
            self._tell_loop(resolve, [request])
        if connection is not None:
            connection.close()

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            self._connection = _open_database(self.path, self._migrations)
        except StorageError as error:
            self._tell_loop(_fail_unless_done, opened, error)
        else:
            self._tell_loop(_succeed_unless_done, opened)
            while batch := self._next_batch():
                self._serve(batch)
                self._tell_loop(resolve, batch)
            if self._reader is not None:
                self._reader.join()  # who closes last cleans up the log
            self._connection.close()
        self._tell_loop(_succeed_unless_done, self._closed)

    def _serve(self, batch: Sequence[Request]) -> None:
        if writes := [request for request in batch if request.writes]:
            self._write(writes)
        for request in batch:
            if not request.writes:
                try:
                    request.result = request.job(self._connection)
                except Exception as error:
                    request.error = translate(error, self.path)

    def _next_batch(self) -> list[Request]:
        """All that is waiting, and at least one; empty when the thread has to end."""
        first = self._requests.get()
        if first is None:
            return []
        batch = [first]
        with contextlib.suppress(Empty):
            while len(batch) < MAX_REQUESTS_PER_COMMIT:
                request = self._requests.get_nowait()
                if request is None:
                    self._requests.put(None)  # nothing can come after it: end in the next round
                    break
                batch.append(request)
        return batch

    def _write(self, requests: Sequence[Request]) -> None:
        try:
            self._commit(requests)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and _primary_code(error) in _BROKEN:
                self.failure = str(translate(error, self.path))
                self.failures += 1
            # Waiting out the lock once for all of them is enough; any other failure belongs to one of them.
            if len(requests) == 1 or (isinstance(error, sqlite3.Error) and _primary_code(error) in _BUSY):
                for request in requests:
                    request.error = translate(error, self.path)
            else:
                for request in requests:
                    self._write([request])

    def _commit(self, requests: Sequence[Request]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for request in requests:
                request.result = request.job(self._connection)
            self._connection.commit()  # a statement of ours would give up the interpreter lock three times, not once
        except BaseException:
            if self._connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                self._connection.execute("ROLLBACK")
            raise
        self.commits += 1

    def _tell_loop(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *args)


def resolve(batch: Sequence[Request]) -> None:
    """Tell those who wait what became of their jobs."""
    for request in batch:
        if request.error is not None:
            _fail_unless_done(request.done, request.error)
        else:
            _succeed_unless_done(request.done, request.result)


def _succeed_unless_done(future: asyncio.Future[Any], result: object = None) -> None:
    if not future.done():
        future.set_result(result)


def _fail_unless_done(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _open_database(path: Path, migrations: Migrations) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise StorageError(f"{path} cannot be opened: the folder {path.parent} does not exist, create it first")
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        migrations.refuse_unusable(connection, path)  # before the switch to WAL writes to it
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
        migrations.apply(connection)
    except (sqlite3.Error, StorageError) as error:
        if connection is not None:
            connection.close()
        raise translate(error, path) from None
    return connection


def _open_for_reading(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _primary_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF  # the rest tells variants apart


def translate(error: Exception, path: Path) -> Exception:
    """An error of SQLite as one sentence for people; anything else as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = _primary_code(error)
    sentence = f"{path} {_ADVICE.get(code, f'could not be used: {error}')}"
    return StorageUnavailableError(sentence) if code in _PASSING else StorageError(sentence)
