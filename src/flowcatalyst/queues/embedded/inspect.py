"""Looks into an embedded store, by plain functions of a connection that only reads."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import parse_pointer
from flowcatalyst.queues.embedded.lanes import decode_text, encode, one
from flowcatalyst.queues.inspection import COUNTED, Lock, StoredGroup, StoredHead, StoredMessage

SLICE: Final = 20_000  # messages that are looked at in one go

_LANE: Final = f"""
    SELECT l.id, l.name, l.pool, l.owner, l.due, l.epoch, l.leased_to, first.seq, first.failures, first.published_at,
      (SELECT count(*) FROM (SELECT 1 FROM messages WHERE lane = l.id LIMIT {COUNTED})) AS messages
    FROM lanes AS l CROSS JOIN messages AS first ON first.lane = l.id
      AND first.seq = (SELECT min(seq) FROM messages WHERE lane = l.id)"""
_BY_NAMES: Final = f"{_LANE} WHERE l.queue = :queue AND l.name IN (SELECT value FROM json_each(:names))"
_DELAYED: Final = f"""{_LANE}
    WHERE l.queue = :queue AND l.due > :now AND l.owner IS NULL AND l.name IS NOT NULL AND first.failures > 0
    ORDER BY l.due LIMIT :most"""
_HEADS: Final = """
    SELECT l.name, first.seq, first.body FROM lanes AS l CROSS JOIN messages AS first ON first.lane = l.id
      AND first.seq = (SELECT min(seq) FROM messages WHERE lane = l.id)
    WHERE l.queue = :queue AND l.name IN (SELECT value FROM json_each(:names))"""
_OF_LANE: Final = f"{_LANE} WHERE l.id = :lane"
_MESSAGE: Final = f"""
    SELECT m.body, m.published_at, m.failures,
      (SELECT count(*) FROM (SELECT 1 FROM messages WHERE lane = m.lane AND seq < m.seq LIMIT {COUNTED}))
    FROM messages AS m WHERE m.lane = :lane AND m.seq = :seq"""
_NEXT_SLICE: Final = """
    SELECT m.lane, m.seq, CASE WHEN instr(m.body, :needle) THEN m.body END FROM messages AS m
    WHERE (m.lane, m.seq) > (:lane, :seq) ORDER BY m.lane, m.seq LIMIT :most"""
_IS_OF_QUEUE: Final = "SELECT 1 FROM lanes WHERE id = ? AND queue = ?"

# The first messages of some lanes: the one of each pool that has been ready for longest, some more that are ready, and
# some that are not. With fewer lanes it is the oldest of the queue; with more, one that is at least nearly as old.
MOST_POOLS_LOOKED_AT: Final = 100
MOST_LANES_LOOKED_AT: Final = 500
_OLDEST: Final = f"""
    WITH RECURSIVE firsts (id, pool) AS (
      SELECT * FROM (
        SELECT id, pool FROM lanes WHERE queue = :queue AND due IS NULL ORDER BY pool, turn LIMIT 1)
      UNION ALL
      SELECT l.id, l.pool FROM firsts CROSS JOIN lanes AS l ON l.id = (
        SELECT id FROM lanes WHERE queue = :queue AND due IS NULL AND pool > firsts.pool ORDER BY pool, turn LIMIT 1)
      LIMIT {MOST_POOLS_LOOKED_AT}),
    looked_at (id) AS (
      SELECT id FROM firsts
      UNION ALL SELECT * FROM (
        SELECT id FROM lanes WHERE queue = :queue AND due IS NULL ORDER BY pool, turn LIMIT {MOST_LANES_LOOKED_AT})
      UNION ALL SELECT * FROM (
        SELECT id FROM lanes WHERE queue = :queue AND due IS NOT NULL ORDER BY due LIMIT {MOST_LANES_LOOKED_AT}))
    SELECT min((SELECT published_at FROM messages WHERE lane = looked_at.id ORDER BY seq LIMIT 1)) FROM looked_at"""

BrokerId = Callable[[int], str]


class Place(NamedTuple):
    """Where a message stands, or how far a search came."""

    lane: int
    seq: int


BEGIN: Final = Place(-(2**63), -(2**63))


def groups(
    connection: sqlite3.Connection, queue: str, names: Sequence[str], now: float, broker_id: BrokerId
) -> dict[str, StoredGroup]:
    rows = connection.execute(_BY_NAMES, {"queue": queue, "names": encode([encode(name) for name in names])}).fetchall()
    found = (_group(row, queue, now, broker_id) for row in rows)
    return {one.group: one for one in found if one.group is not None}


def heads(
    connection: sqlite3.Connection, queue: str, names: Sequence[str], broker_id: BrokerId
) -> dict[str, StoredHead]:
    rows = connection.execute(_HEADS, {"queue": queue, "names": encode([encode(name) for name in names])})
    return {msgspec.json.decode(str(name)): StoredHead(broker_id(seq), decode_text(body)) for name, seq, body in rows}


def delayed_groups(
    connection: sqlite3.Connection, queue: str, most: int, now: float, broker_id: BrokerId
) -> list[StoredGroup]:
    rows = connection.execute(_DELAYED, {"queue": queue, "now": now, "most": most}).fetchall()
    return [_group(row, queue, now, broker_id) for row in rows]


def search(
    connection: sqlite3.Connection, queue: str, name: str, seq: int | None, after: Place
) -> tuple[Place | None, Place | None]:
    """Where a message is that has this id, or this place, in the next slice; and where to go on, if there is more."""
    needle = encode(encode(name))[1:-1]
    bound = {"needle": needle, "lane": after.lane, "seq": after.seq, "most": SLICE}
    last: Place | None = None
    count = 0
    for lane, at, body in connection.execute(_NEXT_SLICE, bound):
        count, last = count + 1, Place(lane, at)
        is_it = at == seq or (body is not None and _app_id(decode_text(body)) == name)
        if is_it and connection.execute(_IS_OF_QUEUE, (lane, queue)).fetchone():
            return last, None
    return None, last if count == SLICE else None


def message(
    connection: sqlite3.Connection, queue: str, place: Place, now: float, broker_id: BrokerId
) -> StoredMessage | None:
    """None: it is gone meanwhile."""
    row = connection.execute(_MESSAGE, place._asdict()).fetchone()
    lane = connection.execute(_OF_LANE, {"lane": place.lane}).fetchone()
    if row is None or lane is None:
        return None
    body, published_at, failures, ahead = row
    return StoredMessage(
        broker_id(place.seq), decode_text(body), published_at, failures, ahead, _group(lane, queue, now, broker_id)
    )


def _group(row: tuple[Any, ...], queue: str, now: float, broker_id: BrokerId) -> StoredGroup:
    _, name, pool, owner, due, _, _, seq, failures, published_at, messages = row
    delayed = owner is None and due is not None and due > now
    return StoredGroup(
        group=None if name is None else msgspec.json.decode(str(name)),
        pool=msgspec.json.decode(str(pool)),
        lock=Lock.LEASED if owner is not None else Lock.DELAYED if delayed else Lock.NONE,
        due_in_s=due - now if delayed else None,
        messages=messages,
        head_id=broker_id(seq),
        head_failures=failures,
        head_published_at=published_at,
        queue=queue,
    )


def _app_id(body: str) -> str | None:
    try:
        return parse_pointer(body).id
    except InvalidMessageError:
        return None


def oldest_at(connection: sqlite3.Connection, queue: str) -> float | None:
    """Wall time when the oldest message was published, as far as a bounded look tells; None: there is none."""
    found: float | None = one(connection, _OLDEST, {"queue": queue})
    return found
