"""What is told about jobs, and how their store is kept in order."""

import asyncio
from dataclasses import replace
from math import inf
from typing import cast

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import ACK, ErrorKind, Nack, Outcome, Result, Terms
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter, WarningLog
from flowcatalyst.dispatch import housekeeping
from flowcatalyst.dispatch.housekeeping import DAY_S, Housekeeping
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.job_counts import MAX_PARKED_POOLS, CountedAttempts, JobCounts
from flowcatalyst.dispatch.job_watch import MAX_TOLD_GROUPS, JobWatch
from flowcatalyst.dispatch.store.contract import Figures, Filter, GroupPage, GroupState, JobStore, Page
from flowcatalyst.dispatch.store.platform_contract import PlatformStore
from tests.support.clocks import SetClock
from tests.support.deliveries import delivery
from tests.unit.job_waiting_test import state

FIGURES = Figures(0, 0, 0, 0, 0, {}, None)
FAILED = Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, status=500, detail="HTTP 500")


class Store:
    """What is looked at and kept in order, as a test sets it."""

    def __init__(self) -> None:
        self.leads = True
        self.away = False
        self.blocked: dict[str, float] = {}  # groups and since when
        self.parked: dict[str, int] = {}  # by pool
        self.to_expire = 0
        self.finished: list[float] = []
        self.calls: list[int] = []
        self.events: list[float] = []  # when each came
        self.lanes_to_settle = 0

    async def lead(self) -> bool:
        return self.leads

    async def figures(self) -> Figures:
        if self.away:
            raise QueueUnavailableError("away")
        return replace(FIGURES, parked=sum(self.parked.values()), blocked=len(self.blocked))

    async def groups(self, *, blocked: bool, limit: int, cursor: str | None = None) -> GroupPage:
        assert blocked
        by_age = sorted(self.blocked, key=self.blocked.__getitem__)
        return GroupPage([await self.group(name) for name in by_age[:limit]], "more" if len(by_age) > limit else None)

    async def group(self, name: str) -> GroupState:
        return GroupState(name, 1, state(Status.ERROR, f"{name}-1", last_error="HTTP 500"), self.blocked.get(name))

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page:
        assert which == Filter(parked=True)
        job = state(Status.ERROR).job
        return Page([replace(state(), job=replace(job, pool=pool)) for pool in self.parked], None)

    async def count(self, which: Filter, most: int) -> int:
        return min(most, sum(count for pool, count in self.parked.items() if which.pool in (None, pool)))

    async def expire(self, limit: int) -> int:
        expired = min(limit, self.to_expire)
        self.to_expire -= expired
        return expired

    async def drop_finished(self, before: float, limit: int) -> int:
        old = [at for at in self.finished if at < before][:limit]
        self.calls.append(len(old))
        for at in old:
            self.finished.remove(at)
        return len(old)

    async def drop_events(self, before: float, limit: int) -> int:
        if self.away:
            raise QueueUnavailableError("away")
        old = [at for at in self.events if at < before][:limit]
        self.events = self.events[len(old) :]
        return len(old)

    async def settle_pauses(self, limit: int) -> int:
        if self.away:
            raise QueueUnavailableError("away")
        some = min(limit, self.lanes_to_settle)
        self.lanes_to_settle -= some
        return some


class Watched:
    def __init__(self) -> None:
        self.store, self.clock, self.counts = Store(), SetClock(), JobCounts()
        self.warnings = WarningLog(self.clock)
        self.watch = JobWatch(cast(JobStore, self.store), self.counts, self.clock, self.warnings, blocked_s=900.0)

    def house(self, days: float = 30.0) -> Housekeeping:
        return Housekeeping(cast(PlatformStore, self.store), self.counts, self.watch, self.clock, days)

    def told(self, code: WarningCode) -> list[str]:
        """The sources of warnings that nobody acknowledged."""
        return sorted(one.source for one in self.warnings.recent(WarningFilter(code=code, acknowledged=False)))

    def ended(self, code: WarningCode) -> list[str]:
        """The sources of what tells that something is over."""
        return [one.source for one in self.warnings.recent(WarningFilter(code=code))]

    def attempt(self, outcome: Outcome, verdict: Nack, pool: str = "P") -> None:
        made = delivery("m", pool=pool)
        made.terms = Terms(30, 0, (1.0,))
        CountedAttempts(NoLog(), self.counts, self.clock).attempt(pool, made, outcome, verdict, 0.1)


