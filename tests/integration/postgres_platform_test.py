"""Several processes that accept events, pause and remove subscriptions and deliver jobs on one PostgreSQL database."""

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.message import Attempt, Delivery, DispatchMode, Settled
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch import catalog
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.event import Event, NewEvent
from flowcatalyst.dispatch.intake import Intake
from flowcatalyst.dispatch.job import Job, as_time
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.store import postgres
from flowcatalyst.dispatch.store.contract import Filter
from flowcatalyst.dispatch.store.platform_contract import EntryKind, PlatformStore
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.dispatch.subscription import EventTypeBinding
from tests.support.clocks import SetClock
from tests.support.postgres import assert_consistent, server
from tests.support.postgres_jobs import DELIVERED, FAILED, PATIENCE_S, Jobs, jobs

__all__ = ["jobs", "server"]

SUBSCRIPTION = EntryKind.SUBSCRIPTION
MODES = list(DispatchMode)
ROUNDS = 150

_IN_HAND = """
    SELECT l.id, l.epoch FROM lanes AS l WHERE l.owner IS NOT NULL AND EXISTS (
      SELECT 1 FROM messages AS m
      WHERE m.lane = l.id AND m.seq <= l.leased_to AND m.given_back <> l.epoch AND m.tag = 's')"""
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def event(jobs: Jobs, name: str, **more: Any) -> Event:
    time = as_time(jobs.clock.wall())
    assert time is not None
    return Event(id=name, type="order.created", source="shop", time=time, data=msgspec.Raw(b"{}"), **more)


def job_of(jobs: Jobs, name: str, group: str, mode: DispatchMode, *, delay_s: float = 0.0) -> Job:
    later = jobs.clock.wall() + delay_s if delay_s else None
    return replace(jobs.job(name, group, mode), subscription="s", scheduled_for=later)


class Shop:
    """A subscription `s`, makers and routers of its jobs, and what the routers saw."""

    def __init__(self, jobs: Jobs, seed: int) -> None:
        self.jobs = jobs
        self.luck = random.Random(seed)
        self.accepted: list[str] = []  # names of jobs
        self.delivered: list[str] = []
        self.seen: list[tuple[int, int]] = []  # leases that had a job of the subscription, in this order
        self.positions: dict[tuple[str, int], str] = {}
        self.started: dict[str, list[int]] = defaultdict(list)  # numbers of jobs, by group that blocks
        self.is_over = False
        self._made = 0

    async def make(self, store: PostgresJobStore) -> None:
        """Groups are `mode:n`, and the names of their jobs end with a number that grows."""
        while not self.is_over:
            events = []
            for _ in range(self.luck.randint(1, 4)):
                self._made += 1
                mode = self.luck.choice(MODES)
                group = f"{mode}:{self.luck.randint(1, 3)}"
                delay_s = 0.01 if self.luck.random() < 0.2 and mode is not DispatchMode.BLOCK_ON_ERROR else 0.0
                job = job_of(self.jobs, f"{group}-{self._made:06}", group, mode, delay_s=delay_s)
                events.append((event(self.jobs, f"e{self._made}"), [job]))
            for kept, (_, made) in zip(await store.accept(events), events, strict=True):
                assert kept.kept.jobs == 1
                self.accepted += [job.id for job in made]
            while len(self.accepted) > len(self.delivered) + 200 and not self.is_over:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)

    async def route(self, store: PostgresJobStore) -> None:
        while not self.is_over or len(self.delivered) < len(self.accepted):
            taken = await store.queue.receive(20, 0.05)
            self.seen += [(one.receipt.receipt.lane, one.receipt.receipt.epoch) for one in taken]
            by_lane: dict[int, list[Delivery]] = defaultdict(list)
            for one in taken:
                by_lane[one.receipt.receipt.lane].append(one)
            for lane in by_lane.values():
                await self._deliver(store, lane)

    async def _deliver(self, store: PostgresJobStore, lane: list[Delivery]) -> None:
        while lane:
            one = lane.pop(0)
            name, mode = one.pointer.id, one.pointer.dispatch_mode
            if one.position:
                known = self.positions.setdefault((str(one.group), one.position), name)
                assert known == name, "a position was given to two jobs that began"
            if self.luck.random() < 0.15:
                unlock = mode is not DispatchMode.BLOCK_ON_ERROR
                if not unlock and lane:
                    await store.queue.nack(lane[::-1], 0.0)
                    lane.clear()
                one.failures += 1
                one.attempt = Attempt(self.jobs.clock.wall(), 0.0, FAILED)
                await store.queue.nack([one], 0.0, unlock=unlock)
            else:
                if mode is DispatchMode.BLOCK_ON_ERROR:
                    self.started[str(one.group)].append(int(name.rpartition("-")[2]))
                one.attempt = Attempt(self.jobs.clock.wall(), 0.0, DELIVERED)
                while await store.queue.ack([one]) != [Settled.OK]:  # somebody has its lane locked for long
                    pass
                self.delivered.append(name)


