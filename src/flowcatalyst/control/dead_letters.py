"""Dead letters: messages that will never be delivered, kept with the reason until a person decides."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from flowcatalyst.control.letter_filter import ANY, LetterFilter
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError, StorageError
from flowcatalyst.core.message import Delivery, Outcome, parse_pointer, without_mark
from flowcatalyst.core.targets import endpoint_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.words import count
from flowcatalyst.queues.contract import Outgoing, Publisher
from flowcatalyst.queues.front import FrontQueue
from flowcatalyst.storage.migrations import Migrations, numbered_steps
from flowcatalyst.storage.sqlite import SqliteWriter

MIGRATIONS: Final = Migrations(numbered_steps("flowcatalyst.control", "migrations/dead_letters"))
REPLAY_BATCH = 100
DROP_BATCH = 100  # bodies may be long: to remove as many takes some milliseconds
MOST_NEW = 100  # that are counted
MAX_READ_BYTES = 2 * 1024 * 1024  # of several letters at once
TARGETS_AT_ONCE = 200  # of letters that an older version left: others write too
MAX_NUMBER = 2**63 - 1
_COLUMNS = "number, message_id, queue, group_id, body, reason, status, excerpt, failures, recorded_at"
_BODY: Final = _COLUMNS.split(", ").index("body")
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


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


class NoFrontError(FlowCatalystError):
    """Nothing can be put in front of a group in this queue."""


class ReplayedError(FlowCatalystError):
    """Somebody else replayed or removed the letter just now."""


class NoTargetError(FlowCatalystError):
    """The message names no target that could be changed."""


class DeadLetters:
    """Records, lists, replays and purges dead letters."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.writer = SqliteWriter(path, MIGRATIONS)
        self._clock = clock
        self._tasks = Tasks()
        self._replaying = asyncio.Lock()  # two who replay a letter at once must not send it twice
        self.dropped = {"age": 0, "count": 0}  # by the bound that they were beyond

    async def open(self) -> None:
        await self.writer.open()
        if await self.writer.read(_some_of_an_older_version):
            self._tasks.spawn(self._note_targets(), "note targets of dead letters")

    async def close(self) -> None:
        await self._tasks.cancel()
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
            "" if outcome is None else endpoint_of(delivery.pointer.mediation_target),
        )
        columns = f"{_COLUMNS.removeprefix('number, ')}, target"
        query = f"INSERT INTO dead_letters ({columns}) VALUES ({', '.join('?' * len(values))})"
        await self.writer.run(lambda connection: connection.execute(query, values))

    async def count(self) -> int:
        return await self.writer.read(_count)

    async def count_matching(self, wanted: LetterFilter) -> int:
        return await self.count() if wanted == ANY else await self._count_matching(wanted)

    async def count_newer(self, seconds: float) -> int:
        """How many that were recorded within that time are still there, up to `MOST_NEW`."""
        since = self._clock.wall() - seconds
        query = f"SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE recorded_at >= ? LIMIT {MOST_NEW})"
        return await self.writer.read(lambda connection: int(connection.execute(query, (since,)).fetchone()[0]))

    async def page(
        self,
        limit: int = 100,
        after: int = 0,
        body_chars: int = -1,
        wanted: LetterFilter = ANY,
        *,
        newest_first: bool = False,
    ) -> list[DeadLetter]:
        """Oldest first, those with a number above `after`; fewer if they are large, but one at least.

        `newest_first`: with a number below `after`, unless that is 0. Of each body only the first `body_chars`
        characters are read if that is no negative number.
        """
        columns = _COLUMNS.replace("body", "body" if body_chars < 0 else f"substr(body, 1, {body_chars:d})")
        numbers, values = _numbers(after, limit, wanted, newest_first=newest_first)
        order = "DESC" if newest_first else "ASC"
        query = f"SELECT {columns} FROM dead_letters WHERE number IN ({numbers}) ORDER BY number {order}"
        return await self.writer.read(lambda connection: _read(connection.execute(query, values)))

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

    async def has_after(self, number: int, wanted: LetterFilter = ANY, *, newest_first: bool = False) -> bool:
        """Whether a page that ended with this letter is followed by another one."""
        query, values = _numbers(number, 1, wanted, newest_first=newest_first)
        return await self.writer.read(lambda connection: connection.execute(query, values).fetchone() is not None)

    async def replay(
        self,
        letter: DeadLetter,
        publishers: Mapping[str, Publisher],
        *,
        target: str | None = None,
        in_front: bool = False,
    ) -> None:
        """Publish the message to its queue again and forget the letter.

        It goes behind whatever its group holds now, or in front of that, and to another target if one is given, which
        the caller has checked.
        """
        if not letter.is_text:
            raise InvalidMessageError("the body is not UTF-8 text, and only text can be published again")
        async with self._replaying:
            if await self.get(letter.number, 0) is None:
                raise ReplayedError(f"dead letter {letter.number} was replayed or removed meanwhile")
            await self._replay(letter, publishers, target, in_front=in_front)

    async def _replay(
        self, letter: DeadLetter, publishers: Mapping[str, Publisher], target: str | None, *, in_front: bool
    ) -> None:
        body = letter.body if target is None else _with_target(letter.body, target)
        message = Outgoing(body, letter.group)
        publisher = _publisher_of(letter.queue, publishers)
        # Publish first: a crash in between leaves a letter that was replayed already, not a message that is gone.
        if not in_front:
            await publisher.publish([message])
        elif isinstance(publisher, FrontQueue):
            await publisher.publish_in_front(message)
        else:
            raise NoFrontError(
                f"the broker of queue {letter.queue!r} only takes messages at the end: nothing can be put in front of "
                "a group there, replay it behind"
            )
        await self._delete([letter.number])

    async def replay_all(self, publishers: Mapping[str, Publisher], wanted: LetterFilter = ANY) -> AsyncIterator[int]:
        """Replay every letter of a filter that there is now, oldest first; yields how many, as they go. Those that end
        here again meanwhile, and those whose body is not text, are not touched. Those of queues that are not known
        here stay too, which `UnknownQueueError` tells in the end.
        """
        last, after, replayed, unknown = await self._last_number(), 0, 0, Counter[str]()
        while True:
            async with self._replaying:
                found = await self.page(REPLAY_BATCH, after, wanted=wanted)
                batch = [one for one in found if one.number <= last]
                if not batch:
                    break
                after = batch[-1].number
                texts = [letter for letter in batch if letter.is_text]
                for queue in dict.fromkeys(letter.queue for letter in texts):
                    mine = [letter for letter in texts if letter.queue == queue]
                    if queue not in publishers:
                        unknown[queue] += len(mine)
                        continue
                    await self._replay_batch(mine, publishers)
                    replayed += len(mine)
                    yield len(mine)
        if unknown:
            done = count(replayed, "dead letter was", "dead letters were")
            left = " and ".join(f"{number:,} of queue {queue!r}" for queue, number in unknown.items())
            were = "was" if unknown.total() == 1 else "were"
            queues = "that queue is" if len(unknown) == 1 else "these queues are"
            raise UnknownQueueError(f"{done} replayed, {left} {were} not: {queues} not known here")

    async def purge(self, number: int) -> bool:
        return await self._delete([number]) == 1

    async def purge_all(self, wanted: LetterFilter = ANY) -> AsyncIterator[int]:
        """Remove every letter of a filter that there is now, oldest first; yields how many, as they go."""
        last = await self._last_number()
        while purged := await self.writer.run(lambda connection: _drop_oldest(connection, DROP_BATCH, last, wanted)):
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
        publisher = _publisher_of(letters[0].queue, publishers)
        # Publish first, as for one.
        await publisher.publish([Outgoing(letter.body, letter.group) for letter in letters])
        await self._delete([letter.number for letter in letters])

    async def _delete(self, numbers: Sequence[int]) -> int:
        query = "DELETE FROM dead_letters WHERE number IN (SELECT value FROM json_each(?))"
        wanted = msgspec.json.encode(numbers).decode()
        return await self.writer.run(lambda connection: connection.execute(query, (wanted,)).rowcount)

    async def _note_targets(self) -> None:
        """Of letters that an older version left: to write a million of them takes a minute."""
        with suppress(StorageError):  # a full disk: the next start goes on
            while await self.writer.run(_note_some_targets):
                pass

    async def _count_matching(self, wanted: LetterFilter) -> int:
        source, values = wanted.where("number > 0")
        query = f"SELECT count(*) FROM {source}"
        return await self.writer.read(lambda connection: int(connection.execute(query, values).fetchone()[0]))

    async def _last_number(self) -> int:
        query = "SELECT coalesce(max(number), 0) FROM dead_letters"
        return await self.writer.read(lambda connection: int(connection.execute(query).fetchone()[0]))


