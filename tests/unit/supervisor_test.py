"""A task that has to run as long as its owner does: whatever it dies of is told, and it runs again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from flowcatalyst.control.standby import Standby, StandbyState
from flowcatalyst.control.standby_lock import Holder
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.core.supervisor import LONGEST_PAUSE_S, RECOVERED_S, Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.router.fence import Fence
from tests.support.rig import Rig, outgoings
from tests.support.standby_lock import REFRESH_S, SETTINGS, FakeLock, LockServer
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time


class Mortal:
    """Work that dies of each of these in turn, then goes on for ever."""

    def __init__(self, *deaths: BaseException, lasts_s: float = 0.0) -> None:
        self.runs: list[float] = []
        self._deaths = list(deaths)
        self._lasts_s = lasts_s

    async def work(self) -> None:
        self.runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._lasts_s)
        if self._deaths:
            raise self._deaths.pop(0)
        await asyncio.sleep(1e9)


async def supervised(mortal: Mortal, check: Callable[[Supervisor, WarningLog], None], after_s: float) -> None:
    clock, tasks = VirtualClock(), Tasks()
    warnings = WarningLog(clock)
    supervisor = Supervisor(clock, warnings)
    supervisor.spawn(tasks, "work", mortal.work)
    await asyncio.sleep(after_s)
    check(supervisor, warnings)
    await tasks.cancel()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("death", [RuntimeError("a bug"), asyncio.CancelledError(), RecursionError()])
async def test_a_task_that_died_is_told_of_and_runs_again(death: BaseException) -> None:
    mortal = Mortal(death)

    def check(supervisor: Supervisor, warnings: WarningLog) -> None:
        assert [one.task for one in supervisor.recent_deaths()] == ["work"]
        [warning] = warnings.recent()
        assert warning.code is WarningCode.TASK_DIED
        assert warning.message.startswith("the task 'work' died of an error inside FlowCatalyst and is started again")
        assert type(death).__name__ not in warning.message + supervisor.recent_deaths()[0].error

    await supervised(mortal, check, after_s=5.0)
    assert len(mortal.runs) == 2


async def test_a_task_that_dies_again_and_again_is_started_with_longer_pauses_and_never_counts_as_recovered() -> None:
    mortal = Mortal(*(ValueError(str(number)) for number in range(100)))
    await supervised(
        mortal, lambda supervisor, _: None if supervisor.recent_deaths() else pytest.fail("healthy"), 600.0
    )
    pauses = [later - earlier for earlier, later in zip(mortal.runs, mortal.runs[1:], strict=False)]
    assert pauses[:6] == pytest.approx([1, 2, 4, 8, 16, LONGEST_PAUSE_S])
    assert max(pauses) == pytest.approx(LONGEST_PAUSE_S)


async def test_a_task_that_has_run_for_a_while_since_its_death_is_well_again() -> None:
    mortal = Mortal(ValueError("once"))
    await supervised(mortal, lambda supervisor, _: None if not supervisor.recent_deaths() else pytest.fail("ill"), 62.0)


async def test_a_death_after_a_long_run_counts_as_the_first() -> None:
    mortal = Mortal(*(ValueError(str(number)) for number in range(3)), lasts_s=RECOVERED_S)
    await supervised(mortal, lambda *_: None, 400.0)
    pauses = [later - earlier - RECOVERED_S for earlier, later in zip(mortal.runs, mortal.runs[1:], strict=False)]
    assert pauses == pytest.approx([1, 1, 1])


async def test_a_task_that_is_cancelled_ends() -> None:
    clock = VirtualClock()
    warnings = WarningLog(clock)
    task = Supervisor(clock, warnings).spawn(Tasks(), "work", Mortal().work)
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert warnings.recent() == []


@asynccontextmanager
async def nothing_to_do() -> AsyncIterator[None]:
    yield


def standing_by(lock: FakeLock) -> tuple[Standby, Supervisor]:
    clock = VirtualClock()
    warnings = WarningLog(clock)
    supervisor = Supervisor(clock, warnings)
    return Standby(SETTINGS, clock, "a", warnings, Fence(), lock, supervisor), supervisor


async def test_a_standby_whose_lock_raises_what_it_must_not_goes_on_and_is_told_of() -> None:
    class Broken(FakeLock):
        deaths = 3

        async def acquire(self) -> Holder:
            if self.deaths:
                self.deaths -= 1
                raise [ValueError(), asyncio.CancelledError(), KeyError()][self.deaths]
            return await super().acquire()

    standby, supervisor = standing_by(Broken(LockServer(), "a"))
    task = Tasks().spawn(standby.run(nothing_to_do))
    await asyncio.sleep(REFRESH_S * 2.5)
    assert [death.task for death in supervisor.recent_deaths()] == ["standby"]
    await asyncio.sleep(REFRESH_S)
    assert standby.fencing_number == 1
    standby.stop()
    await task


async def test_a_refresh_that_died_is_told_of_and_the_next_one_keeps_the_lock() -> None:
    class Broken(FakeLock):
        deaths = 1

        async def refresh(self) -> Holder | None:
            if self.deaths:
                self.deaths -= 1
                raise ValueError("a bug")
            return await super().refresh()

    standby, supervisor = standing_by(Broken(LockServer(), "a"))
    task = Tasks().spawn(standby.run(nothing_to_do))
    await asyncio.sleep(REFRESH_S * 1.5)
    assert [death.task for death in supervisor.recent_deaths()] == ["refresh standby lock"]
    await asyncio.sleep(REFRESH_S * 10)
    assert (standby.state, standby.fencing_number) == (StandbyState.PRIMARY, 1)
    standby.stop()
    await task


async def test_a_queue_that_answers_for_fewer_messages_than_it_was_asked_costs_no_ack() -> None:
    rig = Rig()
    ack, calls = rig.queue.ack, 0

    async def ack_in_part(deliveries: Sequence[Delivery]) -> list[Settled]:
        nonlocal calls
        calls += 1
        results = await ack(deliveries)
        return results[1:] if calls == 1 else results

    rig.queue.ack = ack_in_part  # type: ignore[method-assign]
    await rig.publish(*outgoings("abcde"))
    async with rig:
        await asyncio.sleep(30)
        assert len(rig.tracker) == 0
        assert rig.settler.is_idle
