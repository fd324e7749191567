"""Asking back what a router has in hand and did not start: lanes are marked, and their owners answer."""

import sqlite3
from collections.abc import Sequence
from typing import Final

from flowcatalyst.dispatch.store.contract import RECALL_LOCK_S, Recall
from flowcatalyst.dispatch.store.job_rows.columns import refresh
from flowcatalyst.dispatch.store.job_rows.groups import lanes_of
from flowcatalyst.queues.embedded.lanes import encode
from flowcatalyst.queues.recalls import Lease

GRAIN_S: Final = 1e-6  # tells two recalls of the same moment apart

_LANES: Final = """
    SELECT DISTINCT m.lane FROM json_each(?) AS asked CROSS JOIN jobs AS j ON j.id = asked.value
    CROSS JOIN messages AS m ON m.seq = (j.sequence << 41 | j.number)"""
# Of what routers have in hand, which is bounded.
_OF_SUBSCRIPTION: Final = """
    SELECT l.id FROM lanes AS l INDEXED BY leased_lanes
    WHERE l.owner IS NOT NULL AND l.due > :now AND (
      SELECT subscription FROM jobs WHERE number = (
        SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1) & 2199023255551) = :subscription"""
_LEASED: Final = """
    SELECT id, ifnull(recalled_until, 0) FROM lanes
    WHERE id IN (SELECT value FROM json_each(:lanes)) AND owner IS NOT NULL AND due > :now ORDER BY id"""
_ASK: Final = """
    UPDATE lanes SET recall_epoch = epoch, recalled_until = :until WHERE id IN (SELECT value FROM json_each(:lanes))"""


def ask(
    connection: sqlite3.Connection,
    jobs: Sequence[str],
    group: str | None,
    subscription: str | None,
    now: float,
    wall: float,
) -> Recall[float]:
    """Ask the lanes of these jobs, of a group and of a subscription back, as far as they are in somebody's hands."""
    lanes = {lane for (lane,) in connection.execute(_LANES, (encode(list(jobs)),))}
    if group is not None:
        lanes |= lanes_of(connection, group)
    if subscription is not None:
        of_it = connection.execute(_OF_SUBSCRIPTION, {"subscription": subscription, "now": now})
        lanes |= {lane for (lane,) in of_it}
    leased = connection.execute(_LEASED, {"lanes": encode(sorted(lanes)), "now": now}).fetchall()
    until = max([now + RECALL_LOCK_S, *(before + GRAIN_S for _, before in leased)])
    recall = Recall(tuple(lane for lane, _ in leased), until)
    connection.execute(_ASK, {"lanes": encode(recall.lanes), "until": until})
    return recall


_IN_HAND: Final = """
    SELECT 1 FROM lanes WHERE id IN (SELECT value FROM json_each(:lanes))
    AND owner IS NOT NULL AND due > :now AND recall_epoch = epoch LIMIT 1"""


def is_answered(connection: sqlite3.Connection, lanes: Sequence[int], now: float) -> bool:
    """Whether nobody has them in hand who was asked and did not answer."""
    return connection.execute(_IN_HAND, {"lanes": encode(lanes), "now": now}).fetchone() is None


_END: Final = """
    UPDATE lanes SET recalled_until = NULL
    WHERE id IN (SELECT value FROM json_each(:lanes)) AND recalled_until = :until RETURNING id"""


def end(connection: sqlite3.Connection, recall: Recall[float], now: float, wall: float) -> None:
    """Hand out of these lanes again, but for those that somebody else asked back since then.

    What was not answered stays asked for: somebody else may wait for the answer too.
    """
    ended = connection.execute(_END, {"lanes": encode(recall.lanes), "until": recall.until}).fetchall()
    refresh(connection, [lane for (lane,) in ended], now)


# The owner's side

_RECALLED: Final = """
    SELECT id, epoch FROM lanes INDEXED BY recalled_lanes
    WHERE owner = ? AND recall_epoch IS NOT NULL AND recall_epoch = epoch ORDER BY id"""
_ANSWER: Final = "UPDATE lanes SET recall_epoch = NULL WHERE id = ? AND recall_epoch = ?"


def recalled(connection: sqlite3.Connection, owner: str) -> list[Lease]:
    """Leases of an owner that it was asked for and did not answer yet."""
    return [Lease(*row) for row in connection.execute(_RECALLED, (owner,))]


def answer(connection: sqlite3.Connection, leases: Sequence[Lease]) -> None:
    connection.executemany(_ANSWER, leases)
