"""What an operator is told of a failover: who is primary, since when, and why the one before is not."""

import asyncio

import pytest

from flowcatalyst.control.standby_lock import Holder
from flowcatalyst.core.errors import INSIDE
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from tests.support.standby_lock import REFRESH_S, TTL_S, LockServer, RouterOnStandby

pytestmark = pytest.mark.virtual_time


async def test_a_standby_that_takes_over_tells_from_whom_and_since_when() -> None:
    server = LockServer()
    first, second = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
    await asyncio.sleep(REFRESH_S * 3 + 1)
    assert (first.warned(), second.warned()) == ([], [])
    await first.stop()
    await asyncio.sleep(REFRESH_S)
    assert second.is_primary()
    assert second.warned() == [
        "b is primary since 2027-01-15T08:00:40+00:00, with fencing number 2: it took over from a, which had the "
        "lock until 2027-01-15T08:00:30+00:00 at least and then released it or did not refresh it"
    ]
    [warning] = second.warnings.recent()
    assert (warning.code, warning.severity) == (WarningCode.STANDBY, Severity.WARN)
    await second.stop()


async def test_a_primary_that_cannot_reach_redis_tells_why_it_stopped_and_when_it_works_again() -> None:
    server = LockServer()
    router = RouterOnStandby(server, "a")
    await asyncio.sleep(5)
    server.down = "Redis refuses connections"
    await asyncio.sleep(TTL_S + REFRESH_S)
    assert router.warned() == [
        "the standby lock cannot be used: Redis refuses connections",
        "a stopped working at 2027-01-15T08:00:29+00:00: its lock could not be refreshed before it ran out (Redis "
        "refuses connections); it had been primary since 2027-01-15T08:00:00+00:00, with fencing number 1",
    ]
    server.down = ""
    await asyncio.sleep(REFRESH_S)
    assert router.warned()[2:] == [
        "the standby lock can be used again",
        "a is primary since 2027-01-15T08:00:49+00:00, with fencing number 2: it has its lock again, which it lost "
        "at 2027-01-15T08:00:29+00:00",
    ]
    await router.stop()


async def test_a_lock_that_was_taken_and_comes_back_is_told_each_time() -> None:
    server = LockServer()
    router, told = RouterOnStandby(server, "a"), []
    router.warnings.on_new = lambda warning: told.append(warning.message.partition(" at ")[0].partition(" since")[0])
    for _ in range(2):
        await asyncio.sleep(REFRESH_S)
        server.number += 1
        server.hold(Holder("thief", server.number))
        await asyncio.sleep(TTL_S + 2 * REFRESH_S)
        assert router.is_primary()
    assert told == 2 * ["a stopped working", "a is primary"]
    await router.stop()


async def test_work_that_fails_again_and_again_is_no_failover() -> None:
    router = RouterOnStandby(LockServer(), "a")
    for _ in range(5):
        router.failures.on_entry = OSError("no disk")
        router.standby._session_over.set()
        await asyncio.sleep(REFRESH_S + 1)
    assert set(router.warned()) == {f"the work of the primary failed: {INSIDE}"}
    await router.stop()


async def test_a_router_whose_lock_must_have_run_out_is_not_shown_as_its_holder() -> None:
    server = LockServer()
    first, second = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
    await asyncio.sleep(5)
    server.down = "Redis refuses connections"
    await asyncio.sleep(10)
    assert (first.standby.holder, second.standby.holder) == ("a", "a")
    assert (first.standby.nobody_since, second.standby.nobody_since) == (None, None)
    await asyncio.sleep(TTL_S)
    assert (first.standby.holder, second.standby.holder) == (None, None)
    epoch = first.standby._clock.wall() - first.standby._clock.monotonic()
    since = [router.standby.nobody_since for router in (first, second)]
    assert [TTL_S - 1 <= (at or 0.0) - epoch <= TTL_S for at in since] == [True, True]
    server.down = ""
    await asyncio.sleep(REFRESH_S)
    assert [router.standby.nobody_since for router in (first, second)] == [None, None]
    await first.stop()
    await second.stop()


async def test_each_outage_of_the_lock_is_told_with_its_end() -> None:
    server = LockServer()
    server.hold(Holder("other", 1))
    router, told = RouterOnStandby(server, "a"), []
    router.warnings.on_new = lambda warning: told.append(warning.code)
    for _ in range(2):
        server.down = "Redis refuses connections"
        await asyncio.sleep(REFRESH_S)
        server.down = ""
        server.extend()
        await asyncio.sleep(REFRESH_S)
        assert router.standby.last_error == ""
        assert router.warnings.recent(WarningFilter(code=WarningCode.STANDBY, acknowledged=False)) == []
    assert told == 2 * [WarningCode.STANDBY, WarningCode.STANDBY_RECOVERED]
    await router.stop()
