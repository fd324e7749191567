"""What a SQLite job store does to its database: plain functions of a connection, each a part of one transaction.

Lanes, leases and order are those of embedded queues. What a job is beyond its place in a lane is here.
"""

import sqlite3
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isinf
from typing import Any, Final

import msgspec

from flowcatalyst.core.message import Attempt, Delivery, DispatchMode, Settled, Terms
from flowcatalyst.dispatch.job import (
    FINISHED,
    Job,
    JobState,
    Kind,
    Status,
    decode_headers,
    encode_headers,
    number_at,
    position,
)
from flowcatalyst.dispatch.store.contract import (
    AttemptMade,
    Created,
    Filter,
    JobStateError,
    Page,
    UnknownJobError,
)
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import Delays, encode

QUEUE: Final = "jobs"
ENTERED_AT_ONCE: Final = 500  # jobs whose time has come that one look lets into their lanes
EXCERPT_CHARS: Final = 1000

_COLUMNS: Final = (
    "number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s, max_retries, delays, "
    "scheduled_for, expires_at, idempotency_key, metadata, created_at, payload"
)
_STATE: Final = "status, attempts, failures, next_attempt_at, finished_at, last_error"
_SELECT: Final = f"SELECT {_COLUMNS}, {_STATE} FROM jobs"
_INSERT: Final = f"INSERT INTO jobs ({_COLUMNS}, entered, status) VALUES ({', '.join('?' * 21)}, 'PENDING')"


# Create


def create(connection: sqlite3.Connection, jobs: Sequence[Job], now: float, wall: float) -> list[Created]:
    """Keep new jobs and let those in whose time has come."""
    created: list[Created] = []
    entering: list[tuple[int, Job]] = []
    for number, job in enumerate(jobs, lanes.new_numbers(connection, len(jobs), now)):
        if job.idempotency_key is not None:
            known = connection.execute(f"{_SELECT} WHERE idempotency_key = ?", (job.idempotency_key,)).fetchone()
            if known is not None:
                created.append(Created(_state(known), repeated=True))
                continue
        enters = job.scheduled_for is None or job.scheduled_for <= wall
        connection.execute(_INSERT, (*_row(number, job), enters))
        if enters:
            entering.append((number, job))
        created.append(Created(JobState(job, Status.PENDING)))
    _enter(connection, entering, now, wall)
    return created


_LOCKED_BY_DELAYS: Final = """
    SELECT DISTINCT l.id FROM json_each(?) AS asked
    CROSS JOIN messages AS m ON m.seq = asked.value CROSS JOIN lanes AS l ON l.id = m.lane
    WHERE l.name IS NOT NULL AND l.owner IS NULL"""


def _enter(connection: sqlite3.Connection, entering: Sequence[tuple[int, Job]], now: float, wall: float) -> None:
    """Give jobs a message each, in the lane of their group or in one of their own."""
    if not entering:
        return
    rows = [
        lanes_and_messages.Row(position(job.sequence, number), job.lane, str(number), job.pool, number)
        for number, job in entering
    ]
    lanes_and_messages.insert(connection, QUEUE, rows, wall)
    # One that comes in front of what its lane waits for may start before that, and decides which pool it is for.
    places = encode([row.seq for row in rows if row.group is not None])
    refresh(connection, {lane for (lane,) in connection.execute(_LOCKED_BY_DELAYS, (places,))}, now)


def refresh(connection: sqlite3.Connection, ids: Collection[int], now: float) -> None:
    """Work out again what lanes wait for that nobody holds."""
    if ids:
        lanes.refresh_lanes(connection, QUEUE, ids, now, Delays.FIRST)


_DUE: Final = f"""
    {_SELECT} WHERE entered = 0 AND finished_at IS NULL AND scheduled_for <= ?
    ORDER BY scheduled_for LIMIT {ENTERED_AT_ONCE}"""
_HAS_ENTERED: Final = "UPDATE jobs SET entered = 1 WHERE number IN (SELECT value FROM json_each(?))"
_NEXT_SCHEDULED: Final = "SELECT min(scheduled_for) FROM jobs WHERE entered = 0 AND finished_at IS NULL"


