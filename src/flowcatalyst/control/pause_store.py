"""PauseStore: keeps what people paused, held and gave up, so that a restart does not undo it."""

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowcatalyst.core.errors import StorageError
from flowcatalyst.router.pauses import Pause, PauseKind, Pauses
from flowcatalyst.router.skips import Skips
from flowcatalyst.storage.migrations import Migrations, numbered_steps
from flowcatalyst.storage.sqlite import SqliteWriter

MIGRATIONS: Final = Migrations(numbered_steps("flowcatalyst.control", "migrations/pauses"))

_ALL: Final = "SELECT kind, name, paused_by, since FROM pauses ORDER BY since, kind, name"
_PUT: Final = """
    INSERT INTO pauses (kind, name, paused_by, since) VALUES (?, ?, ?, ?)
    ON CONFLICT (kind, name) DO UPDATE SET paused_by = excluded.paused_by, since = excluded.since"""
_REMOVE: Final = "DELETE FROM pauses WHERE kind = ? AND name = ?"


_SKIPS: Final = "SELECT broker_id, reason FROM skips"
_PUT_SKIP: Final = """
    INSERT INTO skips (broker_id, reason) VALUES (?, ?)
    ON CONFLICT (broker_id) DO UPDATE SET reason = excluded.reason"""
_REMOVE_SKIP: Final = "DELETE FROM skips WHERE broker_id = ?"


class PauseStore:
    """Calls fail as `StorageError`."""

    def __init__(self, path: Path, pauses: Pauses, skips: Skips) -> None:
        self.writer = SqliteWriter(path, MIGRATIONS)
        self.changing = asyncio.Lock()  # one change after the other, so that the file says what is in force
        self._pauses = pauses
        self._skips = skips
        # What is in force and could not be written; None: it is over.
        self._unwritten: dict[tuple[PauseKind, str], Pause | None] = {}
        self._unwritten_skips: dict[str, str] = {}
        skips.on_over = self._skip_is_over

    async def open(self) -> None:
        await self.writer.open()
        await self.refresh()

    async def refresh(self) -> None:
        """Take over what the file says: the router that worked until now may have been another process. What could not
        be written here stays as it is."""
        async with self.changing:
            pauses = {(PauseKind(kind), name): Pause(by, at) for kind, name, by, at in await self.writer.read(_all)}
            skips = dict(await self.writer.read(lambda connection: connection.execute(_SKIPS).fetchall()))
            in_force = {key: pause for key, pause in (pauses | self._unwritten).items() if pause is not None}
            self._pauses.replace(in_force)
            self._skips.replace(skips | self._unwritten_skips)

    async def close(self) -> None:
        await self.writer.close()

    async def put(self, kind: PauseKind, name: str, pause: Pause) -> None:
        """It is durable when this returns."""
        self._unwritten[kind, name] = pause
        await self.writer.run(lambda connection: connection.execute(_PUT, (kind, name, pause.by, pause.since)))
        del self._unwritten[kind, name]

    async def remove(self, kind: PauseKind, name: str) -> None:
        self._unwritten[kind, name] = None
        await self.writer.run(lambda connection: connection.execute(_REMOVE, (kind, name)))
        del self._unwritten[kind, name]

    async def put_skip(self, broker_id: str, reason: str) -> None:
        self._unwritten_skips[broker_id] = reason
        await self.writer.run(lambda connection: connection.execute(_PUT_SKIP, (broker_id, reason)))
        self._unwritten_skips.pop(broker_id, None)

    def _skip_is_over(self, broker_id: str) -> None:
        """Nobody waits for it: one that is left behind is of a message that does not come again."""
        self._unwritten_skips.pop(broker_id, None)
        with suppress(StorageError):
            removed = self.writer.submit(lambda connection: connection.execute(_REMOVE_SKIP, (broker_id,)))
            removed.add_done_callback(lambda done: done.cancelled() or done.exception())


def _all(connection: sqlite3.Connection) -> list[tuple[str, str, str, float]]:
    return connection.execute(_ALL).fetchall()
