"""What can be seen of one job, and of all of them in figures."""

import sqlite3
from typing import Final

from flowcatalyst.dispatch.job import JobState, number_at, position
from flowcatalyst.dispatch.store.contract import GROUP_SIZES, PLACES_COUNTED, ActionTaken, AttemptMade, Figures, Place
from flowcatalyst.dispatch.store.job_rows.columns import QUEUE, jobs_of, row_by_id, state_of
from flowcatalyst.queues.embedded.lanes import one
from flowcatalyst.queues.sharing import MAX_CODES

HEADS_LOOKED_AT: Final = 100  # of those that wait longest, for each pool
DUE_LOOKED_AT: Final = 10_000


def find(connection: sqlite3.Connection, job_id: str, now: float) -> JobState:
    return state_of(row_by_id(connection, job_id, now))


_ATTEMPTS: Final = """
    SELECT attempt, began_at, duration_s, status, error, counts, detail, excerpt
    FROM attempts WHERE job = ? ORDER BY attempt"""
_HISTORY: Final = "SELECT at, actor, action FROM actions WHERE job = ? ORDER BY at, rowid"


def attempts_of(connection: sqlite3.Connection, job_id: str, now: float) -> list[AttemptMade]:
    rows = connection.execute(_ATTEMPTS, (row_by_id(connection, job_id, now)[0],)).fetchall()
    return [
        AttemptMade(number, began_at, duration_s, status, error, bool(counts), detail, excerpt)
        for number, began_at, duration_s, status, error, counts, detail, excerpt in rows
    ]


def history_of(connection: sqlite3.Connection, job_id: str, now: float) -> list[ActionTaken]:
    rows = connection.execute(_HISTORY, (row_by_id(connection, job_id, now)[0],)).fetchall()
    return [ActionTaken(at, actor, action) for at, actor, action in rows]


_LANE: Final = """
    SELECT l.id FROM messages AS m CROSS JOIN lanes AS l ON l.id = m.lane WHERE m.seq = ? AND l.name IS NOT NULL"""
_HEAD: Final = "SELECT seq FROM messages WHERE lane = ? ORDER BY seq LIMIT 1"
_AHEAD: Final = "SELECT count(*) FROM (SELECT 1 FROM messages WHERE lane = ? AND seq < ? LIMIT ?)"


def place_of(connection: sqlite3.Connection, job_id: str, now: float) -> Place | None:
    row = row_by_id(connection, job_id, now)
    place = position(state_of(row).job.sequence, row[0])
    lane = connection.execute(_LANE, (place,)).fetchone()
    if lane is None:
        return None
    head = one(connection, _HEAD, lane)
    if head == place:
        return Place(0)
    ahead = one(connection, _AHEAD, (lane[0], place, PLACES_COUNTED))
    return Place(ahead, jobs_of(connection, [number_at(head)], now)[number_at(head)])


_COUNTED: Final = """
    SELECT ifnull((SELECT messages FROM queues WHERE name = :queue), 0), scheduled, parked, blocked,
      (SELECT count(*) FROM (
        SELECT 1 FROM jobs WHERE entered = 0 AND finished_at IS NULL AND scheduled_for <= :wall LIMIT :most))
    FROM figures"""
_SIZES: Final = "SELECT size, groups FROM group_sizes"
_READY_POOLS: Final = """
    WITH RECURSIVE walk (pool) AS (
      SELECT min(pool) FROM lanes WHERE queue = :queue AND due IS NULL
      UNION ALL
      SELECT (SELECT min(pool) FROM lanes WHERE queue = :queue AND due IS NULL AND pool > walk.pool)
      FROM walk WHERE walk.pool IS NOT NULL LIMIT :most)
    SELECT pool FROM walk WHERE pool IS NOT NULL"""
_OLDEST: Final = """
    SELECT min(j.created_at) FROM ({lanes} LIMIT :most) AS l
    CROSS JOIN jobs AS j ON j.number = (SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1) & 2199023255551
    WHERE ifnull(j.expires_at > :wall, 1)"""
OLDEST_READY: Final = _OLDEST.format(
    lanes="SELECT id FROM lanes WHERE queue = :queue AND due IS NULL AND pool = :pool ORDER BY turn"
)
OLDEST_DUE: Final = _OLDEST.format(lanes="SELECT id FROM lanes WHERE queue = :queue AND due <= :now ORDER BY due")


def figures(connection: sqlite3.Connection, now: float, wall: float) -> Figures:
    """As counted while jobs come and go.

    The oldest is the oldest of the first jobs of those groups that wait longest: where very many do at once, one that
    joined them later may be older.
    """
    counted = {"queue": QUEUE, "wall": wall, "most": DUE_LOOKED_AT}
    entered, scheduled, parked, blocked, due = connection.execute(_COUNTED, counted).fetchone()
    sizes = dict(connection.execute(_SIZES).fetchall())
    look = {"queue": QUEUE, "most": HEADS_LOOKED_AT, "wall": wall, "now": now}
    pools = connection.execute(_READY_POOLS, {"queue": QUEUE, "most": MAX_CODES}).fetchall()
    oldest = [one(connection, OLDEST_READY, {**look, "pool": pool}) for (pool,) in pools]
    oldest.append(one(connection, OLDEST_DUE, look))
    return Figures(
        waiting=entered - parked + due,
        scheduled=scheduled - due,
        parked=parked,
        groups=sum(sizes.values()),
        blocked=blocked,
        jobs_in_groups={bound: sum(groups for size, groups in sizes.items() if size <= bound) for bound in GROUP_SIZES},
        oldest_waiting_at=min((at for at in oldest if at is not None), default=None),
    )
