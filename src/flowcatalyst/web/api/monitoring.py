"""GET /monitoring/...: circuit breakers, queues and warnings."""

from datetime import UTC, datetime

import msgspec
from litestar import get

from flowcatalyst.app import App
from flowcatalyst.message import Severity
from flowcatalyst.operations.warnings import WarningCode
from flowcatalyst.routing.breaker import BreakerState
from flowcatalyst.web.dependencies import TheApp


class BreakerView(msgspec.Struct, rename="camel"):
    """The circuit breaker of one endpoint."""

    endpoint: str
    state: BreakerState
    failure_ratio: float
    rejected: int
    opened_for_s: float | None  # null: it is closed


class QueueView(msgspec.Struct, rename="camel"):
    """What a queue holds."""

    name: str
    waiting: int
    leased: int
    delayed: int
    seconds_since_poll: float | None  # null: not polled yet


class WarningView(msgspec.Struct, rename="camel"):
    """Something an operator should know. One that repeats is counted."""

    code: WarningCode
    severity: Severity
    message: str
    source: str
    count: int
    first_at: datetime
    last_at: datetime


@get("/monitoring/circuit-breakers", tags=["Monitoring"], summary="Circuit breakers")
async def get_circuit_breakers(app: TheApp) -> list[BreakerView]:
    """One for each endpoint that was called in the last hour. While it is open no attempt is spent on its endpoint."""
    now = app.clock.monotonic()
    return [
        BreakerView(
            endpoint=endpoint,
            state=breaker.state,
            failure_ratio=round(
                breaker.failure_ratio if breaker.state is BreakerState.CLOSED else breaker.ratio_at_opening, 3
            ),
            rejected=breaker.rejected,
            opened_for_s=None if breaker.state is BreakerState.CLOSED else round(now - breaker.opened_at, 3),
        )
        for endpoint, breaker in app.breakers.items()
    ]


@get("/monitoring/queues", tags=["Monitoring"], summary="Queues")
async def get_queues(app: TheApp) -> list[QueueView]:
    """How many messages each queue holds: waiting to be received, leased by a router, or delayed."""
    return [await _queue_view(app, name) for name in app.queues]


async def _queue_view(app: App, name: str) -> QueueView:
    depth = await app.queues[name].depth()
    consumer = app.consumers.get(name)
    polled_at = None if consumer is None else consumer.last_poll_at
    since = None if polled_at is None else round(app.clock.monotonic() - polled_at, 3)
    return QueueView(name, depth.waiting, depth.leased, depth.delayed, since)


@get("/monitoring/warnings", tags=["Monitoring"], summary="Warnings")
async def get_warnings(app: TheApp) -> list[WarningView]:
    """Newest first; one that did not come again for eight hours is forgotten."""
    return [
        WarningView(
            code=warning.code,
            severity=warning.severity,
            message=warning.message,
            source=warning.source,
            count=warning.count,
            first_at=datetime.fromtimestamp(warning.first_at, UTC),
            last_at=datetime.fromtimestamp(warning.last_at, UTC),
        )
        for warning in app.warnings.list()
    ]
