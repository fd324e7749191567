"""/api/message-groups: groups of dispatch jobs, those that stand still first, and what a person can do about them."""

from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from litestar import Request, get, post
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.job_views import GroupView, JobView
from flowcatalyst.api.dispatch.platform import as_shown, store_of
from flowcatalyst.api.listing import items_that_fit
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.job import InvalidJobError, JobState, check_text
from flowcatalyst.dispatch.store.contract import Cancel, JobStateError, Retry

MAX_LISTED: Final = 1000
MAX_CURSOR_CHARS: Final = 4096
# It comes percent-encoded as one segment (`group_paths`), so its length is checked when it is decoded.
GroupName = Annotated[
    str, PathParameter(schema_extra={"max_length": MAX_NAME_CHARS}, description="Name of the group, percent-encoded")
]


class GroupList(msgspec.Struct, rename="camel"):
    """Groups with unfinished jobs: those blocked or held first, the longest first. `next` is the cursor of the next
    page; null if there is none."""

    items: list[GroupView]
    next: str | None


class HeadAction(msgspec.Struct, rename="camel"):
    """The job that it was done to, and its group afterwards."""

    job: JobView
    group: GroupView


@get("/api/message-groups", tags=["Message groups"], summary="List groups of jobs")
async def list_groups(
    app: TheApp,
    blocked: Annotated[bool, QueryParameter(description="Only those that are blocked or held")] = False,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[
        str | None, QueryParameter(max_length=MAX_CURSOR_CHARS, description="`next` of the page before")
    ] = None,
) -> GroupList:
    """Those with unfinished jobs in order; the longest blocked first. A page has at most about 1 MiB: it may have fewer
    than `limit` although there is a `next`.
    """
    if cursor is not None:
        _check("cursor", cursor)
    store = store_of(app)

    async def read(most: int, after: str | None) -> tuple[list[GroupView], str | None]:
        page = await store.groups(blocked=blocked, limit=most, cursor=after)
        return [GroupView.of(one) for one in page.items], page.cursor

    return GroupList(*await items_that_fit(read, limit, cursor))


@get("/api/message-groups/{group:str}", tags=["Message groups"], summary="Look at a group of jobs")
async def get_group(app: TheApp, group: GroupName) -> GroupView:
    """One without unfinished jobs has none, and no head."""
    return GroupView.of(await store_of(app).group(_name(group)))


@post(
    "/api/message-groups/{group:str}/hold",
    status_code=HTTPStatus.OK,
    tags=["Message groups"],
    summary="Hold a group of jobs",
)
async def hold_group(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> GroupView:
    """Nothing of it starts from the answer on until it is released; an attempt in flight ends as usual."""
    actor, name = actor_of(request), _name(group)
    try:
        state = await acting.hold(store_of(app), name, actor.who)
    except JobStateError:  # it is held all the same
        app.audit.record(actor, AuditAction.GROUP_HOLD, f"group {name}", "a router did not answer", 1)
        raise
    app.audit.record(actor, AuditAction.GROUP_HOLD, f"group {name}", "", state.jobs)
    return GroupView.of(state)


@post(
    "/api/message-groups/{group:str}/release",
    status_code=HTTPStatus.OK,
    tags=["Message groups"],
    summary="Release a group of jobs",
)
async def release_group(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> GroupView:
    """Its jobs start again. To release one that nobody holds changes nothing."""
    actor, name = actor_of(request), _name(group)
    state = await store_of(app).release(name, actor.who)
    app.audit.record(actor, AuditAction.GROUP_RELEASE, f"group {name}", "", state.jobs)
    return GroupView.of(state)


@post(
    "/api/message-groups/{group:str}/retry-head",
    status_code=HTTPStatus.OK,
    tags=["Message groups"],
    summary="Try the first job of a group again",
)
async def retry_head(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> HeadAction:
    """At once, if it failed or was told to wait: the group goes on if that succeeds."""
    store, actor, name = store_of(app), actor_of(request), _name(group)
    head = await _head(app, name)
    state = await acting.act(store, head.job.id, Retry(), actor.who)
    app.audit.record(actor, AuditAction.JOB_RETRY, f"job {head.job.id}", f"first of group {name}", 1)
    return HeadAction(JobView.of(as_shown(app, state)), GroupView.of(await store.group(name)))


@post(
    "/api/message-groups/{group:str}/skip-head",
    status_code=HTTPStatus.OK,
    tags=["Message groups"],
    summary="Cancel the first job of a group",
)
async def skip_head(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> HeadAction:
    """The group goes on with the next one."""
    store, actor, name = store_of(app), actor_of(request), _name(group)
    head = await _head(app, name)
    state = await acting.act(store, head.job.id, Cancel(), actor.who)
    app.job_counts.cancelled += 1
    app.audit.record(actor, AuditAction.JOB_CANCEL, f"job {head.job.id}", f"first of group {name}", 1)
    return HeadAction(JobView.of(state), GroupView.of(await store.group(name)))


async def _head(app: ServedRouter, name: str) -> JobState:
    head = (await store_of(app).group(name)).head
    if head is None:
        raise ProblemError(HTTPStatus.CONFLICT, f"group {name} has no unfinished job in order")
    return head


def _name(encoded: str) -> str:
    name = unquote(encoded)
    if len(name) > MAX_NAME_CHARS:
        detail = f"the name of a group has at most {MAX_NAME_CHARS} characters, and this one {len(name)}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    _check("the name of the group", name)
    return name


def _check(what: str, text: str) -> None:
    try:
        check_text(what, text)
    except InvalidJobError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
