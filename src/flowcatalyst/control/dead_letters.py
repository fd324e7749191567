"""Dead letters: messages that will never be delivered, kept with the reason until a person decides."""

import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError
from flowcatalyst.core.message import Delivery, Outcome
from flowcatalyst.queues.contract import Outgoing, Publisher
from flowcatalyst.storage.migrations import Migrations, numbered_steps
from flowcatalyst.storage.sqlite import SqliteWriter

MIGRATIONS: Final = Migrations(numbered_steps("flowcatalyst.control", "migrations/dead_letters"))
REPLAY_BATCH = 100
DROP_BATCH = 100  # bodies may be long: to remove as many takes some milliseconds
MOST_NEW = 100  # that are counted
MAX_READ_BYTES = 2 * 1024 * 1024  # of several letters at once
MAX_NUMBER = 2**63 - 1
_COLUMNS = "number, message_id, queue, group_id, body, reason, status, excerpt, failures, recorded_at"
_BODY: Final = _COLUMNS.split(", ").index("body")


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
    is_text: bool = True  # else the body is shown with escapes, and no queue would take it as it was


class UnknownQueueError(FlowCatalystError):
    """The queue that the message came from is not known here, so the message cannot be replayed."""


class DeadLetters:
    """Records, lists, replays and purges dead letters."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.writer = SqliteWriter(path, MIGRATIONS)
        self._clock = clock
        self.dropped = {"age": 0, "count": 0}  # by the bound that they were beyond

    async def open(self) -> None:
        await self.writer.open()

    async def close(self) -> None:
        await self.writer.close()

    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
        """Keep the message. It is durable when this returns."""
        values = (
            delivery.pointer.id if outcome is not None else "",
            delivery.source.name,
            delivery.group if outcome is None or delivery.ordered else None,
            _as_text(delivery.body),
            reason,
            None if outcome is None else outcome.status,
            "" if outcome is None else outcome.excerpt,
            delivery.failures,
            self._clock.wall(),
        )
        columns = _COLUMNS.removeprefix("number, ")
        query = f"INSERT INTO dead_letters ({columns}) VALUES ({', '.join('?' * len(values))})"
        await self.writer.run(lambda connection: connection.execute(query, values))

    async def count(self) -> int:
        return await self.writer.read(_count)

    async def count_newer(self, seconds: float) -> int:
        """How many that were recorded within that time are still there, up to `MOST_NEW`."""
        since = self._clock.wall() - seconds
        query = f"SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE recorded_at >= ? LIMIT {MOST_NEW})"
        return await self.writer.read(lambda connection: int(connection.execute(query, (since,)).fetchone()[0]))

    async def page(self, limit: int = 100, after: int = 0, body_chars: int = -1) -> list[DeadLetter]:
        """Oldest first, those with a number above `after`; fewer if they are large, but one at least.

        Of each body only the first `body_chars` characters are read if that is no negative number.
        """
        columns = _COLUMNS.replace("body", "body" if body_chars < 0 else f"substr(body, 1, {body_chars:d})")
        query = f"SELECT {columns} FROM dead_letters WHERE number > ? ORDER BY number LIMIT ?"
        return await self.writer.read(lambda connection: _read(connection.execute(query, (after, limit))))

    async def get(self, number: int, body_chars: int = -1) -> DeadLetter | None:
        found = await self.page(limit=1, after=number - 1, body_chars=body_chars)
        return found[0] if found and found[0].number == number else None

    async def numbers_of(self, message_ids: Collection[str]) -> dict[str, int]:
        """The newest letter of each of these messages that has one."""
        query = "SELECT message_id, max(number) FROM dead_letters WHERE message_id IN (SELECT value FROM json_each(?))"
        wanted = msgspec.json.encode(list(message_ids)).decode()
        return await self.writer.read(
            lambda connection: dict(connection.execute(f"{query} GROUP BY message_id", (wanted,)).fetchall())
        )

    async def has_after(self, number: int) -> bool:
        return await self._last_number() > number

    async def replay(self, letter: DeadLetter, publishers: Mapping[str, Publisher]) -> None:
        """Publish the message to its queue again, behind whatever its group holds now, and forget the letter."""
        if not letter.is_text:
            raise InvalidMessageError("the body is not UTF-8 text, and only text can be published again")
        await self._replay_batch([letter], publishers)

    async def replay_all(self, publishers: Mapping[str, Publisher]) -> AsyncIterator[int]:
        """Replay every letter there is now, oldest first; yields how many, as they go. Those that end here again
        meanwhile, and those whose body is not text, are not touched.
        """
        last, after = await self._last_number(), 0
        while batch := [one for one in await self.page(REPLAY_BATCH, after) if one.number <= last]:
            after = batch[-1].number
            texts = [letter for letter in batch if letter.is_text]
            for queue in dict.fromkeys(letter.queue for letter in texts):
                mine = [letter for letter in texts if letter.queue == queue]
                await self._replay_batch(mine, publishers)
                yield len(mine)

    async def purge(self, number: int) -> bool:
        return await self._delete([number]) == 1

    async def purge_all(self) -> AsyncIterator[int]:
        """Remove every letter there is now, oldest first; yields how many, as they go."""
        last = await self._last_number()
        while purged := await self.writer.run(lambda connection: _drop_oldest(connection, DROP_BATCH, last)):
            yield purged

    async def drop_older(self, seconds: float) -> int:
        """Remove some that were recorded before that time; how many, `DROP_BATCH` if there may be more."""
        before = self._clock.wall() - seconds
        old = "SELECT number FROM dead_letters WHERE recorded_at < ? ORDER BY recorded_at LIMIT ?"
        query = f"DELETE FROM dead_letters WHERE number IN ({old})"
        dropped = await self.writer.run(lambda connection: connection.execute(query, (before, DROP_BATCH)).rowcount)
        self.dropped["age"] += dropped
        return dropped

    async def drop_beyond(self, most: int) -> int:
        """Remove some of the oldest if there are more than so many; how many, `DROP_BATCH` if there may be more."""
        dropped = await self.writer.run(
            lambda connection: _drop_oldest(connection, min(_count(connection) - most, DROP_BATCH))
        )
        self.dropped["count"] += dropped
        return dropped

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
        return await self.writer.run(lambda connection: connection.execute(query, (wanted,)).rowcount)

    async def _last_number(self) -> int:
        query = "SELECT coalesce(max(number), 0) FROM dead_letters"
        return await self.writer.read(lambda connection: int(connection.execute(query).fetchone()[0]))


def _count(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT dead_letters FROM totals").fetchone()[0]
    return count


def _drop_oldest(connection: sqlite3.Connection, count: int, last: int = MAX_NUMBER) -> int:
    oldest = "SELECT number FROM dead_letters WHERE number <= ? ORDER BY number LIMIT ?"
    query = f"DELETE FROM dead_letters WHERE number IN ({oldest})"
    return connection.execute(query, (last, max(count, 0))).rowcount


def _as_text(body: str | bytes) -> str | bytes:
    """The text, or the bytes as they are if they are none."""
    try:
        return body if isinstance(body, str) else body.decode()
    except UnicodeDecodeError:
        return body


def _read(rows: Iterable[tuple[Any, ...]]) -> list[DeadLetter]:
    """As many as may be in memory at once."""
    letters: list[DeadLetter] = []
    size = 0
    for row in rows:
        values = [*row, True]
        if isinstance(row[_BODY], bytes):
            values[_BODY], values[-1] = row[_BODY].decode("utf-8", "backslashreplace"), False
        letters.append(DeadLetter(*values))
        size += len(letters[-1].body) + len(letters[-1].group or "")
        if size >= MAX_READ_BYTES:
            break
    return letters