def _count(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("SELECT dead_letters FROM totals").fetchone()[0]
    return count


def _drop_oldest(connection: sqlite3.Connection, count: int, last: int = MAX_NUMBER, wanted: LetterFilter = ANY) -> int:
    source, values = wanted.where("number <= :last")
    query = f"DELETE FROM dead_letters WHERE number IN (SELECT number FROM {source} ORDER BY number LIMIT :count)"
    return connection.execute(query, {**values, "last": last, "count": max(count, 0)}).rowcount


def _numbers(after: int, limit: int, wanted: LetterFilter, *, newest_first: bool) -> tuple[str, dict[str, Any]]:
    """The query for the numbers of a page, and its values."""
    backwards = "number < :after" if after else "number <= :after"
    source, values = wanted.where(backwards if newest_first else "number > :after")
    start = after or MAX_NUMBER if newest_first else after
    order = "DESC" if newest_first else "ASC"
    query = f"SELECT number FROM {source} ORDER BY number {order} LIMIT :limit"
    return query, {**values, "after": start, "limit": limit}


_OF_AN_OLDER_VERSION: Final = "SELECT number, body FROM dead_letters WHERE target IS NULL ORDER BY number LIMIT ?"


def _some_of_an_older_version(connection: sqlite3.Connection) -> bool:
    return connection.execute(_OF_AN_OLDER_VERSION, (1,)).fetchone() is not None


def _note_some_targets(connection: sqlite3.Connection) -> int:
    """How many."""
    found = connection.execute(_OF_AN_OLDER_VERSION, (TARGETS_AT_ONCE,))
    targets = [(_endpoint_in(body), number) for number, body in found]
    connection.executemany("UPDATE dead_letters SET target = ? WHERE number = ?", targets)
    return len(targets)


def _endpoint_in(body: str | bytes) -> str:
    try:
        return endpoint_of(parse_pointer(body).mediation_target)
    except InvalidMessageError:
        return ""


def _with_target(body: str, target: str) -> str:
    """The message for another target, as it was otherwise, with what we do not know of."""
    try:
        parse_pointer(body)
    except InvalidMessageError:
        raise NoTargetError("the body is no message that names a target, so there is none to change") from None
    fields = _fields.decode(without_mark(body))
    return msgspec.json.encode({**fields, "mediationTarget": target}).decode()


def _publisher_of(queue: str, publishers: Mapping[str, Publisher]) -> Publisher:
    publisher = publishers.get(queue)
    if publisher is None:
        raise UnknownQueueError(f"queue {queue!r} is not known here: nothing of it was replayed")
    return publisher


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
