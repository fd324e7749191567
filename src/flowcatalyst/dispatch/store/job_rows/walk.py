"""Lists of jobs, the newest first. Each walks one index, and no further at a time than one read should take.

What is rare has an index of its own, and so has what jobs are told apart by: group, code, metadata. The rest is looked
at job by job: a list that finds little in `SCANNED_AT_ONCE` jobs ends there, and says where to go on.
"""

import sqlite3
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import FINISHED, Status
from flowcatalyst.dispatch.store.contract import Filter, Page
from flowcatalyst.dispatch.store.job_rows.columns import IS_QUEUED, SELECTED, Row, state_of
from flowcatalyst.dispatch.store.platform_contract import EntryKind

SCANNED_AT_ONCE: Final = 5_000

_IN_HAND: Final = """
    SELECT m.seq & 2199023255551 AS number FROM lanes AS l INDEXED BY leased_lanes
    CROSS JOIN messages AS m ON m.lane = l.id
    WHERE l.owner IS NOT NULL AND l.due > :now AND m.seq <= l.leased_to AND m.given_back <> l.epoch
    UNION ALL
    SELECT l.leased_to & 2199023255551 FROM lanes AS l INDEXED BY out_lanes
    WHERE l.out_until IS NOT NULL AND l.out_until > :now AND l.owner IS NULL AND l.out_epoch = l.epoch"""


@dataclass(slots=True)
class Walk:
    """What of the jobs is walked over, and which of those are wanted."""

    numbers: str  # a query for their numbers, the newest first
    conditions: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def statement(self, selected: str) -> str:
        where = " AND ".join(self.conditions) or "1"
        return f"""
            SELECT {selected} FROM ({self.numbers} LIMIT :scan) AS walked
            CROSS JOIN jobs AS j ON j.number = walked.number WHERE {where} LIMIT :limit"""

    def last(self) -> str:
        """Where a walk ends that is not over then."""
        return f"SELECT number FROM ({self.numbers} LIMIT 1 OFFSET :scan - 1)"


def rows_of(
    connection: sqlite3.Connection, which: Filter, limit: int, cursor: int | None, now: float
) -> tuple[list[Row], int | None]:
    """Up to `limit` jobs, and the cursor of what comes after them."""
    walk = _walk(connection, which, cursor)
    if walk is None:
        return [], None
    parameters = {**walk.parameters, "now": now, "scan": SCANNED_AT_ONCE}
    rows = connection.execute(walk.statement(SELECTED), {**parameters, "limit": limit + 1}).fetchall()
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1][0]
    end = connection.execute(walk.last(), parameters).fetchone()
    return rows, None if end is None else end[0]


def page(connection: sqlite3.Connection, which: Filter, limit: int, cursor: int | None, now: float) -> Page:
    rows, end = rows_of(connection, which, limit, cursor, now)
    return Page([state_of(row) for row in rows], end)


def count(
    connection: sqlite3.Connection, which: Filter, most: int, cursor: int | None, now: float
) -> tuple[int, int | None]:
    """How many there are in one part of the walk, up to `most`, and the cursor of the next part."""
    walk = _walk(connection, which, cursor)
    if walk is None:
        return 0, None
    parameters = {**walk.parameters, "now": now, "scan": SCANNED_AT_ONCE}
    found: int = connection.execute(
        f"SELECT count(*) FROM ({walk.statement('1')})", {**parameters, "limit": most}
    ).fetchone()[0]
    end = connection.execute(walk.last(), parameters).fetchone()
    return found, None if end is None else end[0]


_IS_REMOVED: Final = f"""
    j.subscription IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM catalog AS c WHERE c.kind = '{EntryKind.SUBSCRIPTION}' AND c.code = j.subscription)"""
_CREATED_AT: Final = "SELECT created_at FROM jobs WHERE number = ?"


