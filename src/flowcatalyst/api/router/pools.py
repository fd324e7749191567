"""/monitoring/pool-stats and /monitoring/pools: what pools do, and their limits while they run."""

import dataclasses
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post, put
from litestar.params import PathParameter

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import Offset, page_from
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.router.group_views import milliseconds
from flowcatalyst.control import acting
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.control.router_config import change_in_words
from flowcatalyst.core.message import Result
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import LEAST, MAX_CONCURRENCY, NO_RATE, RETRYABLE, Success
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.stats import PoolStats
from flowcatalyst.router.top_groups import GroupFigures
from flowcatalyst.router.windows import Window

UNSET: Final = msgspec.UNSET
NO_FIGURES: Final = GroupFigures()


class WindowView(msgspec.Struct, rename="camel"):
    """What a pool did in the last minutes. `seconds` is how long exactly; less if the pool is younger."""

    seconds: float
    delivered: int
    dead_lettered: int
    nacked: int
    retried: int
    rate_limit_waits: int
    attempts: dict[Result, int]
    mean_attempt_ms: float | None  # null: no attempt ended
    p95_attempt_ms: float | None  # an estimate from the buckets of the histogram in /metrics
    p50_lag_ms: float | None  # from published, or due, to delivered; estimates too. null: nothing that can tell was
    p95_lag_ms: float | None

    @classmethod
    def of(cls, window: Window) -> "WindowView":
        stats = window.stats
        return cls(
            seconds=round(window.seconds, 3),
            delivered=stats.delivered,
            dead_lettered=stats.dead_lettered,
            nacked=stats.nacked,
            retried=stats.retried,
            rate_limit_waits=stats.rate_limit_waits,
            attempts=_attempts(stats),
            mean_attempt_ms=_milliseconds(stats.mean_duration_s),
            p95_attempt_ms=_milliseconds(stats.duration_quantile_s(0.95)),
            p50_lag_ms=_milliseconds(stats.lag_quantile_s(0.5)),
            p95_lag_ms=_milliseconds(stats.lag_quantile_s(0.95)),
        )


class ShareView(msgspec.Struct, rename="camel"):
    """What this process may use of a pool's limits now, which several divide."""

    concurrency: int
    rate_limit_per_minute: int | None
    processes: int  # that divide them; 0: this one does not take part now, so it starts nothing


class PoolView(msgspec.Struct, rename="camel"):
    """A pool: its limits, what it holds now, and what it did since it was made."""

    code: str
    concurrency: int
    rate_limit_per_minute: int | None
    share: ShareView | None  # null: the limits are this process's own
    failure_scope: FailureScope
    max_delivery_attempts: int | None
    capacity: int
    parked_limit: int
    retry_statuses: list[int]
    ack_before_next: bool
    success: Success
    queued: int
    parked: int  # of the queued: beyond the capacity, because they came along with others or cannot start now
    in_flight: int
    groups: int
    held_groups: int
    oldest_waiting_ms: float | None  # of the messages that are next in their groups; null: none waits
    blocked_groups: int  # that wait for a message which was tried and is neither delivered nor a dead letter
    longest_blocked_ms: float | None
    delivered: int
    dead_lettered: int
    nacked: int
    retried: int
    rate_limit_waits: int
    attempts: dict[Result, int]
    mean_attempt_ms: float | None
    p95_attempt_ms: float | None
    p50_lag_ms: float | None
    p95_lag_ms: float | None
    draining: bool
    paused_by: str | None  # null: it is not paused
    paused_for_ms: int | None
    last_5_minutes: WindowView
    last_30_minutes: WindowView

    @classmethod
    def of(cls, app: ServedRouter, pool: Pool, groups: GroupFigures = NO_FIGURES) -> "PoolView":
        now, pause = app.clock.monotonic(), app.engine.pauses.pools.get(pool.code)
        processes = None if app.engine.share is None else app.engine.share.processes
        limits, share, stats, windows = pool.configured, pool.limits, pool.stats, pool.windows
        return cls(
            code=pool.code,
            concurrency=limits.concurrency,
            rate_limit_per_minute=limits.rate_per_minute,
            share=None if processes is None else ShareView(share.concurrency, share.rate_per_minute, processes),
            failure_scope=limits.failure_scope,
            max_delivery_attempts=limits.max_delivery_attempts,
            capacity=share.effective_capacity,
            parked_limit=limits.parked_limit,
            retry_statuses=sorted(limits.retry_statuses),
            ack_before_next=limits.ack_before_next,
            success=limits.success,
            queued=pool.buffered,
            parked=pool.parked,
            in_flight=pool.in_flight,
            groups=pool.group_count,
            held_groups=pool.held_count,
            oldest_waiting_ms=_milliseconds(groups.waiting_s.get(pool.code) or None),
            blocked_groups=groups.blocked.get(pool.code, 0),
            longest_blocked_ms=_milliseconds(groups.blocked_s.get(pool.code)),
            delivered=stats.delivered,
            dead_lettered=stats.dead_lettered,
            nacked=stats.nacked,
            retried=stats.retried,
            rate_limit_waits=stats.rate_limit_waits,
            attempts=_attempts(stats),
            mean_attempt_ms=_milliseconds(stats.mean_duration_s),
            p95_attempt_ms=_milliseconds(stats.duration_quantile_s(0.95)),
            p50_lag_ms=_milliseconds(stats.lag_quantile_s(0.5)),
            p95_lag_ms=_milliseconds(stats.lag_quantile_s(0.95)),
            draining=pool.draining,
            paused_by=None if pause is None else pause.by,
            paused_for_ms=None if pause is None else milliseconds(app.clock.wall() - pause.since),
            last_5_minutes=WindowView.of(windows.window(5 * 60.0, now)),
            last_30_minutes=WindowView.of(windows.window(30 * 60.0, now)),
        )


