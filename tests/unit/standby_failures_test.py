"""A lock that is lost, a Redis that hangs or is away, a process that was paused: who may start work then."""

import asyncio

import pytest
from structlog.testing import capture_logs

from flowcatalyst.control.standby import RETRY_S
from flowcatalyst.control.standby_lock import Holder
from flowcatalyst.core.errors import INSIDE
from tests.support.standby_lock import LEASE_S, REFRESH_S, LockServer, RouterOnStandby

pytestmark = pytest.mark.virtual_time


async def test_a_lock_lost_to_another_router_closes_the_fence_before_the_work_drains() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=60.0)
    await asyncio.sleep(5)
    server.hold(Holder("thief", 7))
    await asyncio.sleep(6)
    assert router.events[1:] == [(REFRESH_S, "leave")]
    assert router.fence.until == 0.0
    assert not router.is_primary()
    assert router.standby.fencing_number is None
    assert router.standby.holder == "thief"
    [warned] = router.warned()
    assert warned.startswith("a stopped working at ")
    assert ": thief has taken its lock; it had been primary since " in warned
    await asyncio.sleep(60)
    assert server.calls_of("a", "release") == []
    assert server.calls_of("a", "acquire") == [0.0, REFRESH_S + 60.0]
    await router.stop()


async def test_a_lock_that_redis_forgot_is_lost_and_taken_anew() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=3.0)
    await asyncio.sleep(5)
    server.forget()
    await asyncio.sleep(20)
    assert [event for _, event in router.events] == ["enter", "leave", "drained", "enter"]
    assert router.standby.fencing_number == 2
    assert router.may_start()
    await router.stop()


async def test_with_redis_unreachable_the_primary_works_until_its_lease_ends_and_not_longer() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=60.0)
    await asyncio.sleep(15)
    server.down = "Redis refuses connections"
    await asyncio.sleep(REFRESH_S + LEASE_S - 15 - 0.01)
    assert router.is_primary()
    assert router.standby.last_error == "Redis refuses connections"
    assert router.may_start()
    await asyncio.sleep(0.02)
    assert router.events[1:] == [(REFRESH_S + LEASE_S, "leave")]
    assert not router.is_primary()
    assert router.standby.holder is None
    assert router.fence.until == 0.0
    await asyncio.sleep(600)
    assert router.task.done() is False
    assert router.standby.last_contact_at == REFRESH_S
    await router.stop()


async def test_a_redis_that_hangs_does_not_prolong_the_lease() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=60.0)
    await asyncio.sleep(5)
    server.answer_s = 1000.0
    await asyncio.sleep(LEASE_S)
    assert router.events[1:] == [(LEASE_S, "leave")]
    assert not router.is_primary()
    server.answer_s = 0.0
    await router.stop()


async def test_a_refresh_answered_after_the_lease_ended_does_not_open_the_fence() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=60.0)
    await asyncio.sleep(5)
    server.answer_s = 25.0  # asked at 10, answered at 35: the lock in Redis is ours until 40, but we stepped down
    await asyncio.sleep(35)
    assert not router.is_primary()
    assert router.fence.until == 0.0
    server.answer_s = 0.0
    await router.stop()


async def test_a_refresh_that_fails_is_repeated_soon_and_costs_nothing() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(5.5)
    server.down = "Redis is still loading its data"
    await asyncio.sleep(REFRESH_S)
    server.down = ""
    await asyncio.sleep(2)
    assert server.calls_of("a", "refresh") == [REFRESH_S + RETRY_S * n for n in range(7)]
    assert router.standby.last_error == ""
    assert router.fence.until == REFRESH_S + RETRY_S * 6 + LEASE_S
    assert router.events == [(0.0, "enter")]
    await router.stop()


async def test_a_lost_lock_that_comes_back_starts_the_work_again_with_a_higher_number() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(5)
    server.down = "Redis refuses connections"
    await asyncio.sleep(100)
    assert not router.is_primary()
    server.down = ""
    await asyncio.sleep(REFRESH_S)
    assert router.is_primary()
    assert router.standby.fencing_number == 2
    assert [event for _, event in router.events] == ["enter", "leave", "drained", "enter"]
    assert router.may_start()
    await router.stop()


async def test_a_process_that_was_paused_past_its_lease_starts_nothing_and_steps_down_unasked() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=60.0)
    await asyncio.sleep(15)
    router.clock.slept_s = 100.0
    server.hold(Holder("b", 2))
    assert not router.may_start()  # before any task of it ran
    await asyncio.sleep(30)
    assert not router.is_primary()
    assert server.calls_of("a", "refresh") == [REFRESH_S]
    assert [event for _, event in router.events] == ["enter", "leave"]
    await router.stop()


async def test_a_process_that_was_paused_while_it_asked_does_not_trust_the_answer() -> None:
    server = LockServer()
    server.answer_s = 1.0
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(0.5)
    router.clock.slept_s = LEASE_S
    await asyncio.sleep(1)
    assert router.standby.last_contact_at == 1.0 + LEASE_S
    assert not router.is_primary()
    assert router.events == []
    await asyncio.sleep(REFRESH_S + 1)
    assert router.is_primary()
    assert router.standby.fencing_number == 2
    await router.stop()


