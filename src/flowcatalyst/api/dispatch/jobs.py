"""/api/dispatch-jobs: webhook calls that must happen, each in its place. Here they are made."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response, post
from litestar.openapi import ResponseSpec

from flowcatalyst.api.bodies import decode_json, read_json
from flowcatalyst.api.callable_targets import check_may_be_called
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_views import JobView
from flowcatalyst.api.dispatch.platform import store_of
from flowcatalyst.api.notes import note_on_pool
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import Problem, ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.dispatch.job import InvalidJobError, Job, NewJob, new_job
from flowcatalyst.dispatch.store.contract import Created

MAX_JOBS: Final = 1000


class NewJobs(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Jobs to make."""

    jobs: list[msgspec.Raw]


class NewJobsBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Jobs to make."""

    jobs: list[NewJob]


class MadeJob(JobView, rename="camel", omit_defaults=True):
    """The job. `note`: what its sender may not have meant."""

    note: str | None = None


class JobResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of one job of a batch: 201 made, 200 it was there by its idempotency key, 400 and why not."""

    status: int
    job: MadeJob | None = None
    problem: Problem | None = None


class JobResults(msgspec.Struct, rename="camel"):
    """One result for each job, in the order of the request."""

    results: list[JobResult]


_NOT_ORDERED: Final = (
    "without a mode it is IMMEDIATE, so it is ordered with nothing, not even in its messageGroup: give the mode "
    "BLOCK_ON_ERROR or NEXT_ON_ERROR for order, or IMMEDIATE if you mean it"
)
_new_job = msgspec.json.Decoder(NewJob)
_new_jobs = msgspec.json.Decoder(NewJobs)


@post(
    "/api/dispatch-jobs",
    tags=["Dispatch jobs"],
    summary="Make a job",
    operation_class=with_json_body(NewJob, "The job"),
    response_description="The job is kept and will be delivered",
    responses={HTTPStatus.OK: ResponseSpec(MadeJob, description="It was there already", generate_examples=False)},
)
async def create_job(request: Request[Any, Any, Any], app: TheApp) -> Response[MadeJob]:
    """It is durable when the answer comes. If its idempotencyKey is known nothing is made: 200 has the first job."""
    store = store_of(app)
    asked = await read_json(request, _new_job)
    (created,) = await store.create([_made_of(asked, app)])
    _count(request, app, [created])
    return Response(_shown(created, asked, app), status_code=_status_of(created))


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
    store = store_of(app)
    asked = (await read_json(request, _new_jobs)).jobs
    if not 1 <= len(asked) <= MAX_JOBS:
        detail = f"a batch has to have 1 to {MAX_JOBS} jobs, and this one has {len(asked)}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    items: list[tuple[NewJob, Job] | ProblemError] = []
    for raw in asked:
        try:
            wanted = decode_json(bytes(raw), _new_job, "it")
            items.append((wanted, _made_of(wanted, app)))
        except ProblemError as problem:
            items.append(problem)
    made = await store.create([item[1] for item in items if not isinstance(item, ProblemError)])
    _count(request, app, made)
    created = iter(made)
    results = []
    for item in items:
        if isinstance(item, ProblemError):
            results.append(JobResult(HTTPStatus.BAD_REQUEST, problem=item.body()))
        else:
            one = next(created)
            results.append(JobResult(_status_of(one), job=_shown(one, item[0], app)))
    return JobResults(results)


def _made_of(asked: NewJob, app: ServedRouter) -> Job:
    try:
        job = new_job(asked, app.ids.new_id(), app.clock.wall())
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    check_may_be_called(app, "targetUrl", job.target)
    return job


def _count(request: Request[Any, Any, Any], app: ServedRouter, made: list[Created]) -> None:
    app.job_counts.created += sum(not one.repeated for one in made)
    app.audit.add_up(actor_of(request), AuditAction.JOB_CREATE, "dispatch jobs", len(made))


def _status_of(created: Created) -> HTTPStatus:
    return HTTPStatus.OK if created.repeated else HTTPStatus.CREATED


def _shown(created: Created, asked: NewJob, app: ServedRouter) -> MadeJob:
    notes = []
    if asked.message_group is not None and asked.mode is None:
        notes.append(_NOT_ORDERED)
    if (unknown := note_on_pool(asked.dispatch_pool_code, app.config.pools)) is not None:
        notes.append(unknown)
    return MadeJob(**msgspec.structs.asdict(JobView.of(created.state)), note="; ".join(notes) or None)
