"""Looks into the lanes of a PostgreSQL database, by functions of a connection that only reads."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.json import encode

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import parse_pointer
from flowcatalyst.queues.inspection import COUNTED, SEARCHED, Lock, StoredGroup, StoredHead, StoredMessage
from flowcatalyst.storage.postgres import Connection

CANDIDATES: Final = 100  # messages that may have an id, by a look at their text
SLICE: Final = 20_000  # messages that are looked at in one go

_LANE: Final = f"""
    SELECT l.id, l.name, l.pool, l.owner IS NOT NULL AS leased,
      extract(epoch FROM l.due - server_time())::float8 AS due_in_s, first.seq, first.failures,
      extract(epoch FROM first.published_at)::float8 AS published_at, least(l.messages, {COUNTED}) AS messages
    FROM lanes AS l JOIN queues AS q ON q.id = l.queue CROSS JOIN LATERAL (
      SELECT m.seq, m.failures, m.published_at FROM messages AS m
      WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first
    WHERE q.name = $1"""
_BY_NAMES: Final = f"{_LANE} AND l.name = ANY ($2)"
_DELAYED: Final = f"""{_LANE} AND l.due > server_time() AND l.owner IS NULL AND l.name IS NOT NULL
    AND first.failures > 0 ORDER BY l.due LIMIT $2"""
_HEADS: Final = """
    SELECT l.name, first.seq, first.body
    FROM lanes AS l JOIN queues AS q ON q.id = l.queue CROSS JOIN LATERAL (
      SELECT m.seq, m.body FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first
    WHERE q.name = $1 AND l.name = ANY ($2)"""
_OF_LANE: Final = f"{_LANE} AND l.id = $2"
_BY_PLACE: Final = """
    SELECT m.lane, m.seq FROM lanes AS l JOIN queues AS q ON q.id = l.queue JOIN messages AS m ON m.lane = l.id
    WHERE q.name = $1 AND m.seq = $2 LIMIT 1"""
# Those of a slice that may have an id, and its end: the next slice begins behind the last of them.
_BY_TEXT: Final = """
    WITH slice AS MATERIALIZED (
      SELECT lane, seq, body FROM messages WHERE (lane, seq) > ($3, $4) ORDER BY lane, seq LIMIT $5)
    SELECT s.lane, s.seq, s.body FROM slice AS s JOIN lanes AS l ON l.id = s.lane JOIN queues AS q ON q.id = l.queue
    WHERE q.name = $1 AND s.seq >= l.head AND strpos(s.body, $2) > 0
    UNION ALL (SELECT lane, seq, NULL FROM slice ORDER BY lane DESC, seq DESC LIMIT 1)
    ORDER BY lane, seq LIMIT $6"""
_MESSAGE: Final = f"""
    SELECT m.body, extract(epoch FROM m.published_at)::float8, m.failures,
      (SELECT count(*) FROM (SELECT 1 FROM messages AS k JOIN lanes AS l ON l.id = k.lane
        WHERE k.lane = m.lane AND k.seq >= l.head AND k.seq < m.seq LIMIT {COUNTED}) AS before)
    FROM messages AS m WHERE m.lane = $1 AND m.seq = $2"""

BrokerId = Callable[[int], str]


class Place(NamedTuple):
    """Where a message stands, or how far a search came."""

    lane: int
    seq: int


Found = tuple[Place | None, Place | None]
Run = Callable[[Callable[[Connection], Awaitable[Found]]], Awaitable[Found]]
_FIRST: Final = Place(-1, -1)


async def groups(
    connection: Connection, queue: str, names: Sequence[str], broker_id: BrokerId
) -> dict[str, StoredGroup]:
    return {row["name"]: _group(row, queue, broker_id) for row in await connection.fetch(_BY_NAMES, queue, list(names))}


async def heads(connection: Connection, queue: str, names: Sequence[str], broker_id: BrokerId) -> dict[str, StoredHead]:
    rows = await connection.fetch(_HEADS, queue, list(names))
    return {row["name"]: StoredHead(broker_id(row["seq"]), row["body"]) for row in rows}


async def delayed_groups(connection: Connection, queue: str, most: int, broker_id: BrokerId) -> list[StoredGroup]:
    return [_group(row, queue, broker_id) for row in await connection.fetch(_DELAYED, queue, most)]


async def place(connection: Connection, queue: str, seq: int) -> Place | None:
    row = await connection.fetchrow(_BY_PLACE, queue, seq)
    return None if row is None else Place(row["lane"], row["seq"])


async def search(run: Run, queue: str, name: str) -> Place | None:
    """By an application id, slice by slice, so that what is received and settled meanwhile finds a connection."""
    needle, after = encode(name).decode(), _FIRST
    for _ in range(SEARCHED // SLICE):
        found, more = await run(partial(search_slice, queue=queue, name=name, needle=needle, after=after))
        if found is not None or more is None:
            return found
        after = more
    return None


async def search_slice(connection: Connection, queue: str, name: str, needle: str, after: Place) -> Found:
    """Where a message is that has this application id, whose JSON text is `needle`, in the next slice; and where to go
    on, if there may be more."""
    rows = await connection.fetch(_BY_TEXT, queue, needle, *after, SLICE, CANDIDATES)
    places = [
        Place(row["lane"], row["seq"]) for row in rows if row["body"] is not None and _app_id(row["body"]) == name
    ]
    if places:
        return places[0], None
    return None, Place(rows[-1]["lane"], rows[-1]["seq"]) if rows else None


async def message(connection: Connection, queue: str, place: Place, broker_id: BrokerId) -> StoredMessage | None:
    lane, at = place
    row = await connection.fetchrow(_MESSAGE, lane, at)
    group = await connection.fetchrow(_OF_LANE, queue, lane)
    if row is None or group is None:
        return None  # it is gone meanwhile
    body, published_at, failures, ahead = row
    return StoredMessage(broker_id(at), body, published_at, failures, ahead, _group(group, queue, broker_id))


def _group(row: Any, queue: str, broker_id: BrokerId) -> StoredGroup:
    delayed = not row["leased"] and row["due_in_s"] is not None and row["due_in_s"] > 0
    return StoredGroup(
        group=row["name"],
        pool=row["pool"],
        lock=Lock.LEASED if row["leased"] else Lock.DELAYED if delayed else Lock.NONE,
        due_in_s=row["due_in_s"] if delayed else None,
        messages=row["messages"],
        head_id=broker_id(row["seq"]),
        head_failures=row["failures"],
        head_published_at=row["published_at"],
        queue=queue,
    )


def _app_id(body: str) -> str | None:
    try:
        return parse_pointer(body).id
    except InvalidMessageError:
        return None
