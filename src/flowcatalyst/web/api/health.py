"""/health: is the process alive, can it work, does it work."""

import asyncio
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import msgspec
from litestar import Response, get
from litestar.openapi import ResponseSpec

from flowcatalyst import __version__
from flowcatalyst.app import App
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.queues import embedded_jobs
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.web.dependencies import TheApp

POLL_DEADLINE_S: Final = 60.0
STORAGE_DEADLINE_S: Final = 5.0


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


_DOWN: Final = {503: ResponseSpec(Health, description="A check is DOWN")}


@get("/health", tags=["Health"], summary="Does everything work?", responses=_DOWN)
async def get_health(app: TheApp) -> Response[Health]:
    """503 and DOWN if a consumer does not poll its queue or a database does not answer."""
    checks = [*_check_consumers(app), await _check_storage(app)]
    return _answer(checks)


@get("/health/live", tags=["Health"], summary="Is the process alive?")
async def get_liveness() -> Health:
    """Answers as long as the event loop runs. If it does not answer, restart the process."""
    return Health(HealthStatus.UP, __version__, [])


@get("/health/ready", tags=["Health"], summary="Does it take work?", responses=_DOWN)
async def get_readiness(app: TheApp) -> Response[Health]:
    """503 until the router has started and again as soon as it stops."""
    if app.stopping:
        return _answer([Check("router", HealthStatus.DOWN, "stopping")])
    if not app.consumers:
        return _answer([Check("router", HealthStatus.DOWN, "starting")])
    return _answer([Check("router", HealthStatus.UP, "running")])


def _answer(checks: list[Check]) -> Response[Health]:
    up = all(check.status is HealthStatus.UP for check in checks)
    health = Health(HealthStatus.UP if up else HealthStatus.DOWN, __version__, checks)
    return Response(health, status_code=HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE)


def _check_consumers(app: App) -> list[Check]:
    now = app.clock.monotonic()
    pools_are_full = not any(pool.room for pool in app.router.pools.values())
    return [_check_consumer(name, consumer, now, pools_are_full) for name, consumer in app.consumers.items()]


def _check_consumer(name: str, consumer: Consumer, now: float, pools_are_full: bool) -> Check:
    if consumer.trouble:
        return Check(f"consumer {name}", HealthStatus.DOWN, consumer.trouble)
    check = Check(f"consumer {name}", HealthStatus.UP, "not polled yet")
    since_poll_s = None if consumer.last_poll_at is None else now - consumer.last_poll_at
    if since_poll_s is not None:
        check.detail = f"polled {since_poll_s:.1f} s ago"
        if since_poll_s >= POLL_DEADLINE_S and pools_are_full:
            check.detail += "; waits for room in a pool"  # as it should
        elif since_poll_s >= POLL_DEADLINE_S:
            check.status = HealthStatus.DOWN
    return check


async def _check_storage(app: App) -> Check:
    try:
        async with asyncio.timeout(STORAGE_DEADLINE_S):
            await app.store.writer.read(embedded_jobs.data_version)
            await app.dead_letters.get(1)
    except TimeoutError:
        return Check("storage", HealthStatus.DOWN, f"no answer within {STORAGE_DEADLINE_S:g} s")
    except FlowCatalystError as error:
        return Check("storage", HealthStatus.DOWN, str(error))
    return Check("storage", HealthStatus.UP, "open")