async def settle(store: PlatformStore) -> None:
    while await store.settle_pauses(50):
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_handed_out_between_a_settled_pause_and_its_end_whatever_comes_and_goes(
    jobs: Jobs, seed: int
) -> None:
    shop = Shop(jobs, seed)
    makers, routers = [await jobs.store() for _ in range(2)], [await jobs.store() for _ in range(2)]
    store, connection = await jobs.store(), await jobs.bench.connection()
    await store.add(SUBSCRIPTION, "s", "{}")
    before = await connection.fetchval(_DEADLOCKS)
    rounds = 0

    async def pause_and_resume() -> None:
        nonlocal rounds
        for _ in range(ROUNDS):
            await store.set_paused("s", paused=True)
            await settle(store)
            in_hand = {tuple(row) for row in await connection.fetch(_IN_HAND)} | set(shop.seen)
            begun = len(shop.seen)
            await asyncio.sleep(shop.luck.uniform(0.0, 0.03))
            assert set(shop.seen[begun:]) <= in_hand
            assert {tuple(row) for row in await connection.fetch(_IN_HAND)} <= in_hand
            rounds += 1
            await store.set_paused("s", paused=False)
            await settle(store)
            await asyncio.sleep(shop.luck.uniform(0.0, 0.02))
        shop.is_over = True

    async with asyncio.timeout(PATIENCE_S * 4):
        async with asyncio.TaskGroup() as tasks:
            for work in [partial(shop.make, one) for one in makers] + [partial(shop.route, one) for one in routers]:
                tasks.create_task(work())
            tasks.create_task(pause_and_resume())
    assert rounds == ROUNDS
    assert sorted(shop.delivered) == sorted(shop.accepted)
    assert len(shop.accepted) > ROUNDS
    await assert_consistent(connection)
    assert await connection.fetchval(_DEADLOCKS) == before
    assert await connection.fetchval("SELECT count(*) FROM pause_walks") == 0
    order = "SELECT j.id FROM jobs AS j WHERE j.grp = $1 ORDER BY j.number"
    for group, started in shop.started.items():
        assert started == [int(row[0].rpartition("-")[2]) for row in await connection.fetch(order, group)]


async def test_no_job_of_a_subscription_is_made_once_it_is_removed(jobs: Jobs) -> None:
    makers, store = [await jobs.store() for _ in range(3)], await jobs.store()
    connection = await jobs.bench.connection()
    count = "SELECT count(*) FROM jobs WHERE subscription = 's'"
    made_jobs = 0
    for number in range(100):
        await store.add(SUBSCRIPTION, "s", "{}")

        async def accept(which: int, number: int = number) -> int:
            name = f"{number}-{which}"
            asked = [(event(jobs, name), [job_of(jobs, name, f"g{which % 4}", DispatchMode.BLOCK_ON_ERROR)])]
            (accepted,) = await makers[which % len(makers)].accept(asked)
            assert (await store.event(name)).jobs == accepted.kept.jobs
            return accepted.kept.jobs

        async def remove() -> int:
            await store.remove(SUBSCRIPTION, "s")
            found: int = await connection.fetchval(count)
            return found

        *made, when_removed = await asyncio.gather(*(accept(which) for which in range(6)), remove())
        made_jobs += sum(made)
        assert await connection.fetchval(count) == when_removed == made_jobs
        assert await accept(100) == 0
    assert await store.count(Filter(subscription="s"), 10_000) == made_jobs > 0


async def test_events_that_several_send_at_once_are_kept_once_with_their_jobs(jobs: Jobs) -> None:
    stores = [await jobs.store() for _ in range(3)]
    connection = await jobs.bench.connection()
    before = await connection.fetchval(_DEADLOCKS)
    await stores[0].add(SUBSCRIPTION, "s", "{}")
    keys = [f"k{number}" for number in range(40)]

    async def send(number: int) -> dict[str, str]:
        order = random.Random(number).sample(keys, len(keys))
        asked = [
            (
                event(jobs, f"{number}-{key}", deduplication_id=key),
                [job_of(jobs, f"{number}-{key}", f"g{place % 5}", DispatchMode.BLOCK_ON_ERROR)],
            )
            for place, key in enumerate(order)
        ]
        accepted = await stores[number].accept(asked)
        assert all(one.kept.jobs == 1 for one in accepted)
        return {key: one.kept.event.id for key, one in zip(order, accepted, strict=True)}

    first, *others = await asyncio.gather(*(send(number) for number in range(len(stores))))
    assert all(other == first for other in others)
    assert await connection.fetchval("SELECT count(*) FROM events") == len(keys)
    found = {row[0] for row in await connection.fetch("SELECT id FROM jobs")}
    assert found == set(first.values())
    assert await connection.fetchval(_DEADLOCKS) == before
    await assert_consistent(connection)


