"""Guarantees found broken in a review: odd targets, replays, starved pools, lost leases, drains and stops."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flowcatalyst.core.message import Delivery, Outcome, Settled, Verdict
from flowcatalyst.core.targets import endpoint_of
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.router import REFUSAL_S
from flowcatalyst.router.watch import LeaseKeeper
from tests.support.rig import ERROR_400, ERROR_500, Rig, SilentLog, outgoing, outgoings

pytestmark = pytest.mark.virtual_time

SMALL = PoolLimits(concurrency=1, capacity=5)


async def until_empty(rig: Rig) -> None:
    """Like `rig.until_empty`, but a router that hangs fails the test."""
    async with asyncio.timeout(300):
        await rig.until_empty()


@pytest.mark.parametrize("target", ["http://bad%20host/hook", "http://host.test/a\\b"])
async def test_a_message_whose_target_cannot_be_called_neither_hangs_its_group_nor_leaks_its_place(target: str) -> None:
    rig = Rig()
    rig.tools = replace(rig.tools, endpoint_of=endpoint_of)  # the real one
    await rig.publish(outgoing("bad", target=target), outgoing("good"))
    async with rig:
        await until_empty(rig)
        assert rig.endpoint.started[-1] == "good"
        assert rig.dead_letters.letters or rig.endpoint.started[0] == "bad"
        assert (rig.pool.in_flight, len(rig.tracker)) == (0, 0)


async def test_a_dead_letter_replayed_before_its_ack_is_confirmed_is_not_swallowed_as_a_duplicate() -> None:
    rig = Rig()
    rig.endpoint.answers("m1", ERROR_400)
    rig.queue.next_acks.extend([Settled.FAILED] * 3)
    await rig.publish(outgoing("m1"))
    async with rig:
        while not rig.dead_letters.letters:
            await asyncio.sleep(0.01)
        await rig.publish(outgoing("m1", "h"))  # what a replay does: publish again, then forget the letter
        rig.dead_letters.letters.clear()
        await until_empty(rig)
        assert rig.endpoint.started == ["m1", "m1"]


async def test_a_full_pool_with_a_long_backlog_does_not_starve_another_pool_of_the_same_queue() -> None:
    rig = Rig(latency_s=10_000.0, max_batch=5, SLOW=SMALL, FAST=SMALL)
    backlog = [outgoing(f"s{n}", f"s{n}", pool="SLOW") for n in range(400)]
    await rig.publish(*backlog, outgoing("f1", "f", pool="FAST"))
    async with rig:
        await asyncio.sleep(1800)
        assert "f1" in rig.endpoint.started


async def test_where_giving_back_would_reorder_a_full_pool_does_not_keep_its_queue_from_feeding_another() -> None:
    rig = Rig(ordered=False, latency_s=1000.0, max_batch=5, SLOW=SMALL, FAST=SMALL)
    await rig.publish(*(outgoing(f"s{n}", f"s{n}", pool="SLOW") for n in range(8)))
    async with rig:
        await asyncio.sleep(30)
        await rig.publish(outgoing("f1", "f", pool="FAST"))
        await asyncio.sleep(60)
        assert "f1" in rig.endpoint.started


async def test_an_attempt_that_cannot_be_logged_is_concluded_all_the_same() -> None:
    class ClosedTerminal(SilentLog):
        def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
            raise OSError(5, "Input/output error")

    rig = Rig()
    rig.tools = replace(rig.tools, log=ClosedTerminal())
    await rig.publish(outgoing("m1"))
    async with rig:
        await asyncio.sleep(0.45)
        assert rig.endpoint.started == ["m1"]
        assert rig.queue.acked == ["m1"]


async def test_a_message_whose_lease_was_lost_to_another_router_is_not_started() -> None:
    rig = Rig(latency_s=100.0)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        rig.consumer.stop()
        await asyncio.sleep(61)
        assert len(await rig.queue.receive(10, 0)) == 2  # another router has both now
        await LeaseKeeper(rig.tracker, rig.clock, rig.router.release).look()  # the queue answers GONE
        await asyncio.sleep(120)
        assert rig.endpoint.started == ["m1"]


async def test_a_stopping_consumer_does_not_give_back_a_message_that_is_in_flight() -> None:
    rig = Rig(latency_s=100.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(59)
        rig.consumer.stop()  # the poll under way brings the redelivery at 60 s, when the lease runs out
        await asyncio.sleep(5)
        assert rig.consuming.done()
        assert rig.queue.nacked == []
        assert await rig.queue.receive(1, 0) == []  # nobody else gets it while it is attempted


async def test_where_giving_back_would_reorder_nobody_passes_a_message_that_fails_during_a_drain() -> None:
    first = Rig(ordered=False, latency_s=1.0)
    first.endpoint.answers("m1", *[ERROR_500] * 3)
    await first.publish(*outgoings(["m1", "m2"]))
    async with first:
        await first.until_started(3)
        first.consumer.stop()
        first.pool.drain()
        await first.pool.wait_drained()
        await first.settler.wait_idle()
    second = Rig(ordered=False)  # the next start
    second.queue = first.queue
    async with second:
        await until_empty(second)
        assert second.endpoint.started == ["m1", "m2"]


async def test_an_ack_that_came_too_late_is_repeated_at_once_with_the_receipt_adopted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    ack_now = rig.queue.ack

    async def ack(deliveries: Sequence[Delivery]) -> list[Settled]:
        [owned] = deliveries
        if owned.receipt != (1, 1):
            return await ack_now(deliveries)
        await asyncio.sleep(70)  # a slow broker; at 60 s it shows the message again
        return [Settled.GONE]

    monkeypatch.setattr(rig.queue, "ack", ack)
    await rig.publish(outgoing("m1"))
    async with rig:
        assert await rig.until_empty() < 75  # not a whole lease later
        assert rig.endpoint.started == ["m1"]


async def test_what_is_parked_in_a_pool_that_is_removed_goes_before_what_comes_later() -> None:
    small, default = PoolLimits(concurrency=1, capacity=2), PoolLimits(concurrency=1, capacity=1)
    rig = Rig(ordered=False, latency_s=20.0, max_batch=5, SMALL=small, default=default)
    await rig.publish(*(outgoing(f"m{n}", pool="SMALL") for n in range(8)))
    async with rig:
        await asyncio.sleep(10)
        assert rig.router.pools["SMALL"].parked == 6
        rig.router.apply({"DEFAULT-POOL": default})
        await rig.publish(*(outgoing(f"m{n}", pool="SMALL") for n in range(8, 12)))
        async with asyncio.timeout(1000):
            await rig.until_empty()
        assert rig.endpoint.started == [f"m{n}" for n in range(12)]
        assert rig.endpoint.most_in_flight == 1
        assert rig.queue.nacked == []


async def test_a_message_that_a_full_pool_refuses_again_and_again_waits_no_longer_each_time() -> None:
    full = PoolLimits(concurrency=1, capacity=1, parked_limit=0)
    rig = Rig(latency_s=95.0, full=full, other=PoolLimits(concurrency=5))
    await rig.publish(outgoing("o1", "o", pool="other"), *(outgoing(f"m{n}", f"g{n}", pool="full") for n in range(3)))
    for stored in rig.queue._stored.values():
        stored.receives = 5000
    async with rig:
        await asyncio.sleep(90)
        assert rig.consumer.reports.last_error == ""
        assert {delay_s for _, delay_s in rig.queue.nacked} == {REFUSAL_S}
        await rig.until_started(3)
        assert rig.endpoint.starts[2][0] < 95.0 + REFUSAL_S + 1.0
