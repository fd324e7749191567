"""/health: is the process alive, can it work, does it work."""

from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec
from litestar import Response, get
from litestar.openapi import ResponseSpec

from flowcatalyst import __version__
from flowcatalyst.api.dependencies import ServedRouter, TheApp, TheStorageProbe
from flowcatalyst.control.health import Level, assess, polling_consumers
from flowcatalyst.control.overview import role_of
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.watch import SILENT_CONSUMER_S


class HealthStatus(StrEnum):
    UP = "UP"
    DOWN = "DOWN"


class Check(msgspec.Struct, rename="camel"):
    """One thing that has to work."""

    name: str
    status: HealthStatus
    detail: str


class Health(msgspec.Struct, rename="camel"):
    """UP if every check is."""

    status: HealthStatus
    version: str
    checks: list[Check]


class OverallHealth(Health, rename="camel"):
    """UP if every check is. Somebody should look if the level is not HEALTHY: /monitoring/health says why."""

    level: Level
    reasons: list[str]  # what the reasons are about


class HealthReason(msgspec.Struct, rename="camel"):
    """One thing that is not as it should be."""

    level: Level
    part: str
    text: str


class RouterHealth(msgspec.Struct, rename="camel"):
    """How the router is. Without reasons it is healthy."""

    status: Level
    role: str  # primary, standby, not at work or disabled
    reasons: list[HealthReason]


_DOWN: Final = {503: ResponseSpec(Health, generate_examples=False, description="A check is DOWN")}
_OVERALL_DOWN: Final = {503: ResponseSpec(OverallHealth, generate_examples=False, description="A check is DOWN")}


@get("/health", tags=["Health"], summary="Does everything work?", responses=_OVERALL_DOWN)
async def get_health(storage: TheStorageProbe) -> Response[OverallHealth]:
    """503 and DOWN if a consumer does not poll its queue or a database does not answer. `level` and `reasons` are those
    of /monitoring/health, without their texts: an endpoint that is down is no reason for a 503.
    """
    last_error = await storage.last_error()
    state = Check("storage", HealthStatus.DOWN if last_error else HealthStatus.UP, last_error or "open")
    now = storage.app.clock.monotonic()
    consumers = [_check_consumer(name, consumer, now) for name, consumer in polling_consumers(storage.app).items()]
    told = _answer([*consumers, state])
    level, reasons = assess(storage.app)
    about = list(dict.fromkeys(one.part for one in reasons))
    health = told.content
    return Response(
        OverallHealth(health.status, health.version, health.checks, level, about), status_code=told.status_code
    )


@get("/health/live", tags=["Health"], summary="Is the process alive?")
async def get_liveness() -> Health:
    """Answers as long as the event loop runs. If it does not answer, restart the process."""
    return Health(HealthStatus.UP, __version__, [])


@get("/health/ready", tags=["Health"], summary="Does it take work?", responses=_DOWN)
async def get_readiness(app: TheApp) -> Response[Health]:
    """503 until the router has started and again as soon as it stops. A standby is ready to take over when it knows
    its configuration."""
    if app.stopping:
        return _answer([Check("router", HealthStatus.DOWN, "stopping")])
    if app.sync is not None and app.sync.in_force is None:
        return _answer([Check("router", HealthStatus.DOWN, "waits for its configuration")])
    return _answer([_check_start(app)])


@get("/health/startup", tags=["Health"], summary="Has it started?", responses=_DOWN)
async def get_startup(app: TheApp) -> Response[Health]:
    """503 until the first configuration is in force and the router is at work, or until it waits as a standby."""
    return _answer([_check_start(app)])


@get("/monitoring/health", tags=["Monitoring"], summary="How is the router?")
async def get_monitoring_health(app: TheApp) -> RouterHealth:
    """HEALTHY, WARNING (it works, but somebody should look) or DEGRADED (a part does not work), with the reasons."""
    level, reasons = assess(app)
    return RouterHealth(level, role_of(app), [HealthReason(one.level, one.part, one.text) for one in reasons])


def _check_start(app: ServedRouter) -> Check:
    if not app.started:
        return Check("router", HealthStatus.DOWN, "starting")
    idle = "standby" if app.settings.enabled else "disabled"
    return Check("router", HealthStatus.UP, "running" if app.at_work else idle)


def _answer(checks: list[Check]) -> Response[Health]:
    up = all(check.status is HealthStatus.UP for check in checks)
    health = Health(HealthStatus.UP if up else HealthStatus.DOWN, __version__, checks)
    return Response(health, status_code=HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE)


def _check_consumer(name: str, consumer: Consumer, now: float) -> Check:
    if consumer.reports.last_error:
        return Check(f"consumer {name}", HealthStatus.DOWN, consumer.reports.last_error)
    check = Check(f"consumer {name}", HealthStatus.UP, "not polled yet")
    if consumer.reports.last_poll_at is not None:
        check.detail = f"polled {now - consumer.reports.last_poll_at:.1f} s ago"
    if consumer.waits_for_capacity:
        check.detail += "; waits for free capacity in a pool"  # as it should
    elif consumer.silent_s(now) >= SILENT_CONSUMER_S:
        check.status = HealthStatus.DOWN
    return check
