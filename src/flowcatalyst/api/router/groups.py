"""/monitoring/groups: groups of messages, those that stand still first, and what a person can do about them."""

from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from litestar import Request, get, post
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.cursors import cursor_of, read_cursor
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import items_that_fit
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.router.group_views import BlockableGroup, DoneView
from flowcatalyst.control import acting, stored_messages
from flowcatalyst.control.group_states import Cursor, GroupFilter, GroupStates
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.router.acting import Done, Found
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.pauses import PauseKind

MAX_LISTED: Final = 1000
# It comes percent-encoded as one segment (`group_paths`), so its length is checked when it is decoded.
GroupName = Annotated[
    str, PathParameter(schema_extra={"max_length": MAX_NAME_CHARS}, description="Name of the group, percent-encoded")
]
MessageId = Annotated[
    str,
    PathParameter(
        schema_extra={"max_length": MAX_NAME_CHARS}, description="Id or broker id of the message, percent-encoded"
    ),
]

OfPool = Annotated[str | None, QueryParameter(description="The group of this name in this pool")]
IfFirst = Annotated[
    str | None,
    QueryParameter(description="Id or broker id of the message that is meant: only if it is still the first"),
]


class GroupPage(msgspec.Struct, rename="camel"):
    """Groups, the longest blocked first, then those that are only held. `next` is the cursor of the next page; null if
    there is none."""

    items: list[BlockableGroup]
    next: str | None


@get("/monitoring/groups", tags=["Groups"], summary="List groups of messages")
async def list_router_groups(
    app: TheApp,
    blocked: Annotated[bool, QueryParameter(description="Only those that are blocked or held")] = False,
    pool: Annotated[str | None, QueryParameter(description="Only those in this pool")] = None,
    queue: Annotated[str | None, QueryParameter(description="Only those whose first message is of this queue")] = None,
    endpoint: Annotated[
        str | None, QueryParameter(description="Only those whose first message goes to an endpoint that begins so")
    ] = None,
    prefix: Annotated[str, QueryParameter(description="Only those whose name begins so")] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[str | None, QueryParameter(max_length=2048, description="`next` of the page before")] = None,
) -> GroupPage:
    """Those that the router has, and those that wait in their queues for the next attempt of a message that failed.
    Groups that only wait to be received are not listed. A page filtered by queue or endpoint may be shorter than
    `limit`, or empty, although there is a `next`; so may one of about 1 MiB, which is the most.
    """
    after = None if cursor is None else read_cursor(cursor, Cursor)
    which = GroupFilter(blocked, pool, queue, endpoint, prefix)
    states = GroupStates(app)

    async def read(most: int, behind: Cursor | None) -> tuple[list[BlockableGroup], Cursor | None]:
        page = await states.page(which, most, behind)
        return [BlockableGroup.of(one) for one in page.items], page.cursor

    items, following = await items_that_fit(read, limit, after, at_once=limit)  # each part looks at all groups
    return GroupPage(items, None if following is None else cursor_of(following))


@get("/monitoring/groups/{group:str}", tags=["Groups"], summary="Look at a group of messages")
async def get_router_group(app: TheApp, group: GroupName) -> BlockableGroup:
    """Which message it waits for, since when and until when, and how many wait behind it."""
    name = name_of(group)
    state = await GroupStates(app).find(name)
    if state is None:
        raise _unknown(name)
    return BlockableGroup.of(state)