def enter_what_is_due(connection: sqlite3.Connection, now: float, wall: float) -> float | None:
    """Let jobs in whose time has come; the wall time of the next one."""
    next_at: float | None = lanes.one(connection, _NEXT_SCHEDULED)
    while next_at is not None and next_at <= wall:
        due = connection.execute(_DUE, (wall,)).fetchall()
        connection.execute(_HAS_ENTERED, (encode([row[0] for row in due]),))
        _enter(connection, [(row[0], _state(row).job) for row in due], now, wall)
        next_at = lanes.one(connection, _NEXT_SCHEDULED)
    return next_at


_BY_NUMBERS: Final = f"{_SELECT} WHERE number IN (SELECT value FROM json_each(?))"


def jobs_of(connection: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, JobState]:
    return {row[0]: _state(row) for row in connection.execute(_BY_NUMBERS, (encode(numbers),))}


# Settle

_COMPLETE: Final = """
    UPDATE jobs SET status = 'COMPLETED', finished_at = :wall, next_attempt_at = NULL, last_error = '',
      attempts = attempts + 1
    WHERE number = :number AND finished_at IS NULL"""
_FAIL: Final = """
    UPDATE jobs SET status = CASE WHEN :counts THEN 'ERROR' ELSE status END,
      next_attempt_at = CASE WHEN :counts THEN :next_at ELSE next_attempt_at END,
      attempts = attempts + 1, failures = :failures, last_error = :detail
    WHERE number = :number"""
_RECORD: Final = """
    INSERT INTO attempts (job, attempt, began_at, duration_s, status, error, counts, detail, excerpt)
    SELECT :number, attempts, :began_at, :duration_s, :status, :error, :counts, :detail, :excerpt
    FROM jobs WHERE number = :number"""


def ack(connection: sqlite3.Connection, deliveries: Sequence[Delivery], now: float, wall: float) -> list[Settled]:
    """Delivered: each job is COMPLETED and its attempt written down. Who no longer holds it changes nothing."""
    receipts = [delivery.receipt for delivery in deliveries]
    settled = lanes_and_messages.ack(connection, QUEUE, receipts, now, Delays.FIRST)
    for delivery, result in zip(deliveries, settled, strict=True):
        if result is Settled.OK:
            number = number_of(delivery)
            done = connection.execute(_COMPLETE, {"number": number, "wall": wall})
            if done.rowcount and delivery.attempt is not None:
                connection.execute(_RECORD, _attempt(number, delivery.attempt))
    return settled


def nack(
    connection: sqlite3.Connection,
    deliveries: Sequence[Delivery],
    now: float,
    wall: float,
    delay_s: float,
    *,
    unlock: bool,
) -> list[Settled]:
    """Each goes back to its place, or with `unlock` to a lane of its own, and its attempt is written down, if any."""
    failures = [(delivery.receipt, delivery.failures) for delivery in deliveries]
    settled = lanes_and_messages.nack(connection, QUEUE, failures, now, delay_s, unlock=unlock, delays=Delays.FIRST)
    for delivery, result in zip(deliveries, settled, strict=True):
        if result is not Settled.OK:
            continue
        number = number_of(delivery)
        if (attempt := delivery.attempt) is not None:
            next_at = None if isinf(delay_s) else wall + delay_s
            connection.execute(_FAIL, {**_attempt(number, attempt), "failures": delivery.failures, "next_at": next_at})
            connection.execute(_RECORD, _attempt(number, attempt))
    return settled


def number_of(delivery: Delivery) -> int:
    return number_at(delivery.receipt.seq)


def _attempt(number: int, attempt: Attempt) -> dict[str, Any]:
    outcome = attempt.outcome
    return {
        "number": number,
        "began_at": attempt.began_at,
        "duration_s": attempt.duration_s,
        "status": outcome.status,
        "error": outcome.error,
        "counts": outcome.counts,
        "detail": outcome.detail,
        "excerpt": outcome.excerpt[:EXCERPT_CHARS],
    }


# Look


