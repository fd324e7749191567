"""/monitoring/endpoints and /monitoring/pauses: where messages go, how that does, and what people stopped."""

from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.cursors import cursor_of, read_cursor
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import Offset, behind, items_that_fit, page_from
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.router.group_views import milliseconds
from flowcatalyst.control import acting
from flowcatalyst.core.errors import TargetRefusedError
from flowcatalyst.core.message import MAX_TARGET_CHARS
from flowcatalyst.core.targets import endpoint_of, origin_of, parse_target
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.pauses import PauseKind

MAX_LISTED: Final = 1000
Endpoint = Annotated[
    str,
    QueryParameter(
        min_length=1,
        max_length=MAX_TARGET_CHARS,
        description="URL of the endpoint, or scheme, host and port for all of it",
    ),
]


class EndpointView(msgspec.Struct, rename="camel"):
    """An endpoint, or an origin that is paused as a whole. Counts are of the time since its pools know it."""

    endpoint: str
    state: BreakerState
    paused_by: str | None
    paused_for_ms: int | None
    in_flight: int
    slots: int  # that it may have now, in all pools together
    pools: list[str]
    waiting: int  # groups that wait for it
    delivered: int
    failed: int
    mean_ms: float | None  # of the latest successes, 64 in each pool at most
    p95_ms: float | None
    last_error: str | None
    down_for_ms: int | None


class EndpointPage(msgspec.Struct, rename="camel"):
    """Endpoints by name. `next` is the cursor of the next page; null if there is none."""

    items: list[EndpointView]
    next: str | None


class PauseView(msgspec.Struct, rename="camel"):
    """Something that a person stopped."""

    kind: PauseKind
    name: str
    by: str
    since_ms: int


@get("/monitoring/endpoints", tags=["Monitoring"], summary="Endpoints")
async def list_endpoints(
    app: TheApp,
    prefix: Annotated[str, QueryParameter(description="Only those that begin so")] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    cursor: Annotated[str | None, QueryParameter(max_length=16_384, description="`next` of the page before")] = None,
) -> EndpointPage:
    """Those that were called lately, that are paused or that are down: breaker, share of the slots, latency, errors. A
    page may be shorter than `limit` although there is a `next`: it has at most about 1 MiB.
    """
    after = None if cursor is None else read_cursor(cursor, str)
    names = {name for name, _ in app.breakers.items()} | set(app.engine.pauses.endpoints)
    names |= {share.name for pool in app.router.all_pools() for share, _ in pool.shares()}
    chosen = sorted(name for name in names if name.startswith(prefix))

    async def read(most: int, after: str | None) -> tuple[list[EndpointView], str | None]:
        shown, following = behind(chosen, most, after)
        return _views(app, shown), following

    views, following = await items_that_fit(read, limit, after)
    return EndpointPage(views, None if following is None else cursor_of(following))


@post("/monitoring/endpoints/pause", status_code=HTTPStatus.OK, tags=["Monitoring"], summary="Pause an endpoint")
async def pause_endpoint(request: Request[Any, Any, Any], app: TheApp, endpoint: Endpoint) -> EndpointView:
    """No attempt is made at it from now on, across restarts of this router, until it is resumed; attempts in flight end
    as usual. What waits for it spends no attempt and takes no slot from others.
    """
    name = _name(endpoint)
    await acting.pause(app, PauseKind.ENDPOINT, name, actor_of(request))
    return _views(app, [name])[0]


@post("/monitoring/endpoints/resume", status_code=HTTPStatus.OK, tags=["Monitoring"], summary="Resume an endpoint")
async def resume_endpoint(request: Request[Any, Any, Any], app: TheApp, endpoint: Endpoint) -> EndpointView:
    """What waited for it here starts; what a full pool let return to its queue comes when its delay there is over,
    after five minutes at most. One whose whole origin is paused cannot be resumed by itself (409)."""
    name = _name(endpoint)
    paused = app.engine.pauses.of_target(name, endpoint_of, origin_of)
    if paused is not None and paused[0] != name:
        detail = f"{name} is not paused by itself: all of {paused[0]} is, resume that"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    await acting.resume(app, PauseKind.ENDPOINT, name, actor_of(request))
    return _views(app, [name])[0]


@get("/monitoring/pauses", tags=["Monitoring"], summary="What people stopped")
async def list_pauses(
    request: Request[Any, Any, Any],
    app: TheApp,
    kind: Annotated[PauseKind | None, QueryParameter(description="Only those of this kind")] = None,
    name: Annotated[str | None, QueryParameter(description="Only what is called so")] = None,
    offset: Offset = 0,
) -> Response[list[PauseView]]:
    """Paused pools and endpoints, and held groups; who stopped them, and how long ago. At most about 1 MiB of them: if
    there are more, the Link header leads to them.
    """
    wall = app.clock.wall()
    views = (
        PauseView(one, called, pause.by, milliseconds(wall - pause.since) or 0)
        for one, called, pause in app.engine.pauses
        if kind in (None, one) and name in (None, called)
    )
    return page_from(request, islice(views, offset, None), offset)


def _views(app: ServedRouter, names: Sequence[str]) -> list[EndpointView]:
    shares: dict[str, list[tuple[str, Any, int]]] = {name: [] for name in names}
    for pool in app.router.all_pools():
        for share, slots in pool.shares():
            if share.name in shares:
                shares[share.name].append((pool.code, share, slots))
    now, wall = app.clock.monotonic(), app.clock.wall()
    views = []
    for name in names:
        breaker, paused = app.breakers.find(name), app.engine.pauses.of_target(name, endpoint_of, origin_of)
        pause = None if paused is None else paused[1]
        down, mine = app.engine.endpoint_outages.down.get(name), shares[name]
        took = sorted(seconds for _, share, _ in mine for seconds in share.latest_s)
        failing = None if breaker is None else breaker.failing
        views.append(
            EndpointView(
                endpoint=name,
                state=BreakerState.CLOSED if breaker is None else breaker.state,
                paused_by=None if pause is None else pause.by,
                paused_for_ms=None if pause is None else milliseconds(wall - pause.since),
                in_flight=sum(share.in_flight for _, share, _ in mine),
                slots=sum(slots for _, _, slots in mine),
                pools=[code for code, _, _ in mine],
                waiting=sum(pool.waiting_at(name) for pool in app.router.all_pools()),
                delivered=sum(share.delivered for _, share, _ in mine),
                failed=sum(share.failed for _, share, _ in mine),
                mean_ms=round(sum(took) / len(took) * 1000, 3) if took else None,
                p95_ms=round(took[int(len(took) * 0.95)] * 1000, 3) if took else None,
                last_error=None if failing is None else failing.detail,
                down_for_ms=None if down is None else milliseconds(now - down.since),
            )
        )
    return views


def _name(url: str) -> str:
    """An endpoint as it is listed. One without a path means the whole origin."""
    try:
        parse_target(url)
    except TargetRefusedError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"endpoint: {error}") from None
    has_path = "/" in url.partition("://")[2]
    return endpoint_of(url) if has_path else origin_of(url)
