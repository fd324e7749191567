"""Groups in a PostgreSQL database: what is known of them, holding them, and figures of all."""

from collections.abc import Sequence
from heapq import merge
from typing import Any, Final

import msgspec

from flowcatalyst.dispatch.job import number_at
from flowcatalyst.dispatch.store import postgres_rows
from flowcatalyst.dispatch.store.contract import (
    GROUP_SIZES,
    PLACES_COUNTED,
    CursorError,
    Figures,
    GroupPage,
    GroupState,
    Place,
)
from flowcatalyst.dispatch.store.postgres_columns import restored, stored
from flowcatalyst.queues.sharing import MAX_CODES
from flowcatalyst.storage.postgres import Connection

HEADS_LOOKED_AT: Final = 100  # of those that wait longest, for each pool
DUE_LOOKED_AT: Final = 10_000

# The group, since when it is stopped, its size, its first job and since when that fails, and its hold.
_SELECT: Final = """
    SELECT g.name, extract(epoch FROM g.since)::float8, coalesce(l.messages, 0), first.seq,
      extract(epoch FROM first.failed_at)::float8, extract(epoch FROM h.held_at)::float8, coalesce(h.held_by, '')
    FROM ({groups}) AS g
      LEFT JOIN lanes AS l ON l.queue = $1 AND l.name = g.name
      LEFT JOIN holds AS h ON h.queue = $1 AND h.grp = g.name
      LEFT JOIN LATERAL (
        SELECT m.seq, m.failed_at FROM messages AS m
        WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first ON true"""
_ONE: Final = _SELECT.format(groups="SELECT $2::text AS name, NULL::timestamptz AS since")
_BLOCKED: Final = _SELECT.format(
    groups="""
    SELECT b.name, b.blocked_at AS since FROM lanes AS b
    WHERE b.queue = $1 AND b.name IS NOT NULL AND b.blocked_at IS NOT NULL
    AND (b.blocked_at, b.name) > (to_timestamp($2), $3)
    AND NOT EXISTS (SELECT 1 FROM holds AS k WHERE k.queue = $1 AND k.grp = b.name AND k.held_at <= b.blocked_at)
    ORDER BY b.blocked_at, b.name LIMIT $4"""
)
_HELD: Final = _SELECT.format(
    groups="""
    SELECT k.grp AS name, k.held_at AS since FROM holds AS k
    WHERE k.queue = $1 AND (k.held_at, k.grp) > (to_timestamp($2), $3)
    AND NOT EXISTS (
      SELECT 1 FROM lanes AS b WHERE b.queue = $1 AND b.name = k.grp AND b.blocked_at < k.held_at)
    ORDER BY k.held_at, k.grp LIMIT $4"""
)
_GOING: Final = _SELECT.format(
    groups="""
    SELECT b.name, NULL::timestamptz AS since FROM lanes AS b
    WHERE b.queue = $1 AND b.name IS NOT NULL AND b.name > $2 AND b.blocked_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM holds AS k WHERE k.queue = $1 AND k.grp = b.name)
    ORDER BY b.name LIMIT $3"""
)

_cursor: Final = msgspec.json.Decoder(tuple[float | None, str])  # of the last group that was listed


async def groups(connection: Connection, queue: int, limit: int, cursor: str | None, *, blocked: bool) -> GroupPage:
    """Those that are blocked or held, the longest first, then the others by name."""
    since, name = _begin(cursor)
    rows: list[Any] = []
    if since is not None:
        found = [await connection.fetch(query, queue, since, name, limit + 1) for query in (_BLOCKED, _HELD)]
        rows, name = list(merge(*found, key=lambda row: (row[1], row[0])))[: limit + 1], ""
    if not blocked and len(rows) <= limit:
        rows += await connection.fetch(_GOING, queue, name, limit + 1 - len(rows))
    items = await _states(connection, rows[:limit])
    more = len(rows) > limit
    return GroupPage(items, msgspec.json.encode((rows[limit - 1][1], rows[limit - 1][0])).decode() if more else None)


def _begin(cursor: str | None) -> tuple[float | None, str]:
    if cursor is None:
        return 0.0, ""
    try:
        since, name = _cursor.decode(cursor)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise CursorError("the cursor is not one of a list of groups") from None
    return since, stored(restored(name))


async def group(connection: Connection, queue: int, name: str) -> GroupState:
    (state,) = await _states(connection, await connection.fetch(_ONE, queue, stored(name)))
    return state


async def _states(connection: Connection, rows: Sequence[Any]) -> list[GroupState]:
    heads = await postgres_rows.states_of(connection, [number_at(row[3]) for row in rows if row[3] is not None])
    return [
        GroupState(
            restored(name),
            jobs,
            None if place is None else heads.get(number_at(place)),
            blocked_since,
            held_since,
            restored(held_by),
        )
        for name, _, jobs, place, blocked_since, held_since, held_by in rows
    ]


