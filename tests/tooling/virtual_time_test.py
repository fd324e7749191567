"""The markers that choose the loop of an async test."""

import asyncio
import time

import pytest
import uvloop

from tests.support.virtual_loop import VirtualClock, VirtualLoop, until

A_DAY_S = 86400.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("attempt", [1, 2])
async def test_virtual_time_begins_at_0_for_each_test_and_passes_only_while_everybody_waits(attempt: int) -> None:
    clock = VirtualClock()
    assert clock.monotonic() == 0.0
    await asyncio.gather(asyncio.sleep(A_DAY_S), asyncio.sleep(A_DAY_S / 2))
    assert clock.monotonic() == pytest.approx(A_DAY_S)


@pytest.mark.virtual_time
class TestOfAMarkedClass:
    async def test_runs_on_virtual_time_too(self) -> None:
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)


def test_who_waits_for_nothing_on_virtual_time_fails_instead_of_hanging() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(RuntimeError, match="deadlock"):
        runner.run(asyncio.Event().wait())


@pytest.mark.virtual_time
async def test_who_waits_for_a_condition_goes_on_at_the_time_it_holds_and_looks_only_while_everybody_waits() -> None:
    looks = 0

    def an_hour_is_over() -> bool:
        nonlocal looks
        looks += 1
        return asyncio.get_running_loop().time() >= 3600.0

    ticks = asyncio.gather(*(asyncio.sleep(600.0 * n) for n in range(20)))
    await until(an_hour_is_over)
    assert asyncio.get_running_loop().time() == pytest.approx(3600.0)
    assert looks < 10
    await ticks


def test_who_waits_for_a_condition_that_nothing_can_change_fails_instead_of_hanging() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(RuntimeError, match="deadlock"):
        runner.run(until(lambda: False))


async def test_time_is_real_without_a_marker() -> None:
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, VirtualLoop | uvloop.Loop)
    assert loop.time() == pytest.approx(time.monotonic(), abs=60.0)


@pytest.mark.both_loops
async def test_both_loops_are_those_of_asyncio_and_of_production(request: pytest.FixtureRequest) -> None:
    on_uvloop = request.node.callspec.id == "uvloop"
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop) is on_uvloop
