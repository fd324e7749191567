"""Looks into the lanes of a PostgreSQL database, by functions of a connection that only reads."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import parse_pointer
from flowcatalyst.queues.inspection import COUNTED, SEARCHED, Lock, StoredGroup, StoredMessage
from flowcatalyst.storage.postgres import Connection

CANDIDATES: Final = 100  # messages that may have an id, by a look at their text

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
_OF_LANE: Final = f"{_LANE} AND l.id = $2"
_BY_PLACE: Final = """
    SELECT m.lane, m.seq FROM lanes AS l JOIN queues AS q ON q.id = l.queue JOIN messages AS m ON m.lane = l.id
    WHERE q.name = $1 AND m.seq = $2 LIMIT 1"""
_BY_TEXT: Final = f"""
    SELECT m.lane, m.seq, m.body FROM (
      SELECT k.lane, k.seq, k.body FROM lanes AS l JOIN queues AS q ON q.id = l.queue
        JOIN messages AS k ON k.lane = l.id AND k.seq >= l.head
      WHERE q.name = $1 LIMIT {SEARCHED}) AS m
    WHERE strpos(m.body, $2) > 0 LIMIT {CANDIDATES}"""
_MESSAGE: Final = f"""
    SELECT m.body, extract(epoch FROM m.published_at)::float8, m.failures,
      (SELECT count(*) FROM (SELECT 1 FROM messages AS k JOIN lanes AS l ON l.id = k.lane
        WHERE k.lane = m.lane AND k.seq >= l.head AND k.seq < m.seq LIMIT {COUNTED}) AS before)
    FROM messages AS m WHERE m.lane = $1 AND m.seq = $2"""

BrokerId = Callable[[int], str]


async def groups(
    connection: Connection, queue: str, names: Sequence[str], broker_id: BrokerId
) -> dict[str, StoredGroup]:
    return {row["name"]: _group(row, broker_id) for row in await connection.fetch(_BY_NAMES, queue, list(names))}


async def delayed_groups(connection: Connection, queue: str, most: int, broker_id: BrokerId) -> list[StoredGroup]:
    return [_group(row, broker_id) for row in await connection.fetch(_DELAYED, queue, most)]


async def find(
    connection: Connection, queue: str, name: str, seq: int | None, needle: str, broker_id: BrokerId
) -> StoredMessage | None:
    """By its place, else by an application id whose JSON text is `needle`."""
    places = await connection.fetch(_BY_PLACE, queue, seq) if seq is not None else []
    if not places:
        found = await connection.fetch(_BY_TEXT, queue, needle)
        places = [row for row in found if _app_id(row["body"]) == name]
    if not places:
        return None
    lane, at = places[0]["lane"], places[0]["seq"]
    row = await connection.fetchrow(_MESSAGE, lane, at)
    group = await connection.fetchrow(_OF_LANE, queue, lane)
    if row is None or group is None:
        return None  # it is gone meanwhile
    body, published_at, failures, ahead = row
    return StoredMessage(broker_id(at), body, published_at, failures, ahead, _group(group, broker_id))


def _group(row: Any, broker_id: BrokerId) -> StoredGroup:
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
    )


def _app_id(body: str) -> str | None:
    try:
        return parse_pointer(body).id
    except InvalidMessageError:
        return None