@post(
    "/monitoring/groups/{group:str}/hold",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Hold a group of messages",
)
async def hold_router_group(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> DoneView:
    """Nothing of it that is in order starts from the answer on until it is released, across restarts of this router; an
    attempt in flight ends as usual. IMMEDIATE messages are ordered with nothing and go on. Other groups are not
    touched.
    """
    name = name_of(group)
    await acting.check_holds_messages(app, name)
    await acting.pause(app, PauseKind.GROUP, name, actor_of(request))
    return await _done(app, Done(True, _held(name)), name)


@post(
    "/monitoring/groups/{group:str}/release",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Release a group of messages",
)
async def release_router_group(request: Request[Any, Any, Any], app: TheApp, group: GroupName) -> DoneView:
    """Its messages start again, in order."""
    name = name_of(group)
    await acting.check_holds_messages(app, name)
    was_held = await acting.resume(app, PauseKind.GROUP, name, actor_of(request))
    text = f"group {name} goes on" if was_held else f"nobody held group {name}"
    return await _done(app, Done(was_held, text), name)


@post(
    "/monitoring/groups/{group:str}/retry-head",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Try the first message of a group now",
)
async def retry_router_head(
    request: Request[Any, Any, Any], app: TheApp, group: GroupName, pool: OfPool = None, message: IfFirst = None
) -> DoneView:
    """Instead of when its next attempt is due. If that succeeds the group goes on. 409 if another message is its first
    by now, or if groups of two pools have this name and no pool is named."""
    name = name_of(group)
    return await _done(app, await acting.retry(app, await _head(app, name, pool, message), actor_of(request)), name)


@post(
    "/monitoring/groups/{group:str}/skip-head",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Give up the first message of a group",
)
async def skip_router_head(
    request: Request[Any, Any, Any], app: TheApp, group: GroupName, pool: OfPool = None, message: IfFirst = None
) -> DoneView:
    """It becomes a dead letter, which can be replayed, and the group goes on. Nothing else is touched. 409 if another
    message is its first by now, or if groups of two pools have this name and no pool is named."""
    name = name_of(group)
    return await _done(app, await acting.skip(app, await _head(app, name, pool, message), actor_of(request)), name)


@post(
    "/monitoring/messages/{id:str}/retry",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Try a message now",
)
async def retry_message(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: MessageId,  # noqa: A002 - the name in the path
) -> DoneView:
    """Instead of when its next attempt is due; not before those in front of it in its group."""
    found = await _message(app, name_of(id))
    if isinstance(found, Done):
        return await _done(app, found, None)
    return await _done(app, await acting.retry(app, found, actor_of(request)), found.group)


@post(
    "/monitoring/messages/{id:str}/skip",
    status_code=HTTPStatus.OK,
    tags=["Groups"],
    summary="Give up a message",
)
async def skip_message(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: MessageId,  # noqa: A002 - the name in the path
) -> DoneView:
    """It becomes a dead letter: at once, or when its turn in its group comes. Its group goes on with the next one. One
    that was not received yet is looked for in queues whose storage is ours.
    """
    name = name_of(id)
    found = await _message(app, name)
    if isinstance(found, Done):
        return await _done(app, await acting.skip_in_queue(app, name, actor_of(request)) or found, None)
    return await _done(app, await acting.skip(app, found, actor_of(request)), found.group)


async def _done(app: ServedRouter, done: Done, group: str | None) -> DoneView:
    state = None if not group else await GroupStates(app).find(group)
    return DoneView(done.done, done.text, None if state is None else BlockableGroup.of(state))


async def _head(app: ServedRouter, group: str, pool: str | None, message: str | None) -> Found:
    """The one that is meant: nothing suspends between this look, if the router knows the group, and the act."""
    codes = GroupStates(app).pools_of(group)
    if pool is None and len(codes) > 1:
        detail = f"there is a group {group!r} in each of the pools {', '.join(sorted(codes))}: say which with ?pool="
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    head = app.engine.acts.head(group, pool) or await stored_messages.head_of(app, group, pool)
    if head is None:
        raise _unknown(group)
    name = head.message_id if isinstance(head, FailedMessage) else head.pointer.id
    if message not in (None, name, head.broker_id):
        detail = f"the first message of group {group!r} is {name!r} by now, not {message!r}: nothing was done"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    return head


async def _message(app: ServedRouter, name: str) -> Found | Done:
    """One that can be acted on, or why nothing can be done to it as long as others are before it in its queue."""
    found = app.engine.acts.find(name)
    stored = await stored_messages.find(app, name) if found is None else None
    if stored is not None and stored[1].ahead:
        first = stored[1].group.head_id
        return Done(
            False, f"message {name} waits in queue {stored[0]} behind {first}: retry or skip the first of its group"
        )
    if stored is not None:
        return stored_messages.as_failed(app, *stored)
    if found is None:
        detail = f"this router neither has message {name!r} nor remembers that it failed: ask GET /monitoring/explain"
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)
    return found


def _held(group: str) -> str:
    return f"group {group} is held: nothing of it starts until it is released, but for IMMEDIATE messages"


def _unknown(group: str) -> ProblemError:
    detail = (
        f"nothing is known here of group {group!r}: this router has no message of it and remembers no failed one "
        "(groups of dispatch jobs are in /api/message-groups)"
    )
    return ProblemError(HTTPStatus.NOT_FOUND, detail)


def name_of(encoded: str) -> str:
    name = unquote(encoded)
    if len(name) > MAX_NAME_CHARS:
        detail = f"a name has at most {MAX_NAME_CHARS} characters, and this one {len(name)}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    return name