async def test_a_process_that_receives_hears_of_a_change_of_the_catalog(jobs: Jobs) -> None:
    receiver, other = await jobs.store(), await jobs.store()
    receiver.database.queues.add(receiver.queue)
    await receiver.database.announce()  # as a receive does: the connection that renews it listens
    since = await receiver.revision()
    told = asyncio.Event()
    receiver.database.on_notice["catalog"] = told.set
    await other.add(SUBSCRIPTION, "s", "{}")
    async with asyncio.timeout(PATIENCE_S):
        await told.wait()
    assert await receiver.changed(since, 0.0) == since + 1


async def test_a_process_that_was_told_of_nothing_sees_a_change_of_the_catalog_within_a_second(jobs: Jobs) -> None:
    looker, other = await jobs.store(), await jobs.store()
    since = await looker.revision()
    looking = asyncio.ensure_future(looker.changed(since, PATIENCE_S))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    await other.add(SUBSCRIPTION, "s", "{}")
    began_at = loop.time()
    assert await looking == since + 1
    assert loop.time() - began_at < 2.0


# A change of subscriptions reaches the events of other processes within a second. Three things see to that, each of
# which is tried without the others, and none by a watch: a notice, a look every CATALOG_POLL_S, and knowledge that is
# never older than FRESH_S when an event is matched.

WANTED = StoredSubscription(code="s", target_url="http://127.0.0.1:9/", event_types=(EventTypeBinding("order.*"),))


class Shared:
    """What a process has that accepts events; time stands still for its catalog unless somebody sets its clock."""

    def __init__(self, jobs: Jobs, store: PostgresJobStore) -> None:
        async def pools_changed() -> None:
            """There are none."""

        self.store, self.clock = store, SetClock()
        self.catalog = Catalog(store, Sealer(bytes(32)), self.clock, WarningLog(self.clock), pools_changed)
        self.intake = Intake(store, self.catalog, IdSource(jobs.clock), jobs.clock)

    async def jobs_of_an_event(self) -> int:
        asked = NewEvent(type="order.created", source="shop")
        (accepted,) = await self.intake.accept([self.intake.event_of(asked)])
        return accepted.kept.jobs

    async def until_events_have_jobs(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.jobs_of_an_event() != count:
                await asyncio.sleep(0.01)


async def make_and_remove(one: Shared, other: Shared) -> None:
    """While the other one follows."""
    following = asyncio.ensure_future(other.catalog.follow())
    assert await other.jobs_of_an_event() == 0
    await one.catalog.add(SUBSCRIPTION, "s", WANTED)
    await other.until_events_have_jobs(1)
    await one.catalog.remove(SUBSCRIPTION, "s")
    await other.until_events_have_jobs(0)
    following.cancel()
    await asyncio.wait([following])


async def test_events_elsewhere_follow_a_change_of_subscriptions_by_a_notice_alone(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = [Shared(jobs, await jobs.store()) for _ in range(2)]
    other.store.database.queues.add(other.store.queue)
    await other.store.database.announce()  # as one that delivers does: the connection that renews it listens
    monkeypatch.setattr(postgres, "CATALOG_POLL_S", 2 * PATIENCE_S)
    monkeypatch.setattr(catalog, "FOLLOW_S", 2 * PATIENCE_S)
    await make_and_remove(one, other)


async def test_events_elsewhere_follow_a_change_of_subscriptions_by_looking_alone(jobs: Jobs) -> None:
    one, other = [Shared(jobs, await jobs.store()) for _ in range(2)]
    other.store.database.on_notice.clear()
    await make_and_remove(one, other)
    assert postgres.CATALOG_POLL_S <= 1.0 / 2  # and one question, which takes less than the other half


async def test_events_elsewhere_follow_a_change_of_subscriptions_when_nobody_looked(jobs: Jobs) -> None:
    one, other = [Shared(jobs, await jobs.store()) for _ in range(2)]
    assert await other.jobs_of_an_event() == 0
    await one.catalog.add(SUBSCRIPTION, "s", WANTED)
    other.clock.now += 1.01
    assert await other.jobs_of_an_event() == 1
    await one.catalog.remove(SUBSCRIPTION, "s")
    other.clock.now += 1.01
    assert await other.jobs_of_an_event() == 0
