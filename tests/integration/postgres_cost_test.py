"""What a queue in PostgreSQL costs, in pages that the server touches: the same with few messages and with very many."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.postgres.lanes import LANES_LOOKED_AT
from flowcatalyst.queues.postgres.queue import PostgresQueue
from tests.conformance.bench import grouped, take
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, server

__all__ = ["server"]

FEW, MANY = 2_000, 200_000
BATCH = 50
ALLOWANCE = 1.4  # indexes are a level deeper then
FEW_PAGES = 20


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


async def pages(connection: Any, statement: str) -> int:
    """That a statement touches, in the functions that it calls, too."""
    rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement}")
    top = next(row[0] for row in rows if "Buffers:" in row[0])
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", top))


async def fill(connection: Any, queue: int, messages: int, groups: int, pool: str = "A") -> None:
    """As `publish` would, in one go. With as many groups as messages they are ordered with nothing."""
    await connection.execute(
        """
        WITH rows AS MATERIALIZED (SELECT nextval('numbers') AS n, i FROM generate_series(1, $2::integer) AS i),
        made AS (
          INSERT INTO lanes (id, queue, name, grp, pool, turn, messages, head)
          SELECT min(n), $1, $4 || (i % $3), $4 || (i % $3), $4, min(n), count(*), 0 FROM rows GROUP BY i % $3
          RETURNING id, name)
        INSERT INTO messages (lane, seq, pool, body)
        SELECT made.id, rows.n, $4, '{}' FROM rows JOIN made ON made.name = $4 || (i % $3)""",
        queue,
        messages,
        groups,
        pool,
    )
    await connection.execute(
        "UPDATE counts SET messages = messages + $1 WHERE queue = $2 AND part = 0", messages, queue
    )


async def cost(queue: PostgresQueue, connection: Any, number: int) -> dict[str, int]:
    """Of each step in the life of a batch, once plans are made and caches warm."""
    session = await queue.store.owner()
    found: dict[str, int] = {}
    least: dict[str, int] = {}  # of several: now and then the server tidies up, or makes a table longer
    for _ in range(4):
        claim = session.new_claim()
        found["publish"] = await pages(
            connection, f"SELECT publish({number}, ARRAY['new'], ARRAY['B'], ARRAY['body'], ARRAY['{claim}'], NULL)"
        )
        found["look"] = await pages(connection, f"SELECT look({number}, NULL, 256)")
        found["take"] = await pages(
            connection, f"SELECT take_dated({number}, {session.owner}, {claim}, ARRAY['A'], ARRAY[{BATCH}], 20)"
        )
        leased = (
            f"SELECT m.lane, m.seq, l.epoch FROM lanes AS l JOIN messages AS m ON m.lane = l.id WHERE l.claim = {claim}"
        )
        rows = await connection.fetch(f"{leased} AND m.seq <= l.leased_to")
        assert len(rows) == BATCH
        half = [f"ARRAY[{','.join(str(row[column]) for row in rows[:25])}]" for column in range(3)]
        rest = [f"ARRAY[{','.join(str(row[column]) for row in rows[25:])}]" for column in range(3)]
        found["ack"] = await pages(connection, f"SELECT ack({','.join(half)})")
        failures = f"array_fill(0, ARRAY[{len(rows) - 25}])"
        found["nack"] = await pages(connection, f"SELECT nack({','.join(rest)}, {failures}, 0.0, false)")
        found["depth"] = await pages(connection, f"SELECT depth({number})")
        found["oldest"] = await pages(connection, f"SELECT oldest({number}, {LANES_LOOKED_AT})")
        found["waiting_for"] = await pages(connection, f"SELECT waiting_for({number}, 'A', 50)")
        least = {step: min(least.get(step, cost), cost) for step, cost in found.items()}
    return least


@pytest.mark.parametrize(
    ("groups", "why"),
    [(1, "one hot group"), (1000, "many groups"), (MANY, "ordered with nothing")],
    ids=lambda value: str(value),
)
async def test_no_step_costs_more_behind_a_large_backlog(bench: Bench, groups: int, why: str) -> None:
    queue, connection = await bench.client(), await bench.connection()
    costs = {}
    for size in (5 * BATCH, FEW, MANY):  # plans are made with the first; no ANALYZE: they stay
        number = await queue.store.number_of(f"queue-{size}")
        await fill(connection, number, size, min(groups, size))
        costs[size] = await cost(queue, connection, number)
    few, many = costs[FEW], costs[MANY]
    assert {step: (few[step], many[step]) for step in few if many[step] > few[step] * ALLOWANCE + FEW_PAGES} == {}


async def test_a_backlog_of_a_full_pool_costs_the_others_nothing(bench: Bench) -> None:
    queue, connection = await bench.client(), await bench.connection()
    number = await queue.store.number_of("orders")
    await fill(connection, number, FEW, 1000)
    few = await cost(queue, connection, number)
    await fill(connection, number, MANY, 5000, pool="FULL")
    many = await cost(queue, connection, number)
    assert {step: (few[step], many[step]) for step in few if many[step] > few[step] * ALLOWANCE + FEW_PAGES} == {}


async def test_what_was_deleted_is_not_looked_at_again_although_nobody_may_clean_up(bench: Bench) -> None:
    """A long transaction elsewhere keeps dead rows where they are: a hot group must not read them with each batch."""
    queue, connection, long = await bench.client(), await bench.connection(), await bench.connection()
    number = await queue.store.number_of("orders")
    await fill(connection, number, 20_000, 1)
    transaction = long.transaction(isolation="repeatable_read")
    await transaction.start()
    await long.fetchval("SELECT count(*) FROM messages")
    before = await cost(queue, connection, number)
    for _ in range(20):
        await queue.ack(await queue.receive(512, 5.0))
    after = await cost(queue, connection, number)
    # The lane itself was written some 45 times, and its old versions are still in its indexes.
    assert {s: (before[s], after[s]) for s in ("take", "ack") if after[s] > before[s] + 150} == {}
    await transaction.rollback()


async def test_a_batch_is_settled_in_one_call(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish([Outgoing(f"{number}", f"g{number % 50}") for number in range(500)])
    batch = await take(queue, 500)
    before = queue.store.pool.calls
    await queue.ack(batch[:200])
    await queue.nack(batch[200:], 1.0)
    assert queue.store.pool.calls - before == 2


async def test_messages_that_waited_come_with_two_calls(bench: Bench) -> None:
    queue = await bench.client()
    await queue.publish(grouped("a1"))
    await queue.ack(await take(queue, 1))
    await queue.publish([Outgoing(f"{number}", f"g{number % 50}") for number in range(500)])
    before = queue.store.pool.calls
    assert len(await queue.receive(512, 1.0)) == 500
    assert queue.store.pool.calls - before == 2
