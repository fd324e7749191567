"""What owners of a PostgreSQL divide among them, as the database keeps it."""

from collections.abc import AsyncIterator

import pytest

from flowcatalyst.queues.division import Division, Generation, Thing
from flowcatalyst.queues.postgres import owners
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, server

__all__ = ["server"]

NOTHING = {Thing.SLOTS: 0, Thing.PERMITS: 0}
FIRST = Division(Generation(), Generation(1, (1,)))


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    await (await bench.client()).publish(grouped("a1"))  # makes the tables
    yield bench
    await bench.close()


async def test_owners_that_take_part_are_told_of_with_the_divisions(bench: Bench) -> None:
    connection = await bench.connection()
    first, second = [await owners.register(connection, name) for name in ("first", "second")]
    await owners.renew(connection, second, waits=False)  # a plain queue takes no part
    standing = await owners.renew(connection, first, waits=False, keeps_to={Thing.SLOTS: 3, Thing.PERMITS: 2})
    assert standing.beats.keys() == {first, second}
    assert standing.keeps_to == {Thing.SLOTS: {first: 3}, Thing.PERMITS: {first: 2}}
    assert standing.divisions == {Thing.SLOTS: Division(), Thing.PERMITS: Division()}


async def test_a_division_is_written_in_place_of_the_one_that_was_read_and_of_no_other(bench: Bench) -> None:
    connection = await bench.connection()
    owner = await owners.register(connection, "one")
    await owners.divide(connection, Thing.SLOTS, Division(), FIRST)
    await owners.divide(connection, Thing.SLOTS, Division(), Division(Generation(), Generation(1, (9,))))
    standing = await owners.renew(connection, owner, waits=False, keeps_to=NOTHING)
    assert standing.divisions == {Thing.SLOTS: FIRST, Thing.PERMITS: Division()}


async def test_an_owner_that_ended_takes_part_no_more(bench: Bench) -> None:
    connection = await bench.connection()
    first, second = [await owners.register(connection, name) for name in ("first", "second")]
    await owners.renew(connection, first, waits=False, keeps_to=NOTHING)
    await owners.forget(connection, [first])
    assert first not in (await owners.renew(connection, first, waits=False, keeps_to=NOTHING)).beats
    standing = await owners.renew(connection, second, waits=False, keeps_to=NOTHING)
    assert standing.keeps_to[Thing.SLOTS] == {second: 0}


async def test_a_plain_queue_goes_on_beside_those_that_divide(bench: Bench) -> None:
    connection, queue = await bench.connection(), await bench.client()
    owner = await owners.register(connection, "member")
    await owners.divide(connection, Thing.SLOTS, Division(), Division(Generation(), Generation(1, (owner,))))
    assert [delivery.body for delivery in await take(queue, 1)] == ["a1"]
