"""Jobs of each store, delivered by the real router: what their modes, sequences and retries promise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Delivery, DispatchMode, ErrorKind, Outcome, Result, Settled
from flowcatalyst.dispatch.job import NewJob, Status, as_time, new_job
from flowcatalyst.dispatch.store.contract import Cancel, Change, Filter, JobStateError, JobStore, Retry
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Bench, server
from tests.support.rig import ERROR_400, ERROR_500, Rig

__all__ = ["server"]

IMMEDIATE, NEXT, BLOCK = DispatchMode.IMMEDIATE, DispatchMode.NEXT_ON_ERROR, DispatchMode.BLOCK_ON_ERROR
PATIENCE = Outcome(Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED, delay_s=0.05, status=429, detail="HTTP 429")


class Jobs(Rig):
    """A router on a job store. Endpoints answer by the id of a job, which is what a test calls it."""

    outliving = frozenset({"renew postgres owner", "take from postgres"})

    def __init__(self, store: JobStore, latency_s: float = 0.001) -> None:
        super().__init__(latency_s=latency_s)
        self.store = store
        self.queue = store.queue  # type: ignore[assignment]

    async def create(self, name: str, **asked: Any) -> None:
        await create(self.store, name, **asked)

    async def until(self, name: str, status: Status) -> None:
        await until(lambda: self._is(name, status))

    async def _is(self, name: str, status: Status) -> bool:
        return (await self.store.find(name)).status is status


async def create(store: JobStore, name: str, mode: DispatchMode = BLOCK, **asked: Any) -> None:
    usual: dict[str, Any] = {
        "code": "test",
        "target_url": "http://127.0.0.1:9/",
        "message_group": "g",
        "max_retries": 0,
    }
    await store.create([new_job(NewJob(mode=mode, **(usual | asked)), name, SystemClock().wall())])


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.005)


MakeStore = Callable[[], JobStore]


@asynccontextmanager
async def opened(make: MakeStore) -> AsyncIterator[JobStore]:
    store = make()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Stores on the same data, one after the other."""
    if request.param == "sqlite":
        return lambda: SqliteJobStore(tmp_path / "jobs.db", SystemClock(), poll_interval_s=0.01)
    bench = Bench(request.getfixturevalue("server"))
    return lambda: PostgresJobStore(bench.database(), SystemClock())


@pytest.fixture
async def store(make: MakeStore) -> AsyncIterator[JobStore]:
    async with opened(make) as store:
        yield store


async def test_block_on_error_the_rest_of_a_group_waits_for_one_that_failed(store: JobStore) -> None:
    for name in ("a", "b", "c"):
        await create(store, name)
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("b", ERROR_500)
        await jobs.until("b", Status.ERROR)
        await asyncio.sleep(0.1)
        assert jobs.endpoint.started == ["a", "b"]
        states = [await store.find(name) for name in ("a", "b", "c")]
    assert [state.status for state in states] == [Status.COMPLETED, Status.ERROR, Status.PENDING]
    assert states[1].next_attempt_at is None  # it waits for a person


async def test_next_on_error_the_rest_goes_on_and_the_failed_one_retries_later(store: JobStore) -> None:
    for name in ("a", "b", "c"):
        await create(store, name, NEXT, max_retries=1, retry_delays_seconds=[0.3])
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("b", ERROR_500)
        await jobs.until("b", Status.COMPLETED)
        assert jobs.endpoint.started == ["a", "b", "c", "b"]


async def test_immediate_jobs_wait_for_nobody(store: JobStore) -> None:
    for name in ("a", "b", "c"):
        await create(store, name, IMMEDIATE)
    async with Jobs(store, latency_s=0.3) as jobs:
        await jobs.until_started(3)
        assert jobs.endpoint.most_in_flight == 3
        for name in ("a", "b", "c"):
            await jobs.until(name, Status.COMPLETED)


