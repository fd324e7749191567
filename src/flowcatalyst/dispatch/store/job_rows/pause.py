"""Paused subscriptions: which they are, and the walk over their jobs that locks or unlocks their lanes."""

import sqlite3
from collections.abc import Collection
from typing import Final

from flowcatalyst.dispatch.job import position
from flowcatalyst.dispatch.store.job_rows.columns import refresh
from flowcatalyst.queues.embedded.lanes import encode

_PAUSED: Final = """
    SELECT code FROM paused_subscriptions WHERE paused AND code IN (SELECT value FROM json_each(?))"""


def paused_of(connection: sqlite3.Connection, subscriptions: Collection[str]) -> set[str]:
    """Those of them that are paused."""
    if not subscriptions:
        return set()
    return {code for (code,) in connection.execute(_PAUSED, (encode(list(subscriptions)),))}


_PAUSE: Final = """
    INSERT INTO paused_subscriptions (code, paused, walked_to) VALUES (:code, 1, 0)
    ON CONFLICT DO UPDATE SET paused = 1, walked_to = 0 WHERE NOT paused"""
_RESUME: Final = "UPDATE paused_subscriptions SET paused = 0, walked_to = 0 WHERE code = :code AND paused"


def set_paused(connection: sqlite3.Connection, subscription: str, now: float, wall: float, *, paused: bool) -> None:
    """To say it again changes nothing, also while the walk goes on."""
    connection.execute(_PAUSE if paused else _RESUME, {"code": subscription})


_TO_DO: Final = """
    SELECT code, paused, walked_to FROM paused_subscriptions WHERE walked_to IS NOT NULL ORDER BY code LIMIT 1"""
_JOBS: Final = """
    SELECT number, sequence FROM jobs INDEXED BY unfinished_of_subscription
    WHERE subscription = :code AND subscription IS NOT NULL AND finished_at IS NULL AND number > :after
    ORDER BY number LIMIT :limit"""
_LANES: Final = """
    SELECT m.seq, m.lane FROM json_each(?) AS asked CROSS JOIN messages AS m ON m.seq = asked.value"""
_WALKED: Final = "UPDATE paused_subscriptions SET walked_to = :to WHERE code = :code"
_THROUGH: Final = "DELETE FROM paused_subscriptions WHERE code = ? AND NOT paused"


def settle(connection: sqlite3.Connection, limit: int, now: float, wall: float) -> int:
    """Work out again what the lanes of some jobs wait for, the oldest job first; how many jobs."""
    while (to_do := connection.execute(_TO_DO).fetchone()) is not None:
        code, paused, walked_to = to_do
        jobs = connection.execute(_JOBS, {"code": code, "after": walked_to, "limit": limit}).fetchall()
        places = [position(sequence, number) for number, sequence in jobs]
        lane_of = dict(connection.execute(_LANES, (encode(places),)).fetchall())
        lanes = dict.fromkeys(lane_of[place] for place in places if place in lane_of)
        refresh(connection, list(lanes), now)  # in this order they get their turns
        through = len(jobs) < limit
        connection.execute(_WALKED, {"code": code, "to": None if through else jobs[-1][0]})
        if through and not paused:
            connection.execute(_THROUGH, (code,))
        if jobs:
            return len(jobs)
    return 0
