"""/api/dispatch-pools: the pools of the platform. They win over those of the settings with the same code."""

from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final, Union, get_type_hints

import msgspec
from litestar import Request, delete, get, patch, post, put
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.platform import platform_of
from flowcatalyst.api.dispatch.router_config import EMBEDDED
from flowcatalyst.api.listing import behind, items_that_fit
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.control.router_config import change_in_words
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.dispatch.catalog import Kept
from flowcatalyst.dispatch.catalog_entries import DispatchPool, InvalidPoolError, check_pool
from flowcatalyst.dispatch.job import as_time
from flowcatalyst.dispatch.store.platform_contract import EntryKind
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success, unconfigured_pools

POOLS: Final = "/api/dispatch-pools"
MAX_LISTED: Final = 1000
PoolCode = Annotated[str, PathParameter(max_length=MAX_NAME_CHARS, description="Code of the pool")]

# Every field but the code, as it is there or left out.
_CHANGEABLE: Final = [
    (name, Union[kind, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007 - of types that are only known here
    for name, kind in get_type_hints(DispatchPool, include_extras=True).items()
    if name != "code"
]
DispatchPoolChange: Final = msgspec.defstruct(
    "DispatchPoolChange",
    _CHANGEABLE,
    rename="camel",
    forbid_unknown_fields=True,
    kw_only=True,
    namespace={"__doc__": "What to change about a pool; what is left out stays as it is."},
)


class PoolOrigin(StrEnum):
    """Whether a pool was made here, or comes from the settings or a config source."""

    CATALOG = "CATALOG"
    CONFIGURATION = "CONFIGURATION"


class DispatchPoolView(msgspec.Struct, rename="camel"):
    """A pool with its limits as they are configured. Only one of the catalog can be changed here; to change another
    one, make one with its code."""

    code: str
    concurrency: int
    rate_limit_per_minute: int | None
    failure_scope: FailureScope
    max_delivery_attempts: int | None
    capacity: int | None
    parked_limit: int
    retry_statuses: list[int]
    ack_before_next: bool
    success: Success
    queue: str | None
    origin: PoolOrigin
    revision: int | None
    created_at: datetime | None
    updated_at: datetime | None

    @classmethod
    def of(cls, code: str, limits: PoolLimits, kept: Kept[DispatchPool] | None) -> "DispatchPoolView":
        return cls(
            code=code,
            concurrency=limits.concurrency,
            rate_limit_per_minute=limits.rate_per_minute,
            failure_scope=limits.failure_scope,
            max_delivery_attempts=limits.max_delivery_attempts,
            capacity=limits.capacity,
            parked_limit=limits.parked_limit,
            retry_statuses=sorted(limits.retry_statuses),
            ack_before_next=limits.ack_before_next,
            success=limits.success,
            queue=None if kept is None else kept.document.queue,
            origin=PoolOrigin.CONFIGURATION if kept is None else PoolOrigin.CATALOG,
            revision=None if kept is None else kept.revision,
            created_at=None if kept is None else as_time(kept.created_at),
            updated_at=None if kept is None else as_time(kept.updated_at),
        )


class DispatchPoolPage(msgspec.Struct, rename="camel"):
    """Pools by code. `next` is the cursor of the next page; null if there is none."""

    items: list[DispatchPoolView]
    next: str | None


class DeletedPool(msgspec.Struct, rename="camel"):
    """A pool that is gone from the catalog, and the one with its code that is in force now; null: there is none."""

    code: str
    now: DispatchPoolView | None


_whole = msgspec.json.Decoder(DispatchPool)
_change = msgspec.json.Decoder(DispatchPoolChange)


@post(
    POOLS,
    tags=["Dispatch pools"],
    summary="Make a pool",
    operation_class=with_json_body(DispatchPool, "The pool"),
    response_description="The pool is in force",
)
async def create_pool(request: Request[Any, Any, Any], app: TheApp) -> DispatchPoolView:
    """In force in this process when the answer comes, in others within a second. One with the code of a pool of the
    settings takes its place."""
    catalog, asked = platform_of(app).catalog, await read_json(request, _whole)
    check_pool(asked)
    _check_queue(app, asked)
    await catalog.add(EntryKind.POOL, asked.code, asked)
    detail = f"concurrency {asked.concurrency}"
    app.audit.record(actor_of(request), AuditAction.POOL_CREATE, f"pool {asked.code}", detail)
    return _view(app, asked.code)


@get(POOLS, tags=["Dispatch pools"], summary="List pools")
async def list_pools(
    app: TheApp,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[
        str | None, QueryParameter(max_length=MAX_NAME_CHARS, description="`next` of the page before")
    ] = None,
) -> DispatchPoolPage:
    """By code: those that were made here and those of the configuration."""
    await platform_of(app).catalog.ready()
    known = {*app.config.pools, *unconfigured_pools(app.config.pools)}
    codes = sorted(known)

    async def read(most: int, after: str | None) -> tuple[list[DispatchPoolView], str | None]:
        shown, following = behind(codes, most, after)
        return [_view(app, code) for code in shown], following

    return DispatchPoolPage(*await items_that_fit(read, limit, cursor))


@get(f"{POOLS}/{{code:str}}", tags=["Dispatch pools"], summary="Look at a pool")
async def get_pool(app: TheApp, code: PoolCode) -> DispatchPoolView:
    """What it does at the moment is at /monitoring/pool-stats."""
    await platform_of(app).catalog.ready()
    return _view(app, code)


@put(
    f"{POOLS}/{{code:str}}",
    tags=["Dispatch pools"],
    summary="Replace a pool",
    operation_class=with_json_body(DispatchPool, "All of it"),
)
async def replace_pool(request: Request[Any, Any, Any], app: TheApp, code: PoolCode) -> DispatchPoolView:
    """What is left out is as for a new one. Attempts in flight are never cut short."""
    asked = await read_json(request, _whole)
    if asked.code != code:
        detail = f"code is {asked.code!r} and the path says {code!r}: the code of a pool stays"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    return await _save(request, app, code, msgspec.structs.asdict(asked))


@patch(
    f"{POOLS}/{{code:str}}",
    tags=["Dispatch pools"],
    summary="Change a pool",
    operation_class=with_json_body(DispatchPoolChange, "What to change"),
)
async def patch_pool(request: Request[Any, Any, Any], app: TheApp, code: PoolCode) -> DispatchPoolView:
    """What is left out stays as it is; null removes a limit."""
    asked = msgspec.structs.asdict(await read_json(request, _change))
    return await _save(request, app, code, {name: one for name, one in asked.items() if one is not msgspec.UNSET})


@delete(f"{POOLS}/{{code:str}}", status_code=HTTPStatus.OK, tags=["Dispatch pools"], summary="Delete a pool")
async def delete_pool(request: Request[Any, Any, Any], app: TheApp, code: PoolCode) -> DeletedPool:
    """What it has in hand comes to its end. If the settings have a pool of this code that is in force again; else it is
    refused while subscriptions name it."""
    catalog = platform_of(app).catalog
    await catalog.ready()
    _check_made_here(app, code)
    users = sorted(one for one, kept in catalog.subscriptions.items() if kept.document.dispatch_pool_code == code)
    if users and code not in app.pools_without_catalog:
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        detail = f"subscription {users[0]}{more} is for pool {code}: give it another dispatchPoolCode first"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    await catalog.remove(EntryKind.POOL, code)
    app.audit.record(actor_of(request), AuditAction.POOL_DELETE, f"pool {code}")
    return DeletedPool(code, _view(app, code) if code in app.config.pools else None)


async def _save(
    request: Request[Any, Any, Any], app: ServedRouter, code: str, given: dict[str, Any]
) -> DispatchPoolView:
    catalog = platform_of(app).catalog
    await catalog.ready()
    _check_made_here(app, code)

    def edit(before: DispatchPool) -> DispatchPool:
        after = msgspec.structs.replace(before, **given)
        check_pool(after)
        _check_queue(app, after)
        return after

    before, after = await catalog.change_pool(code, edit)
    detail = _change_in_words(before, after)
    app.audit.record(actor_of(request), AuditAction.POOL_CHANGE, f"pool {code}", detail)
    return _view(app, code)


def _change_in_words(before: DispatchPool, after: DispatchPool) -> str:
    limits = change_in_words(before.limits(), after.limits())
    if before.queue == after.queue:
        return limits
    moved = f"queue {before.queue or 'none'} -> {after.queue or 'none'}"
    return moved if before.limits() == after.limits() else f"{limits}, {moved}"


def _check_made_here(app: ServedRouter, code: str) -> None:
    """Refuse to change or delete a pool that was not made here. Raises `UnknownEntryError` if there is none at all."""
    if code in platform_of(app).catalog.pools:
        return
    if _view(app, code).origin is PoolOrigin.CONFIGURATION:
        detail = (
            f"there is no dispatch pool {code} that was made here: it comes from the settings or a config source, and "
            f"is changed or removed there; POST {POOLS} makes one that takes its place"
        )
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)


def _check_queue(app: ServedRouter, asked: DispatchPool) -> None:
    """Raise `InvalidPoolError` for a queue that routers elsewhere could not read. One that is not known here may be
    known to others; who publishes warns of it."""
    queue = app.config.queues.get(asked.queue or "")
    if queue is None:
        return
    if queue.uri.startswith(EMBEDDED):
        raise InvalidPoolError(f"queue {queue.name} is in a file of this process: routers elsewhere cannot read it")
    if queue.raw is not None:
        raise InvalidPoolError(f"queue {queue.name} is raw: what is published for routers are messages")
    if queue.polled:
        raise InvalidPoolError(f"this process reads queue {queue.name} itself: set poll = false for it")


def _view(app: ServedRouter, code: str) -> DispatchPoolView:
    """Raises `UnknownEntryError`."""
    catalog = platform_of(app).catalog
    if (kept := catalog.pools.get(code)) is not None:
        return DispatchPoolView.of(code, kept.document.limits(), kept)
    configured = {**app.config.pools, **unconfigured_pools(app.config.pools)}
    if code in configured:
        return DispatchPoolView.of(code, configured[code], None)
    return DispatchPoolView.of(code, catalog.pool(code).document.limits(), None)  # raises