def _attempts(stats: PoolStats) -> dict[Result, int]:
    return {result: stats.attempts[result] for result in Result}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


class PoolChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """New limits; a field that is left out stays as it is, null removes the limit, as 0 does for the rate."""

    concurrency: Annotated[int, msgspec.Meta(ge=LEAST["concurrency"], le=MAX_CONCURRENCY)] | msgspec.UnsetType = UNSET
    rate_limit_per_minute: Annotated[int, msgspec.Meta(ge=NO_RATE)] | msgspec.UnsetType | None = UNSET
    failure_scope: FailureScope | msgspec.UnsetType = UNSET
    max_delivery_attempts: (
        Annotated[int, msgspec.Meta(ge=LEAST["max_delivery_attempts"])] | msgspec.UnsetType | None
    ) = UNSET
    parked_limit: Annotated[int, msgspec.Meta(ge=LEAST["parked_limit"])] | msgspec.UnsetType = UNSET
    retry_statuses: list[Annotated[int, msgspec.Meta(ge=min(RETRYABLE), le=max(RETRYABLE))]] | msgspec.UnsetType = UNSET
    ack_before_next: bool | msgspec.UnsetType = UNSET
    success: Success | msgspec.UnsetType = UNSET


_decoder = msgspec.json.Decoder(PoolChange)


@get("/monitoring/pool-stats", tags=["Monitoring"], summary="Pools")
async def get_pool_stats(request: Request[Any, Any, Any], app: TheApp, offset: Offset = 0) -> Response[list[PoolView]]:
    """Every pool with its limits, its load and its counts: since it was made and in the last 5 and 30 minutes. At most
    about 1 MiB of them: if there are more, the Link header leads to them.
    """
    groups = await app.group_watch.figures()
    listed = list(app.router.pools.values())[offset:]
    return page_from(request, (PoolView.of(app, pool, groups) for pool in listed), offset)


@put(
    "/monitoring/pools/{code:str}",
    tags=["Monitoring"],
    summary="Change a pool while it runs",
    operation_class=with_json_body(PoolChange, "The limits to change"),
)
async def change_pool(
    request: Request[Any, Any, Any],
    app: TheApp,
    code: Annotated[str, PathParameter(description="Code of the pool")],
) -> PoolView:
    """Change limits at once, until the next restart. Attempts in flight are never cut short."""
    pool = _pool(app, code)
    change = await read_json(request, _decoder)
    new = {
        "concurrency": change.concurrency,
        "rate_per_minute": UNSET if change.rate_limit_per_minute is UNSET else change.rate_limit_per_minute or None,
        "failure_scope": change.failure_scope,
        "max_delivery_attempts": change.max_delivery_attempts,
        "parked_limit": change.parked_limit,
        "retry_statuses": UNSET if change.retry_statuses is UNSET else frozenset(change.retry_statuses),
        "ack_before_next": change.ack_before_next,
        "success": change.success,
    }
    given: dict[str, Any] = {name: value for name, value in new.items() if value is not UNSET}
    try:
        limits = dataclasses.replace(pool.configured, **given)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    detail = change_in_words(pool.configured, limits)
    pool.change(limits)
    app.audit.record(actor_of(request), AuditAction.POOL_CHANGE, f"pool {code}", detail)
    return PoolView.of(app, pool, await app.group_watch.figures())


@post(
    "/monitoring/pools/{code:str}/pause",
    status_code=HTTPStatus.OK,
    tags=["Monitoring"],
    summary="Pause a pool",
)
async def pause_pool(
    request: Request[Any, Any, Any],
    app: TheApp,
    code: Annotated[str, PathParameter(description="Code of the pool")],
) -> PoolView | None:
    """It starts nothing and asks for no messages from now on, across restarts of this router, until it is resumed.
    Attempts in flight end as usual, and no attempt is spent. Another process has to be told by itself. A standby has no
    pools: there it is paused for the time when it is primary, and the answer is null.
    """
    pool = _pool(app, code) if app.at_work else None
    await acting.pause(app, PauseKind.POOL, code, actor_of(request))
    return None if pool is None else PoolView.of(app, pool, await app.group_watch.figures())


@post(
    "/monitoring/pools/{code:str}/resume",
    status_code=HTTPStatus.OK,
    tags=["Monitoring"],
    summary="Resume a pool",
)
async def resume_pool(
    request: Request[Any, Any, Any],
    app: TheApp,
    code: Annotated[str, PathParameter(description="Code of the pool")],
) -> PoolView | None:
    """It goes on where it stopped. To resume one that is not paused changes nothing. The answer is null for a pool that
    was paused and is not there any more.
    """
    pool = next((one for one in app.router.all_pools() if one.code == code), None)
    if pool is None and code not in app.engine.pauses.pools:
        raise _unknown(app, code)
    await acting.resume(app, PauseKind.POOL, code, actor_of(request))
    return None if pool is None else PoolView.of(app, pool, await app.group_watch.figures())


def _pool(app: ServedRouter, code: str) -> Pool:
    pool = app.router.pools.get(code)
    if pool is None:
        raise _unknown(app, code)
    return pool


def _unknown(app: ServedRouter, code: str) -> ProblemError:
    names = ", ".join(app.router.pools)
    others = f"the pools are: {names}" if names else "this router has no pools now"
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no pool {code!r}; {others}")
