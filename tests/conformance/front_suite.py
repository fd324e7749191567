"""What a queue has to do in which a message can be put in front of its group: the embedded queue and PostgreSQL."""

import pytest

from flowcatalyst.core.message import Settled
from flowcatalyst.queues.contract import BrokerQueue, Depth, Outgoing
from flowcatalyst.queues.front import FrontQueue, GroupInHandError
from tests.conformance.bench import Bench, bodies, for_pool, grouped, ids, nothing_comes, take

HOUR_S = 3600.0


def front_of(queue: BrokerQueue) -> FrontQueue:
    assert isinstance(queue, FrontQueue)
    return queue


class FrontSuite:
    async def test_a_message_in_front_is_the_first_of_its_group_and_of_no_other(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2", "b1"))
        await front_of(queue).publish_in_front(Outgoing("a0", "a"))
        taken = await take(queue, 4)
        assert [body for body in bodies(taken) if body[0] == "a"] == ["a0", "a1", "a2"]
        assert await queue.ack(taken) == [Settled.OK] * 4
        assert await queue.depth() == Depth(0, 0, 0)

    async def test_the_last_one_in_front_is_the_first(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a3"))
        published = [await front_of(queue).publish_in_front(Outgoing(body, "a")) for body in ("a2", "a1")]
        taken = await take(queue, 3)
        assert bodies(taken) == ["a1", "a2", "a3"]
        assert [one.broker_id for one in taken[:2]] == [one.broker_id for one in reversed(published)]

    async def test_a_message_in_front_of_a_failed_head_goes_at_once_and_the_head_keeps_its_delay(
        self, bench: Bench
    ) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2", "a3"))
        head, follower = await take(queue, 2)
        await queue.nack([head], HOUR_S)
        await queue.nack([follower], 0.0)
        await front_of(queue).publish_in_front(Outgoing("a0", "a"))
        front = await take(queue, 1)
        assert bodies(front) == ["a0"]
        assert await nothing_comes(queue, 0.3)
        await queue.ack(front)
        assert await nothing_comes(queue, 0.3)
        depth = await queue.depth()
        assert depth is not None
        assert (depth.leased, depth.waiting + depth.delayed) == (0, 3)

    async def test_a_message_in_front_that_was_nacked_comes_again_before_the_others(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1", "a2"))
        await queue.nack(await take(queue, 2), HOUR_S)
        await front_of(queue).publish_in_front(Outgoing("a0", "a"))
        for delay_s in (0.0, 0.2):
            front = await take(queue, 1)
            assert bodies(front) == ["a0"]
            await queue.nack(front, delay_s)
        assert bodies(await take(queue, 1)) == ["a0"]

    async def test_what_was_in_hand_when_its_router_left_is_behind_the_front(self, bench: Bench) -> None:
        leaving, other = await bench.client(), await bench.client()
        await leaving.publish(grouped("a1", "a2"))
        assert len(await take(leaving, 2)) == 2
        with pytest.raises(GroupInHandError, match="group 'a' in hand"):
            await front_of(other).publish_in_front(Outgoing("a0", "a"))
        await leaving.close()
        await front_of(other).publish_in_front(Outgoing("a0", "a"))
        again = await take(other, 3)
        assert [(one.body, one.receive_count) for one in again] == [("a0", 1), ("a1", 2), ("a2", 2)]

    async def test_a_message_that_could_not_be_put_in_front_is_nowhere(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(grouped("a1"))
        held = await take(queue, 1)
        with pytest.raises(GroupInHandError):
            await front_of(queue).publish_in_front(Outgoing("a0", "a", "once"))
        await queue.ack(held)
        assert await queue.depth() == Depth(0, 0, 0)
        assert not (await front_of(queue).publish_in_front(Outgoing("a0", "a", "once"))).duplicate

    async def test_a_message_in_front_is_published_once_by_its_deduplication_id(self, bench: Bench) -> None:
        queue = await bench.client()
        first = await front_of(queue).publish_in_front(Outgoing("a0", "a", "once"))
        await take(queue, 1)
        again = await front_of(queue).publish_in_front(Outgoing("a0", "a", "once"))
        assert (again.broker_id, again.duplicate, first.duplicate) == (first.broker_id, True, False)
        depth = await queue.depth()
        assert depth == Depth(0, 1, 0)

    async def test_a_message_in_front_without_a_group_waits_for_nobody(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish([Outgoing("1")])
        await take(queue, 1)
        await front_of(queue).publish_in_front(Outgoing("2"))
        assert bodies(await take(queue, 1)) == ["2"]

    async def test_a_message_in_front_for_another_pool_goes_to_that(self, bench: Bench) -> None:
        queue = await bench.client()
        await queue.publish(for_pool("A", "a1"))
        [front] = for_pool("B", "a0")
        await front_of(queue).publish_in_front(front)
        taken = await queue.receive(10, 1.0)
        assert ids(taken) == ["a0"]
        await queue.ack(taken)
        assert ids(await take(queue, 1)) == ["a1"]
