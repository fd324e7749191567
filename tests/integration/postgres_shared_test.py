"""PostgreSQL as a queue of a database that others use too: applications, operators, closings."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from flowcatalyst.core.message import Settled
from flowcatalyst.queues.postgres import lanes, owners
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, assert_consistent, names, server

__all__ = ["server"]


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


# A group that an application keeps locked


async def test_a_group_that_an_application_keeps_locked_holds_up_no_other(bench: Bench) -> None:
    queue, application, connection = await bench.client(), await bench.connection(), await bench.connection()
    await queue.publish(grouped("a1", "b1", "c1"))
    held = dict(zip("abc", await take(queue, 3), strict=True))
    transaction = application.transaction()
    await transaction.start()
    await application.execute("SELECT send('orders', 'a2', 'a')")
    assert await queue.ack([held["a"], held["b"]]) == [Settled.FAILED, Settled.OK]
    assert await queue.nack([held["a"], held["c"]], 0.0) == [Settled.OK, Settled.OK]  # the first is owed
    assert names(await queue.receive(5, 1.0)) == ["c1"]
    await transaction.commit()
    assert names(await take(queue, 2)) == ["a1", "a2"]
    await assert_consistent(connection)


async def test_a_dead_owner_is_ended_although_an_application_keeps_one_of_its_groups_locked(bench: Bench) -> None:
    queue, application, connection = await bench.client(), await bench.connection(), await bench.connection()
    await queue.publish(grouped("a1", "b1"))
    await take(queue, 2)
    assert queue.store.session is not None
    owner = queue.store.session.owner
    transaction = application.transaction()
    await transaction.start()
    await application.execute("SELECT send('orders', 'a2', 'a')")
    assert await owners.forget(connection, [owner]) == 1
    assert await connection.fetchval("SELECT owner FROM lanes WHERE name = 'a'") == owner
    with pytest.raises(asyncpg.PostgresError):
        await lanes.take(connection, await queue.store.number_of("orders"), owner, 1000, {"": 1})
    await transaction.commit()
    assert await owners.forget(connection, [owner]) == 1
    assert await connection.fetchval("SELECT count(*) FROM owners WHERE id = $1", owner) == 0
    await assert_consistent(connection)


async def test_a_receive_that_ends_after_the_close_registers_nobody(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    receiving = asyncio.gather(queue.receive(1, 30.0))
    while not queue._sleepers:
        await asyncio.sleep(0.01)
    await queue.close()
    assert list(await receiving) == [[]]
    assert await connection.fetchval("SELECT count(*) FROM owners") == 0


async def test_a_server_that_may_lose_what_it_confirmed_is_warned_of(bench: Bench) -> None:
    connection = await bench.connection()
    await connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        queue = await bench.client()
        await queue.receive(1, 0.0)
        [warning] = queue.setup_warnings
        assert warning.startswith("synchronous_commit is off at the PostgreSQL server")
    finally:
        await connection.execute("ALTER ROLE postgres RESET synchronous_commit")


async def test_a_group_that_is_ready_but_locked_is_not_asked_for_again_and_again(bench: Bench) -> None:
    queue, application = await bench.client(), await bench.connection()
    await queue.publish(grouped("a1"))
    transaction = application.transaction()
    await transaction.start()
    await application.execute("SELECT send('orders', 'a2', 'a')")
    before = queue.store.pool.calls
    assert await queue.receive(1, 1.0) == []
    assert queue.store.pool.calls - before <= 20  # 100 with the first pause
    await transaction.commit()
    assert names(await take(queue, 2)) == ["a1", "a2"]