@pytest.mark.parametrize("way", ["retry", "cancel", "next", "immediate"])
async def test_a_blocked_group_goes_on_by_each_way(store: JobStore, way: str) -> None:
    for name in ("a", "b", "c"):
        await create(store, name)
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("a", ERROR_400)
        await jobs.until("a", Status.ERROR)
        if way == "retry":
            await store.act("a", Retry(), "me")
        elif way == "cancel":
            await store.act("a", Cancel(), "me")
        else:
            await store.act("a", Change(mode=NEXT if way == "next" else IMMEDIATE), "me")
        await jobs.until("c", Status.COMPLETED)
        assert jobs.endpoint.started == (["a", "a", "b", "c"] if way == "retry" else ["a", "b", "c"])
        wanted = {"retry": Status.COMPLETED, "cancel": Status.CANCELLED}
        assert (await store.find("a")).status is wanted.get(way, Status.ERROR)


async def test_a_blocked_group_is_blocked_after_a_restart(make: MakeStore) -> None:
    async with opened(make) as store:
        for name in ("a", "b"):
            await create(store, name)
        async with Jobs(store) as jobs:
            jobs.endpoint.answers("a", ERROR_500)
            await jobs.until("a", Status.ERROR)
    async with opened(make) as store, Jobs(store) as jobs:
        await create(store, "other", message_group="h")
        await jobs.until("other", Status.COMPLETED)
        assert jobs.endpoint.started == ["other"]
        await store.act("a", Retry(), "me")
        await jobs.until("b", Status.COMPLETED)
        assert jobs.endpoint.started == ["other", "a", "b"]


async def test_a_retry_of_a_blocking_job_comes_before_the_rest(store: JobStore) -> None:
    for name in ("a", "b"):
        await create(store, name, max_retries=2, retry_delays_seconds=[0.05, 0.1])
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("a", ERROR_500, ERROR_500)
        await jobs.until("b", Status.COMPLETED)
        assert jobs.endpoint.started == ["a", "a", "a", "b"]
        made = await store.attempts_of("a")
    assert [(one.attempt, one.status, one.counts) for one in made] == [(1, 500, True), (2, 500, True), (3, 200, False)]


async def test_an_attempt_may_take_as_long_as_its_job_says(store: JobStore) -> None:
    for name, timeout_s in (("a", 0.5), ("b", 900.0)):
        await create(store, name, timeout_seconds=timeout_s)
    async with Jobs(store) as jobs:
        await jobs.until("b", Status.COMPLETED)
        assert jobs.endpoint.timeouts_s == {"a": 0.5, "b": 900.0}


async def test_sequence_decides_among_what_waits(store: JobStore) -> None:
    for name, sequence in (("c", 99), ("b", 2), ("a", 1), ("d", 99)):
        await create(store, name, sequence=sequence)
    async with Jobs(store) as jobs:
        await jobs.until("d", Status.COMPLETED)
        assert jobs.endpoint.started == ["a", "b", "c", "d"]


async def test_one_that_comes_before_a_blocked_job_does_not_wait_for_it(store: JobStore) -> None:
    await create(store, "later", sequence=5)
    await create(store, "last", sequence=6)
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("later", ERROR_500)
        await jobs.until("later", Status.ERROR)
        await create(store, "sooner", sequence=4)
        await create(store, "soonest", sequence=3)
        await jobs.until("sooner", Status.COMPLETED)
        await jobs.until("soonest", Status.COMPLETED)
        await asyncio.sleep(0.1)
        assert set(jobs.endpoint.started) == {"later", "sooner", "soonest"}
        await store.act("later", Retry(), "me")
        await jobs.until("last", Status.COMPLETED)


async def test_each_job_by_its_own_mode_in_one_group(store: JobStore) -> None:
    await create(store, "skips", NEXT)
    await create(store, "blocks", BLOCK)
    await create(store, "waits", NEXT)
    await create(store, "passes", IMMEDIATE)
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("skips", ERROR_500)
        jobs.endpoint.answers("blocks", ERROR_500)
        await jobs.until("blocks", Status.ERROR)
        await jobs.until("passes", Status.COMPLETED)
        await asyncio.sleep(0.1)
        assert [one for one in jobs.endpoint.started if one != "passes"] == ["skips", "blocks"]


async def test_patience_costs_no_attempt(store: JobStore) -> None:
    await create(store, "a", max_retries=0)
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("a", PATIENCE, PATIENCE)
        await jobs.until("a", Status.COMPLETED)
        made = await store.attempts_of("a")
    assert [(one.status, one.counts) for one in made] == [(429, False), (429, False), (200, False)]


