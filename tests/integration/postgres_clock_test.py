"""Queues in PostgreSQL while somebody sets the clock of the database's machine, on a real server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.postgres.queue import PostgresQueue
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, assert_consistent, names, server

__all__ = ["server"]

YEAR_S, HOUR_S, DELAY_S = 365 * 86400.0, 3600.0, 30.0
INEXACT_S = 3.0  # how long before the step the clock was seen last
CLOCK = """
    CREATE TABLE test_clock (now timestamptz NOT NULL);
    INSERT INTO test_clock VALUES (clock_timestamp());
    CREATE OR REPLACE FUNCTION machine_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT now FROM test_clock'"""


class Machine:
    """That of the database. Its clock stands still unless it is told."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def step(self, seconds: float) -> None:
        await self._connection.execute("UPDATE test_clock SET now = now + make_interval(secs => $1)", seconds)


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


@pytest.fixture
async def queue(bench: Bench) -> PostgresQueue:
    queue = await bench.client()
    await queue.depth()
    await queue.publish(grouped("a1", "a2"))
    return queue


@pytest.fixture
async def machine(bench: Bench, queue: PostgresQueue) -> Machine:
    connection = await bench.connection()
    await connection.execute(CLOCK)
    return Machine(connection)


async def renewed(queue: PostgresQueue) -> PostgresQueue:
    """As it renews its session every second or so."""
    await queue.store.announce()
    return queue


async def available(queue: PostgresQueue) -> list[str]:
    return names(await queue.receive(10, 0.0))


async def test_a_nack_made_while_the_clock_was_a_year_ahead_hides_its_group_for_its_delay_only(
    bench: Bench, queue: PostgresQueue, machine: Machine
) -> None:
    await machine.step(YEAR_S)
    await renewed(queue)
    await queue.nack(await take(queue, 1), DELAY_S)
    await machine.step(-YEAR_S)
    await renewed(queue)
    assert await queue.depth() == Depth(1, 0, 1)
    await machine.step(DELAY_S - 1)
    assert await available(queue) == []
    await machine.step(1)
    assert await available(queue) == ["a1", "a2"]
    await assert_consistent(await bench.connection())


async def test_it_does_so_across_a_restart_of_all_routers(bench: Bench, queue: PostgresQueue, machine: Machine) -> None:
    await machine.step(YEAR_S)
    await renewed(queue)
    await queue.nack(await take(queue, 1), DELAY_S)
    await queue.close()
    await machine.step(-YEAR_S)
    later = await renewed(await bench.client())
    await machine.step(DELAY_S - 1)
    assert await available(later) == []
    await machine.step(1)
    assert await available(later) == ["a1", "a2"]


async def test_a_delay_is_no_longer_when_the_clock_is_set_back(queue: PostgresQueue, machine: Machine) -> None:
    for _ in range(3):
        await queue.nack(await take(queue, 1), DELAY_S)
        await renewed(queue)
        await machine.step(-HOUR_S)
        await renewed(queue)
        await machine.step(DELAY_S - 1)
        assert await available(queue) == []
        await machine.step(1 + INEXACT_S)


async def test_several_routers_that_see_the_clock_go_back_make_it_good_once(
    bench: Bench, queue: PostgresQueue, machine: Machine
) -> None:
    others = [await bench.client() for _ in range(3)]
    await queue.nack(await take(queue, 1), DELAY_S)
    for one in (queue, *others):
        await renewed(one)
    await machine.step(-HOUR_S)
    for one in (queue, *others):
        await renewed(one)
    await machine.step(DELAY_S - 1)
    assert await available(queue) == []
    await machine.step(1 + INEXACT_S)
    assert await available(queue) == ["a1", "a2"]


async def test_a_deduplication_id_counts_for_five_minutes_all_the_same(queue: PostgresQueue, machine: Machine) -> None:
    await machine.step(YEAR_S)
    await renewed(queue)
    await queue.publish([Outgoing("1", "g", "once")])
    await machine.step(-YEAR_S)
    await renewed(queue)
    await machine.step(299)
    assert (await queue.publish([Outgoing("2", "g", "once")]))[0].duplicate
    await machine.step(1)
    assert not (await queue.publish([Outgoing("3", "g", "once")]))[0].duplicate
