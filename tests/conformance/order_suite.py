"""The part of the conformance suite about order, groups and pools."""

import asyncio

import pytest

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from tests.conformance.bench import (
    Bench,
    bodies,
    for_pool,
    grouped,
    ids,
    in_order,
    nothing_comes,
    take,
)
from tests.support.demands import SetDemand

OK = Settled.OK


class OrderSuite:
    # Order and groups

    async def test_redelivery_is_in_order_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        """The head waits for long, its followers for less, as after a failure: who is first?"""
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2", "a3"))
        head, *followers = await _all_of_a_group(queue, 3)
        await queue.nack([head], 2.0)
        await queue.nack(followers, 0.2)
        first = await take(queue, 1)
        assert (bodies(first) == ["a1"]) is bench.capabilities.ordered_redelivery
        await queue.ack(first)

    async def test_order_survives_a_failure_and_its_cascade_again_and_again(self, bench: Bench) -> None:
        if not bench.capabilities.ordered_redelivery:
            return  # the router never gives such messages back: tests/integration/broker_router_test.py
        queue = await bench.client()
        left = ["a1", "a2", "a3", "a4", "a5"]
        await queue.publish(grouped(*left))
        for failures in (2, 0, 1, 1, 0):
            for remaining in range(failures, -1, -1):
                batch = await take(queue, 1)
                batch += await queue.receive(queue.batching.max_batch, 0.0)
                assert bodies(batch) == left[: len(batch)]
                head, *followers = batch
                if remaining:
                    await queue.nack([head], 1.0)
                    await queue.nack(followers, 0.2)
                else:
                    await queue.ack([head])
                    await queue.nack(followers, 0.0)
                    del left[0]
        assert left == []

    async def test_a_group_in_flight_is_locked_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        one, other = await bench.client(), await bench.client()
        await one.receive(1, 0.0)  # both are there before the first message
        await other.receive(1, 0.0)
        await one.publish(grouped("a1"))
        holder, bystander = (one, other) if (held := await take(one, 1, 2.0)) else (other, one)
        held = held or await take(other, 1)
        assert bodies(held) == ["a1"]
        await one.publish(grouped("a2"))
        shown = await bystander.receive(10, 1.0)
        assert (shown == []) is bench.capabilities.locks_groups
        if bench.capabilities.locks_groups:
            await holder.ack(held)
            await holder.close()
            assert bodies(await take(bystander, 1)) == ["a2"]

    async def test_a_message_that_unlocks_its_group_lets_the_others_pass_and_comes_later(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2"))
        head, *rest = await _all_of_a_group(queue, 2)
        await queue.nack(rest, 0.0)
        head.failures = 1
        assert await queue.nack([head], 3.0, unlock=True) == [OK]
        second = await take(queue, 1, 2.5)
        assert bodies(second) == ["a2"]
        await queue.ack(second)
        [first] = await take(queue, 1)
        assert (bodies([first]), first.group, first.failures) == (["a1"], "a", 1)
        assert await queue.ack([first]) == [OK]
        assert await nothing_comes(queue, 1.0)

    async def test_messages_without_a_group_wait_for_nobody(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("first"), Outgoing("second"), Outgoing("third")])
        await take(queue, 1)
        rest = await take(queue, 2)
        assert len(rest) == 2

    @pytest.mark.parametrize("group", ["with blanks and größe 漢字", "x" * 300, "a.b/c:d*e>f", " "])
    async def test_any_name_of_a_group_comes_back_as_it_was(self, bench: Bench, group: str) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("1", group), Outgoing("2", group)])
        taken = await _all_of_a_group(queue, 2)
        assert [delivery.group for delivery in taken] == [group, group]
        assert in_order([f"x{body}" for body in bodies(taken)]) or not bench.capabilities.ordered_receive

    # Pools

    async def test_a_queue_brings_what_pools_have_room_for_if_and_only_if_that_is_claimed(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(
            [*for_pool("FULL", *(f"{letter}1" for letter in "abcdefghijkl")), *for_pool("A", "x1", "y1")]
        )
        demand = SetDemand(FULL=0, A=1)
        if bench.capabilities.selects_pools:
            assert ids(await queue.receive(10, 5.0, demand)) == ["x1"]
            assert ids(await queue.receive(10, 0.0, demand)) == ["y1"]
            assert await queue.receive(10, 1.0, demand) == []
        else:
            shown: list[str] = []
            while len(shown) < 3:
                batch = await queue.receive(10, 5.0, demand)
                assert batch
                shown += ids(batch)
            assert set(shown) - {"x1", "y1"}
            assert demand.listeners == []

    async def test_messages_behind_a_large_backlog_of_a_full_pool_are_found(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return  # the test before this one checked that it cannot
        queue = await bench.client()
        await queue.publish(for_pool("FULL", *(f"{chr(200 + number % 500)}{number}" for number in range(5000))))
        await queue.publish(for_pool("A", "x1"))
        assert ids(await queue.receive(10, 5.0, SetDemand(FULL=0, A=10))) == ["x1"]

    async def test_codes_that_no_pool_has_share_the_room_of_the_default_pool(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish([*for_pool("X", "a1", "b1"), *for_pool("Y", "c1"), *grouped("d1"), *for_pool("A", "e1")])
        assert ids(await queue.receive(10, 5.0, SetDemand(others=0, A=5))) == ["e1"]
        assert len(await queue.receive(10, 5.0, SetDemand(others=3, A=5))) == 3
        assert len(await queue.receive(10, 5.0, SetDemand(others=3, A=5))) == 1

    async def test_groups_come_in_the_order_in_which_they_became_ready(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        demand = SetDemand(A=9)
        await queue.publish(for_pool("A", "a1", "b1", "c1"))
        failing = await queue.receive(2, 5.0, demand)
        assert ids(failing) == ["a1", "b1"]
        await queue.nack(failing, 0.0)
        await queue.publish(for_pool("A", "d1"))
        assert ids(await queue.receive(1, 5.0, demand)) == ["c1"]
        assert ids(await queue.receive(2, 5.0, demand)) == ["a1", "b1"]
        assert ids(await queue.receive(2, 5.0, demand)) == ["d1"]

    async def test_a_group_that_names_two_pools_stays_in_order(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish([*for_pool("A", "g1", "g2"), *for_pool("B", "g3"), *for_pool("A", "g4")])
        demand = SetDemand(A=9, B=9)
        for expected in (["g1", "g2"], ["g3"], ["g4"]):
            batch = await queue.receive(10, 5.0, demand)
            assert ids(batch) == expected
            assert await queue.receive(10, 0.0, demand) == []
            await queue.ack(batch)

    async def test_room_that_comes_while_a_receive_waits_ends_the_wait(self, bench: Bench) -> None:
        if not bench.capabilities.selects_pools:
            return
        queue = await bench.client()
        await queue.publish(for_pool("A", "a1"))
        demand = SetDemand(A=0)
        receiving = asyncio.gather(queue.receive(10, 15.0, demand))
        await asyncio.sleep(0.3)
        started = asyncio.get_running_loop().time()
        demand.grow(A=1)
        [batch] = await receiving
        assert ids(batch) == ["a1"]
        assert asyncio.get_running_loop().time() - started < 10
        assert demand.listeners == []


async def _all_of_a_group(queue: BrokerQueue, count: int) -> list[Delivery]:
    """So many messages of the only group there is, in one batch or several."""
    taken = await take(queue, count)
    assert len(taken) == count
    return taken
