"""What is done to lanes: plain functions of a connection, each one statement; a transaction may be composed of them.

The statements are functions of the database (see migrations/): a lane is locked by one statement and looked at by the
next, and in between there is no way to the client and back. They fail with the errors of asyncpg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import asyncpg

from flowcatalyst.core.message import MAX_NAME_CHARS, UNREADABLE, Settled, pool_code_of
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.recalls import Lease
from flowcatalyst.queues.sharing import LANE_SHARE
from flowcatalyst.storage.postgres import Connection

OWNER_GONE = "FC001"  # raised by `take`
CLAIM_VOID = "FC002"
GROUP_IN_HAND = "FC003"  # raised by `publish_in_front`
LANES_LOOKED_AT = 300  # of each kind, for the age of the oldest message


class Receipt(NamedTuple):
    """Proof of one delivery. It goes stale when its lane is leased again."""

    lane: int
    seq: int
    epoch: int


@dataclass(slots=True, frozen=True)
class Entry:
    """A message as it is put into a lane."""

    body: str
    pool: str
    group: str | None = None  # None: in a lane of its own
    deduplication_id: str | None = None
    place: int | None = None  # in its lane; None for all of a call: at the end


class Leased(NamedTuple):
    """A message as `take` hands it out."""

    lane: int
    seq: int
    epoch: int
    turn: int
    receives: int
    failures: int
    group: str | None
    body: str
    published_at: float  # wall time; 0: just now

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.lane, self.seq, self.epoch)


class Taken(Protocol):
    """What a queue needs to know of a message that it leased."""

    @property
    def receipt(self) -> Receipt: ...

    @property
    def failures(self) -> int: ...


@dataclass(slots=True, frozen=True)
class Ready:
    """The pools that lanes are ready for, longest ready first."""

    pools: list[str]
    last: str | None  # of those that were looked at, by name
    due_in_s: float | None  # until the next delayed lane of the queue is due


def entry_of(message: Outgoing) -> Entry:
    pool = pool_code_of(message.body)
    if len(pool) > MAX_NAME_CHARS or "\0" in pool:
        pool = UNREADABLE  # what names such a pool becomes a dead letter, or goes to the default pool
    return Entry(message.body, pool, message.group, message.deduplication_id)


async def open_queue(connection: Connection, name: str) -> int:
    """The number of a queue; it is made if there is none of that name."""
    number: int = await connection.fetchval("SELECT open_queue($1)", name)
    return number


async def identity(connection: Connection) -> tuple[str, dict[str, int]]:
    """What tells these tables from others, empty if that is gone; and how many messages each queue holds."""
    rows = await connection.fetch(
        "SELECT s.id, q.name, sum(c.messages)::bigint FROM store AS s "
        "LEFT JOIN queues AS q ON true LEFT JOIN counts AS c ON c.queue = q.id GROUP BY s.id, q.name"
    )
    return (rows[0][0] if rows else ""), {name: held or 0 for _, name, held in rows if name is not None}


async def setup_warnings(connection: Connection) -> list[str]:
    """What an operator should know of how the server is set up."""
    warnings = []
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        if await connection.fetchval(f"SHOW {setting}") == "off":
            warnings.append(
                f"{setting} is off at the PostgreSQL server: what it confirmed may be lost when it crashes, and what "
                "was acked may be delivered again"
            )
    return warnings


async def publish(connection: Connection, queue: int, entries: Sequence[Entry]) -> list[tuple[int, bool]]:
    """Append messages, in order: their places, and whether they are duplicates and were left out.

    Their groups are locked until the transaction ends, so that those of a group become visible in order, in whichever
    order their producers commit.
    """
    ids = [entry.deduplication_id for entry in entries]
    places = [entry.place for entry in entries]
    rows = await connection.fetch(
        "SELECT seq, is_duplicate FROM publish($1, $2, $3, $4, $5, $6)",
        queue,
        [entry.group for entry in entries],
        [entry.pool for entry in entries],
        [entry.body for entry in entries],
        ids if any(one is not None for one in ids) else None,
        places if any(one is not None for one in places) else None,
    )
    return [(seq, is_duplicate) for seq, is_duplicate in rows]


async def publish_in_front(connection: Connection, queue: int, entry: Entry) -> tuple[int, bool] | None:
    """Put a message before all that its group holds: its place, and whether it is a duplicate and was left out.

    None if somebody has messages of the group leased.
    """
    statement = "SELECT given, is_repeated FROM publish_in_front($1, $2, $3, $4, $5)"
    values = entry.group, entry.pool, entry.body, entry.deduplication_id
    try:
        row = await connection.fetchrow(statement, queue, *values)
    except asyncpg.PostgresError as error:
        if error.sqlstate != GROUP_IN_HAND:
            raise
        return None
    return row["given"], row["is_repeated"]


async def look(connection: Connection, queue: int, after: str | None, most: int) -> Ready:
    """Make ready what is due; for which pools there is something, at most so many of them, by name from `after` on."""
    return ready_of(
        await connection.fetchrow("SELECT pools, turns, due_in_s FROM look($1, $2, $3)", queue, after, most)
    )


def ready_of(row: Mapping[str, Any]) -> Ready:
    turns = dict(zip(row["pools"], row["turns"], strict=True))
    return Ready(sorted(turns, key=turns.__getitem__), row["pools"][-1] if turns else None, row["due_in_s"])


async def take(
    connection: Connection, queue: int, owner: int, claim: int, wanted: dict[str, int], share: int = LANE_SHARE
) -> list[Leased]:
    """Lease up to so many messages for each pool: a share of each lane that is ready, in turn, then more of the same.

    What one call leased is known by its claim: `void` undoes it where the answer was lost.
    """
    rows = await connection.fetch(
        "SELECT lane, seq, epoch, turn, receives, failures, grp, body, published_at "
        "FROM take_dated($1, $2, $3, $4, $5, $6)",
        queue,
        owner,
        claim,
        list(wanted),
        list(wanted.values()),
        share,
    )
    return [Leased(*row) for row in rows]


async def ack(connection: Connection, receipts: Sequence[Receipt]) -> list[Settled]:
    """Delete messages; those already deleted count as done. It fails for groups that somebody else keeps locked."""
    stale, busy = await connection.fetchrow("SELECT stale, busy FROM ack($1, $2, $3)", *columns(receipts))
    return acked(len(receipts), stale, busy)


def acked(asked: int, stale: Sequence[int], busy: Sequence[int]) -> list[Settled]:
    """What became of so many acks, by the positions that the database named."""
    results = [Settled.OK] * asked
    for place in stale:
        results[place - 1] = Settled.GONE
    for place in busy:
        results[place - 1] = Settled.FAILED
    return results


async def nack(
    connection: Connection,
    receipts: Sequence[Receipt],
    failures: Sequence[int],
    delay_s: float,
    *,
    unlock: bool = False,
) -> list[Settled]:
    """Show messages after `delay_s` and remember how often each has failed so far. All are of one queue.

    It fails for groups that somebody else keeps locked.
    """
    statement = "SELECT held, busy FROM nack($1, $2, $3, $4, $5, $6)"
    held, busy = await connection.fetchrow(statement, *columns(receipts), failures, float(delay_s), unlock)
    return nacked(len(receipts), held, busy)


def nacked(asked: int, held: Sequence[int], busy: Sequence[int]) -> list[Settled]:
    """What became of so many nacks, by the positions that the database named."""
    results = [Settled.GONE] * asked
    for place in held:
        results[place - 1] = Settled.OK
    for place in busy:
        results[place - 1] = Settled.FAILED
    return results


async def hurry(connection: Connection, queue: str, group: str | None, seq: int | None) -> bool:
    """End the delays that lock the lane of a message; whether there were any."""
    found: bool = await connection.fetchval("SELECT hurry($1, $2, $3)", queue, group, seq)
    return found


async def recalled(connection: Connection, owner: int) -> list[Lease]:
    """Leases of an owner that somebody wants back, until it answers."""
    return [Lease(*row) for row in await connection.fetch("SELECT lane, epoch FROM recalled($1)", owner)]


async def answer_recalls(connection: Connection, leases: Sequence[Lease]) -> None:
    lane_ids, epochs = [lease.lane for lease in leases], [lease.epoch for lease in leases]
    await connection.execute("SELECT answer_recalls($1, $2)", lane_ids, epochs)


async def depth(connection: Connection, queue: str, *, dated: bool = True) -> Depth:
    """How many messages a queue holds: counted as they come and go, so it costs the same for a million.

    Dated: with the age of the oldest, for which it looks at a bounded number of them.
    """
    row = await connection.fetchrow(
        "SELECT d.messages, d.leased, d.delayed, CASE WHEN $2 THEN oldest(q.id, $3) END "
        "FROM queues AS q CROSS JOIN depth(q.id) AS d WHERE q.name = $1",
        queue,
        dated,
        LANES_LOOKED_AT,
    )
    if row is None:
        return Depth(0, 0, 0)
    messages, leased, delayed = map(int, row[:3])
    return Depth(max(messages - leased - delayed, 0), leased, delayed, oldest_at=row[3])


async def waiting_for(connection: Connection, queue: int, pool: str, most: int) -> int:
    """How many messages are in lanes that are ready and whose first message names this pool, up to `most`."""
    found: int = await connection.fetchval("SELECT waiting_for($1, $2, $3)", queue, pool, most)
    return found


def columns(receipts: Sequence[Receipt]) -> tuple[list[int], list[int], list[int]]:
    """As the functions of the database take them."""
    return [one.lane for one in receipts], [one.seq for one in receipts], [one.epoch for one in receipts]
