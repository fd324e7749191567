"""What keeps a job store small and its groups going: jobs expire, and finished ones are forgotten."""

import sqlite3
from typing import Final

import msgspec

from flowcatalyst.dispatch.job import Status, position
from flowcatalyst.dispatch.store.job_rows import positions
from flowcatalyst.dispatch.store.job_rows.columns import IS_LEASED, LOCK, QUEUE
from flowcatalyst.dispatch.store.job_rows.settle import end
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import encode

_OVER: Final = f"""
    SELECT j.number, j.sequence FROM jobs AS j INDEXED BY expiring_jobs
    WHERE j.expires_at IS NOT NULL AND j.finished_at IS NULL AND j.expires_at <= :wall AND NOT {IS_LEASED}
    ORDER BY j.expires_at LIMIT :limit"""
_NEXT_OVER: Final = """
    SELECT min(expires_at) FROM jobs WHERE expires_at IS NOT NULL AND finished_at IS NULL AND expires_at > ?"""


def expire(connection: sqlite3.Connection, limit: int, now: float, wall: float) -> int:
    """End jobs whose time is over, but for those that a router has in hand; how many."""
    over = connection.execute(_OVER, {"wall": wall, "now": now, "limit": limit}).fetchall()
    if not over:
        return 0
    lanes.unlock_what_is_due(connection, QUEUE, now, LOCK)  # some may belong to a lease that is over too
    return end(connection, [position(sequence, number) for number, sequence in over], Status.EXPIRED, now, wall)


def next_expiry(connection: sqlite3.Connection, wall: float) -> float | None:
    """When a job expires next, which may be what its group waits for."""
    found: float | None = lanes.one(connection, _NEXT_OVER, (wall,))
    return found


_OLD: Final = """
    SELECT number, metadata, grp FROM jobs WHERE finished_at IS NOT NULL AND finished_at < ?
    ORDER BY finished_at LIMIT ?"""
_FORGET: Final = (
    "DELETE FROM attempts WHERE job IN (SELECT value FROM json_each(?))",
    "DELETE FROM actions WHERE job IN (SELECT value FROM json_each(?))",
    "DELETE FROM jobs WHERE number IN (SELECT value FROM json_each(?))",
)
_FORGET_METADATA: Final = "DELETE FROM job_metadata WHERE name = ? AND value = ? AND job = ?"


def drop_finished(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """Forget the jobs that were finished first, with all that is known of them; how many."""
    old = connection.execute(_OLD, (before, limit)).fetchall()
    for number, metadata, _ in old:
        if metadata != "{}":
            items = msgspec.json.decode(metadata, type=dict[str, str]).items()
            connection.executemany(_FORGET_METADATA, [(*item, number) for item in items])
    numbers = encode([number for number, _, _ in old])
    for statement in _FORGET:
        connection.execute(statement, (numbers,))
    positions.forget(connection, {group for _, _, group in old if group is not None}, before)
    return len(old)


def is_over(expires_at: float | None, wall: float) -> bool:
    return expires_at is not None and expires_at <= wall
