"""The embedded queue while somebody sets the clock of the machine, and when the machine starts again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowcatalyst.core.message import Delivery, MessagePointer, Settled
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import InFlightTracker
from flowcatalyst.router.watch import LeaseKeeper
from tests.support.clocks import SteppedClock
from tests.support.embedded import bodies, grouped, take

YEAR_S, HOUR_S = 365 * 86400.0, 3600.0
STEPS = pytest.mark.parametrize("step_s", [YEAR_S, -HOUR_S], ids=["a year ahead", "an hour back"])
BOOT, NEXT_BOOT = "first start of the machine", "second start of the machine"


@asynccontextmanager
async def process(path: Path, clock: SteppedClock, boot: str = BOOT) -> AsyncIterator[EmbeddedQueue]:
    """One process of the machine: they share its clock."""
    store = EmbeddedStore(path, clock, boot)
    queue = EmbeddedQueue(store, "orders")
    await queue.open()
    try:
        yield queue
    finally:
        await store.close()


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@STEPS
async def test_a_delay_ends_when_it_is_over_whatever_the_wall_clock_says(
    path: Path, clock: SteppedClock, step_s: float
) -> None:
    async with process(path, clock) as queue:
        await queue.publish(grouped("a1", "b1"))
        first, second = await take(queue)
        await queue.nack([first], 30)
        clock.step(step_s)
        await queue.nack([second], 30)
        clock.step(-step_s)
        clock.pass_(29)
        assert await take(queue) == []
        clock.pass_(1)
        assert bodies(await take(queue)) == ["a1", "b1"]


@STEPS
async def test_a_delay_survives_a_restart_and_no_longer(path: Path, clock: SteppedClock, step_s: float) -> None:
    async with process(path, clock) as queue:
        await queue.publish(grouped("a1"))
        clock.step(step_s)
        await queue.nack(await take(queue), 30)
    clock.step(-step_s)
    async with process(path, clock) as queue:
        clock.pass_(29)
        assert await take(queue) == []
        clock.pass_(1)
        assert bodies(await take(queue)) == ["a1"]


@STEPS
async def test_another_process_gets_nothing_that_is_leased_before_the_lease_is_over(
    path: Path, clock: SteppedClock, step_s: float
) -> None:
    async with process(path, clock) as one:
        await one.publish(grouped("a1", "a2"))
        held = await take(one)
        async with process(path, clock) as other:
            assert other.store.now() == one.store.now()
            clock.pass_(50)
            assert await one.extend(held, 60) == [Settled.OK] * 2
            clock.step(step_s)
            clock.pass_(59)
            assert await take(other) == []
            clock.pass_(1)
            assert bodies(await take(other)) == ["a1", "a2"]


@STEPS
async def test_a_router_goes_on_extending_its_leases(path: Path, clock: SteppedClock, step_s: float) -> None:
    async with process(path, clock) as one, process(path, clock) as other:
        await one.publish(grouped("a1"))
        tracker, lost = InFlightTracker(), list[Delivery]()
        [delivery] = await take(one)
        delivery.source = Settler(one, tracker)
        delivery.pointer = MessagePointer("a1", "http://127.0.0.1:9/hook")
        tracker.track(delivery)
        keeper = LeaseKeeper(tracker, clock, lost.append)
        clock.step(step_s)
        for _ in range(10):
            clock.pass_(31)
            await keeper.look()
            assert delivery.lease_until == clock.monotonic() + 60
            assert await take(other) == []
        assert lost == []


@STEPS
async def test_a_deduplication_id_counts_for_five_minutes_all_the_same(
    path: Path, clock: SteppedClock, step_s: float
) -> None:
    async with process(path, clock) as queue:
        await queue.publish([Outgoing("1", "g", "once")])
        clock.step(step_s)
        clock.pass_(299)
        assert (await queue.publish([Outgoing("2", "g", "once")]))[0].duplicate
    async with process(path, clock) as queue:
        assert (await queue.publish([Outgoing("2", "g", "once")]))[0].duplicate
        clock.pass_(1)
        assert not (await queue.publish([Outgoing("3", "g", "once")]))[0].duplicate


@STEPS
@pytest.mark.parametrize("boots", [(BOOT, NEXT_BOOT), ("", "")], ids=["known", "unknown"])
async def test_when_the_machine_starts_again_a_delay_is_no_longer_than_it_was(
    path: Path, clock: SteppedClock, step_s: float, boots: tuple[str, str]
) -> None:
    clock.pass_(1000)
    async with process(path, clock, boots[0]) as queue:
        await queue.publish(grouped("a1", "b1"))
        await queue.nack(await take(queue, 1), 30)
        clock.pass_(10)
    clock.start_again(step_s)
    async with process(path, clock, boots[1]) as queue:
        assert bodies(await take(queue)) == ["b1"]
        clock.pass_(19)
        assert await take(queue) == []
        clock.pass_(1)
        assert bodies(await take(queue)) == ["a1"]


async def test_leases_of_a_machine_that_lost_its_power_come_back(path: Path, clock: SteppedClock) -> None:
    clock.pass_(1000)
    store = EmbeddedStore(path, clock, BOOT)
    victim = EmbeddedQueue(store, "orders", visibility_s=HOUR_S)
    await victim.open()
    await victim.publish(grouped("a1", "b1"))
    first, second = await take(victim)
    await victim.nack([second], 30)
    clock.pass_(25)
    await store.writer.close()  # without a farewell: the owner stays in the file
    store._lock.remove()
    clock.start_again(0.0)
    async with process(path, clock, NEXT_BOOT) as queue:
        [again] = await take(queue)
        assert again.broker_id == first.broker_id
        clock.pass_(30)
        assert bodies(await take(queue)) == ["b1"]


async def test_a_process_that_joins_others_where_starts_cannot_be_told_apart_shares_their_clock(
    path: Path, clock: SteppedClock
) -> None:
    clock.pass_(1000)
    async with process(path, clock, "") as one:
        await one.publish(grouped("a1"))
        clock.pass_(500)
        async with process(path, clock, "") as other:
            assert other.store.now() == one.store.now()