def find(connection: sqlite3.Connection, job_id: str) -> JobState:
    row = connection.execute(f"{_SELECT} WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise UnknownJobError(f"there is no job {job_id}")
    return _with_lease(connection, row)


# Whether a router holds the message: it belongs to the lease of its lane that goes on.
_IS_LEASED: Final = """
    SELECT count(*) FROM messages AS m CROSS JOIN lanes AS l ON l.id = m.lane
    WHERE m.seq = ? AND l.owner IS NOT NULL AND m.seq <= l.leased_to AND m.given_back <> l.epoch"""


def _with_lease(connection: sqlite3.Connection, row: tuple[Any, ...]) -> JobState:
    state = _state(row)
    if state.status in FINISHED or not _is_leased(connection, row[0], state.job):
        return state
    return replace(state, status=Status.QUEUED)


def _is_leased(connection: sqlite3.Connection, number: int, job: Job) -> bool:
    return bool(lanes.one(connection, _IS_LEASED, (position(job.sequence, number),)))


_ATTEMPTS: Final = """
    SELECT a.attempt, a.began_at, a.duration_s, a.status, a.error, a.counts, a.detail, a.excerpt
    FROM jobs AS j CROSS JOIN attempts AS a ON a.job = j.number WHERE j.id = ? ORDER BY a.attempt"""


def attempts_of(connection: sqlite3.Connection, job_id: str) -> list[AttemptMade]:
    rows = connection.execute(_ATTEMPTS, (job_id,)).fetchall()
    return [
        AttemptMade(number, began_at, duration_s, status, error, bool(counts), detail, excerpt)
        for number, began_at, duration_s, status, error, counts, detail, excerpt in rows
    ]


def page(connection: sqlite3.Connection, which: Filter, limit: int, cursor: int | None) -> Page:
    """Walks an index from the newest job on. What a router holds is stored as PENDING or ERROR, so it is looked for."""
    wanted = {"grp": which.group, "code": which.code, "kind": which.kind, "mode": which.mode}
    if which.status is Status.QUEUED:
        wanted["status"] = Status.PENDING
    elif which.status is not None:
        wanted["status"] = which.status
    conditions = {name: value for name, value in wanted.items() if value is not None}
    where = " AND ".join(f"{name} = :{name}" for name in conditions)
    if which.status is not None and which.status not in FINISHED:
        where += " AND finished_at IS NULL"
    query = f"{_SELECT} WHERE number < :before {where and 'AND ' + where} ORDER BY number DESC LIMIT :limit"
    before, items = cursor, list[JobState]()
    while len(items) < limit:
        bounds = {"before": sys.maxsize if before is None else before, "limit": limit}
        rows = connection.execute(query, {**conditions, **bounds}).fetchall()
        for row in rows:
            state = _with_lease(connection, row)
            if which.status is None or state.status is which.status:
                items.append(state)
            before = row[0]
            if len(items) == limit:
                return Page(items, before)
        if len(rows) < limit:
            break
    return Page(items, None)


# Act

_MESSAGE: Final = "SELECT lane FROM messages WHERE seq = ?"
_SHOW: Final = "UPDATE messages SET visible_at = NULL, failures = 0 WHERE seq = ?"
_RETRY: Final = "UPDATE jobs SET status = 'PENDING', failures = 0, next_attempt_at = NULL WHERE number = ?"
_CANCEL: Final = (
    "UPDATE jobs SET status = 'CANCELLED', finished_at = :wall, next_attempt_at = NULL WHERE number = :number"
)
_REMOVE: Final = "DELETE FROM messages WHERE seq = ?"
_REMEMBER: Final = "INSERT INTO actions (job, at, actor, action) VALUES (?, ?, ?, ?)"


def retry(connection: sqlite3.Connection, job_id: str, actor: str, now: float, wall: float) -> JobState:
    number, state = _of_ours(connection, job_id)
    if state.status is not Status.ERROR:
        raise JobStateError(f"job {job_id} is {state.status}: only one in ERROR can be tried again")
    place = position(state.job.sequence, number)
    connection.execute(_SHOW, (place,))
    connection.execute(_RETRY, (number,))
    refresh(connection, [lanes.one(connection, _MESSAGE, (place,))], now)
    connection.execute(_REMEMBER, (number, wall, actor, "retry"))
    return find(connection, job_id)


def cancel(connection: sqlite3.Connection, job_id: str, actor: str, now: float, wall: float) -> JobState:
    number, state = _of_ours(connection, job_id)
    found = connection.execute(_MESSAGE, (position(state.job.sequence, number),)).fetchone()
    connection.execute(_CANCEL, (wall, number))
    if found is not None:
        connection.execute(_REMOVE, (position(state.job.sequence, number),))
        connection.execute(lanes_and_messages.COUNT, {"queue": QUEUE, "change": -1})
        refresh(connection, found, now)
    connection.execute(_REMEMBER, (number, wall, actor, "cancel"))
    return find(connection, job_id)


def change_mode(
    connection: sqlite3.Connection, job_id: str, mode: DispatchMode, actor: str, now: float, wall: float
) -> JobState:
    """The job goes to where its new mode has it: in the lane of its group, or in one of its own."""
    number, state = _of_ours(connection, job_id)
    changed = replace(state.job, mode=mode)
    if mode is not DispatchMode.IMMEDIATE and changed.group is None:
        raise JobStateError(f"job {job_id} has no messageGroup: it can only be IMMEDIATE")
    place = position(changed.sequence, number)
    connection.execute("UPDATE jobs SET mode = ? WHERE number = ?", (mode, number))
    found = connection.execute("SELECT lane, visible_at, failures FROM messages WHERE seq = ?", (place,)).fetchone()
    if found is not None:
        lane, visible_at, failures = found
        leaves = mode is DispatchMode.IMMEDIATE or (mode is DispatchMode.NEXT_ON_ERROR and visible_at is not None)
        connection.execute(_REMOVE, (place,))
        connection.execute(lanes_and_messages.COUNT, {"queue": QUEUE, "change": -1})
        number_of_lane = lanes.new_numbers(connection, 1, now)
        row = lanes_and_messages.Row(
            place, None if leaves else changed.group, str(number), changed.pool, number_of_lane
        )
        lanes_and_messages.insert(connection, QUEUE, [row], wall)
        connection.execute(
            "UPDATE messages SET visible_at = ?, failures = ? WHERE seq = ?", (visible_at, failures, place)
        )
        refresh(connection, {lane, lanes.one(connection, _MESSAGE, (place,))}, now)
    connection.execute(_REMEMBER, (number, wall, actor, f"mode {mode}"))
    return find(connection, job_id)


def _of_ours(connection: sqlite3.Connection, job_id: str) -> tuple[int, JobState]:
    """A job that is not finished and in no router's hands, so that it can be changed."""
    row = connection.execute(f"{_SELECT} WHERE id = ?", (job_id,)).fetchone()
    if row is None:
        raise UnknownJobError(f"there is no job {job_id}")
    state = _with_lease(connection, row)
    if state.status in FINISHED:
        raise JobStateError(f"job {job_id} is {state.status}")
    if state.status is Status.QUEUED:
        raise JobStateError(f"job {job_id} is in a router's hands: wait until its attempt ended")
    return row[0], state


# Rows


def _row(number: int, job: Job) -> tuple[Any, ...]:
    return (
        number,
        job.id,
        job.kind,
        job.code,
        job.target,
        job.content_type,
        encode_headers(job.headers),
        job.group,
        job.sequence,
        job.mode,
        job.pool,
        job.terms.timeout_s,
        job.terms.max_retries,
        encode(job.terms.delays_s),
        job.scheduled_for,
        job.expires_at,
        job.idempotency_key,
        encode(job.metadata),
        job.created_at,
        job.payload,
    )


def _state(row: tuple[Any, ...]) -> JobState:
    job = Job(
        id=row[1],
        kind=Kind(row[2]),
        code=row[3],
        target=row[4],
        content_type=row[5],
        headers=decode_headers(row[6]),
        group=row[7],
        sequence=row[8],
        mode=DispatchMode(row[9]),
        pool=row[10],
        terms=Terms(row[11], row[12], msgspec.json.decode(row[13], type=tuple[float, ...])),
        scheduled_for=row[14],
        expires_at=row[15],
        idempotency_key=row[16],
        metadata=msgspec.json.decode(row[17], type=dict[str, str]),
        created_at=row[18],
        payload=row[19],
    )
    status, attempts, failures, next_attempt_at, finished_at, last_error = row[20:26]
    return JobState(job, Status(status), attempts, failures, next_attempt_at, finished_at, last_error)
