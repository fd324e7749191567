"""Pools: their bounds always hold, their limits change live, and they drain. All in virtual time."""

import asyncio
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flowcatalyst.core.message import Delivery, Settled, parse_pointer
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import RETURN_GRACE_S
from tests.support.deliveries import UNORDERED, RecordingSource, delivery
from tests.support.rig import ERROR_500, NOT_YET, RecordingQueue, Rig, outgoing, outgoings

pytestmark = pytest.mark.virtual_time


def starts_in_any_window(starts: list[float], window_s: float = 60.0) -> int:
    return max(sum(1 for other in starts if at <= other < at + window_s) for at in starts)


async def test_attempts_never_exceed_the_rate_in_any_window_and_retries_take_permits_too() -> None:
    rig = Rig(latency_s=0.0, max_batch=100, default=PoolLimits(concurrency=50, rate_per_minute=30))
    for n in range(0, 90, 9):
        rig.endpoint.answers(f"m{n}", ERROR_500, ERROR_500)
    await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(90)))
    async with rig:
        took = await rig.until_empty()
        assert len(rig.endpoint.starts) == 90 + 20
        assert starts_in_any_window([at for at, _ in rig.endpoint.starts]) == 30
        assert 180 < took < 190  # 110 permits at 30 a minute: the last 20 after three minutes
        assert rig.pool.stats.rate_limit_waits >= 3


async def test_removing_a_rate_limit_frees_those_who_wait_at_once() -> None:
    rig = Rig(latency_s=0.0, max_batch=100, default=PoolLimits(concurrency=5, rate_per_minute=1))
    await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(20)))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(5)
        assert len(rig.endpoint.starts) == 1
        rig.pool.change(PoolLimits(concurrency=5))
        assert await rig.until_empty() == pytest.approx(5.0, abs=0.1)


async def test_a_lowered_rate_limit_counts_what_was_started_before() -> None:
    limits = PoolLimits(concurrency=50, rate_per_minute=40)
    rig = Rig(ordered=False, latency_s=0.0, max_batch=100, default=limits)  # its leases end with the window, too
    await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(60)))
    async with rig:
        await rig.until_started(40)
        rig.pool.change(PoolLimits(concurrency=50, rate_per_minute=10))
        await rig.until_empty()
        assert [round(at) for at, _ in rig.endpoint.starts] == [0] * 40 + [60] * 10 + [120] * 10


async def test_concurrency_grows_and_shrinks_live_without_losing_or_reordering_anything() -> None:
    rig = Rig(max_batch=100, default=PoolLimits(concurrency=2, capacity=1000))
    await rig.publish(*(outgoing(f"m{n}", f"g{n % 40}") for n in range(400)))
    async with rig:
        for concurrency in (20, 1, 7, 30, 3):
            rig.pool.change(PoolLimits(concurrency=concurrency, capacity=1000))
            await asyncio.sleep(0.11)  # attempts in flight have ended
            rig.endpoint.most_in_flight = rig.endpoint.in_flight
            await asyncio.sleep(0.5)
            assert rig.endpoint.most_in_flight == concurrency
        rig.pool.change(PoolLimits(concurrency=40, capacity=1000))
        await rig.until_empty()
    assert sorted(rig.endpoint.started) == sorted(f"m{n}" for n in range(400))
    for group in range(40):
        mine = [int(name[1:]) for name in rig.endpoint.started if int(name[1:]) % 40 == group]
        assert mine == sorted(mine)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_pool_never_holds_more_than_capacity_and_parked_limit_even_while_everything_fails(
    ordered: bool,
) -> None:
    """Where nothing can be nacked without losing its order, the last poll may bring a part of a batch more."""
    most = 9 + 5 + (0 if ordered else 7 - 1)
    rig = Rig(ordered=ordered, max_batch=7, default=PoolLimits(concurrency=4, capacity=9, parked_limit=5))
    for n in range(60):
        rig.endpoint.answers(f"m{n}", ERROR_500, ERROR_500, ERROR_500)
    await rig.publish(*(outgoing(f"m{n}", f"g{n % 30}") for n in range(60)))
    async with rig:
        parked = 0
        while len(rig.queue):
            assert rig.pool.size == rig.pool.buffered + rig.pool.in_flight <= most
            assert rig.pool.parked == max(0, rig.pool.size - 9)
            assert rig.pool.in_flight <= 4
            parked = max(parked, rig.pool.parked)
            await asyncio.sleep(0.05)
        assert parked > 0
    for group in range(30):
        mine = [name for name in rig.endpoint.started if int(name[1:]) % 30 == group]
        assert mine == sorted(mine, key=lambda name: int(name[1:]))


async def test_drain_gives_back_what_waits_lets_attempts_end_and_leaves_nothing() -> None:
    rig = Rig(latency_s=2.0, default=PoolLimits(concurrency=4))
    rig.endpoint.answers("b1", ERROR_500)
    await rig.publish(*outgoings(["a1", "a2", "a3"], "a"), *outgoings(["b1", "b2"], "b"))
    async with rig:
        await rig.until_started(2)
        rig.consumer.stop()
        rig.pool.drain()
        assert not rig.pool.submit(next(iter(rig.tracker)))
        await rig.pool.wait_drained()
        await rig.settler.wait_idle()
        assert rig.endpoint.started == ["a1", "b1"]
        assert rig.queue.acked == ["a1"]
        # What waited is shown at once; the retry that was due after 1 s is left to the queue.
        assert rig.queue.nacked == [("a2", 0.0), ("a3", 0.0), ("b2", 0.0), ("b1", 1.0)]
        assert len(rig.tracker) == 0
        assert repr(rig.pool).endswith("in_flight=0 buffered=0 empty>>")


