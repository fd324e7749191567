"""GET /monitoring/live: what listeners hear, what it costs, and when it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from flowcatalyst.control import live_feed
from flowcatalyst.control.overview import OverviewMaker
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running, run_router, until
from tests.support.patience import PATIENCE_S


class Listener:
    """One open stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def hear(self) -> dict[str, Any] | None:
        """The next overview; None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            kind = b""
            while line := await self.response.content.readline():
                if line.startswith(b"event: "):
                    kind = line.split()[1]
                if line.startswith(b"data: "):
                    assert kind == b"overview"
                    found: dict[str, Any] = msgspec.json.decode(line.removeprefix(b"data: "))
                    return found
        return None


@asynccontextmanager
async def listening(router: Running) -> AsyncIterator[Listener]:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(router.listening.url, connector=connector) as session,
        session.get("/monitoring/live") as response,
    ):
        assert (response.status, response.content_type) == (200, "text/event-stream")
        yield Listener(response)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "PERIOD_S", 0.02)


async def test_an_overview_has_health_counts_and_every_pool(router: Running) -> None:
    router.app.warnings.add(WarningCode.PROCESSING, Severity.ERROR, "an example", "mediator")
    await router.send(id="gone", mediationTarget=router.receiver("client-error"))
    await router.until_dead(1)
    async with listening(router) as listener:
        heard = await listener.hear()
        assert heard is not None
    assert (heard["level"], heard["role"]) == ("WARNING", "primary")
    assert "warnings" in [reason["part"] for reason in heard["reasons"]]
    assert (heard["deadLetters"], heard["queued"], heard["queuedExact"]) == (1, 0, True)
    assert heard["warnings"] >= 1
    assert [pool["code"] for pool in heard["pools"]] == sorted(router.app.router.pools)
    assert heard["deliveredPerSecond"] is None  # there is nothing to compare with yet


async def test_figures_follow_what_the_router_does(router: Running) -> None:
    async with listening(router) as listener:
        first = await listener.hear()
        assert first is not None
        await router.client.post("/api/seed/messages?count=50")
        heard = first
        rates = []
        while sum(pool["delivered"] for pool in heard["pools"]) < 50:
            heard = await listener.hear() or pytest.fail("it ended")
            rates.append(heard["deliveredPerSecond"])
        assert max(rates) > 0


async def test_one_overview_serves_all_listeners_and_none_is_made_without_any(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    make = OverviewMaker.make

    async def counted(self: OverviewMaker) -> Any:
        nonlocal made
        made += 1
        return await make(self)

    monkeypatch.setattr(OverviewMaker, "make", counted)
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(listening(router)) for _ in range(5)]
        heard = 0
        for _ in range(10):
            heard += len(await asyncio.gather(*(listener.hear() for listener in listeners)))
        assert heard == 50
        assert made < 30

    async def quiet() -> bool:
        before = made
        await asyncio.sleep(0.1)
        return made == before

    await until(quiet)


async def test_no_more_than_a_hundred_listen_at_once(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "MOST_LISTENERS", 2)
    async with listening(router) as first, listening(router) as second:
        assert await first.hear()
        assert await second.hear()
        answer = await router.client.get("/monitoring/live")
        answer.assert_problem(503, "listen already")

    async def again() -> bool:
        async with aiohttp.ClientSession(router.listening.url) as session, session.get("/monitoring/live") as response:
            return response.status == 200

    await until(again)


async def test_a_stop_of_the_process_ends_the_stream_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as later:
        async with run_router(tmp_path) as router:
            listener = await later.enter_async_context(listening(router))
            assert await listener.hear()
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 5
        while await listener.hear() is not None:
            pass


async def test_who_reads_nothing_holds_up_nobody_else(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is at most what the buffers of its connection hold: there is only the latest overview."""
    monkeypatch.setattr(live_feed, "PERIOD_S", 0.0)
    reader, writer = await asyncio.open_connection(router.listening.host, router.listening.port)
    transport: Any = writer.transport
    transport.pause_reading()
    writer.write(b"GET /monitoring/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with listening(router) as other:
        for _ in range(200):
            assert await other.hear()  # nobody waits for the slow one
    transport.resume_reading()
    assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
    writer.close()


async def test_a_heartbeat_comes_where_an_overview_takes_long(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "HEARTBEAT_S", 0.02)

    async def never(self: OverviewMaker) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(OverviewMaker, "make", never)
    async with listening(router) as listener:
        lines = [await listener.response.content.readline() for _ in range(4)]
    assert lines[0] == b"retry: 2000\n"
    assert b": still here\n" in lines
