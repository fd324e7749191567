"""Jobs that are out: published for routers elsewhere, one of a lane at a time, and claimed by who is called back.

A lane knows which of its leases was published. Whatever is done to its lease gives it another number, so that a ticket
with the old one is stale.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from flowcatalyst.core.message import Settled
from flowcatalyst.dispatch.job import number_at
from flowcatalyst.dispatch.store.job_rows.columns import QUEUE, jobs_of, refresh
from flowcatalyst.dispatch.store.job_rows.house import is_over
from flowcatalyst.dispatch.store.platform_contract import Refused, Ticket
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import Receipt, encode
from flowcatalyst.queues.embedded.take import Leased

CLAIM_SLACK_S: Final = 60.0  # beyond the time that an attempt may take, to settle it

_ARE_OUT: Final = """
    SELECT count(*) FROM (
      SELECT 1 FROM lanes INDEXED BY out_lanes
      WHERE pool = :pool AND out_until > :now AND out_until IS NOT NULL AND out_epoch = epoch AND queue = :queue
      LIMIT :most)"""


def free(connection: sqlite3.Connection, pools: Mapping[str, int], now: float) -> dict[str, int]:
    """How many more of each pool may be out."""
    parameters = {"now": now, "queue": QUEUE}
    return {
        code: most - lanes.one(connection, _ARE_OUT, {**parameters, "pool": encode(code), "most": most})
        for code, most in pools.items()
        if most > 0
    }


_BEGIN: Final = """
    UPDATE lanes SET out_epoch = epoch, out_until = NULL WHERE id IN (SELECT value FROM json_each(?))"""


def begin(connection: sqlite3.Connection, ids: Collection[int]) -> None:
    """What was just leased of these lanes is about to be published."""
    if ids:
        connection.execute(_BEGIN, (encode(list(ids)),))


_HAND_OVER: Final = """
    UPDATE lanes SET owner = NULL, out_until = :until FROM json_each(:receipts) AS asked
    WHERE lanes.id = asked.value ->> 1 AND lanes.epoch = asked.value ->> 2 AND lanes.out_epoch = lanes.epoch
    AND lanes.owner = :owner RETURNING lanes.id"""


def hand_over(
    connection: sqlite3.Connection, receipts: Sequence[Receipt], owner: str, seconds: float, now: float
) -> list[Settled]:
    """Their leases end and their lanes stay locked for so long."""
    values = {"receipts": encode(receipts), "owner": owner, "until": now + seconds}
    handed = {lane for (lane,) in connection.execute(_HAND_OVER, values)}
    refresh(connection, handed, now)
    return [Settled.OK if receipt.lane in handed else Settled.GONE for receipt in receipts]


_FOUND: Final = """
    SELECT l.epoch, l.grp, l.owner IS NOT NULL AND l.due > :now, ifnull(l.out_until > :now, 0),
      ifnull(l.recalled_until > :now, 0) OR EXISTS (
        SELECT 1 FROM groups WHERE name = l.grp AND held_since IS NOT NULL),
      m.receives, m.failures, m.body
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id AND m.seq = :place
    WHERE l.id = :lane AND l.epoch = :epoch AND l.out_epoch = :epoch AND l.leased_to = :place"""
_IS_PAUSED: Final = "SELECT EXISTS (SELECT 1 FROM paused_subscriptions WHERE code = ? AND paused)"
# What came before it meanwhile is no part of the lease.
_LEAVE_OUT: Final = "UPDATE messages SET given_back = :epoch + 1 WHERE lane = :lane AND seq < :place"
_CLAIM: Final = """
    UPDATE lanes SET epoch = :epoch + 1, leased = 1, delayed = 0, owner = :owner, due = :until, out_epoch = NULL,
      out_until = NULL
    WHERE id = :lane"""


def claim(
    connection: sqlite3.Connection, ticket: Ticket, owner: str, now: float, wall: float
) -> tuple[Leased, float] | Refused:
    """Lease a job that is out, or is just being published, to `owner`; the message, and for how long."""
    asked = {"lane": ticket.lane, "place": ticket.place, "epoch": ticket.epoch, "now": now}
    found = connection.execute(_FOUND, asked).fetchone()
    if found is None:
        return Refused.STALE
    epoch, group, is_published, is_out, waits, receives, failures, body = found
    job = jobs_of(connection, [number_at(ticket.place)], now)[number_at(ticket.place)].job
    if job.id != ticket.job or not (is_published or is_out) or is_over(job.expires_at, wall):
        return Refused.STALE
    if waits or lanes.one(connection, _IS_PAUSED, (job.subscription,)):
        return Refused.WAITS
    seconds = job.terms.timeout_s + CLAIM_SLACK_S
    ids = encode([ticket.lane])
    lanes.count_hidden(connection, QUEUE, ids, -1)
    connection.execute(_LEAVE_OUT, asked)
    connection.execute(_CLAIM, {**asked, "owner": owner, "until": now + seconds})
    lanes.count_hidden(connection, QUEUE, ids, 1)
    name = None if group == "null" else lanes.decode_text(group)
    message = Leased(0, ticket.place, ticket.lane, epoch + 1, receives + 1, failures, 1, 0.0, name, body)
    return message, seconds