async def hold(connection: Connection, queue: int, name: str, wall: float, actor: str) -> GroupState:
    await connection.execute("SELECT hold_group($1, $2, $3, $4)", queue, stored(name), wall, stored(actor))
    return await group(connection, queue, name)


async def release(connection: Connection, queue: int, name: str) -> GroupState:
    await connection.execute("SELECT release_group($1, $2)", queue, stored(name))
    return await group(connection, queue, name)


_LANE: Final = """
    SELECT l.id, s.place, (
      SELECT m.seq FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1)
    FROM job_states AS s JOIN lanes AS l ON l.id = s.lane WHERE s.number = $1 AND l.name IS NOT NULL"""
_AHEAD: Final = """
    SELECT count(*) FROM (SELECT 1 FROM messages WHERE lane = $1 AND seq >= $2 AND seq < $3 LIMIT $4) AS ahead"""


async def place_of(connection: Connection, job_id: str) -> Place | None:
    found = await connection.fetchrow(_LANE, await postgres_rows.number_of(connection, job_id))
    if found is None:
        return None
    lane, place, head = found
    if head == place or head is None:
        return Place(0)
    ahead = await connection.fetchval(_AHEAD, lane, head, place, PLACES_COUNTED)
    heads = await postgres_rows.states_of(connection, [number_at(head)])
    return Place(ahead, heads.get(number_at(head)))


_COUNTED: Final = """
    SELECT sum(messages)::bigint, sum(scheduled)::bigint, sum(parked)::bigint, sum(groups)::bigint,
      sum(blocked)::bigint,
      ARRAY(
        SELECT sum(s.one)::bigint FROM counts AS k CROSS JOIN unnest(k.sizes) WITH ORDINALITY AS s (one, n)
        WHERE k.queue = $1 GROUP BY s.n ORDER BY s.n),
      (SELECT count(*) FROM (SELECT 1 FROM job_states WHERE scheduled_for <= $2 LIMIT $3) AS due)
    FROM counts WHERE queue = $1"""
_OLDEST: Final = """
    SELECT min(j.created_at) FROM ({lanes}) AS l
      CROSS JOIN LATERAL (
        SELECT m.seq FROM messages AS m WHERE m.lane = l.id AND m.seq >= l.head ORDER BY m.seq LIMIT 1) AS first
      JOIN jobs AS j ON j.number = number_at(first.seq)
    WHERE coalesce(j.expires_at > $2, true)"""
_OLDEST_READY: Final = _OLDEST.format(
    lanes="""
    SELECT id, head FROM lanes
    WHERE queue = $1 AND owner IS NULL AND due IS NULL AND pool = $4 ORDER BY turn LIMIT $3"""
)
_OLDEST_DUE: Final = _OLDEST.format(
    lanes="SELECT id, head FROM lanes WHERE queue = $1 AND due <= server_time() ORDER BY due LIMIT $3"
)
_POOLS: Final = """
    WITH RECURSIVE walk (pool) AS (
      (SELECT pool FROM lanes WHERE queue = $1 AND owner IS NULL AND due IS NULL ORDER BY pool LIMIT 1)
      UNION ALL
      SELECT (
        SELECT l.pool FROM lanes AS l WHERE l.queue = $1 AND l.owner IS NULL AND l.due IS NULL AND l.pool > walk.pool
        ORDER BY l.pool LIMIT 1)
      FROM walk WHERE walk.pool IS NOT NULL)
    SELECT pool FROM walk WHERE pool IS NOT NULL LIMIT $2"""


async def figures(connection: Connection, queue: int, wall: float) -> Figures:
    """As counted while jobs come and go.

    The oldest is the oldest of the first jobs of those groups that wait longest: where very many do at once, one that
    joined them later may be older.
    """
    entered, scheduled, parked, count, blocked, sizes, due = await connection.fetchrow(
        _COUNTED, queue, wall, DUE_LOOKED_AT
    )
    pools = await connection.fetch(_POOLS, queue, MAX_CODES)
    oldest = [await connection.fetchval(_OLDEST_READY, queue, wall, HEADS_LOOKED_AT, pool) for (pool,) in pools]
    oldest.append(await connection.fetchval(_OLDEST_DUE, queue, wall, HEADS_LOOKED_AT))
    return Figures(
        waiting=entered - parked + due,
        scheduled=scheduled - due,
        parked=parked,
        groups=count,
        blocked=blocked,
        jobs_in_groups=dict(zip(GROUP_SIZES, sizes, strict=True)),
        oldest_waiting_at=min((at for at in oldest if at is not None), default=None),
    )
