"""Rows of jobs, and what is written into them."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from flowcatalyst.core.message import DispatchMode, Terms
from flowcatalyst.dispatch.job import (
    Job,
    JobState,
    Kind,
    Status,
    decode_headers,
    encode_headers,
)
from flowcatalyst.dispatch.store.contract import UnknownJobError
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import encode

QUEUE: Final = "jobs"

# Until when a lane is locked that nobody leases: for ever while its group is held or its first job is of a subscription
# that is paused, else as its first message says, as long as somebody acts on what was recalled, and while one is out.
LOCK: Final = """
    CASE WHEN EXISTS (SELECT 1 FROM groups WHERE name = l.grp AND held_since IS NOT NULL) THEN 9e999
    WHEN EXISTS (SELECT 1 FROM paused_subscriptions) AND EXISTS (
      SELECT 1 FROM jobs AS j CROSS JOIN paused_subscriptions AS p ON p.code = j.subscription AND p.paused
      WHERE j.number = (SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1) & 2199023255551) THEN 9e999
    WHEN l.recalled_until IS NULL AND l.out_until IS NULL THEN
      (SELECT visible_at FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1)
    ELSE nullif(max(ifnull(l.recalled_until, 0),
      iif(l.out_epoch = l.epoch AND EXISTS (SELECT 1 FROM messages WHERE lane = l.id AND seq = l.leased_to),
        ifnull(l.out_until, 0), 0),
      ifnull((SELECT visible_at FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1), 0)), 0) END"""

_COLUMNS: Final = (
    "number, id, kind, code, target, content_type, headers, grp, sequence, mode, pool, timeout_s, max_retries, delays, "
    "scheduled_for, expires_at, idempotency_key, metadata, created_at, payload, subscription"
)
_STATE: Final = "status, attempts, failures, next_attempt_at, finished_at, last_error, position"
_LANE_OF_JOB: Final = """
    FROM messages AS m CROSS JOIN lanes AS l ON l.id = m.lane WHERE m.seq = (j.sequence << 41 | j.number)"""
_LEASED: Final = "l.owner IS NOT NULL AND l.due > :now AND m.seq <= l.leased_to AND m.given_back <> l.epoch"
_OUT: Final = "l.owner IS NULL AND l.out_epoch = l.epoch AND m.seq = l.leased_to AND l.out_until > :now"
# A router has the job `j` in hand: its message belongs to a lease of its lane that goes on.
IS_LEASED: Final = f"EXISTS (SELECT 1 {_LANE_OF_JOB} AND {_LEASED})"
# Or it is out with one elsewhere: nobody has started it, and people may act on it.
IS_QUEUED: Final = f"EXISTS (SELECT 1 {_LANE_OF_JOB} AND ({_LEASED} OR {_OUT}))"
IN_HAND, OUT = 1, 2
_WHERE_IT_IS: Final = f"""
    CASE WHEN j.finished_at IS NULL THEN
      (SELECT CASE WHEN {_LEASED} THEN {IN_HAND} WHEN {_OUT} THEN {OUT} ELSE 0 END {_LANE_OF_JOB}) END"""
SELECTED: Final = ", ".join(f"j.{name}" for name in f"{_COLUMNS}, {_STATE}".split(", ")) + f", {_WHERE_IT_IS}"
SELECT: Final = f"SELECT {SELECTED} FROM jobs AS j"
INSERT: Final = f"INSERT INTO jobs ({_COLUMNS}, entered, status) VALUES ({', '.join('?' * 22)}, 'PENDING')"

Row = tuple[Any, ...]


def row_of(number: int, job: Job) -> Row:
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
        job.subscription,
    )


def state_of(row: Row) -> JobState:
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
        subscription=row[20],
    )
    stored, attempts, failures, next_attempt_at, finished_at, last_error, place, with_whom = row[21:29]
    status = Status.QUEUED if with_whom else Status(stored)
    return JobState(job, status, attempts, failures, next_attempt_at, finished_at, last_error, place)


def state_to_act_on(row: Row) -> JobState:
    """One that is out is as it was before that, for who acts on it."""
    return replace(state_of(row), status=Status(row[21])) if row[28] == OUT else state_of(row)


_BY_ID: Final = f"{SELECT} WHERE j.id = :id"
_BY_NUMBERS: Final = f"{SELECT} WHERE j.number IN (SELECT value FROM json_each(:numbers))"


def row_by_id(connection: sqlite3.Connection, job_id: str, now: float) -> Row:
    """Raises `UnknownJobError`."""
    row: Row | None = connection.execute(_BY_ID, {"id": job_id, "now": now}).fetchone()
    if row is None:
        raise UnknownJobError(f"there is no job {job_id}")
    return row


def jobs_of(connection: sqlite3.Connection, numbers: Sequence[int], now: float) -> Mapping[int, JobState]:
    rows = connection.execute(_BY_NUMBERS, {"numbers": encode(numbers), "now": now})
    return {row[0]: state_of(row) for row in rows}


def refresh(connection: sqlite3.Connection, ids: Collection[int], now: float) -> None:
    """Work out again what lanes wait for that nobody holds."""
    if ids:
        lanes.refresh_lanes(connection, QUEUE, ids, now, LOCK)
