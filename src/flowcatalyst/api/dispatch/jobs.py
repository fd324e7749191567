"""/api/dispatch-jobs: webhook calls that must happen, each in its place."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, patch, post
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.bodies import decode_json, read_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import Problem, ProblemError
from flowcatalyst.api.secrets import mask_target
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.message import MAX_NAME_CHARS, DispatchMode
from flowcatalyst.dispatch.job import InvalidJobError, Job, JobState, Kind, NewJob, Status, as_time, new_job
from flowcatalyst.dispatch.store.contract import AttemptMade, Created, Filter, JobStore

MAX_JOBS: Final = 1000
MAX_LISTED: Final = 1000
MAX_CURSOR: Final = 2**53 - 1
JobId = Annotated[str, PathParameter(max_length=MAX_NAME_CHARS, description="Id of the job")]


class JobView(msgspec.Struct, rename="camel"):
    """A job and how far it came. The query of its target is masked: it may hold secrets."""

    id: str
    kind: Kind
    code: str
    status: Status
    target_url: str
    content_type: str
    payload_bytes: int
    message_group: str | None
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
            message_group=job.group,
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
            last_error=state.last_error,
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
    def of(cls, made: AttemptMade) -> "AttemptView":
        return cls(
            attempt=made.attempt,
            began_at=as_time(made.began_at),
            duration_ms=round(made.duration_s * 1000, 3),
            status=made.status,
            error=made.error,
            counts=made.counts,
            detail=made.detail,
            excerpt=made.excerpt,
        )


class WholeJob(msgspec.Struct, rename="camel"):
    """A job with every attempt at it, oldest first."""

    job: JobView
    attempts: list[AttemptView]


class JobPage(msgspec.Struct, rename="camel"):
    """Jobs, newest first. `next` is the cursor of the next page; null if there is none."""

    items: list[JobView]
    next: str | None


class NewJobs(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Jobs to make."""

    jobs: list[msgspec.Raw]


class NewJobsBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Jobs to make."""

    jobs: list[NewJob]


class JobResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of one job of a batch: 201 made, 200 it was there by its idempotency key, 400 and why not."""

    status: int
    job: JobView | None = None
    problem: Problem | None = None


class JobResults(msgspec.Struct, rename="camel"):
    """One result for each job, in the order of the request."""

    results: list[JobResult]


class JobChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What to change about a job."""

    mode: DispatchMode


_new_job = msgspec.json.Decoder(NewJob)
_new_jobs = msgspec.json.Decoder(NewJobs)
_change = msgspec.json.Decoder(JobChange)


@post(
    "/api/dispatch-jobs",
    tags=["Dispatch jobs"],
    summary="Make a job",
    operation_class=with_json_body(NewJob, "The job"),
    response_description="The job is kept and will be delivered",
)
async def create_job(request: Request[Any, Any, Any], app: TheApp) -> Response[JobView]:
    """It is durable when the answer comes. If its idempotencyKey is known nothing is made: 200 has the first job."""
    store = _store(app)
    job = _made_of(await read_json(request, _new_job), app)
    (created,) = await store.create([job])
    app.audit.add_up(actor_of(request), AuditAction.JOB_CREATE, "dispatch jobs", 1)
    return Response(JobView.of(created.state), status_code=_status_of(created))


@post(
    "/api/dispatch-jobs/batch",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Make jobs",
    operation_class=with_json_body(NewJobsBody, f"At most {MAX_JOBS} jobs"),
)
async def create_jobs(request: Request[Any, Any, Any], app: TheApp) -> JobResults:
    """Each is judged on its own: good ones are made although others are refused. All of them are durable when the
    answer comes."""
    store = _store(app)
    asked = (await read_json(request, _new_jobs)).jobs
    if not 1 <= len(asked) <= MAX_JOBS:
        detail = f"a batch has to have 1 to {MAX_JOBS} jobs, and this one has {len(asked)}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    items: list[Job | ProblemError] = []
    for raw in asked:
        try:
            items.append(_made_of(decode_json(bytes(raw), _new_job, "it"), app))
        except ProblemError as problem:
            items.append(problem)
    made = await store.create([item for item in items if isinstance(item, Job)])
    app.audit.add_up(actor_of(request), AuditAction.JOB_CREATE, "dispatch jobs", len(made))
    results = iter(made)
    return JobResults([_result_of(item, results) for item in items])


@get("/api/dispatch-jobs", tags=["Dispatch jobs"], summary="List jobs")
async def list_jobs(
    app: TheApp,
    status: Annotated[Status | None, QueryParameter(description="Only those in this status")] = None,
    mode: Annotated[DispatchMode | None, QueryParameter(description="Only those of this mode")] = None,
    kind: Annotated[Kind | None, QueryParameter(description="Only those of this kind")] = None,
    code: Annotated[
        str | None, QueryParameter(max_length=MAX_NAME_CHARS, description="Only those of this code")
    ] = None,
    message_group: Annotated[
        str | None,
        QueryParameter(name="messageGroup", max_length=MAX_NAME_CHARS, description="Only those of this group"),
    ] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[int | None, QueryParameter(ge=1, le=MAX_CURSOR, description="`next` of the page before")] = None,
) -> JobPage:
    """Newest first."""
    which = Filter(status=status, mode=mode, group=message_group, code=code, kind=kind)
    page = await _store(app).page(which, limit, cursor)
    return JobPage([JobView.of(state) for state in page.items], None if page.cursor is None else str(page.cursor))


@get("/api/dispatch-jobs/{id:str}", tags=["Dispatch jobs"], summary="Look at a job")
async def get_job(
    app: TheApp,
    id: JobId,  # noqa: A002 - the name in the path
) -> WholeJob:
    """With every attempt at it."""
    store = _store(app)
    state = await store.find(id)
    return WholeJob(JobView.of(state), [AttemptView.of(made) for made in await store.attempts_of(id)])


@post(
    "/api/dispatch-jobs/{id:str}/retry",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Try a job again",
)
async def retry_job(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: JobId,  # noqa: A002 - the name in the path
) -> JobView:
    """At once, and with all its retries, if it is in ERROR. Its group goes on if it was blocked by that."""
    actor = actor_of(request)
    state = await _store(app).retry(id, actor.who)
    app.audit.record(actor, AuditAction.JOB_RETRY, f"job {id}", "", 1)
    return JobView.of(state)


@post(
    "/api/dispatch-jobs/{id:str}/cancel",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Cancel a job",
)
async def cancel_job(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: JobId,  # noqa: A002 - the name in the path
) -> JobView:
    """It is never tried (again), and its group goes on."""
    actor = actor_of(request)
    state = await _store(app).cancel(id, actor.who)
    app.audit.record(actor, AuditAction.JOB_CANCEL, f"job {id}", "", 1)
    return JobView.of(state)


@patch(
    "/api/dispatch-jobs/{id:str}",
    tags=["Dispatch jobs"],
    summary="Change a job",
    operation_class=with_json_body(JobChange, "What to change"),
)
async def change_job(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: JobId,  # noqa: A002 - the name in the path
) -> JobView:
    """Its mode: what its failures mean for its group from now on."""
    actor, change = actor_of(request), await read_json(request, _change)
    state = await _store(app).change_mode(id, change.mode, actor.who)
    app.audit.record(actor, AuditAction.JOB_CHANGE, f"job {id}", f"mode {change.mode}", 1)
    return JobView.of(state)


def _store(app: ServedRouter) -> JobStore:
    if app.jobs is None:
        detail = "this router dispatches no jobs: set platform.enabled (FLOWCATALYST_PLATFORM__ENABLED=true)"
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)
    return app.jobs


def _made_of(asked: NewJob, app: ServedRouter) -> Job:
    try:
        return new_job(asked, app.ids.new_id(), app.clock.wall())
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None


def _status_of(created: Created) -> HTTPStatus:
    return HTTPStatus.OK if created.repeated else HTTPStatus.CREATED


def _result_of(item: Job | ProblemError, made: Any) -> JobResult:
    if isinstance(item, ProblemError):
        return JobResult(HTTPStatus.BAD_REQUEST, problem=item.body())
    created = next(made)
    return JobResult(_status_of(created), job=JobView.of(created.state))
