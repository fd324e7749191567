"""Messages that are put in front of their group in PostgreSQL, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.front import GroupInHandError
from flowcatalyst.queues.postgres.queue import PostgresQueue
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.front_walk import FrontWalk
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Bench, assert_consistent, names, server

__all__ = ["server"]

CLOCK = """
    CREATE TABLE test_clock (now timestamptz NOT NULL);
    INSERT INTO test_clock VALUES ('epoch');
    CREATE OR REPLACE FUNCTION server_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT now FROM test_clock'"""


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


class PostgresWalk(FrontWalk):
    """Its time is a table."""

    def __init__(self, seed: int, bench: Bench) -> None:
        super().__init__(seed)
        self._bench = bench
        self._now = 0.0

    async def open(self) -> None:
        self.queue: PostgresQueue = await self._bench.client()
        await self.queue.publish(grouped("x"))  # makes the tables
        await self.queue.ack(await take(self.queue, 1))
        self._connection: Any = await self._bench.connection()
        await self._connection.execute(CLOCK)

    def now(self) -> float:
        return self._now

    async def wait(self, seconds: float) -> None:
        self._now += seconds
        await self._connection.execute("UPDATE test_clock SET now = to_timestamp($1)", self._now)

    async def end_leases(self) -> None:
        await self.queue.close()
        await self.queue.open()

    async def look(self) -> None:
        await assert_consistent(self._connection)


@pytest.mark.parametrize("seed", range(6))
async def test_any_history_with_fronts_keeps_order_locks_delays_and_counters(bench: Bench, seed: int) -> None:
    walk = PostgresWalk(seed, bench)
    await walk.open()
    await walk.go(250)
    assert walk.seen == {"refused", "in front of what is delayed", "received a front", "delayed a front"}


async def test_what_waits_behind_a_front_is_counted_as_delayed_while_that_is_in_hand(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1", "a2", "a3"))
    await queue.nack(await take(queue, 2), 3600)
    assert await queue.depth() == Depth(1, 0, 2)
    await queue.publish_in_front(Outgoing("a0", "a"))
    front = await take(queue, 1)
    assert names(front) == ["a0"]
    assert await queue.depth() == Depth(1, 1, 2)
    await queue.ack(front)
    assert await queue.depth() == Depth(1, 0, 2)
    await assert_consistent(await bench.connection())


async def test_a_group_that_an_application_publishes_to_is_waited_for(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("b1"))
    application = await bench.connection()
    transaction = application.transaction()
    await transaction.start()
    await application.execute("SELECT send('orders', 'a1', 'a')")
    front = asyncio.ensure_future(queue.publish_in_front(Outgoing("a0", "a")))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%in_front%'"
    look = await bench.connection()
    async with asyncio.timeout(PATIENCE_S):
        while not await look.fetchval(waiting):
            assert not front.done()
            await asyncio.sleep(0.01)
    await transaction.commit()
    await front
    assert sorted(names(await take(queue, 3))) == ["a0", "a1", "b1"]
    await assert_consistent(look)


async def test_a_group_that_is_taken_at_the_same_moment_is_in_hand_or_begins_with_the_front(bench: Bench) -> None:
    queue, router = await bench.client(), await bench.client()
    for number in range(30):
        group = f"g{number}"
        await queue.publish([Outgoing("1", group), Outgoing("2", group)])
        front, taken = await asyncio.gather(
            queue.publish_in_front(Outgoing("0", group)), router.receive(3, 1.0), return_exceptions=True
        )
        assert not isinstance(taken, BaseException)
        if isinstance(front, GroupInHandError):
            assert names(taken) == ["1", "2"]
        else:
            assert names(taken) == ["0", "1", "2"]
        await router.ack(taken)
    await assert_consistent(await bench.connection())


async def test_what_postgres_cannot_store_is_not_put_in_front(bench: Bench) -> None:
    queue = await bench.client()
    with pytest.raises(InvalidMessageError, match="NUL"):
        await queue.publish_in_front(Outgoing("a\0", "a"))


async def test_a_front_notifies_who_waits(bench: Bench) -> None:
    queue, router = await bench.client(), await bench.client()
    waiting = asyncio.ensure_future(router.receive(1, PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        while not router.store.is_announced:
            await asyncio.sleep(0.01)
    await queue.publish_in_front(Outgoing("a0", "a"))
    assert names(await waiting) == ["a0"]


async def test_a_front_that_failed_waits_for_its_own_delay(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    await queue.publish_in_front(Outgoing("a0", "a"))
    await queue.nack(await take(queue, 1), 3600)
    assert await queue.depth() == Depth(1, 0, 1)
    assert await queue.waiting_for("", 10) == 0  # not one that is ready and gives nothing


async def test_what_could_come_and_has_a_front_before_it_waits_and_is_not_delayed(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    await queue.nack(await take(queue, 1), 0.05)
    assert names(again := await take(queue, 1)) == ["a1"]
    await bench.vanish(queue)
    other = await bench.client()
    await (await bench.connection()).execute("SELECT forget(ARRAY(SELECT id FROM owners), NULL)")
    await other.publish_in_front(Outgoing("a0", "a"))
    assert names(await take(other, 1)) == ["a0"]
    assert await other.depth() == Depth(1, 1, 0)
    assert again[0].receive_count == 2
