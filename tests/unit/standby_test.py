"""Of two routers one works: how the lock is taken, kept and handed over."""

import asyncio

import pytest

from flowcatalyst.router.fence import Fence
from tests.support.standby_lock import LEASE_S, REFRESH_S, LockServer, RouterOnStandby

pytestmark = pytest.mark.virtual_time


def test_without_standby_the_fence_is_always_open() -> None:
    assert Fence().allows(1e300)


def test_the_fence_closes_at_its_time_not_after_it() -> None:
    assert Fence(10.0).allows(9.999)
    assert not Fence(10.0).allows(10.0)


async def test_a_standby_that_was_only_made_may_start_nothing() -> None:
    router = RouterOnStandby(LockServer(), "a")
    assert not router.may_start()
    assert not router.is_primary()
    assert (router.standby.fencing_number, router.standby.holder, router.standby.last_error) == (None, None, "")
    await router.stop()
    assert router.events == []


async def test_a_free_lock_makes_a_router_primary_at_once() -> None:
    router = RouterOnStandby(LockServer(), "a")
    await asyncio.sleep(1)
    assert router.is_primary()
    assert router.standby.fencing_number == 1
    assert router.standby.holder == "a"
    assert router.standby.since == router.clock.wall() - 1
    assert router.standby.last_contact_at == 0.0
    assert router.events == [(0.0, "enter")]
    assert router.may_start()
    await router.stop()


async def test_the_lease_counts_from_before_the_command_was_sent() -> None:
    server = LockServer()
    server.latency_s = server.answer_s = 1.0
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(2.5)
    assert router.standby.last_contact_at == 2.0
    assert router.fence.until == LEASE_S
    await asyncio.sleep(REFRESH_S + 2.0)
    assert server.calls_of("a", "refresh") == [2.0 + REFRESH_S]
    assert router.fence.until == 2.0 + REFRESH_S + LEASE_S
    await router.stop()


async def test_a_lock_that_is_refreshed_is_held_for_ever_and_the_fence_never_closes() -> None:
    router = RouterOnStandby(LockServer(), "a")
    await asyncio.sleep(0.5)
    for _ in range(3600):
        await asyncio.sleep(1)
        assert router.may_start()
    assert router.events == [(0.0, "enter")]
    assert router.warned() == []
    await router.stop()


async def test_a_standby_asks_every_refresh_period_and_does_not_work() -> None:
    server = LockServer()
    primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
    await asyncio.sleep(REFRESH_S * 10 + 1)
    assert server.calls_of("b", "acquire") == [REFRESH_S * n for n in range(11)]
    assert other.events == []
    assert not other.may_start()
    assert other.standby.holder == "a"
    assert other.standby.last_contact_at == REFRESH_S * 10
    await primary.stop()
    await other.stop()


async def test_a_stopped_primary_hands_over_within_a_refresh_period() -> None:
    server = LockServer()
    primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
    await asyncio.sleep(15)
    await primary.stop()
    assert server.held_by() is None
    assert not primary.is_primary()
    assert not primary.may_start()
    await asyncio.sleep(REFRESH_S)
    assert other.events == [(20.0, "enter")]
    assert other.standby.fencing_number == 2
    await other.stop()


async def test_a_stopping_primary_keeps_the_lock_until_its_work_is_drained() -> None:
    server = LockServer()
    primary, other = RouterOnStandby(server, "a", drain_s=65.0), RouterOnStandby(server, "b")
    await asyncio.sleep(15)
    primary.standby.stop()
    while not primary.task.done():
        assert not other.may_start()
        assert primary.is_primary()
        await asyncio.sleep(1)
    assert primary.events == [(0.0, "enter"), (15.0, "leave"), (80.0, "drained")]
    await asyncio.sleep(REFRESH_S)
    assert other.is_primary()
    await other.stop()


async def test_cancelling_is_as_good_as_stopping() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=65.0)
    await asyncio.sleep(15)
    router.task.cancel()
    await router.ended()
    assert router.task.cancelled()
    assert router.events[1:] == [(15.0, "leave"), (80.0, "drained")]
    assert server.held_by() is None
    assert server.calls_of("a", "release") == [80.0]
    assert router.lock.closed


@pytest.mark.parametrize("tenths", range(0, 130, 3))
async def test_cancelled_at_any_moment_it_leaves_nothing_behind(tenths: int) -> None:
    server = LockServer()
    server.latency_s = server.answer_s = 0.4
    router = RouterOnStandby(server, "a", entry_s=1.0, drain_s=1.0)
    await asyncio.sleep(tenths / 10)
    while not router.task.done():  # an impatient caller
        router.task.cancel()
        await asyncio.sleep(0.3)
    assert router.task.cancelled()
    assert server.held_by() is None
    assert router.lock.closed or tenths == 0  # cancelled before it began
    assert not router.may_start()
    assert len(router.standby._tasks) == 0


async def test_a_stop_while_on_standby_takes_effect_at_once_and_may_be_repeated() -> None:
    server = LockServer()
    primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
    await asyncio.sleep(15)
    other.standby.stop()
    await other.stop()
    assert other.clock.monotonic() == 15.0
    assert server.calls_of("b", "release") == []
    assert other.lock.closed
    await primary.stop()


async def test_a_stop_while_the_lock_is_asked_for_gives_it_back_without_working() -> None:
    server = LockServer()
    server.answer_s = 2.0
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(1)
    await router.stop()
    assert router.events == []
    assert server.held_by() is None
