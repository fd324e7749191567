"""The HTTP/1.1 client with what its tests ask of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConnectionBrokenError
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http.contract import Response
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from tests.support.http_servers import Call, RawServer, raw_server

ANYWHERE = EgressGuard(allow_private=True)
SHORT_S = 0.05
NEVER_S = 60.0


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[Http1Client]:
    made = Http1Client(**{"guard": ANYWHERE, "clock": SystemClock(), "idle_limit_s": NEVER_S, "rest_s": 0.0, **options})
    try:
        yield made
    finally:
        await made.close()
        assert repr(made) == "<Http1Client unused>"


async def post(http: Http1Client, url: str, *headers: tuple[str, str], body: bytes = b"{}") -> Response:
    return await http.post(parse_target(url), headers, body)


def counts(http: Http1Client) -> str:
    """The part of the client's repr that follows the origin."""
    return repr(http).removeprefix("<Http1Client ").removesuffix(">").partition(" ")[2]


async def until_unused(http: Http1Client) -> None:
    """Return when the client's loop has noticed that its last connection ended."""
    for _ in range(10_000):
        if repr(http) == "<Http1Client unused>":
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{http!r} still has connections")


def sweep_timer(http: Http1Client) -> asyncio.TimerHandle | None:
    [pool] = http._pools.values()
    return pool._sweep_timer


async def assert_breaks(
    script: Callable[[Call], Awaitable[None]], saying: str = "did not speak HTTP|switched protocols"
) -> None:
    async with raw_server(script) as server, client() as http:
        with pytest.raises(ConnectionBrokenError, match=saying):
            await post(http, server.url())
        assert repr(http) == "<Http1Client unused>"
        assert len(server.requests) == 1


async def held_requests(http: Http1Client, server: RawServer, count: int) -> list[asyncio.Task[Response]]:
    """Requests named 0, 1, 2 ... in their path, started in this order; the server holds the first one."""
    tasks = [asyncio.create_task(post(http, server.url(f"/{number}"))) for number in range(count)]
    await server.until(lambda server: len(server.requests) == 1)
    return tasks