async def test_a_lock_that_was_taken_without_an_answer_is_ours_when_asked_again() -> None:
    server = LockServer()
    server.answers_are_lost = True
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(1)
    assert server.held_by() == Holder("a", 1)
    assert router.events == []
    server.answers_are_lost = False
    await asyncio.sleep(REFRESH_S)
    assert router.events == [(REFRESH_S, "enter")]
    assert router.standby.fencing_number == 2
    await router.stop()


async def test_a_lock_that_was_taken_without_an_answer_is_given_back_at_the_end() -> None:
    server = LockServer()
    server.answers_are_lost = True
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(1)
    await router.stop()
    assert server.held_by() is None


async def test_a_lease_that_ends_while_a_stop_drains_makes_it_standby_and_the_drain_goes_on() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a", drain_s=65.0)
    await asyncio.sleep(15)
    router.standby.stop()
    server.hold(Holder("b", 2))
    await asyncio.sleep(10)
    assert not router.is_primary()
    assert not router.may_start()
    await router.ended()
    assert router.events[1:] == [(15.0, "leave"), (80.0, "drained")]
    assert server.calls_of("a", "release") == []


async def test_work_that_cannot_begin_gives_the_lock_to_the_other_router() -> None:
    server = LockServer()
    broken = RouterOnStandby(server, "a", entry_s=35.0)
    broken.failures.on_entry = OSError("no space left on device 17")
    await asyncio.sleep(34)
    assert server.held_by() == Holder("a", 1)  # kept while it tried
    other = RouterOnStandby(server, "b")
    with capture_logs() as lines:
        await asyncio.sleep(2)
    assert server.held_by() is None
    assert not broken.is_primary()
    assert not broken.may_start()
    assert broken.warned() == [f"the work of the primary failed: {INSIDE}"]
    assert [line["action"] for line in lines if line["log_level"] == "error"] == ["primary_work_failed"]
    await asyncio.sleep(REFRESH_S)
    assert other.is_primary()
    assert broken.standby.holder == "b"
    await other.stop()
    await broken.stop()


async def test_work_that_cannot_begin_is_tried_again_after_a_refresh_period() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    router.failures.on_entry = OSError("not yet")
    await asyncio.sleep(REFRESH_S + 1)
    assert server.calls_of("a", "acquire") == [0.0, REFRESH_S]
    assert router.events == [(REFRESH_S, "enter")]
    await router.stop()


async def test_work_that_ends_badly_is_told_and_the_router_goes_on() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    router.failures.on_exit = RuntimeError("left open")
    await asyncio.sleep(5)
    server.forget()
    await asyncio.sleep(REFRESH_S * 2)
    assert f"the work of the primary failed: {INSIDE}" in router.warned()
    assert router.is_primary()
    await router.stop()


async def test_trouble_is_told_once_and_its_end_too() -> None:
    server = LockServer()
    server.down = "Redis refuses connections"
    with capture_logs() as lines:
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(200)
        assert router.standby.last_error == "Redis refuses connections"
        server.down = "Redis is still loading its data"
        await asyncio.sleep(200)
        server.down = ""
        await asyncio.sleep(REFRESH_S)
    assert router.standby.last_error == ""
    assert [line["action"] for line in lines] == [
        "lock_unavailable",
        "lock_unavailable",
        "lock_reachable",
        "became_primary",
    ]
    assert router.warned() == [
        "the standby lock cannot be used: Redis refuses connections",
        "the standby lock cannot be used: Redis is still loading its data",
        "the standby lock can be used again",
    ]
    assert [(warning.count, warning.acknowledged) for warning in router.warnings.recent()] == [
        (1, True),
        (1, True),
        (1, True),
    ]
    await router.stop()


async def test_a_release_that_fails_does_not_keep_the_router_from_stopping() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(5)
    server.down = "Redis refuses connections"
    await router.stop()
    assert router.task.exception() is None
    assert router.standby.last_error == "Redis refuses connections"
    assert router.lock.closed


async def test_of_many_routers_that_come_and_go_only_one_may_start_work() -> None:
    server = LockServer()
    server.latency_s = server.answer_s = 0.3
    routers = [RouterOnStandby(server, f"r{number}", drain_s=7.0 * number) for number in range(5)]
    numbers = []
    for second in range(900):
        await asyncio.sleep(1)
        working = [router for router in routers if router.may_start()]
        assert len(working) <= 1
        numbers += [router.standby.fencing_number for router in working]
        server.down = "Redis refuses connections" if 100 < second % 300 < 180 else ""
        if second % 150 == 90:
            [primary] = working
            primary.standby.stop()
            routers.append(RouterOnStandby(server, f"r{second}"))
    assert numbers == sorted(numbers, key=lambda number: number or 0)
    assert len(set(numbers)) > 6
    for router in routers:
        await router.stop()