async def test_drain_of_a_pool_that_was_removed_and_came_back_waits_for_its_attempts() -> None:
    rig = Rig(latency_s=2.0, default=PoolLimits(concurrency=4))
    async with rig:
        rig.pool.retire()  # while it is empty
        rig.pool.revive(PoolLimits(concurrency=4))
        await rig.publish(*outgoings(["a1"], "a"))
        await rig.until_started(1)
        rig.consumer.stop()
        rig.pool.drain()
        await rig.pool.wait_drained()
        await rig.settler.wait_idle()
        assert (rig.queue.acked, rig.queue.nacked) == (["a1"], [])


async def test_drain_ends_holds_and_their_timer() -> None:
    rig = Rig(ordered=False)
    rig.endpoint.answers("m1", ERROR_500)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(0.2)
        assert rig.pool.held_count == 1
        rig.consumer.stop()
        rig.pool.drain()
        await rig.pool.wait_drained()
        await rig.settler.wait_idle()
        assert [name for name, _ in rig.queue.nacked] == ["m1", "m2"]
        await asyncio.sleep(5)
        assert rig.endpoint.started == ["m1"]


async def test_a_cancelled_attempt_leaves_its_message_owned_and_its_slot_free() -> None:
    rig = Rig(latency_s=100.0)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        rig.pool.cancel()
        await asyncio.sleep(0)
        assert {delivery.pointer.id for delivery in rig.tracker} == {"m1", "m2"}
        await rig.until_started(2)  # the message is still the head of its group and is tried again
        assert rig.endpoint.started == ["m1", "m1"]


async def test_every_waiting_message_can_say_what_it_waits_for() -> None:
    rig = Rig(ordered=False, default=PoolLimits(concurrency=1, rate_per_minute=2))
    rig.endpoint.answers("a1", ERROR_500)
    await rig.publish(*outgoings(["a1", "a2"], "a"), outgoing("b1", "b"), outgoing("c1", "c"))

    def waits(message_id: str) -> tuple[str, str | None, float | None]:
        delivery = rig.tracker.get(message_id)
        assert delivery is not None
        wait = rig.pool.explain(delivery)
        return wait.what, wait.behind, wait.until and round(wait.until, 1)

    async with rig:
        await rig.until_started(1)
        assert waits("a1") == ("the answer to attempt 1", None, None)
        assert waits("a2") == ("its turn in group a", "a1", None)
        assert waits("b1") == ("a free slot: 1 of 1 are busy", None, None)
        await rig.until_started(2)
        assert waits("a1") == ("its next attempt, after 1 failed attempt", None, 1.1)
        assert waits("a2") == ("its turn in group a", "a1", 1.1)
        await asyncio.sleep(0.2)
        assert waits("c1") == ("a permit: 2 attempts per minute are used up", None, 60.0)


@pytest.mark.thorough
async def test_100_000_groups_drain_without_a_task_or_timer_per_idle_group_and_memory_returns() -> None:
    count = 100_000
    rig = Rig(latency_s=0.001, default=PoolLimits(concurrency=64, capacity=count))
    async with rig:
        rig.consumer.stop()
        gc.collect()
        before = sys.getallocatedblocks()  # to trace how many bytes they have would take four times as long
        await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(count)))
        batch = await rig.queue.receive(count, 0)
        for delivery in batch:
            delivery.source = rig.settler
            delivery.pointer = parse_pointer(delivery.body)
        rig.router.route(batch)
        del batch, delivery
        await rig.until_started(1000)
        assert rig.pool.group_count > 90_000
        assert len(asyncio.all_tasks()) < 80  # 64 slots and a few helpers
        assert len(asyncio.get_running_loop()._scheduled) < 80  # type: ignore[attr-defined]
        await rig.until_empty()
        assert rig.pool.group_count == 0
        rig.endpoint.starts.clear()
        rig.endpoint.ends.clear()
        rig.queue.acked.clear()
        rig.tools.delivered.clear()  # the ids of the latest, which are bounded
        gc.collect()
        grown = sys.getallocatedblocks() - before
        assert grown < count / 10  # nothing is kept per group, however small


async def test_slots_that_all_end_at_once_while_their_pool_shrinks_leave_nobody_waiting() -> None:
    rig = Rig(latency_s=1.0, default=PoolLimits(concurrency=2))
    # To one endpoint that never answered there would be one attempt at a time.
    await rig.publish(*(outgoing(f"m{n}", f"g{n}", target=f"http://host{n}.test/") for n in range(3)))
    async with rig:
        await rig.until_started(2)
        rig.pool.change(PoolLimits(concurrency=1))  # each of the two slots now thinks that it is one too many
        async with asyncio.timeout(60):
            await rig.until_empty()
        assert sorted(rig.endpoint.started) == ["m0", "m1", "m2"]


class SlowToHear(RecordingQueue):
    """Hears of a nack after a while."""

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        await asyncio.sleep(RETURN_GRACE_S + 5)
        return await super().nack(deliveries, delay_s, unlock=unlock)


async def test_a_group_waits_for_a_message_until_its_queue_shows_it_though_that_heard_of_its_nack_late() -> None:
    rig = Rig()
    rig.queue = SlowToHear("q", rig.clock)
    rig.tools = replace(rig.tools, several_queues=lambda: True)
    rig.endpoint.answers("m1", NOT_YET)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(1)
        other = delivery("m2", "g")
        other.source = RecordingSource(UNORDERED, name="other-queue")
        rig.router.route([other])
        await rig.until_started(3)
        assert rig.endpoint.started == ["m1", "m1", "m2"]
