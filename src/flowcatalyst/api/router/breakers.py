"""/monitoring/circuit-breakers: which endpoints are given a rest, and how to end it."""

from collections import Counter
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.api.listing import Offset, page_from
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.router.breaker import Breaker, BreakerState


class BreakerView(msgspec.Struct, rename="camel"):
    """The circuit breaker of one endpoint."""

    endpoint: str
    state: BreakerState
    failure_ratio: float
    rejected: int
    opened_for_s: float | None  # null: it is closed

    @classmethod
    def of(cls, endpoint: str, breaker: Breaker, now: float) -> "BreakerView":
        closed = breaker.state is BreakerState.CLOSED
        return cls(
            endpoint=endpoint,
            state=breaker.state,
            failure_ratio=round(breaker.failure_ratio if closed else breaker.ratio_at_opening, 3),
            rejected=breaker.rejected,
            opened_for_s=None if closed else round(now - breaker.opened_at, 3),
        )


class BreakersReset(msgspec.Struct, rename="camel"):
    """How many breakers were closed."""

    reset: int


@get("/monitoring/circuit-breakers", tags=["Monitoring"], summary="Circuit breakers")
async def get_circuit_breakers(
    request: Request[Any, Any, Any], app: TheApp, offset: Offset = 0
) -> Response[list[BreakerView]]:
    """One for each endpoint that was called in the last hour, 10,000 of them at most. While it is open no attempt is
    spent on its endpoint. At most about 1 MiB of them: if there are more, the Link header leads to them.
    """
    now = app.clock.monotonic()
    listed = sorted(app.breakers.items(), key=lambda item: item[0])[offset:]
    return page_from(request, (BreakerView.of(endpoint, breaker, now) for endpoint, breaker in listed), offset)


@post(
    "/monitoring/circuit-breakers/reset",
    tags=["Monitoring"],
    summary="Close circuit breakers",
    status_code=HTTPStatus.OK,
)
async def reset_circuit_breakers(
    request: Request[Any, Any, Any],
    app: TheApp,
    endpoint: Annotated[
        str | None, QueryParameter(description="Only the one of this endpoint, as it is listed")
    ] = None,
) -> BreakersReset:
    """Forget the failures of one endpoint, or of all.

    Messages that only wait for a breaker start now. Those that failed wait for their next attempt all the same.
    """
    breakers = dict(app.breakers.items())
    if endpoint is not None and endpoint not in breakers:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"there is no circuit breaker for {endpoint!r}")
    chosen = list(breakers.values()) if endpoint is None else [breakers[endpoint]]
    states = Counter(breaker.state for breaker in chosen)
    for breaker in chosen:
        breaker.reset()
    for pool in app.router.all_pools():
        pool.open_gates(breakers if endpoint is None else [endpoint])
    detail = f"{', '.join(f'{count} {state}' for state, count in states.items()) or 'none'} -> CLOSED"
    what = endpoint or "all circuit breakers"
    app.audit.record(actor_of(request), AuditAction.BREAKER_RESET, what, detail, len(chosen))
    return BreakersReset(len(chosen))
