"""What happens to messages when this machine lacks files: nothing, but that they wait."""

import asyncio
import errno
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConnectError, LocalShortageError, NotSignedError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.core.targets import parse_target
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.http import resolver
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.http.resolver import SystemResolver
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import UNSIGNED_DELAY_S
from tests.support.hosts import World
from tests.support.http_servers import Gate, raw_server
from tests.support.patience import PATIENCE_S
from tests.support.rig import ERROR_500, UNREACHABLE, Rig, outgoing, outgoings
from tests.support.router_process import RouterProcess, Waits, router_process
from tests.support.virtual_loop import until

SHORTAGE = LocalShortageError(errno.EMFILE)
FEW_FILES = (80, 80)  # a router has about 36 open, and twenty deliveries at once need as many


@pytest.mark.virtual_time
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_shortage_is_waited_out_at_the_head_of_the_group_and_counts_for_nothing(ordered: bool) -> None:
    # One failed attempt would be a dead letter.
    limits = PoolLimits(concurrency=10, max_delivery_attempts=1)
    rig = Rig(ordered=ordered, latency_s=0.0, default=limits)
    rig.endpoint.answers("m1", *[SHORTAGE] * 30)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(0.5)  # it is over, and the next one not due
        (waiting,) = (one for one in rig.tracker if one.pointer.id == "m1")
        assert (waiting.tries, waiting.failures) == (0, 0)
        assert "EMFILE" in rig.pool.explain(waiting).what
        await rig.until_empty()
        assert [round(at, 1) for at, name in rig.endpoint.starts] == [*map(float, range(31)), 30.0]
        assert rig.endpoint.started == ["m1"] * 31 + ["m2"]
        assert (rig.queue.nacked, rig.dead_letters.letters) == ([], [])
        assert sum(rig.pool.stats.attempts.values()) == 2
        (warning,) = rig.warnings.recent()
        assert (warning.code, warning.count) == (WarningCode.LOCAL_SHORTAGE, 30)


@pytest.mark.virtual_time
@pytest.mark.parametrize("mode", [DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR])
async def test_what_cannot_be_signed_here_is_requeued_in_order_for_whoever_can(mode: DispatchMode) -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=10, max_delivery_attempts=1))
    rig.endpoint.answers("m1", *[NotSignedError("its secret cannot be opened")] * 3)
    await rig.publish(*(outgoing(name, mode=mode) for name in ("m1", "m2")))
    async with rig:
        await rig.until_empty()
    assert rig.endpoint.started == ["m1"] * 4 + ["m2"]
    assert [delay_s for name, delay_s in rig.queue.nacked if name == "m1"] == [UNSIGNED_DELAY_S] * 3
    assert (rig.dead_letters.letters, sum(rig.pool.stats.attempts.values())) == ([], 2)


@pytest.mark.virtual_time
async def test_a_shortage_neither_opens_nor_closes_a_circuit_breaker() -> None:
    rig = Rig(latency_s=0.0)
    rig.endpoint.answers("m1", *[SHORTAGE] * 20)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(20)
        (breaker,) = (breaker for _, breaker in rig.breakers.items())
        assert repr(breaker) == "<Breaker CLOSED 0/0 failed>"
        await rig.until_empty()
        assert repr(breaker) == "<Breaker CLOSED 0/1 failed>"
        for number in range(10):
            rig.endpoint.answers(f"f{number}", UNREACHABLE, *[SHORTAGE] * 5)
        await rig.publish(*(outgoing(f"f{number}", f"g{number}") for number in range(10)))
        await rig.until_started(31)
        states = []
        for seconds in (0.5, 5.0):  # then the probes ran into the shortage, which tells nothing
            await asyncio.sleep(seconds)
            states.append(breaker.state)
        await rig.until_empty()
        assert [*states, breaker.state] == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


@pytest.mark.virtual_time
async def test_each_shortage_is_told_with_its_end() -> None:
    world = World()
    world.queue("embedded")
    told: list[WarningCode] = []
    world.warnings.on_new = lambda warning: told.append(warning.code)
    async with world.running():
        for name in ("m1", "m2"):
            world.hosts.answers(name, *[SHORTAGE] * 60)
            await world.publish("embedded", outgoing(name))
            await asyncio.sleep(50)
            assert told[-1:] == [WarningCode.LOCAL_SHORTAGE]
            await asyncio.sleep(40)
            assert told[-1:] == [WarningCode.LOCAL_SHORTAGE_OVER]
    assert told == 2 * [WarningCode.LOCAL_SHORTAGE, WarningCode.LOCAL_SHORTAGE_OVER]


@pytest.mark.virtual_time
async def test_failures_before_a_shortage_stay_counted() -> None:
    rig = Rig(latency_s=0.0)
    rig.endpoint.answers("m1", ERROR_500, SHORTAGE, ERROR_500)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_empty()
        assert [round(at, 1) for at, _ in rig.endpoint.starts] == [0.0, 1.0, 2.0, 4.0]