async def test_a_job_that_is_scheduled_waits_for_its_time_and_holds_up_nobody(store: JobStore) -> None:
    soon = SystemClock().wall() + 0.5
    await create(store, "scheduled", scheduled_for=as_time(soon))
    await create(store, "now")
    async with Jobs(store) as jobs:
        await jobs.until("now", Status.COMPLETED)
        assert (await store.find("scheduled")).status is Status.PENDING
        await jobs.until("scheduled", Status.COMPLETED)
        assert SystemClock().wall() >= soon


async def test_a_repeated_idempotency_key_is_the_first_job(store: JobStore) -> None:
    clock = SystemClock()
    asked = NewJob(code="x", target_url="http://127.0.0.1:9/", idempotency_key="k")
    first, again = await store.create([new_job(asked, name, clock.wall()) for name in ("one", "two")])
    assert (first.state.job.id, first.repeated) == ("one", False)
    assert (again.state.job.id, again.repeated) == ("one", True)
    (third,) = await store.create([new_job(asked, "three", clock.wall())])
    assert (third.state.job.id, third.repeated) == ("one", True)


async def test_what_can_be_done_to_a_job_depends_on_where_it_is(store: JobStore) -> None:
    await create(store, "a")
    with pytest.raises(JobStateError, match="only one that failed or was told to wait"):
        await store.act("a", Retry(), "me")
    (delivery,) = await store.queue.receive(1, 1)
    assert (await store.find("a")).status is Status.QUEUED
    with pytest.raises(JobStateError, match="in a router's hands"):
        await store.act("a", Cancel(), "me")
    await store.queue.ack([delivery])
    with pytest.raises(JobStateError, match="is COMPLETED"):
        await store.act("a", Cancel(), "me")


async def test_a_job_that_came_back_from_a_lease_that_goes_on_is_in_nobodys_hands_after_a_change(
    store: JobStore,
) -> None:
    for name in ("a", "b"):
        await create(store, name)
    first, second = await store.queue.receive(2, 1)
    await store.queue.nack([second], 60.0)
    assert (await store.act("b", Change(mode=BLOCK), "me")).status is Status.PENDING
    await store.queue.ack([first])
    assert (await store.act("b", Cancel(), "me")).status is Status.CANCELLED


async def test_the_example_queries_of_an_operator(store: JobStore) -> None:
    for name in ("a", "b", "c"):
        await create(store, name)
    await create(store, "other", IMMEDIATE, message_group="h")
    async with Jobs(store) as jobs:
        jobs.endpoint.answers("a", ERROR_500)
        await jobs.until("a", Status.ERROR)
        await jobs.until("other", Status.COMPLETED)
        await until(lambda: _count(store, 2))
        blocked = await store.page(Filter(status=Status.PENDING, mode=BLOCK), 10)
        group = await store.page(Filter(group="g"), 2)
        rest = await store.page(Filter(group="g"), 2, group.cursor)
    assert [state.job.id for state in blocked.items] == ["c", "b"]
    assert [state.job.id for state in (*group.items, *rest.items)] == ["c", "b", "a"]
    assert rest.cursor is None


async def _count(store: JobStore, wanted: int) -> bool:
    return len((await store.page(Filter(status=Status.PENDING), 10)).items) == wanted


async def test_a_job_whose_ack_came_too_late_is_not_sent_again_and_keeps_its_attempt(
    store: SqliteJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    acks: list[int] = []
    ack = store.queue.ack

    async def first_too_late(deliveries: Sequence[Delivery]) -> list[Settled]:
        acks.append(len(deliveries))
        if len(acks) > 1:
            return await ack(deliveries)
        lost = [copy(delivery) for delivery in deliveries]
        for delivery in lost:
            delivery.attempt = None
        await store.queue.nack(lost, 0.0)  # its lease is over: it is handed out again
        return [Settled.GONE] * len(deliveries)

    monkeypatch.setattr(store.queue, "ack", first_too_late)
    jobs = Jobs(store)
    async with jobs:
        await jobs.create("j1")
        await jobs.until("j1", Status.COMPLETED)
    assert jobs.endpoint.started == ["j1"]
    assert (await store.find("j1")).attempts == 1
    assert [made.attempt for made in await store.attempts_of("j1")] == [1]
