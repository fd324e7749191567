"""Dead letters: messages that will never be delivered, kept with the reason until a person decides."""

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from flowcatalyst.clock import Clock
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.message import Delivery, Outcome
from flowcatalyst.queues.contract import Outgoing, Publisher
from flowcatalyst.sqlite_writer import SqliteWriter

REPLAY_BATCH = 100
MOST_NEW = 100  # that are counted; bodies may be long, and to count is to read them
MAX_READ_BYTES = 2 * 1024 * 1024  # of several letters at once
_COLUMNS = "number, message_id, queue, group_id, body, reason, status, excerpt, failures, recorded_at"


class DeadLetter(msgspec.Struct, frozen=True, rename="camel"):
    """A message as it was, and why it ended."""

    number: int
    message_id: str  # empty if the body could not be read
    queue: str
    group: str | None
    body: str
    reason: str
    status: int | None
    excerpt: str  # beginning of the endpoint's response
    failures: int
    recorded_at: float


class UnknownQueueError(FlowCatalystError):
    """The queue that the message came from is not known here, so the message cannot be replayed."""


class DeadLetters:
    """Records, lists, replays and purges dead letters."""

    def __init__(self, path: Path, clock: Clock) -> None:
        schema = files("flowcatalyst.operations").joinpath("dead_letters.sql").read_text()
        self._writer = SqliteWriter(path, schema)
        self._clock = clock
        self._newest_at = 0.0  # wall; of what this process recorded or found

    async def open(self) -> None:
        await self._writer.open()
        query = "SELECT recorded_at FROM dead_letters ORDER BY number DESC LIMIT 1"
        newest = await self._writer.read(lambda connection: connection.execute(query).fetchone())
        self._newest_at = newest[0] if newest else 0.0

    async def close(self) -> None:
        await self._writer.close()

    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
        """Keep the message. It is durable when this returns."""
        self._newest_at = self._clock.wall()
        values = (
            delivery.pointer.id if outcome is not None else "",
            delivery.source.name,
            delivery.group if outcome is None or delivery.ordered else None,
            delivery.body if isinstance(delivery.body, str) else delivery.body.decode("utf-8", "backslashreplace"),
            reason,
            None if outcome is None else outcome.status,
            "" if outcome is None else outcome.excerpt,
            delivery.failures,
            self._newest_at,
        )
        await self._writer.run(lambda connection: _insert(connection, values))

    async def count(self) -> int:
        return await self._writer.read(
            lambda connection: int(connection.execute("SELECT count(*) FROM dead_letters").fetchone()[0])
        )

    async def count_newer(self, seconds: float) -> int:
        """How many that were recorded within that time are still there, up to `MOST_NEW`."""
        since = self._clock.wall() - seconds
        if self._newest_at < since:
            return 0
        newest = f"SELECT recorded_at FROM dead_letters ORDER BY number DESC LIMIT {MOST_NEW}"
        query = f"SELECT count(*) FROM ({newest}) WHERE recorded_at >= ?"
        return await self._writer.read(lambda connection: int(connection.execute(query, (since,)).fetchone()[0]))

    async def list(self, limit: int = 100, after: int = 0, body_chars: int = -1) -> list[DeadLetter]:
        """Oldest first, those with a number above `after`; fewer if they are large, but one at least.

        Of each body only the first `body_chars` characters are read if that is no negative number.
        """
        columns = _COLUMNS.replace("body", "body" if body_chars < 0 else f"substr(body, 1, {body_chars:d})")
        query = f"SELECT {columns} FROM dead_letters WHERE number > ? ORDER BY number LIMIT ?"
        return await self._writer.read(lambda connection: _read(connection.execute(query, (after, limit))))

    async def get(self, number: int, body_chars: int = -1) -> DeadLetter | None:
        found = await self.list(limit=1, after=number - 1, body_chars=body_chars)
        return found[0] if found and found[0].number == number else None

    async def numbers_of(self, message_ids: Collection[str]) -> dict[str, int]:
        """The newest letter of each of these messages that has one."""
        query = "SELECT message_id, max(number) FROM dead_letters WHERE message_id IN (SELECT value FROM json_each(?))"
        wanted = msgspec.json.encode(list(message_ids)).decode()
        return await self._writer.read(
            lambda connection: dict(connection.execute(f"{query} GROUP BY message_id", (wanted,)).fetchall())
        )

    async def has_after(self, number: int) -> bool:
        return await self._last_number() > number

    async def replay(self, letter: DeadLetter, publishers: Mapping[str, Publisher]) -> None:
        """Publish the message to its queue again, behind whatever its group holds now, and forget the letter."""
        await self._replay_batch([letter], publishers)

    async def replay_all(self, publishers: Mapping[str, Publisher]) -> AsyncIterator[int]:
        """Replay every letter there is now, oldest first; yields how many, as they go. Those that end here again
        meanwhile are not touched.
        """
        last = await self._last_number()
        while batch := [one for one in await self.list(REPLAY_BATCH) if one.number <= last]:
            for queue in dict.fromkeys(letter.queue for letter in batch):
                mine = [letter for letter in batch if letter.queue == queue]
                await self._replay_batch(mine, publishers)
                yield len(mine)

    async def purge(self, number: int) -> bool:
        return await self._delete([number]) == 1

    async def purge_all(self) -> int:
        return await self._writer.run(lambda connection: connection.execute("DELETE FROM dead_letters").rowcount)

    async def _replay_batch(self, letters: Sequence[DeadLetter], publishers: Mapping[str, Publisher]) -> None:
        """Letters of one queue."""
        queue = letters[0].queue
        publisher = publishers.get(queue)
        if publisher is None:
            raise UnknownQueueError(f"queue {queue!r} is not known here: nothing of it was replayed")
        # Publish first: a crash in between leaves a letter that was replayed already, not a message that is gone.
        await publisher.publish([Outgoing(letter.body, letter.group) for letter in letters])
        await self._delete([letter.number for letter in letters])

    async def _delete(self, numbers: Sequence[int]) -> int:
        query = "DELETE FROM dead_letters WHERE number IN (SELECT value FROM json_each(?))"
        wanted = msgspec.json.encode(numbers).decode()
        return await self._writer.run(lambda connection: connection.execute(query, (wanted,)).rowcount)

    async def _last_number(self) -> int:
        query = "SELECT coalesce(max(number), 0) FROM dead_letters"
        return await self._writer.read(lambda connection: int(connection.execute(query).fetchone()[0]))


def _read(rows: Iterable[tuple[Any, ...]]) -> list[DeadLetter]:
    """As many as may be in memory at once."""
    letters: list[DeadLetter] = []
    size = 0
    for row in rows:
        letters.append(DeadLetter(*row))
        size += len(letters[-1].body) + len(letters[-1].group or "")
        if size >= MAX_READ_BYTES:
            break
    return letters


def _insert(connection: sqlite3.Connection, values: tuple[object, ...]) -> None:
    columns = _COLUMNS.removeprefix("number, ")
    connection.execute(f"INSERT INTO dead_letters ({columns}) VALUES ({', '.join('?' * len(values))})", values)
