"""Jobs as the API shows them: nobody sees the query of a target, and what may be a secret is masked."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from flowcatalyst.api.secrets import mask_body, mask_echo, mask_headers, mask_target, secrets_of
from flowcatalyst.core.message import DispatchMode, MessagePointer
from flowcatalyst.dispatch.job import Job, JobState, Kind, Status, as_time
from flowcatalyst.dispatch.store.contract import PLACES_COUNTED, ActionTaken, AttemptMade, GroupState, Place
from flowcatalyst.dispatch.waiting import Waiting, WaitsFor

SHOWN_CHARS: Final = 64 * 1024  # of a payload


class JobView(msgspec.Struct, rename="camel"):
    """A job and how far it came. The query of its target is masked: it may hold secrets.

    `position` is its place in its group, as its receiver sees it, once an attempt at it failed; null before, and if the
    first one was answered with success.
    """

    id: str
    kind: Kind
    code: str
    status: Status
    target_url: str
    content_type: str
    payload_bytes: int
    subscription: str | None
    message_group: str | None
    position: int | None
    sequence: int
    mode: DispatchMode
    dispatch_pool_code: str
    timeout_seconds: float
    max_retries: int
    retry_delays_seconds: list[float]
    scheduled_for: datetime | None
    expires_at: datetime | None
    idempotency_key: str | None
    metadata: dict[str, str]
    created_at: datetime | None
    attempts: int
    failures: int
    next_attempt_at: datetime | None
    finished_at: datetime | None
    parked: bool
    last_error: str

    @classmethod
    def of(cls, state: JobState) -> "JobView":
        job = state.job
        return cls(
            id=job.id,
            kind=job.kind,
            code=job.code,
            status=state.status,
            target_url=mask_target(job.target),
            content_type=job.content_type,
            payload_bytes=0 if job.payload is None else len(job.payload),
            subscription=job.subscription,
            message_group=job.group,
            position=state.position,
            sequence=job.sequence,
            mode=job.mode,
            dispatch_pool_code=job.pool,
            timeout_seconds=job.terms.timeout_s,
            max_retries=job.terms.max_retries,
            retry_delays_seconds=list(job.terms.delays_s),
            scheduled_for=as_time(job.scheduled_for),
            expires_at=as_time(job.expires_at),
            idempotency_key=job.idempotency_key,
            metadata=job.metadata,
            created_at=as_time(job.created_at),
            attempts=state.attempts,
            failures=state.failures,
            next_attempt_at=as_time(state.next_attempt_at),
            finished_at=as_time(state.finished_at),
            parked=state.status is Status.ERROR and state.next_attempt_at is None,
            last_error=mask_echo(state.last_error, _secrets(job)),
        )


class AttemptView(msgspec.Struct, rename="camel"):
    """One attempt. `counts` is false where it is no failure, or the endpoint asked for patience."""

    attempt: int
    began_at: datetime | None
    duration_ms: float
    status: int | None
    error: str
    counts: bool
    detail: str
    excerpt: str

    @classmethod
    def of(cls, made: AttemptMade, job: Job) -> "AttemptView":
        secrets = _secrets(job)
        return cls(
            attempt=made.attempt,
            began_at=as_time(made.began_at),
            duration_ms=round(made.duration_s * 1000, 3),
            status=made.status,
            error=made.error,
            counts=made.counts,
            detail=mask_echo(made.detail, secrets),
            excerpt=mask_echo(made.excerpt, secrets),
        )


class ActionView(msgspec.Struct, rename="camel"):
    """What a person did to a job."""

    at: datetime | None
    actor: str
    action: str


class PlaceView(msgspec.Struct, rename="camel"):
    """Where a job stands in its group: how many of it come before, up to 10,000, and the first of them."""

    ahead: int
    more: bool
    head: JobView | None

    @classmethod
    def of(cls, place: Place) -> "PlaceView":
        head = None if place.head is None else JobView.of(place.head)
        return cls(place.ahead, place.ahead >= PLACES_COUNTED, head)


class WaitingView(msgspec.Struct, rename="camel"):
    """What kind of thing a job waits for, which other job, and until when, as far as that is known."""

    kind: WaitsFor
    job_id: str | None
    until: datetime | None


class WholeJob(msgspec.Struct, rename="camel"):
    """A job with all that is known of it. Attempts and history have the oldest first.

    `waiting` and `waitsFor` are null when it is finished, `place` also if it is ordered with nothing. Secrets in
    payload and headers are masked.
    """

    job: JobView
    payload: str | None
    headers: dict[str, str]
    attempts: list[AttemptView]
    history: list[ActionView]
    place: PlaceView | None
    waiting: WaitingView | None
    waits_for: str | None

    @classmethod
    def of(
        cls,
        state: JobState,
        attempts: Sequence[AttemptMade],
        history: Sequence[ActionTaken],
        place: Place | None,
        waiting: Waiting | None,
    ) -> "WholeJob":
        job = state.job
        payload = None if job.payload is None else job.payload.decode(errors="replace")
        return cls(
            job=JobView.of(state),
            payload=None if payload is None else mask_body(payload)[:SHOWN_CHARS],
            headers=mask_headers(dict(job.headers)),
            attempts=[AttemptView.of(made, job) for made in attempts],
            history=[ActionView(as_time(one.at), one.actor, one.action) for one in history],
            place=None if place is None else PlaceView.of(place),
            waiting=None if waiting is None else WaitingView(waiting.kind, waiting.job_id, as_time(waiting.until)),
            waits_for=None if waiting is None else mask_echo(waiting.sentence, _secrets(job)),
        )


class JobPage(msgspec.Struct, rename="camel"):
    """Jobs, newest first. `next` is the cursor of the next page; null if there is none."""

    items: list[JobView]
    next: str | None


class GroupView(msgspec.Struct, rename="camel"):
    """A group: how many unfinished jobs it has in order, the first of them, since when that blocks the others, and who
    holds it since when."""

    message_group: str
    jobs: int
    head: JobView | None
    blocked_since: datetime | None
    held_since: datetime | None
    held_by: str | None

    @classmethod
    def of(cls, group: GroupState) -> "GroupView":
        return cls(
            message_group=group.group,
            jobs=group.jobs,
            head=None if group.head is None else JobView.of(group.head),
            blocked_since=as_time(group.blocked_since),
            held_since=as_time(group.held_since),
            held_by=group.held_by or None,
        )


def _secrets(job: Job) -> list[str]:
    if "?" not in job.target and not job.headers:
        return []
    return secrets_of(MessagePointer(job.id, job.target, headers=dict(job.headers)))
