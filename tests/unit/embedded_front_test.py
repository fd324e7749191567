"""Messages that are put in front of their group in the embedded queue."""

import sqlite3
from pathlib import Path

import pytest

from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.queues.front import FrontQueue, GroupInHandError
from flowcatalyst.queues.memory import MemoryQueue
from tests.support.clocks import SetClock
from tests.support.embedded import bodies, grouped, opened, take
from tests.support.front_walk import FrontWalk
from tests.unit.embedded_depth_test import by_each_message


class EmbeddedWalk(FrontWalk):
    def __init__(self, seed: int, file: Path) -> None:
        super().__init__(seed)
        self._file = file
        self._clock = SetClock()

    async def open(self) -> None:
        self.queue = EmbeddedQueue(EmbeddedStore(self._file, self._clock), "orders", visibility_s=1e6)
        await self.queue.open()

    def now(self) -> float:
        return self._clock.now

    async def wait(self, seconds: float) -> None:
        self._clock.now += seconds

    async def end_leases(self) -> None:
        await self.queue.close()
        await self.open()

    async def look(self) -> None:
        assert isinstance(self.queue, EmbeddedQueue)
        assert await self.queue.depth() == await by_each_message(self.queue)


@pytest.mark.parametrize("seed", range(25))
async def test_any_history_with_fronts_keeps_order_locks_delays_and_counters(tmp_path: Path, seed: int) -> None:
    walk = EmbeddedWalk(seed, tmp_path / "queue.db")
    await walk.open()
    await walk.go(300)
    await walk.queue.close()
    assert walk.seen == {"refused", "in front of what is delayed", "received a front", "delayed a front"}


