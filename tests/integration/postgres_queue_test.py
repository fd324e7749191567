"""PostgreSQL as a queue, on a real server: what the suite of all queues does not ask."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import asyncpg
import pytest

from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.postgres import lanes, owners
from flowcatalyst.queues.postgres import queue as queue_module
from flowcatalyst.queues.postgres.lanes import Entry
from flowcatalyst.queues.postgres.queue import PostgresQueue
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Bench, assert_consistent, names, server

__all__ = ["server"]


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


# Order between producers


async def test_messages_of_a_group_become_visible_in_order_in_whichever_order_their_producers_commit(
    bench: Bench,
) -> None:
    queue = await bench.client()
    await queue.publish(grouped("b1"))
    slow, fast = await bench.connection(), await bench.connection()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("SELECT send('orders', 'a1', 'a')")
    behind = asyncio.gather(fast.execute("SELECT send('orders', 'a2', 'a')"))
    await fast_waits(await bench.connection(), behind)
    assert names(await take(queue, 2, 1.0)) == ["b1"]  # and whoever waits for the group holds up nobody else
    await transaction.commit()
    await behind
    assert names(await take(queue, 2)) == ["a1", "a2"]


async def fast_waits(connection: Any, behind: "asyncio.Future[Any]") -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%a2%'"
    async with asyncio.timeout(PATIENCE_S):
        while not await connection.fetchval(waiting):
            assert not behind.done()
            await asyncio.sleep(0.01)


async def test_what_an_application_sends_and_rolls_back_was_never_there(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    application = await bench.connection()
    transaction = application.transaction()
    await transaction.start()
    await application.execute("""SELECT send('orders', '{"poolCode": "A"}', 'a', 'once')""")
    await transaction.rollback()
    await application.execute("SELECT send('orders', 'a2', 'a', 'once')")
    assert names(await take(queue, 3, 1.0)) == ["a1", "a2"]
    await assert_consistent(application)


async def test_one_of_two_producers_with_the_same_deduplication_id_is_the_first(bench: Bench) -> None:
    one, other = await bench.client(), await bench.client()
    await one.publish(grouped("x1"))
    for number in range(20):
        outgoing = [Outgoing(f"a{number}", "a", f"id-{number}"), Outgoing(f"b{number}", "b", f"other-{number}")]
        results = await asyncio.gather(one.publish(outgoing), other.publish(outgoing[::-1]))
        mine, theirs = results[0], results[1][::-1]
        assert [one.broker_id for one in mine] == [other.broker_id for other in theirs]
        assert [one.duplicate != other.duplicate for one, other in zip(mine, theirs, strict=True)] == [True, True]


async def test_a_deduplication_id_is_free_again_after_five_minutes(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    twice = [Outgoing("a1", "a", "once"), Outgoing("a1", "a", "once")]
    first, second = await queue.publish(twice)
    assert (first.duplicate, second.duplicate, second.broker_id) == (False, True, first.broker_id)
    await connection.execute("UPDATE deduplication SET expires_at = expires_at - interval '299 seconds'")
    assert [one.duplicate for one in await queue.publish(twice)] == [True, True]
    await connection.execute("UPDATE deduplication SET expires_at = expires_at - interval '2 seconds'")
    assert [one.duplicate for one in await queue.publish(twice)] == [False, True]
    await assert_consistent(connection)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Outgoing("a\0b", "a"), "NUL"),
        (Outgoing("a", "a\0"), "NUL"),
        (Outgoing("a", "a", "\0"), "NUL"),
        (Outgoing("a", "ä" * 1001), "group has 2002 bytes"),
        (Outgoing("a", "a", "x" * 2001), "deduplication id has 2001 bytes"),
    ],
)
async def test_what_postgres_cannot_store_is_refused_before_anything_is_published(
    bench: Bench, message: Outgoing, words: str
) -> None:
    queue = await bench.client()
    with pytest.raises(InvalidMessageError, match=words):
        await queue.publish([Outgoing("fine", "a"), message])
    assert await queue.receive(1, 0.0) == []


async def test_a_pool_with_an_odd_name_is_no_reason_to_lose_a_message(bench: Bench) -> None:
    queue = await bench.client()
    bodies = ['{"poolCode": "a\\u0000b"}', f'{{"poolCode": "{"x" * 5000}"}}']
    await queue.publish([Outgoing(body, body[:20]) for body in bodies])
    assert names(await take(queue, 2)) == bodies


# Owners


async def test_a_stale_receipt_changes_nothing(bench: Bench) -> None:
    sleeper, other, connection = await bench.client(), await bench.client(), await bench.connection()
    await sleeper.publish(grouped("a1", "a2"))
    held = await take(sleeper, 2)
    assert sleeper.store.session is not None
    assert await owners.forget(connection, [sleeper.store.session.owner]) == 1
    again = await take(other, 2)
    assert names(again) == ["a1", "a2"]
    assert [one.receive_count for one in again] == [2, 2]
    assert await sleeper.ack(held[:1]) == [Settled.GONE]
    assert await sleeper.nack(held[1:], 30.0) == [Settled.GONE]
    assert await sleeper.nack(held[1:], 30.0, unlock=True) == [Settled.GONE]
    await assert_consistent(connection)
    assert await other.ack(again) == [Settled.OK, Settled.OK]


async def test_a_late_ack_counts_while_nobody_took_the_message_over(bench: Bench) -> None:
    sleeper, connection = await bench.client(), await bench.connection()
    await sleeper.publish(grouped("a1", "a2"))
    held = await take(sleeper, 2)
    assert sleeper.store.session is not None
    await owners.forget(connection, [sleeper.store.session.owner])
    assert await sleeper.ack(held[:1]) == [Settled.OK]
    await assert_consistent(connection)
    assert names(await take(sleeper, 2, 1.0)) == ["a2"]


async def test_an_owner_that_was_ended_by_others_notices_and_begins_anew(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a1"))
    [held] = await take(queue, 1)
    assert queue.still_ours(held)
    assert queue.store.session is not None
    await owners.forget(connection, [queue.store.session.owner])
    [again] = await take(queue, 1)
    assert not queue.still_ours(held)
    assert queue.still_ours(again)
    assert await queue.extend([held, again], 60.0) == [Settled.GONE, Settled.OK]


async def test_a_process_that_lives_keeps_what_it_holds_and_one_that_died_loses_it(bench: Bench) -> None:
    alive, dead, other = await bench.client(), await bench.client(), await bench.client()
    await alive.publish(grouped("a1"))
    held = await take(alive, 1)
    await alive.publish(grouped("b1"))
    assert names(await take(dead, 1)) == ["b1"]
    await bench.vanish(dead)
    came = await take(other, 2, 2 * owners.LAPSE_S)
    assert names(came) == ["b1"]
    assert alive.still_ours(held[0])
    assert await alive.ack(held) == [Settled.OK]


async def test_what_a_take_leased_whose_answer_was_lost_comes_again(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a1", "a2"))
    [kept] = await take(queue, 1)
    await queue.publish(grouped("b1"))
    real_run = queue.store.pool.run

    async def lose_the_answer(job: Any, **options: Any) -> Any:
        queue.store.pool.run = real_run  # type: ignore[method-assign]
        assert await real_run(job, **options)
        queue.store.pool.reset()
        raise QueueUnavailableError("the connection broke")

    session = await queue.store.owner()
    queue.store.pool.run = lose_the_answer  # type: ignore[method-assign]
    with pytest.raises(QueueUnavailableError):
        await queue._take(session, partial(queue._leased, wanted={"": 10}))
    assert session.doubtful
    assert names(await take(queue, 1)) == ["b1"]
    assert queue.still_ours(kept)
    assert await queue.ack([kept]) == [Settled.OK]
    await assert_consistent(connection)


async def test_a_claim_that_is_void_leases_nothing_later(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.publish(grouped("a1"))
    session, number = await queue.store.owner(), await queue.store.number_of("orders")
    claim = session.new_claim()
    await owners.void(connection, session.owner, claim)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await lanes.take(connection, number, session.owner, claim, {"": 1})
    assert raised.value.sqlstate == lanes.CLAIM_VOID
    assert len(await lanes.take(connection, number, session.owner, session.new_claim(), {"": 1})) == 1


async def test_an_owner_is_not_ended_amid_a_take(bench: Bench) -> None:
    """Else its lanes would belong to nobody for ever."""
    queue, taking, ending = await bench.client(), await bench.connection(), await bench.connection()
    await queue.publish(grouped("a1"))
    session, number = await queue.store.owner(), await queue.store.number_of("orders")
    transaction = taking.transaction()
    await transaction.start()
    assert await lanes.take(taking, number, session.owner, session.new_claim(), {"": 1})
    end = asyncio.gather(owners.forget(ending, [session.owner]))
    await asyncio.sleep(0.3)
    assert not end.done()
    await transaction.commit()
    assert list(await end) == [1]


async def test_nacks_that_could_not_be_sent_are_made_good(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1", "b1"))
    held = await take(queue, 2)

    async def unreachable(*args: Any, **options: Any) -> Any:
        raise QueueUnavailableError("no way")

    with monkeypatch.context() as patched:
        patched.setattr(queue.store, "run", unreachable)
        assert await queue.nack(held[:1], 0.0) == [Settled.OK]
        assert await queue.nack(held[1:], 2.0) == [Settled.OK]
    assert names(await queue.receive(5, 1.0)) == ["a1"]
    assert names(await take(queue, 1)) == ["b1"]


async def test_a_cancelled_receive_gives_back_what_it_leased(bench: Bench) -> None:
    queue, sender = await bench.client(), await bench.client()
    await queue.receive(1, 0.0)
    for number in range(10):
        receiving = asyncio.gather(queue.receive(10, 10.0))
        await sender.publish(grouped(f"a{number}"))
        await asyncio.sleep(random.random() / 100)
        receiving.cancel()
        try:
            [batch] = await receiving
        except asyncio.CancelledError:
            batch = await take(queue, 1)
        assert names(batch) == [f"a{number}"]
        await queue.ack(batch)


# Waiting


async def test_a_notification_ends_the_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "POLL_INTERVAL_S", 60.0)
    queue, sender = await bench.client(), await bench.client()
    async with asyncio.timeout(30):
        for number in range(5):
            receiving = asyncio.gather(queue.receive(1, 60.0))
            while not queue._sleepers:
                await asyncio.sleep(0.01)
            await sender.publish(grouped(f"a{number}"))
            [batch] = await receiving
            await queue.ack(batch)


async def test_a_wake_up_between_a_look_and_the_wait_after_it_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "POLL_INTERVAL_S", 60.0)
    queue, sender = await bench.client(), await bench.client()
    await queue.store.announce()
    look = queue._ready
    published = 0

    async def while_somebody_publishes(*args: Any, **options: Any) -> Any:
        nonlocal published
        found = await look(*args, **options)
        if published == 0 and queue.store.is_announced:
            published = 1
            changes = queue._changes
            await sender.publish(grouped("a1"))
            while queue._changes == changes:  # the notice of it came
                await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(queue, "_ready", while_somebody_publishes)
    async with asyncio.timeout(10):
        assert names(await queue.receive(1, 60.0)) == ["a1"]


async def test_a_lost_notification_costs_no_more_than_the_poll_interval(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    await queue.receive(1, 0.0)
    receiving = asyncio.gather(queue.receive(1, 30.0))
    while not queue._sleepers:
        await asyncio.sleep(0.01)
    await connection.execute("UPDATE owners SET waits = false")  # nobody notifies it
    await connection.execute("SELECT send('orders', 'a1', 'a')")
    async with asyncio.timeout(10 * queue_module.POLL_INTERVAL_S):
        assert names((await receiving)[0]) == ["a1"]


async def test_nobody_is_notified_while_nobody_waits(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    heard: list[Any] = []
    await queue.publish(grouped("a1"))
    await connection.add_listener(f"flowcatalyst_{bench.schema}", lambda *notice: heard.append(notice))
    await queue.publish(grouped("b1", "c1"))
    await connection.execute("SELECT 1")
    assert heard == []


# Lanes as a part of something larger


async def test_what_comes_to_stand_inside_a_lease_is_no_part_of_it(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    number = await queue.store.number_of("orders")

    async def put(*places: int) -> None:
        entries = [Entry(str(place), "", "a", place=place) for place in places]
        await lanes.publish(connection, number, entries)

    await put(30, 10)
    held = await take(queue, 2)
    assert names(held) == ["10", "30"]
    await put(20, 40, 5)
    await assert_consistent(connection)
    assert await queue.receive(1, 0.0) == []
    assert (await queue.depth()) == Depth(waiting=3, leased=2, delayed=0)
    assert await queue.ack(held) == [Settled.OK, Settled.OK]
    await assert_consistent(connection)
    assert names(await take(queue, 3)) == ["5", "20", "40"]


async def test_several_steps_are_one_transaction(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    [held] = await take(queue, 1)
    number = await queue.store.number_of("orders")

    async def work(connection: Any) -> None:
        await lanes.ack(connection, [held.receipt.receipt])
        await lanes.publish(connection, number, [Entry("a2", "", "a")])
        raise QueueUnavailableError("on second thought")

    with pytest.raises(QueueUnavailableError):
        await queue.store.pool.transaction(work)
    assert await queue.depth() == Depth(waiting=0, leased=1, delayed=0)


# Everything at once


async def test_several_routers_and_producers_keep_every_group_in_order(bench: Bench) -> None:
    """Each group is in one pair of hands at a time, and all that lanes and counts say stays true."""
    luck = random.Random(7)
    clients = [await bench.client() for _ in range(3)]
    connection = await bench.connection()
    await clients[0].publish(grouped("z0"))
    groups, per_group = "abcdefgh", 40
    seen: dict[str, list[int]] = defaultdict(list)
    in_hands: set[str] = set()
    done = asyncio.Event()

    async def produce(client: PostgresQueue, own: Sequence[str]) -> None:
        published = dict.fromkeys(own, 0)
        while left := [group for group in own if published[group] < per_group]:
            batch = []
            for group in luck.choices(left, k=luck.randint(1, 8)):
                if published[group] < per_group:
                    published[group] += 1
                    batch.append(f"{group}{published[group]}")
            await client.publish(grouped(*batch))

    async def consume(client: PostgresQueue) -> None:
        while not done.is_set():
            batch = await client.receive(luck.randint(1, 30), 0.2)
            by_group: dict[str, list[Delivery]] = defaultdict(list)
            for delivery in batch:
                by_group[str(delivery.group)].append(delivery)
            assert not in_hands & by_group.keys()
            in_hands.update(by_group)
            await asyncio.sleep(luck.random() / 100)
            acks, heads, rest = [], [], []
            for deliveries in by_group.values():
                cut = luck.randint(0, len(deliveries))
                acks += deliveries[:cut]
                heads += deliveries[cut : cut + 1]
                rest += deliveries[cut + 1 :]
            for delivery in acks:
                seen[str(delivery.group)].append(int(str(delivery.body)[1:]))
            in_hands.difference_update(by_group)
            nacks = asyncio.gather(client.nack(heads, luck.choice([0.0, 0.05])), client.nack(rest, 0.0))
            while acks:
                results = await client.ack(acks)
                assert Settled.GONE not in results
                acks = [one for one, result in zip(acks, results, strict=True) if result is Settled.FAILED]
            assert {one for result in await nacks for one in result} <= {Settled.OK}
            if sum(map(len, seen.values())) == len(groups) * per_group + 1:
                done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(
            *map(consume, clients), *(produce(client, groups[n::3]) for n, client in enumerate(clients))
        )
    assert dict(seen) == {"z": [0], **{group: list(range(1, per_group + 1)) for group in groups}}
    await assert_consistent(connection)
    assert await clients[0].depth() == Depth(0, 0, 0)
    assert await connection.fetchval("SELECT count(*) FROM lanes") == 0


async def test_depth_counts_what_waits_what_is_leased_and_what_is_delayed(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    assert await queue.depth() == Depth(0, 0, 0)
    await queue.publish([*grouped("a1", "a2", "b1", "c1"), Outgoing("alone")])
    held = await take(queue, 5)
    assert await queue.depth() == Depth(0, 5, 0)
    by_name = dict(zip(names(held), held, strict=True))
    await queue.nack([by_name["b1"]], 60.0)
    await queue.nack([by_name["c1"]], 60.0, unlock=True)
    await queue.nack([by_name["alone"]], 0.0)
    await queue.ack([by_name["a1"]])
    assert await queue.depth() == Depth(1, 1, 2)
    await assert_consistent(connection)
    await connection.execute("UPDATE lanes SET due = now() WHERE due IS NOT NULL")
    await connection.execute("UPDATE messages SET visible_at = now() WHERE visible_at IS NOT NULL")
    assert await queue.depth() == Depth(3, 1, 0)
    assert await queue.waiting_for("", 10) == 1
    await queue.ack(await take(queue, 3))
    await queue.ack([by_name["a2"]])
    assert await queue.depth() == Depth(0, 0, 0)
    await assert_consistent(connection)


async def test_queues_of_one_database_share_nothing_but_their_connections(bench: Bench) -> None:
    queue = await bench.client()
    other = PostgresQueue(queue.store, "invoices")
    await other.open()
    await queue.publish(grouped("a1"))
    await other.publish(grouped("a2"))
    held = await take(other, 2, 1.0)
    assert names(held) == ["a2"]
    await other.close()
    assert names(await take(queue, 2, 1.0)) == ["a1"]
    again = await bench.client("invoices")
    assert names(await take(again, 1, 2.0)) == ["a2"]  # its close gave it back
