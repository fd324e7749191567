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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from flowcatalyst.errors import StorageError, StorageUnavailableError

T = TypeVar("T")
Migration = Callable[[sqlite3.Connection], None]

BUSY_TIMEOUT_S: Final = 10.0
CHECKPOINT_PAGES: Final = 8000  # of the log, 32 MB: a page that changes often is copied to the file once for all
MAX_REQUESTS_PER_COMMIT: Final = 256  # bounds how long the first one of a batch waits for the others

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_PASSING: Final = _BUSY | {sqlite3.SQLITE_FULL}
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
class _Request:
    job: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    writes: bool = True
    result: Any = None
    error: Exception | None = None


class SqliteWriter:
    """Runs jobs on the database file `path`.

    `schema` is a script that creates the tables of a new file in their newest `version`. A file of an older one is
    migrated step by step: `migrations` has the step from each version to the next.
    """

    def __init__(
        self, path: Path, schema: str, version: int = 1, migrations: Mapping[int, Migration] | None = None
    ) -> None:
        self.path = path
        self.commits = 0  # transactions committed so far
        self._schema = schema
        self._version = version
        self._migrations = migrations or {}
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()  # None asks the thread to end
        self._reads: SimpleQueue[_Request | None] = SimpleQueue()
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
        self._requests.put(_Request(job, done, writes))
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
        self._reads.put(_Request(job, done, writes=False))
        return await asyncio.shield(done)

    async def read_in_turn(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Like `read`, but on the writing connection and behind what was submitted before."""
        return await asyncio.shield(self.submit(job, writes=False))

    # From here on: in the threads.

    def _serve_reads(self) -> None:
        connection: sqlite3.Connection | None = None
        while (request := self._reads.get()) is not None:
            try:
                connection = connection or _open_for_reading(self.path)
                request.result = request.job(connection)
            except Exception as error:
                request.error = _translate(error, self.path)
            self._tell_loop(_resolve, [request])
        if connection is not None:
            connection.close()

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            self._connection = _open_database(self.path, self._schema, self._version, self._migrations)
        except StorageError as error:
            self._tell_loop(_fail_unless_done, opened, error)
        else:
            self._tell_loop(_succeed_unless_done, opened)
            while batch := self._next_batch():
                self._run(batch)
            if self._reader is not None:
                self._reader.join()  # who closes last cleans up the log
            self._connection.close()
        self._tell_loop(_succeed_unless_done, self._closed)

    def _next_batch(self) -> list[_Request]:
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

    def _run(self, batch: Sequence[_Request]) -> None:
        if writes := [request for request in batch if request.writes]:
            self._write(writes)
        for request in batch:
            if not request.writes:
                self._read(request)
        self._tell_loop(_resolve, batch)

    def _write(self, requests: Sequence[_Request]) -> None:
        try:
            self._commit(requests)
        except Exception as error:
            # Waiting out the lock once for all of them is enough; any other failure belongs to one of them.
            if len(requests) == 1 or _is_busy(error):
                for request in requests:
                    request.error = _translate(error, self.path)
            else:
                for request in requests:
                    self._write([request])

    def _commit(self, requests: Sequence[_Request]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for request in requests:
                request.result = request.job(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite rolls back by itself when the disk is full
                self._connection.execute("ROLLBACK")
            raise
        self.commits += 1

    def _read(self, request: _Request) -> None:
        try:
            request.result = request.job(self._connection)
        except Exception as error:
            request.error = _translate(error, self.path)

    def _tell_loop(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(callback, *args)


def _resolve(batch: Sequence[_Request]) -> None:
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


def run_script(connection: sqlite3.Connection, script: str, parameters: Mapping[str, object] | None = None) -> None:
    """Unlike `executescript` it leaves the transaction open. A line ends one statement at most."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement, parameters or {})
            statement = ""
    connection.execute(statement)


def _open_database(path: Path, schema: str, version: int, migrations: Mapping[int, Migration]) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise StorageError(f"{path} cannot be opened: the folder {path.parent} does not exist, create it first")
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        _prepare(connection, path, version)
        _bring_up_to_date(connection, schema, version, migrations)
    except (sqlite3.Error, StorageError) as error:
        if connection is not None:
            connection.close()
        raise _translate(error, path) from None
    return connection


def _open_for_reading(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute("PRAGMA query_only=ON")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, version: int) -> None:
    # Read first: a damaged or foreign file must be noticed before the switch to WAL writes to it. Tables before
    # version: another process may create both in between, and a version without its tables cannot be seen then.
    tables = _one_number(connection, "SELECT count(*) FROM sqlite_schema")
    found = _one_number(connection, "PRAGMA user_version")
    if found > version:
        raise StorageError(f"{path} was made by a newer version of FlowCatalyst: use that, or name another file")
    if found == 0 and tables:
        raise StorageError(f"{path} was not made by FlowCatalyst: name another file")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")


def _bring_up_to_date(
    connection: sqlite3.Connection, schema: str, version: int, migrations: Mapping[int, Migration]
) -> None:
    if _one_number(connection, "PRAGMA user_version") == version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _one_number(connection, "PRAGMA user_version")  # another process may have been faster
        if found == 0:
            run_script(connection, schema)
        else:
            for step in range(found, version):
                migrations[step](connection)
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _one_number(connection: sqlite3.Connection, query: str) -> int:
    number: int = connection.execute(query).fetchone()[0]
    return number


def _primary_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF  # the rest tells variants apart


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and _primary_code(error) in _BUSY


def _translate(error: Exception, path: Path) -> Exception:
    """An error of SQLite as one sentence for people; anything else as it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = _primary_code(error)
    sentence = f"{path} {_ADVICE.get(code, f'could not be used: {error}')}"
    return StorageUnavailableError(sentence) if code in _PASSING else StorageError(sentence)
