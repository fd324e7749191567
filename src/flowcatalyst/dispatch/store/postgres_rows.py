"""Jobs as PostgreSQL keeps them: what goes into rows, what comes out of them, and statements about single jobs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from flowcatalyst.core.message import Attempt, DispatchMode, Terms
from flowcatalyst.dispatch.job import (
    Job,
    JobState,
    Kind,
    Status,
    decode_headers,
)
from flowcatalyst.dispatch.store.contract import ActionTaken, AttemptMade, Created, UnknownJobError
from flowcatalyst.dispatch.store.platform_contract import UnknownEntryError
from flowcatalyst.dispatch.store.postgres_columns import arguments, job_columns, restored, stored
from flowcatalyst.storage.postgres import Connection

QUEUE: Final = "dispatch jobs"  # no queue of a configuration is called so
EXCERPT_CHARS: Final = 1000


def _restored(text: str | None) -> str | None:
    return None if text is None else restored(text)


# Create

_CREATE: Final = f"SELECT repeated, firsts, raised FROM make_jobs($1, $2, $3, NULL, {arguments(4)})"

_REMOVED: Final = """
    SELECT asked.code FROM unnest($1::text[]) AS asked (code) WHERE NOT EXISTS (
      SELECT 1 FROM catalog AS c WHERE c.kind = 'subscription' AND c.code = asked.code) LIMIT 1"""


async def create_behind(connection: Connection, queue: int, wall: float, jobs: Sequence[Job]) -> list[Created]:
    """Raises `UnknownEntryError`. Nobody removes one while this goes on."""
    codes = list({stored(job.subscription) for job in jobs if job.subscription is not None})
    async with connection.transaction():
        await connection.execute("SELECT lock_subscriptions(false)")
        if (removed := await connection.fetchval(_REMOVED, codes)) is not None:
            raise UnknownEntryError(f"the subscription {restored(removed)} was removed: no job is made for it")
        return await create(connection, queue, wall, jobs, behind=True)


async def create(
    connection: Connection, queue: int, wall: float, jobs: Sequence[Job], *, behind: bool = False
) -> list[Created]:
    """Keep new jobs and let those in whose time has come: one statement, and another if some were known."""
    columns = await job_columns(jobs)
    repeated, firsts, raised = await connection.fetchrow(_CREATE, queue, wall, behind, *columns)
    if raised is not None:
        jobs = [replace(job, sequence=sequence) for job, sequence in zip(jobs, raised, strict=True)]
    created = [Created(JobState(job, Status.PENDING)) for job in jobs]
    if repeated:
        found = {row["id"]: state_of(row) for row in await connection.fetch(f"{SELECT} WHERE j.id = ANY ($1)", firsts)}
        for place, first in zip(repeated, firsts, strict=True):
            created[place - 1] = Created(found[first], repeated=True)
    return created


# Settle


def attempt_columns(attempts: Sequence[Attempt | None]) -> tuple[list[Any], ...]:
    """Attempts as the functions of the database take them: a list for each column, NULL where there was none."""
    rows = [(None,) * 7 if one is None else _attempt_row(one) for one in attempts]
    return tuple(map(list, zip(*rows, strict=True)))


def _attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    outcome = attempt.outcome
    return (
        attempt.began_at,
        attempt.duration_s,
        outcome.status,
        outcome.error.value,
        outcome.counts,
        stored(outcome.detail),
        stored(outcome.excerpt[:EXCERPT_CHARS]),
    )


# Look

# Whether a router has it: its message belongs to the lease of its lane that goes on, or is out with one elsewhere.
IS_QUEUED: Final = """
    EXISTS (
      SELECT 1 FROM lanes AS l JOIN messages AS m ON m.lane = l.id AND m.seq = s.place
      WHERE l.id = s.lane AND CASE
        WHEN l.owner IS NOT NULL THEN s.place <= l.leased_to AND m.given_back <> l.epoch
        ELSE l.out_epoch = l.epoch AND l.leased_to = s.place AND l.out_until > server_time() END)"""
_COLUMNS: Final = f"""
    j.number, j.id, j.kind, j.code, j.target, j.content_type, j.headers, j.grp, j.sequence, j.mode, j.pool, j.timeout_s,
    j.max_retries, j.delays, j.scheduled_for, j.expires_at, j.idempotency_key, j.metadata, j.created_at, j.payload,
    s.status, s.attempts, s.failures, s.next_attempt_at, s.finished_at, s.last_error,
    s.lane IS NOT NULL AND {IS_QUEUED} AS is_queued, j.subscription, s.position"""
SELECT: Final = f"SELECT {_COLUMNS} FROM jobs AS j JOIN job_states AS s ON s.number = j.number"


def state_of(row: Sequence[Any]) -> JobState:
    job = Job(
        id=restored(row[1]),
        kind=Kind(row[2]),
        code=restored(row[3]),
        target=restored(row[4]),
        content_type=restored(row[5]),
        headers=headers_of(row[6]),
        group=_restored(row[7]),
        sequence=row[8],
        mode=DispatchMode(row[9]),
        pool=restored(row[10]),
        terms=Terms(row[11], row[12], tuple(row[13])),
        scheduled_for=row[14],
        expires_at=row[15],
        idempotency_key=_restored(row[16]),
        metadata=msgspec.json.decode(row[17], type=dict[str, str]),
        created_at=row[18],
        payload=row[19],
        subscription=_restored(row[27]),
    )
    status, attempts, failures, next_attempt_at, finished_at, last_error, is_queued = row[20:27]
    shown = Status.QUEUED if is_queued else Status(status)
    return JobState(job, shown, attempts, failures, next_attempt_at, finished_at, restored(last_error), row[28])


def headers_of(text: str) -> tuple[tuple[str, str], ...]:
    return () if text == "[]" else decode_headers(text)


async def number_of(connection: Connection, job_id: str) -> int:
    number: int | None = await connection.fetchval("SELECT number FROM jobs WHERE id = $1", stored(job_id))
    if number is None:
        raise UnknownJobError(f"there is no job {job_id}")
    return number


async def find(connection: Connection, job_id: str) -> JobState:
    row = await connection.fetchrow(f"{SELECT} WHERE j.id = $1", stored(job_id))
    if row is None:
        raise UnknownJobError(f"there is no job {job_id}")
    return state_of(row)


async def states_of(connection: Connection, numbers: Sequence[int]) -> dict[int, JobState]:
    rows = await connection.fetch(f"{SELECT} WHERE j.number = ANY ($1)", numbers)
    return {row[0]: state_of(row) for row in rows}


async def attempts_of(connection: Connection, job_id: str) -> list[AttemptMade]:
    rows = await connection.fetch(
        "SELECT attempt, began_at, duration_s, status, error, counts, detail, excerpt FROM job_attempts "
        "WHERE job = $1 ORDER BY attempt",
        await number_of(connection, job_id),
    )
    return [
        AttemptMade(attempt, began_at, duration_s, status, error, counts, restored(detail), restored(excerpt))
        for attempt, began_at, duration_s, status, error, counts, detail, excerpt in rows
    ]


async def history_of(connection: Connection, job_id: str) -> list[ActionTaken]:
    rows = await connection.fetch(
        "SELECT at, actor, action FROM job_actions WHERE job = $1 ORDER BY id", await number_of(connection, job_id)
    )
    return [ActionTaken(at, restored(actor), restored(action)) for at, actor, action in rows]
