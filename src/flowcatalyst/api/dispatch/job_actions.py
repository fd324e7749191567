"""Acting on one job: try it again, cancel it, change it. Each is in the history of the job and in the audit trail."""

from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, patch, post

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.callable_targets import check_may_be_called
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_list import JobId
from flowcatalyst.api.dispatch.job_views import JobView
from flowcatalyst.api.dispatch.platform import as_shown, checked_id, store_of
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.change import JobChange, change_of
from flowcatalyst.dispatch.job import InvalidJobError, Job, Status
from flowcatalyst.dispatch.store.contract import Cancel, Change, Retry, in_words

_change = msgspec.json.Decoder(JobChange)


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
    """At once, and with all its retries, if it failed or its endpoint told it to wait. Its group goes on if it was
    blocked by that."""
    actor = actor_of(request)
    state = await acting.act(store_of(app), checked_id(id), Retry(), actor.who)
    app.audit.record(actor, AuditAction.JOB_RETRY, f"job {id}", "", 1)
    return JobView.of(as_shown(app, state))


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
    """It is never tried (again), and its group goes on. One whose attempt is in flight is refused with 409."""
    actor = actor_of(request)
    state = await acting.act(store_of(app), checked_id(id), Cancel(), actor.who)
    app.job_counts.cancelled += 1
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
    """Its mode: what its failures mean for its group from now on. Its target, payload, content type or headers: a job
    that waits for a person is tried again at once with them, so its group goes on. What is left out stays."""
    store, actor = store_of(app), actor_of(request)
    asked = await read_json(request, _change)
    found = await store.find(checked_id(id))
    change = checked_change(app, asked, found.job)
    state = await acting.act(store, id, change, actor.who)
    if change != Change(mode=change.mode) and state.status is Status.ERROR and state.next_attempt_at is None:
        state = await acting.act(store, id, Retry(), actor.who)
    app.audit.record(actor, AuditAction.JOB_CHANGE, f"job {id}", in_words(change), 1)
    return JobView.of(as_shown(app, state))


def checked_change(app: ServedRouter, asked: JobChange, job: Job | None = None) -> Change:
    """Checked as if the job, or each of many, were new."""
    try:
        change = change_of(asked, job)
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    if change.target is not None:
        check_may_be_called(app, "targetUrl", change.target)
    return change
