"""The embedded queue: order, locks, giving back, leases, deduplication and publishing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import MAX_BODY_BYTES, Settled
from flowcatalyst.queues.contract import Depth, Outgoing, Publisher, Queue
from flowcatalyst.queues.embedded import lanes as embedded_lanes
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from tests.support.clocks import SetClock
from tests.support.embedded import another, bodies, grouped, opened, take


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def queue(tmp_path: Path, clock: SetClock) -> AsyncIterator[EmbeddedQueue]:
    async with opened(tmp_path / "queue.db", clock) as queue:
        yield queue


# Order and locks


async def test_it_is_a_queue_and_a_publisher(queue: EmbeddedQueue) -> None:
    as_queue: Queue = queue
    as_publisher: Publisher = queue
    assert as_queue.name == "orders"
    assert as_publisher is queue
    assert queue.capabilities.ordered_redelivery
    assert queue.capabilities.locks_groups


async def test_a_group_comes_in_the_order_it_was_published(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "b1", "a2"))
    await queue.publish(grouped("a3"))
    deliveries = await take(queue)
    assert bodies(deliveries) == ["a1", "a2", "a3", "b1"]
    assert [delivery.group for delivery in deliveries] == ["a", "a", "a", "b"]
    assert len({delivery.broker_id for delivery in deliveries}) == 4


async def test_a_group_in_flight_is_locked_until_all_of_it_is_settled(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "a2"))
    first, second = await take(queue)
    await queue.publish(grouped("a3", "b1"))
    assert bodies(await take(queue)) == ["b1"]
    assert await queue.ack([first]) == [Settled.OK]
    assert await take(queue) == []
    assert await queue.ack([second]) == [Settled.OK]
    assert bodies(await take(queue)) == ["a3"]


async def test_messages_without_a_group_lock_nothing(queue: EmbeddedQueue) -> None:
    await queue.publish([Outgoing("1"), Outgoing("2")])
    (first,) = await take(queue, 1)
    (second,) = await take(queue, 1)
    assert bodies([first, second]) == ["1", "2"]
    assert first.group is None


async def test_each_ready_group_gets_its_share_before_one_gets_more(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped(*(f"a{n:03}" for n in range(100)), "b1", "c1"))
    deliveries = await take(queue, 32)
    assert bodies(deliveries) == [*(f"a{n:03}" for n in range(30)), "b1", "c1"]


async def test_a_single_hot_group_fills_a_batch(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped(*(f"a{n:03}" for n in range(100))))
    assert bodies(await take(queue, 64)) == [f"a{n:03}" for n in range(64)]


async def test_who_is_ready_longest_comes_first_when_a_batch_cannot_hold_all(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped(*(f"a{n:02}" for n in range(30)), *(f"b{n:02}" for n in range(30)), "c1"))
    assert bodies(await take(queue, 25)) == [*(f"a{n:02}" for n in range(20)), *(f"b{n:02}" for n in range(5))]


async def test_max_batch_bounds_a_receive(queue: EmbeddedQueue) -> None:
    small = EmbeddedQueue(queue.store, "small", max_batch=3)
    await small.open()
    await small.publish([Outgoing(str(n)) for n in range(5)])
    assert len(await take(small, 100)) == 3


@pytest.mark.parametrize("names", [("a", "b"), ("a/b", "a"), ('a","b', "a"), ("a\0", "a"), ("", " ")])
async def test_queues_of_one_store_are_isolated(queue: EmbeddedQueue, names: tuple[str, str]) -> None:
    one, two = [await another(queue.store, name) for name in names]
    await one.publish([Outgoing("one", "g", "same id")])
    await two.publish([Outgoing("two", "g", "same id")])
    assert bodies(await take(one)) == ["one"]
    assert bodies(await take(two)) == ["two"]
    assert await one.depth() == Depth(waiting=0, leased=1, delayed=0)


@pytest.mark.parametrize("text", ["", "NUL \0 inside", "quotes \" ' `", "emoji 😀 é \u2028", '{"a": [1]}', "\\u0041\n"])
async def test_any_text_comes_back_as_it_was(queue: EmbeddedQueue, text: str) -> None:
    await queue.publish([Outgoing(text, text or "g"), Outgoing("behind", text or "g")])
    first, second = await take(queue)
    assert (first.body, first.group) == (text, text or "g")
    assert second.group == first.group


# Giving back


async def test_a_delayed_head_comes_before_followers_with_a_shorter_delay(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    await queue.publish(grouped("a1", "a2", "a3"))
    head, *followers = await take(queue)
    assert await queue.nack([head], 30) == [Settled.OK]
    assert await queue.nack(followers, 10) == [Settled.OK, Settled.OK]
    for _ in range(29):
        clock.now += 1
        assert await take(queue) == []
    clock.now += 1
    assert bodies(await take(queue)) == ["a1", "a2", "a3"]


async def test_a_message_given_back_at_once_waits_for_its_group_to_be_settled(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "a2"))
    first, second = await take(queue)
    await queue.nack([first], 0)
    assert await take(queue) == []
    await queue.nack([second], 0)
    assert bodies(await take(queue)) == ["a1", "a2"]


async def test_unlock_lets_the_group_go_on_while_a_message_waits(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1", "a2"))
    (first,) = await take(queue, 1)
    await queue.nack([first], 30, unlock=True)
    assert bodies(await take(queue)) == ["a2"]
    clock.now += 30
    (again,) = await take(queue)
    assert (again.body, again.group, again.receive_count) == ("a1", "a", 2)
    await queue.nack([again], 0, unlock=True)
    assert bodies(await take(queue)) == ["a1"]


async def test_unlock_after_the_lease_ran_out_works_too(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1", "a2"))
    (first,) = await take(queue, 1)
    clock.now += 61
    await queue.store.writer.run(lambda c: embedded_lanes.unlock_what_is_due(c, "orders", queue.store.now()))
    assert await queue.nack([first], 0, unlock=True) == [Settled.OK]
    assert sorted(bodies(await take(queue))) == ["a1", "a2"]


async def test_a_delay_asked_for_after_the_lease_ran_out_is_kept(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1", "a2"))
    first, _ = await take(queue)
    clock.now += 61
    await queue.store.writer.run(lambda c: embedded_lanes.unlock_what_is_due(c, "orders", queue.store.now()))
    assert await queue.nack([first], 30) == [Settled.OK]
    assert await take(queue) == []
    clock.now += 30
    assert bodies(await take(queue)) == ["a1", "a2"]


async def test_failures_are_remembered_with_the_message(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1"))
    (delivery,) = await take(queue)
    delivery.failures += 3
    await queue.nack([delivery], 0)
    (delivery,) = await take(queue)
    assert (delivery.failures, delivery.receive_count) == (3, 2)


# Leases and receipts


async def test_an_expired_lease_is_delivered_again_and_the_old_receipt_is_gone(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    await queue.publish(grouped("a1"))
    (old,) = await take(queue)
    assert old.lease_until == clock.now + 60
    clock.now += 59.9
    assert await take(queue) == []
    clock.now += 0.1
    (new,) = await take(queue)
    assert new.broker_id == old.broker_id
    for settle in (queue.ack([old]), queue.nack([old], 0), queue.extend([old], 9)):
        assert await settle == [Settled.GONE]
    assert await take(queue) == []
    assert await queue.ack([old, new]) == [Settled.GONE, Settled.OK]
    assert await queue.depth() == Depth(0, 0, 0)


async def test_a_late_ack_counts_while_nobody_else_has_the_message(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1"))
    (delivery,) = await take(queue)
    clock.now += 1000
    assert await queue.ack([delivery]) == [Settled.OK]
    assert await take(queue) == []


async def test_acking_what_is_deleted_is_ok_but_giving_it_back_is_not(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1"))
    (delivery,) = await take(queue)
    assert await queue.ack([delivery, delivery]) == [Settled.OK, Settled.OK]
    assert await queue.ack([delivery]) == [Settled.OK]
    assert await queue.nack([delivery], 0) == [Settled.GONE]
    assert await queue.extend([delivery], 9) == [Settled.GONE]


async def test_results_are_told_for_each_message_in_order(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1", "b1"))
    stale, kept = await take(queue)
    await queue.nack([stale], 0)
    (fresh,) = await take(queue)
    assert await queue.ack([kept, stale, fresh]) == [Settled.OK, Settled.GONE, Settled.OK]


async def test_an_extended_lease_keeps_its_group_locked(queue: EmbeddedQueue, clock: SetClock) -> None:
    await queue.publish(grouped("a1", "a2"))
    (delivery,) = await take(queue, 1)
    clock.now += 50
    assert await queue.extend([delivery], 60) == [Settled.OK]
    assert delivery.lease_until == clock.now + 60
    clock.now += 59
    assert await take(queue) == []
    clock.now += 1
    assert bodies(await take(queue)) == ["a1", "a2"]


async def test_extending_does_not_lease_what_was_nacked(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1"))
    (delivery,) = await take(queue)
    lease_until = delivery.lease_until
    await queue.nack([delivery], 0)
    assert await queue.extend([delivery], 600) == [Settled.GONE]
    assert delivery.lease_until == lease_until
    assert bodies(await take(queue)) == ["a1"]


# Publishing


async def test_a_deduplication_id_counts_for_five_minutes_from_the_first_publish(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    (first,) = await queue.publish([Outgoing("1", "g", "id\0")])
    await queue.ack(await take(queue))
    clock.now += 299
    (second,) = await queue.publish([Outgoing("2", "g", "id\0")])
    assert (second.broker_id, second.duplicate) == (first.broker_id, True)
    clock.now += 1
    (third,) = await queue.publish([Outgoing("3", "g", "id\0")])
    assert not third.duplicate
    assert bodies(await take(queue)) == ["3"]


async def test_duplicates_inside_one_publish_are_found(queue: EmbeddedQueue) -> None:
    messages = [Outgoing("1", "g", "x"), Outgoing("2", "g"), Outgoing("3", "g", "x"), Outgoing("4", "g", "y")]
    results = await queue.publish(messages)
    assert [result.duplicate for result in results] == [False, False, True, False]
    assert results[2].broker_id == results[0].broker_id
    deliveries = await take(queue)
    assert bodies(deliveries) == ["1", "2", "4"]
    assert [d.broker_id for d in deliveries] == [results[n].broker_id for n in (0, 1, 3)]


@pytest.mark.parametrize(
    "bad",
    [
        Outgoing("é" * (MAX_BODY_BYTES // 2) + "x", "g"),
        Outgoing("\ud800", "g"),
        Outgoing("x", "\ud800"),
        Outgoing("x", "g", "\ud800"),
    ],
)
async def test_one_message_that_cannot_be_accepted_stops_them_all(queue: EmbeddedQueue, bad: Outgoing) -> None:
    with pytest.raises(InvalidMessageError):
        await queue.publish([Outgoing("good", "g", "id"), bad])
    assert await take(queue) == []
    assert (await queue.publish([Outgoing("x" * MAX_BODY_BYTES, "g", "id")]))[0].duplicate is False


async def test_a_publish_that_fails_half_way_leaves_nothing(queue: EmbeddedQueue) -> None:
    def fail_at_lanes(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TEMP TRIGGER fail BEFORE INSERT ON main.lanes BEGIN SELECT raise(ABORT, 'x'); END")

    await queue.store.writer.run(fail_at_lanes)
    with pytest.raises(QueueUnavailableError):
        await queue.publish([Outgoing("1", "g", "id")])
    await queue.store.writer.run(lambda connection: connection.execute("DROP TRIGGER fail"))
    assert await queue.depth() == Depth(0, 0, 0)
    assert not (await queue.publish([Outgoing("1", "g", "id")]))[0].duplicate


async def test_concurrent_publishes_share_commits(queue: EmbeddedQueue) -> None:
    before = queue.store.writer.commits
    await asyncio.gather(*(queue.publish(grouped(f"a{n}")) for n in range(100)))
    assert queue.store.writer.commits - before < 50
    assert await queue.depth() == Depth(waiting=100, leased=0, delayed=0)


async def test_depth_tells_waiting_leased_and_delayed(queue: EmbeddedQueue) -> None:
    await queue.publish(grouped("a1", "a2", "b1", "c1"))
    (a1,) = await take(queue, 1)
    await take(queue, 1)
    await queue.nack([a1], 5)
    assert await queue.depth() == Depth(waiting=2, leased=1, delayed=1)


async def test_empty_calls_do_nothing(queue: EmbeddedQueue) -> None:
    results: list[list[Any]] = [
        await queue.publish([]),
        await queue.ack([]),
        await queue.nack([], 0),
        await queue.extend([], 1),
    ]
    assert results == [[], [], [], []]


async def test_a_file_that_cannot_be_written_any_more_is_closed_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with opened(path, SetClock()) as queue:
        await queue.publish([Outgoing("x", "a")])
        assert bodies(await take(queue)) == ["x"]
        await queue.store.writer.read_in_turn(lambda connection: connection.execute("PRAGMA query_only = 1"))
    async with opened(path, SetClock()) as again:  # who left without a word counts as dead
        assert bodies(await take(again)) == ["x"]