class NoLog:
    def attempt(self, *args: object) -> None: ...


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_group_is_told_of_once_it_is_blocked_for_long_and_when_that_is_over(watched: Watched) -> None:
    watched.store.blocked["order:1"] = watched.clock.now
    watched.clock.now += 899
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_GROUP_BLOCKED) == []
    watched.clock.now += 1
    for _ in range(2):
        await watched.watch.look()
        (told,) = watched.warnings.recent(WarningFilter(code=WarningCode.JOB_GROUP_BLOCKED))
        assert (told.source, told.count) == ("job group order:1", 1)
        assert "it waits for job order:1-1 (HTTP 500)" in told.message
    assert [one.group for one in watched.watch.blocked] == ["order:1"]
    watched.store.blocked.clear()
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_GROUP_BLOCKED) == []
    assert watched.ended(WarningCode.JOB_GROUP_UNBLOCKED) == ["job group order:1"]


async def test_only_the_process_that_leads_tells_of_groups(watched: Watched) -> None:
    watched.store.leads = False
    watched.store.blocked["g"] = 0.0
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_GROUP_BLOCKED) == []
    assert [one.group for one in watched.watch.blocked] == ["g"]  # health says it everywhere


async def test_however_many_groups_are_blocked_a_bounded_number_is_told_of_and_the_others_later(
    watched: Watched,
) -> None:
    watched.store.blocked = {f"g{number:03}": float(number) for number in range(300)}
    await watched.watch.look()
    first = watched.told(WarningCode.JOB_GROUP_BLOCKED)
    assert first == [f"job group g{number:03}" for number in range(MAX_TOLD_GROUPS)]
    del watched.store.blocked["g000"]
    await watched.watch.look()
    assert len(watched.told(WarningCode.JOB_GROUP_BLOCKED)) == MAX_TOLD_GROUPS
    assert "job group g020" in watched.told(WarningCode.JOB_GROUP_BLOCKED)


async def test_a_job_that_was_parked_is_told_of_by_pool_until_none_is(watched: Watched) -> None:
    await watched.watch.look()
    watched.attempt(FAILED, Nack(inf))
    watched.store.parked["P"] = 1
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == ["jobs of pool P"]
    watched.warnings.acknowledge_all()
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == []
    watched.attempt(FAILED, Nack(inf))  # another one is news again
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == ["jobs of pool P"]
    watched.store.parked.clear()
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == []
    assert watched.ended(WarningCode.JOB_PARKED_OVER) == ["jobs of pool P"]


async def test_a_job_whose_parking_is_not_written_yet_is_told_of_when_it_is(watched: Watched) -> None:
    watched.attempt(FAILED, Nack(inf))
    await watched.watch.look()
    assert watched.warnings.recent() == []
    watched.store.parked["P"] = 1
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == ["jobs of pool P"]


async def test_what_was_parked_before_a_start_is_told_of_too(watched: Watched) -> None:
    watched.store.parked["P"] = 3
    await watched.watch.look()
    assert watched.told(WarningCode.JOB_PARKED) == ["jobs of pool P"]


async def test_names_of_pools_that_somebody_makes_up_do_not_make_up_warnings(watched: Watched) -> None:
    for number in range(MAX_PARKED_POOLS * 3):
        watched.attempt(FAILED, Nack(inf), f"P{number}")
        watched.store.parked[f"P{number}"] = 1
    await watched.watch.look()
    assert len(watched.told(WarningCode.JOB_PARKED)) <= MAX_PARKED_POOLS + 1


