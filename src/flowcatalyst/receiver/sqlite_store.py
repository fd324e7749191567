"""What a guard remembers, in SQLite: in a file of its own, or in the database and the transaction of an application."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.receiver.guard import REMEMBERED, Known

BUSY_S: Final = 30.0

_PAUSE_S: Final = 0.02
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS flowcatalyst_groups (name TEXT PRIMARY KEY, last INTEGER NOT NULL, "
    "floor INTEGER NOT NULL, changed_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS flowcatalyst_done (name TEXT, seq INTEGER, webhook_id TEXT NOT NULL, "
    "PRIMARY KEY (name, seq)) WITHOUT ROWID",
)
_CLOCK: Final = SystemClock()


class SqliteTransactionStore:
    """A store in the transaction of somebody else's connection: what it records is kept or undone with the rest.

    Begin that transaction with BEGIN IMMEDIATE. `create_tables` has to have been called once for the database.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create_tables(self) -> None:
        for statement in _SCHEMA:
            self._connection.execute(statement)

    def get(self, group: str, webhook_id: str, prev: int) -> Known:
        found = self._connection.execute(
            "SELECT last, floor, "
            "ifnull((SELECT max(seq) FROM flowcatalyst_done d WHERE d.name = g.name AND d.webhook_id = ?), 0), "
            "EXISTS (SELECT 1 FROM flowcatalyst_done d WHERE d.name = g.name AND d.seq = ?) "
            "FROM flowcatalyst_groups g WHERE name = ?",
            (webhook_id, prev, group),
        ).fetchone()
        return Known() if found is None else Known(found[0], found[1], found[2], bool(found[3]))

    def advance(self, group: str, seq: int, webhook_id: str, prev: int) -> Known:
        before = self.get(group, webhook_id, prev)
        last, floor = before.after(seq, prev)
        self._raise_to(group, last, floor)
        self._connection.execute(
            "INSERT OR REPLACE INTO flowcatalyst_done (name, seq, webhook_id) VALUES (?, ?, ?)",
            (group, seq, webhook_id),
        )
        self._connection.execute(
            "DELETE FROM flowcatalyst_done WHERE name = ? AND seq <= ?", (group, last - REMEMBERED)
        )
        return before

    def resume_after(self, group: str, seq: int) -> None:
        self._raise_to(group, seq, seq)

    def forget_before(self, time: float) -> int:
        """Forget groups in which nothing was done since (seconds since the epoch); returns how many."""
        self._connection.execute(
            "DELETE FROM flowcatalyst_done WHERE name IN (SELECT name FROM flowcatalyst_groups WHERE changed_at < ?)",
            (time,),
        )
        return self._connection.execute("DELETE FROM flowcatalyst_groups WHERE changed_at < ?", (time,)).rowcount

    def _raise_to(self, group: str, last: int, floor: int) -> None:
        self._connection.execute(
            "INSERT INTO flowcatalyst_groups (name, last, floor, changed_at) VALUES (?, ?, ?, ?) ON CONFLICT (name) "
            "DO UPDATE SET last = max(last, excluded.last), floor = max(floor, excluded.floor), "
            "changed_at = excluded.changed_at",
            (group, last, floor, _CLOCK.wall()),
        )


class SqliteGuardStore:
    """A store in a file that any number of threads and processes share. What was recorded survives a power cut."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._connections: dict[int, sqlite3.Connection] = {}  # by the process that opened it
        with self._transaction() as tables:
            tables.create_tables()
        self.close()  # a server that forks its workers does so now, and they have nothing to inherit

    def get(self, group: str, webhook_id: str, prev: int) -> Known:
        with self._lock:
            return SqliteTransactionStore(self._own_connection()).get(group, webhook_id, prev)

    def advance(self, group: str, seq: int, webhook_id: str, prev: int) -> Known:
        with self._transaction() as tables:
            return tables.advance(group, seq, webhook_id, prev)

    def resume_after(self, group: str, seq: int) -> None:
        with self._transaction() as tables:
            tables.resume_after(group, seq)

    def forget_before(self, time: float) -> int:
        """Forget groups in which nothing was done since (seconds since the epoch); returns how many."""
        with self._transaction() as tables:
            return tables.forget_before(time)

    def close(self) -> None:
        """Let go of the file until it is used again."""
        with self._lock:
            if (connection := self._connections.pop(os.getpid(), None)) is not None:
                connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTransactionStore]:
        with self._lock, self._own_connection() as connection:  # which commits, or rolls back after an error
            connection.execute("BEGIN IMMEDIATE")
            yield SqliteTransactionStore(connection)

    def _own_connection(self) -> sqlite3.Connection:
        """One that this process opened. What a worker inherited by a fork it must neither use nor close."""
        process = os.getpid()
        if process not in self._connections:
            self._connections[process] = self._open()
        return self._connections[process]

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=0.0, isolation_level=None, check_same_thread=False)
        for attempt in count(1):
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError:
                # Those who make a file at the same moment may refuse each other this at once, whatever the timeout: so
                # the waiting is done here.
                if attempt * _PAUSE_S > BUSY_S:
                    connection.close()
                    raise
                threading.Event().wait(_PAUSE_S)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")
        return connection