async def test_names_that_hang_are_no_fault_of_an_endpoint_whose_name_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_THREADS", resolver.KEPT_FOR_KNOWN_NAMES + 1)
    monkeypatch.setattr(resolver, "LOOKUP_LIMIT_S", 0.01)
    monkeypatch.setattr(resolver, "NOT_FOUND_FOR_S", 0.0)
    answered = threading.Event()

    def getaddrinfo(host: str, port: None, *, type: int) -> list[Any]:  # noqa: A002
        if host == "dead.test":
            answered.wait()
        return [(socket.AF_INET, type, 6, "", ("127.0.0.1", 0))]

    guard = EgressGuard(True, resolver=SystemResolver(getaddrinfo=getaddrinfo))
    client = Http1Client(guard=guard, clock=SystemClock())
    rig = Rig(default=PoolLimits(concurrency=10, max_delivery_attempts=1))
    rig.tools = replace(rig.tools, mediator=Mediator(client, client, SystemClock()))
    try:
        with pytest.raises(ConnectError, match="no answer"):
            await client.post(parse_target("http://dead.test/"), [], b"")
        async with asyncio.timeout(PATIENCE_S), rig, raw_server() as server:
            await rig.publish(outgoing("m1", target=server.url(host="new.test")))
            await until(lambda: bool(rig.warnings.recent() or rig.dead_letters.letters))
            assert rig.dead_letters.letters == []
            (waiting,) = rig.tracker
            assert (waiting.tries, waiting.failures) == (0, 0)
            (warning,) = rig.warnings.recent()
            assert warning.code is WarningCode.LOCAL_SHORTAGE
            assert "names of hosts cannot be looked up" in warning.message
            (breaker,) = (breaker for _, breaker in rig.breakers.items())
            assert repr(breaker) == "<Breaker CLOSED 0/0 failed>"
            monkeypatch.setattr(resolver, "LOOKUP_LIMIT_S", PATIENCE_S)
            answered.set()
            await rig.until_empty()
            assert (len(server.requests), rig.dead_letters.letters) == (1, [])
            assert repr(breaker) == "<Breaker CLOSED 0/1 failed>"
    finally:
        answered.set()
        await client.close()


@contextmanager
def silent_connections(url: str, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", int(url.rpartition(":")[2])))
        yield


async def send(session: aiohttp.ClientSession, target: str, count: int) -> None:
    messages = [{"mediationTarget": target, "messageGroupId": f"g{number}"} for number in range(count)]
    async with session.post("/api/messages", json=messages) as response:
        assert response.status == 202, await response.text()


async def get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        return await response.json()


async def test_strangers_take_no_file_that_deliveries_need(tmp_path: Path) -> None:
    async with router_process(tmp_path, Waits(timeout_ms=20_000), files=FEW_FILES) as router, raw_server() as server:
        with silent_connections(router.url, 80):
            async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(router.url) as session:
                await send(session, server.url(), 100)
                await server.until(lambda server: len(server.requests) == 100)
                assert await get(session, "/monitoring/warnings") == []
                assert [one["failureRatio"] for one in await get(session, "/monitoring/circuit-breakers")] == [0.0]


async def test_deliveries_that_lack_files_wait_and_are_made_when_there_are_some(tmp_path: Path) -> None:
    waits = Waits(timeout_ms=60_000, more='[[pools]]\ncode = "DEFAULT-POOL"\nconcurrency = 200\n')
    gate = Gate()
    async with (
        asyncio.timeout(PATIENCE_S),
        router_process(tmp_path, waits, files=FEW_FILES) as router,
        raw_server(gate) as server,
        aiohttp.ClientSession(router.url) as session,
    ):
        assert await get(session, "/monitoring/dead-letters") == []  # its file is open from here on
        await send(session, server.url(), 100)
        while not (warnings := await get(session, "/monitoring/warnings")):
            await asyncio.sleep(0.05)
        assert [one["code"] for one in warnings] == ["LOCAL_SHORTAGE"]
        assert "EMFILE" in str((await get(session, "/monitoring/health"))["reasons"])
        gate.opened.set()
        await server.until(lambda server: len({call.body for call in server.requests}) == 100)
        assert len(server.requests) == 100
        while "LOCAL_SHORTAGE_OVER" not in {one["code"] for one in warnings}:
            await asyncio.sleep(0.05)
            warnings = await get(session, "/monitoring/warnings")
        assert {one["code"] for one in warnings} == {"LOCAL_SHORTAGE", "LOCAL_SHORTAGE_OVER"}
        assert await get(session, "/monitoring/warnings?acknowledged=false") == []
        assert (await get(session, "/monitoring/health"))["reasons"] == []
        assert [one["failureRatio"] for one in await get(session, "/monitoring/circuit-breakers")] == [0.0]
        assert await get(session, "/monitoring/dead-letters") == []


async def test_the_limit_of_files_is_raised_at_the_start(tmp_path: Path) -> None:
    async with router_process(tmp_path, files=(256, 2048)) as router:
        assert soft_limit(router) == 2048


def soft_limit(router: RouterProcess) -> int:
    found = re.search(r"Max open files +(\d+)", Path(f"/proc/{router.process.pid}/limits").read_text())
    assert found is not None
    return int(found[1])
