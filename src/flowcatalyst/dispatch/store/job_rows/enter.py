"""How jobs come into a store, and from there into their lanes when their time has come."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from flowcatalyst.dispatch.job import Job, JobState, Status, position, sequence_at
from flowcatalyst.dispatch.store.contract import Created
from flowcatalyst.dispatch.store.job_rows.columns import INSERT, QUEUE, SELECT, refresh, row_of, state_of
from flowcatalyst.dispatch.store.job_rows.pause import paused_of
from flowcatalyst.dispatch.store.platform_contract import EntryKind, UnknownEntryError
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import encode

ENTERED_AT_ONCE: Final = 500  # jobs whose time has come that one look lets into their lanes

_BY_KEY: Final = f"{SELECT} WHERE j.idempotency_key = :key"
_INSERT_METADATA: Final = "INSERT INTO job_metadata (name, value, job) VALUES (?, ?, ?)"


def create(
    connection: sqlite3.Connection, jobs: Sequence[Job], now: float, wall: float, *, behind: bool = False
) -> list[Created]:
    """Keep new jobs and let those in whose time has come.

    `behind`: each stands behind all that its group has waiting, those before it in `jobs` among them.
    """
    created: list[Created] = []
    last: dict[str, int] = {}  # the highest sequence, by group
    entering: list[tuple[int, Job]] = []
    for number, job in enumerate(jobs, lanes.new_numbers(connection, len(jobs), now)):
        if job.idempotency_key is not None:
            known = connection.execute(_BY_KEY, {"key": job.idempotency_key, "now": now}).fetchone()
            if known is not None:
                created.append(Created(state_of(known), repeated=True))
                continue
        if behind and (group := job.lane) is not None:
            highest = last[group] if group in last else _last_in(connection, group)
            last[group] = max(job.sequence, highest)
            job = replace(job, sequence=last[group])
        enters = job.scheduled_for is None or job.scheduled_for <= wall
        connection.execute(INSERT, (*row_of(number, job), enters))
        if job.metadata:
            connection.executemany(_INSERT_METADATA, [(*item, number) for item in job.metadata.items()])
        if enters:
            entering.append((number, job))
        created.append(Created(JobState(job, Status.PENDING)))
    _enter(connection, entering, now, wall)
    return created


_CODES: Final = f"""
    SELECT code FROM catalog WHERE kind = '{EntryKind.SUBSCRIPTION}' AND code IN (SELECT value FROM json_each(?))"""


def codes_of(connection: sqlite3.Connection, jobs: Iterable[Job]) -> tuple[set[str], set[str]]:
    """The subscriptions of jobs: those that are there, and those that were removed."""
    codes = {job.subscription for job in jobs if job.subscription is not None}
    there = {code for (code,) in connection.execute(_CODES, (encode(list(codes)),))} if codes else set()
    return there, codes - there


def create_behind(
    connection: sqlite3.Connection, jobs: Sequence[Job], now: float, wall: float
) -> list[Created] | UnknownEntryError:
    """An error is returned: one that is raised here would undo what shares the transaction."""
    _, removed = codes_of(connection, jobs)
    if removed:
        return UnknownEntryError(f"the subscription {min(removed)} was removed: no job is made for it")
    return create(connection, jobs, now, wall, behind=True)


_LAST: Final = f"""
    SELECT seq FROM messages WHERE lane = (SELECT id FROM lanes WHERE queue = '{QUEUE}' AND name = ?)
    ORDER BY seq DESC LIMIT 1"""


def _last_in(connection: sqlite3.Connection, group: str) -> int:
    """The highest sequence that a group has waiting."""
    found = connection.execute(_LAST, (encode(group),)).fetchone()
    return 0 if found is None else sequence_at(found[0])


_OF_NOBODY: Final = """
    SELECT DISTINCT l.id FROM json_each(?) AS asked
    CROSS JOIN messages AS m ON m.seq = asked.value CROSS JOIN lanes AS l ON l.id = m.lane
    WHERE l.owner IS NULL"""


def _enter(connection: sqlite3.Connection, entering: Sequence[tuple[int, Job]], now: float, wall: float) -> None:
    """Give jobs a message each, in the lane of their group or in one of their own."""
    if not entering:
        return
    rows = [
        lanes_and_messages.Row(position(job.sequence, number), job.lane, str(number), job.pool, number)
        for number, job in entering
    ]
    lanes_and_messages.insert(connection, QUEUE, rows, wall)
    # One that comes in front of what its lane waits for may start before that, and decides which pool it is for. A
    # group may be held before it has a lane, and a subscription paused.
    paused = paused_of(connection, {job.subscription for _, job in entering if job.subscription is not None})
    alone = {number for number, job in entering if job.lane is None and job.subscription in paused}
    places = encode([row.seq for row in rows if row.group is not None or row.number in alone])
    refresh(connection, {lane for (lane,) in connection.execute(_OF_NOBODY, (places,))}, now)


_DUE: Final = f"""
    {SELECT} WHERE j.entered = 0 AND j.finished_at IS NULL AND j.scheduled_for <= :wall
    ORDER BY j.scheduled_for LIMIT {ENTERED_AT_ONCE}"""
_HAS_ENTERED: Final = "UPDATE jobs SET entered = 1 WHERE number IN (SELECT value FROM json_each(?))"
_NEXT_SCHEDULED: Final = "SELECT min(scheduled_for) FROM jobs WHERE entered = 0 AND finished_at IS NULL"


def enter_what_is_due(connection: sqlite3.Connection, now: float, wall: float) -> float | None:
    """Let jobs in whose time has come, as many as one transaction should; the wall time of the next one."""
    next_at: float | None = lanes.one(connection, _NEXT_SCHEDULED)
    if next_at is None or next_at > wall:
        return next_at
    due = connection.execute(_DUE, {"wall": wall, "now": now}).fetchall()
    connection.execute(_HAS_ENTERED, (encode([row[0] for row in due]),))
    _enter(connection, [(row[0], state_of(row).job) for row in due], now, wall)
    after: float | None = lanes.one(connection, _NEXT_SCHEDULED)
    return after