async def test_the_embedded_queue_has_a_front_and_a_queue_in_memory_has_none(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        assert isinstance(queue, FrontQueue)
    assert not isinstance(MemoryQueue("q", SetClock()), FrontQueue)


async def test_what_is_put_in_front_of_a_failed_head_goes_at_once_and_the_head_keeps_its_delay(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1", "a2", "a3", "a4"))
        head, *followers = await take(queue, 3)
        await queue.nack([head], 30)
        await queue.nack(followers, 10)
        assert await queue.depth() == Depth(1, 0, 3)
        await queue.publish_in_front(Outgoing("a0", "a"))
        front = await take(queue)
        assert bodies(front) == ["a0"]
        assert await queue.depth() == Depth(1, 1, 3)
        await queue.ack(front)
        assert await queue.depth() == Depth(1, 0, 3)
        clock.now += 29
        assert await take(queue) == []
        clock.now += 1
        assert bodies(await take(queue)) == ["a1", "a2", "a3", "a4"]
        assert await queue.depth() == Depth(0, 4, 0)


async def test_a_front_whose_lease_ended_comes_again_before_those_that_wait_and_is_counted_as_received(
    tmp_path: Path,
) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1", "a2"))
        await queue.nack(await take(queue), 200)
        await queue.publish_in_front(Outgoing("a0", "a"))
        assert [one.receive_count for one in await take(queue)] == [1]
        clock.now += 61
        again = await take(queue)
        assert [(one.body, one.receive_count) for one in again] == [("a0", 2)]
        await queue.ack(again)
        clock.now += 200
        assert [(one.body, one.receive_count) for one in await take(queue)] == [("a1", 2), ("a2", 2)]


async def test_nothing_is_put_in_front_of_what_a_router_has_in_hand(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as router, opened(tmp_path / "queue.db", clock) as other:
        await router.publish(grouped("a1", "a2", "b1"))
        first, second = await take(router, 2)
        with pytest.raises(GroupInHandError, match=r"a router has messages of group 'a' in hand.*hold the group first"):
            await other.publish_in_front(Outgoing("a0", "a"))
        await router.nack([first], 30)  # some of its lease goes on
        with pytest.raises(GroupInHandError):
            await router.publish_in_front(Outgoing("a0", "a"))
        assert await router.depth() == Depth(1, 1, 1)
        await other.publish_in_front(Outgoing("b0", "b"))
        await router.ack([second])
        await other.publish_in_front(Outgoing("a0", "a"))
        assert bodies(await take(other)) == ["b0", "b1", "a0"]


async def test_a_lease_that_is_over_keeps_nothing_from_the_front(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1", "a2"))
        late = await take(queue, 1)
        clock.now += 61
        await queue.publish_in_front(Outgoing("a0", "a"))
        assert [one.name for one in await queue.ack(late)] == ["OK"]  # not leased again since: it was done
        assert bodies(await take(queue)) == ["a0", "a2"]


async def test_a_late_ack_removes_nothing_but_its_own(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1", "a2"))
        late = await take(queue)
        clock.now += 61
        await queue.publish_in_front(Outgoing("a0", "a"))
        front = await take(queue, 1)
        assert [one.name for one in await queue.ack(late)] == ["GONE", "GONE"]
        assert [one.name for one in await queue.nack(late, 5)] == ["GONE", "GONE"]
        await queue.ack(front)
        assert bodies(await take(queue)) == ["a1", "a2"]


async def test_the_last_one_in_front_is_the_first_and_each_has_an_id_that_is_never_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        ids = [one.broker_id for one in await queue.publish(grouped("a3"))]
        for _ in range(3):
            ids += [(await queue.publish_in_front(Outgoing(body, "a"))).broker_id for body in ("a2", "a1")]
            fronts = await take(queue)
            assert bodies(fronts) == ["a1", "a2", "a3"]
            assert [one.broker_id for one in fronts] == [ids[-1], ids[-2], ids[0]]
            await queue.ack(fronts[:2])
            await queue.nack(fronts[2:], 0)
    assert len(set(ids)) == 7


async def test_a_group_that_holds_nothing_begins_with_its_front(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        name = 'gr\u00fc\u00dfe "\\\0\u007f\U0001f600'
        await queue.publish_in_front(Outgoing("first", name))
        await queue.publish([Outgoing("second", name)])
        await queue.publish_in_front(Outgoing("zeroth", name))
        taken = await take(queue)
        assert [(one.body, one.group) for one in taken] == [("zeroth", name), ("first", name), ("second", name)]
        await queue.ack(taken)
        assert await queue.depth() == Depth(0, 0, 0)


async def test_a_front_without_a_group_is_ordered_with_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        await queue.publish([Outgoing("1"), Outgoing("2")])
        await queue.publish_in_front(Outgoing("3"))
        assert bodies(await take(queue)) == ["1", "2", "3"]


async def test_a_front_that_was_published_a_moment_ago_is_a_duplicate(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        first = await queue.publish_in_front(Outgoing("a1", "a", "once"))
        again = await queue.publish_in_front(Outgoing("a1", "a", "once"))
        (behind,) = await queue.publish([Outgoing("a1", "a", "once")])
        assert (again.broker_id, again.duplicate) == (behind.broker_id, behind.duplicate) == (first.broker_id, True)
        assert bodies(await take(queue)) == ["a1"]
        clock.now += 301
        assert not (await queue.publish_in_front(Outgoing("b1", "b", "once"))).duplicate


async def test_a_front_for_another_pool_makes_its_group_ready_for_that(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        await queue.publish([Outgoing('{"poolCode": "A"}', "a")])
        await queue.publish_in_front(Outgoing('{"poolCode": "B"}', "a"))
        assert [await queue.waiting_for(pool, 10) for pool in "AB"] == [0, 2]
        fronts = await take(queue)
        assert bodies(fronts) == ['{"poolCode": "B"}']
        await queue.ack(fronts)
        assert [await queue.waiting_for(pool, 10) for pool in "AB"] == [1, 0]


async def test_a_front_that_unlocks_its_group_leaves_it_to_its_delays(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1"))
        await queue.nack(await take(queue), 20)
        await queue.publish_in_front(Outgoing("a0", "a"))
        await queue.nack(await take(queue), 10, unlock=True)
        assert await queue.depth() == Depth(0, 0, 2)
        clock.now += 10
        assert bodies(await take(queue)) == ["a0"]
        clock.now += 10
        assert bodies(await take(queue)) == ["a1"]


async def test_a_front_wakes_who_waits(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        changes = queue._changes
        await queue.publish_in_front(Outgoing("a0", "a"))
        assert queue._changes > changes


async def test_a_take_without_fronts_writes_to_no_message(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        await queue.publish(grouped("a1", "a2", "a3"))
        await queue.nack(await take(queue), 0)

        def changes(connection: sqlite3.Connection) -> int:
            return connection.total_changes

        before = await queue.store.writer.read_in_turn(changes)
        await take(queue, 1)
        assert await queue.store.writer.read_in_turn(changes) == before + 2  # the lane and the queue


async def test_a_front_that_failed_waits_for_its_own_delay(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1"))
        await queue.publish_in_front(Outgoing("a0", "a"))
        await queue.nack(await take(queue, 1), 10)
        assert await queue.depth() == Depth(1, 0, 1)
        assert await queue.waiting_for("", 10) == 0  # not one that is ready and gives nothing
        clock.now += 10
        assert bodies(await take(queue)) == ["a0", "a1"]


async def test_what_could_come_and_has_a_front_before_it_waits_and_is_not_delayed(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as queue:
        await queue.publish(grouped("a1"))
        await queue.nack(await take(queue), 10)
        clock.now += 10
        await queue.publish_in_front(Outgoing("a0", "a"))
        await take(queue, 1)
        assert await queue.depth() == Depth(1, 1, 0)