def _walk(connection: sqlite3.Connection, which: Filter, cursor: int | None) -> Walk | None:
    """None: there can be no such job."""
    if which.status is Status.IN_PROGRESS:
        return None  # nothing tells it from one that is QUEUED
    equal = {"grp": which.group, "code": which.code, "kind": which.kind, "mode": which.mode, "pool": which.pool}
    equal["subscription"] = which.subscription
    parameters: dict[str, Any] = {name: value for name, value in equal.items() if value is not None}
    conditions = [f"j.{name} = :{name}" for name in parameters]
    parameters["before"] = sys.maxsize if cursor is None else cursor
    if which.status is Status.QUEUED:
        conditions.append(IS_QUEUED)
    elif which.status is not None:
        conditions.append("j.status = :status")
        parameters["status"] = which.status
        if which.status not in FINISHED and not which.as_stored:
            conditions.append(f"NOT {IS_QUEUED}")
    if which.parked is not None:
        conditions.append(f"{'' if which.parked else 'NOT '}(j.status = 'ERROR' AND j.next_attempt_at IS NULL)")
    if which.removed:
        conditions.append(_IS_REMOVED)
    if which.target is not None:
        conditions.append("substr(j.target, 1, :target_chars) = :target")
        parameters.update(target=which.target, target_chars=len(which.target))
    for name, sign in (("created_from", ">="), ("created_before", "<")):
        if (time := getattr(which, name)) is not None:
            conditions.append(f"j.created_at {sign} :{name}")
            parameters[name] = time
    for number, (name, value) in enumerate(which.metadata):
        parameters.update({f"name{number}": name, f"value{number}": value})
        has_it = f"name = :name{number} AND value = :value{number} AND job = j.number"
        conditions.append(f"EXISTS (SELECT 1 FROM job_metadata WHERE {has_it})")
    numbers = _numbers(which)
    if numbers is _BY_TIME:
        at_cursor = connection.execute(_CREATED_AT, (parameters["before"],)).fetchone()
        if cursor is None or at_cursor is not None:
            parameters["until"] = sys.float_info.max if at_cursor is None else at_cursor[0]
        else:  # its job was forgotten meanwhile: by number is nearly the same
            numbers = _ALL
        parameters = {"created_from": 0.0, "created_before": sys.float_info.max, **parameters}
    return Walk(numbers, conditions, parameters)


def _by(index: str, condition: str) -> str:
    return f"SELECT number FROM jobs INDEXED BY {index} WHERE {condition} AND number < :before ORDER BY number DESC"


_ALL: Final = "SELECT number FROM jobs WHERE number < :before ORDER BY number DESC"
# The times of jobs may differ a little from their order: a list of a time is in the order of that.
_BY_TIME: Final = """
    SELECT number FROM jobs INDEXED BY jobs_by_time
    WHERE created_at >= :created_from AND created_at < :created_before AND (created_at, number) < (:until, :before)
    ORDER BY created_at DESC, number DESC"""
_BY_METADATA: Final = """
    SELECT job AS number FROM job_metadata WHERE name = :name0 AND value = :value0 AND job < :before
    ORDER BY job DESC"""
_BY_LEASE: Final = f"SELECT number FROM ({_IN_HAND}) WHERE number < :before ORDER BY number DESC"
_BY_GROUP: Final = _by("jobs_by_group", "grp = :grp")
_BY_SUBSCRIPTION: Final = _by(
    "unfinished_of_subscription",
    "subscription = :subscription AND subscription IS NOT NULL AND finished_at IS NULL",
)
_BY_CODE: Final = _by("jobs_by_code", "code = :code")
_PARKED: Final = _by("parked_jobs", "status = 'ERROR' AND next_attempt_at IS NULL")
_UNFINISHED: Final = _by("unfinished_jobs", "status = :status AND finished_at IS NULL")
_UNFINISHED_IN_ORDER: Final = _by(
    "unfinished_in_order", "status = :status AND finished_at IS NULL AND mode <> 'IMMEDIATE' AND mode = :mode"
)
_ENDED: Final = _by("ended_jobs", "status = :status AND finished_at IS NOT NULL")


def _numbers(which: Filter) -> str:
    """The query that walks over the fewest jobs, as far as one can tell without looking."""
    in_order = which.mode in (DispatchMode.NEXT_ON_ERROR, DispatchMode.BLOCK_ON_ERROR)
    unfinished = which.status in (Status.PENDING, Status.ERROR)
    choices = (
        (which.status is Status.QUEUED, _BY_LEASE),
        (bool(which.metadata), _BY_METADATA),
        (which.group is not None, _BY_GROUP),
        (which.subscription is not None and unfinished, _BY_SUBSCRIPTION),
        (which.parked is True, _PARKED),
        (unfinished and in_order, _UNFINISHED_IN_ORDER),
        (which.status is Status.ERROR, _UNFINISHED),
        (which.code is not None, _BY_CODE),
        (unfinished, _UNFINISHED),
        (which.status in (Status.CANCELLED, Status.EXPIRED), _ENDED),
        (which.created_from is not None or which.created_before is not None, _BY_TIME),
        (which.status is Status.COMPLETED, _ENDED),  # as nearly all are, so that the time comes before it
    )
    return next((numbers for fits, numbers in choices if fits), _ALL)
