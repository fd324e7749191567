"""The part of the conformance suite about crashes, restarts and shutdown."""

import asyncio

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.contract import BrokerQueue
from tests.conformance.bench import (
    SHORT_LEASE_S,
    Bench,
    bodies,
    grouped,
    in_order,
    nothing_comes,
    take,
)
from tests.conformance.random_walk import Walk
from tests.support.patience import PATIENCE_S


class CrashSuite:
    async def test_after_a_crash_everything_comes_again_in_order_if_that_is_claimed(self, bench: Bench) -> None:
        names = [f"{group}{number}" for number in range(1, 5) for group in "ab"]
        crashing = await bench.client(SHORT_LEASE_S)
        await crashing.publish(grouped(*names))
        held = await take(crashing, 3)
        await crashing.ack(held[:1])
        await bench.crash(crashing)
        survivor = await bench.client(SHORT_LEASE_S)
        seen = await _drained(survivor, len(names) - 1)
        assert sorted([*bodies(held[:1]), *seen]) == sorted(names)
        assert in_order(seen) or not bench.capabilities.ordered_takeover
        assert await nothing_comes(survivor, 1.0)

    async def test_crashes_in_a_row_keep_the_order_if_that_is_claimed(self, bench: Bench) -> None:
        seen = await crashed_twice(bench)
        assert in_order(seen) or not bench.capabilities.ordered_takeover

    async def test_messages_in_hand_come_again_in_order_after_a_close(self, bench: Bench) -> None:
        names = [f"{group}{number}" for number in range(1, 5) for group in "ab"]
        leaving = await bench.client(SHORT_LEASE_S)
        await leaving.publish(grouped(*names))
        held = await take(leaving, 4)
        await leaving.ack(held[:1])
        await leaving.nack(held[2:], 0.0)  # a router that stops gives back what it has, in any order
        await leaving.nack(held[1:2], 0.0)
        await leaving.close()
        seen = await _drained(await bench.client(SHORT_LEASE_S), len(names) - 1)
        assert sorted([*bodies(held[:1]), *seen]) == sorted(names)
        assert in_order(seen) or not bench.capabilities.ordered_receive

    async def test_a_client_that_was_closed_can_be_closed_again(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.receive(1, 0.0)
        await queue.close()
        await queue.close()
        another = await bench.client()
        await another.publish(grouped("a1"))
        assert bodies(await take(another, 1)) == ["a1"]

    @pytest.mark.parametrize("seed", range(3))
    async def test_on_a_random_walk_nothing_is_lost_nor_shown_after_its_ack_nor_out_of_order(
        self, bench: Bench, seed: int
    ) -> None:
        claims = bench.capabilities
        await Walk(bench, seed, ordered=claims.ordered_receive and claims.ordered_takeover).go()

    async def test_after_a_restart_of_the_broker_everything_is_there_in_order(self, bench: Bench) -> None:
        if not bench.has_server:
            return  # nothing to restart
        names = [f"{group}{number}" for number in range(1, 6) for group in "ab"]
        queue = await bench.client(SHORT_LEASE_S)
        await queue.publish(grouped(*names))
        held = await take(queue, 4)
        await queue.ack(held[:2])
        bench.kill_server()
        with pytest.raises(QueueUnavailableError):
            await _until_it_fails(queue)
        bench.start_server()
        await queue.ack(held[2:])  # may be too late; then it comes again
        seen = await _drained(queue, len(names) - 4)
        assert {*bodies(held), *seen} == set(names)
        assert not set(bodies(held[:2])) & set(seen)
        assert in_order(seen) or not bench.capabilities.ordered_receive

    async def test_a_broker_that_goes_away_is_an_error_and_its_return_is_noticed(self, bench: Bench) -> None:
        if not bench.has_server:
            return  # it cannot go away
        queue = await bench.client()
        await queue.receive(1, 0.0)
        bench.kill_server()
        with pytest.raises(QueueUnavailableError) as raised:
            await _until_it_fails(queue)
        assert "\n" not in str(raised.value)
        assert "Traceback" not in str(raised.value)
        with pytest.raises(QueueUnavailableError):
            await queue.publish(grouped("a1"))
        bench.start_server()
        await _until_it_works(queue)
        await queue.publish(grouped("a2"))
        assert "a2" in bodies(await take(queue, 2, 5.0))

    async def test_a_broker_that_is_not_there_yet_is_no_error_at_open(self, bench: Bench) -> None:
        if not bench.has_server:
            return  # it cannot be absent
        bench.kill_server()
        try:
            queue = await bench.client()
            with pytest.raises(QueueUnavailableError):
                await queue.receive(1, 0.0)
        finally:
            bench.start_server()
        await _until_it_works(queue)


async def crashed_twice(bench: Bench) -> list[str]:
    """What is received, all in all, when the first two receivers vanish with messages in hand."""
    names = [f"{group}{number}" for number in range(1, 16) for group in "ab"]
    first = await bench.client(SHORT_LEASE_S)
    await first.publish(grouped(*names))
    await take(first, 25, 3.0)  # fewer, where a group is locked after its first batch
    await bench.crash(first)
    second = await bench.client(SHORT_LEASE_S)
    await take(second, 10, 5.0)
    await bench.crash(second)
    seen = await _drained(await bench.client(SHORT_LEASE_S), len(names))
    assert sorted(seen) == sorted(names)
    return seen


async def _drained(queue: BrokerQueue, least: int) -> list[str]:
    """Receive and ack until nothing more comes; the bodies, in order of arrival. At least so many have to come."""
    seen: list[str] = []
    while batch := await take(queue, 1, 20.0 if len(set(seen)) < least else 1.0):
        batch += await queue.receive(queue.batching.max_batch, 0.0)
        seen += bodies(batch)
        await queue.ack(batch)
    return seen


async def _until_it_fails(queue: BrokerQueue) -> None:
    """A client notices a broker that went away within a few polls."""
    for _ in range(20):
        await queue.receive(10, 0.5)


async def _until_it_works(queue: BrokerQueue) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await queue.receive(1, 0.0)
            except QueueUnavailableError:
                await asyncio.sleep(0.2)
            else:
                return