def test_attempts_at_jobs_are_counted_and_those_at_messages_are_not(watched: Watched) -> None:
    watched.attempt(FAILED, Nack(5.0))
    watched.attempt(FAILED, Nack(inf))
    watched.attempt(Outcome(Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED, status=429), Nack(5.0))
    made = delivery("m")
    log = CountedAttempts(NoLog(), watched.counts, watched.clock)
    log.attempt("P", made, Outcome(Result.SUCCESS), ACK, 0.1)
    made.terms, made.due_at = Terms(30, 0, (1.0,)), watched.clock.now - 2.0
    log.attempt("P", made, Outcome(Result.SUCCESS), ACK, 0.1)
    counts = watched.counts
    assert (counts.completed, counts.failed, counts.parked) == (1, 2, 1)
    assert (counts.duration_sum_s, sum(counts.duration_counts)) == (2.0, 1)


async def test_the_latest_figures_are_shown_while_the_store_is_away(watched: Watched) -> None:
    watched.store.parked["P"] = 1
    assert await watched.watch.figures_now() == replace(FIGURES, parked=1)
    watched.store.away = True
    assert await watched.watch.figures_now() == replace(FIGURES, parked=1)


async def test_jobs_expire_in_batches_and_are_counted(watched: Watched) -> None:
    watched.store.to_expire = housekeeping.EXPIRE_BATCH + 1
    await watched.house().expire()
    assert (watched.store.to_expire, watched.counts.expired) == (0, housekeeping.EXPIRE_BATCH + 1)


async def test_finished_jobs_go_when_they_are_too_old_a_few_at_a_time(watched: Watched) -> None:
    old, young = watched.clock.now - 31 * DAY_S, watched.clock.now - 29 * DAY_S
    watched.store.finished = [old] * (housekeeping.DROP_BATCH * 2 + 1) + [young]
    await watched.house().drop_finished()
    assert watched.store.finished == [young]
    assert watched.store.calls == [housekeeping.DROP_BATCH, housekeeping.DROP_BATCH, 1]
    assert watched.counts.dropped == housekeeping.DROP_BATCH * 2 + 1


async def test_events_go_when_they_are_too_old(watched: Watched) -> None:
    old, young = watched.clock.now - 31 * DAY_S, watched.clock.now - 29 * DAY_S
    watched.store.events = [old] * (housekeeping.DROP_BATCH + 1) + [young]
    await watched.house().drop_events()
    assert watched.store.events == [young]
    await watched.house(days=0.0).drop_events()
    assert watched.store.events == [young]


async def test_pauses_that_were_left_half_done_are_gone_on_with(watched: Watched) -> None:
    watched.store.lanes_to_settle, watched.store.leads = 1000, False
    await watched.house().settle_pauses()
    assert watched.store.lanes_to_settle == 1000
    watched.store.leads = True
    await watched.house().settle_pauses()
    assert watched.store.lanes_to_settle == 0


@pytest.mark.parametrize(("leads", "days"), [(False, 30.0), (True, 0.0)])
async def test_nothing_is_dropped_by_who_does_not_lead_or_where_all_is_kept(
    watched: Watched, leads: bool, days: float
) -> None:
    watched.store.leads, watched.store.finished = leads, [0.0]
    watched.store.to_expire = 1
    await watched.house(days).drop_finished()
    await watched.house(days).expire()
    assert watched.store.finished == [0.0]
    assert watched.store.to_expire == int(not leads)


@pytest.mark.virtual_time
async def test_housekeeping_outlives_a_store_that_is_away(watched: Watched) -> None:
    tasks = Tasks()
    watched.store.away = True
    watched.house().start(Supervisor(watched.clock, watched.warnings), tasks)
    await asyncio.sleep(60)
    watched.store.away, watched.store.parked = False, {"P": 1}
    await asyncio.sleep(60)
    await tasks.cancel()
    assert watched.watch.figures == replace(FIGURES, parked=1)
    assert watched.told(WarningCode.TASK_DIED) == []
