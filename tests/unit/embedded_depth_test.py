"""The depth of an embedded queue: counted as messages come and go, and equal to what a look at each of them gives."""

import random
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded import inspect
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from tests.support.clocks import SetClock
from tests.support.embedded import another, grouped, instructions, opened, take

EACH_MESSAGE = """
    SELECT count(*),
      count(l.owner IS NOT NULL AND l.due > :now AND m.seq <= l.leased_to AND m.given_back <> l.epoch OR NULL),
      count(l.due NOT NULL AND m.seq <= l.leased_to AND m.given_back = l.epoch AND m.visible_at NOT NULL AND (
        l.due > :now OR EXISTS (
        SELECT 1 FROM messages WHERE lane = l.id AND seq <= l.leased_to AND visible_at > :now)) OR NULL)
    FROM lanes AS l CROSS JOIN messages AS m ON m.lane = l.id WHERE l.queue = :queue"""


async def by_each_message(queue: EmbeddedQueue) -> Depth:
    def look(connection: sqlite3.Connection) -> Depth:
        row = connection.execute(EACH_MESSAGE, {"queue": queue.name, "now": queue.store.now()}).fetchone()
        total, leased, delayed = row
        return Depth(total - leased - delayed, leased, delayed)

    return await queue.store.writer.read(look)


class Walk:
    """Anything that can be done to a queue, with receipts that may be stale."""

    def __init__(self, seed: int, clock: SetClock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.held: list[Delivery] = []
        self.seen: set[str] = set()

    async def step(self, queue: EmbeddedQueue) -> None:
        what = self.rng.choices(("publish", "receive", "ack", "nack", "extend", "wait"), (3, 4, 4, 3, 1, 3))[0]
        self.seen.add(what)
        some = self.rng.sample(self.held, min(len(self.held), self.rng.randint(1, 4)))
        if what == "publish":
            groups = self.rng.choices(("a", "b", "c", None), k=self.rng.randint(1, 6))
            await queue.publish([Outgoing("x", group, self.rng.choice((None, "1", "2"))) for group in groups])
        elif what == "receive":
            self.held += await take(queue, self.rng.randint(1, 8))
        elif what == "ack":
            await queue.ack(some)
        elif what == "nack":
            await queue.nack(some, self.rng.choice((0, 5, 70, 200)), unlock=self.rng.random() < 0.3)
        elif what == "extend":
            await queue.extend(some, self.rng.choice((1, 100)))
        else:
            self.clock.now += self.rng.choice((1.0, 10.0, 61.0))


@pytest.mark.parametrize("seed", range(20))
async def test_depth_is_what_a_look_at_each_message_gives(tmp_path: Path, seed: int) -> None:
    walk = Walk(seed, SetClock())
    for _ in range(3):  # each time it is closed and opened again
        async with opened(tmp_path / "queue.db", walk.clock) as queue:
            for _ in range(40):
                await walk.step(queue)
                assert await queue.depth() == await by_each_message(queue)
    assert len(walk.seen) == 6


async def test_a_receipt_from_before_a_message_moved_to_a_lane_of_its_own_is_stale(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        await queue.publish(grouped("a1"))
        before = await take(queue)
        await queue.nack(before, 0, unlock=True)
        after = await take(queue)  # of its own lane, the first lease too
        assert await queue.nack([*before, *after], 5, unlock=True) == [Settled.GONE, Settled.OK]
        assert await queue.depth() == Depth(0, 0, 1)


async def test_depth_counts_what_other_processes_publish_and_remove(tmp_path: Path) -> None:
    clock = SetClock()
    async with opened(tmp_path / "queue.db", clock) as one, opened(tmp_path / "queue.db", clock) as other:
        await other.publish(grouped("a1", "b1", "c1"))
        await one.ack(await take(one, 1))
        assert await one.depth() == await other.depth() == Depth(2, 0, 0)


async def test_cost_of_depth_does_not_grow_with_what_is_leased_or_delayed(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        costs = []
        for size in (100, 5_000):
            sized = await another(queue.store, f"hidden {size}")
            await sized.publish([Outgoing("x") for _ in range(2 * size)])
            held: list[Delivery] = []
            while len(held) < 2 * size:
                held += await take(sized)
            await sized.nack(held[size:], 60)
            assert await sized.depth() == Depth(0, size, size)
            job = partial(embedded_jobs.depth, queue=sized.name, now=queue.store.now())
            costs.append(await instructions(sized, job))
        assert costs[1] < costs[0] * 1.1


async def test_cost_of_depth_does_not_grow_with_what_waits(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        costs = []
        for size in (100, 20_000):
            sized = await another(queue.store, f"depth {size}")
            await sized.publish([Outgoing("x", f"g{n % 50}") for n in range(size)])
            await take(sized, 10)
            job = partial(embedded_jobs.depth, queue=sized.name, now=queue.store.now())
            costs.append(await instructions(sized, job))
        assert costs[1] < costs[0] * 1.1


async def test_the_oldest_message_is_that_of_a_look_at_each_where_groups_are_few(tmp_path: Path) -> None:
    def by_each(connection: sqlite3.Connection) -> float | None:
        each = "SELECT min(published_at) FROM lanes AS l JOIN messages AS m ON m.lane = l.id WHERE l.queue = 'orders'"
        oldest: float | None = connection.execute(each).fetchone()[0]
        return oldest

    walk = Walk(7, clock := SetClock())
    async with opened(tmp_path / "queue.db", clock) as queue:
        for _ in range(150):
            await walk.step(queue)
            assert (await queue.depth()).oldest_at == await queue.store.writer.read(by_each)


async def test_the_group_that_waits_longest_in_each_pool_tells_of_its_age_behind_any_number_of_others(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "queue.db", clock := SetClock()) as queue:
        began = clock.wall()
        await queue.publish([Outgoing('{"id": "1", "mediationTarget": "http://h", "poolCode": "Z"}', "first")])
        clock.now += 100
        more = 2 * inspect.MOST_LANES_LOOKED_AT
        await queue.publish(
            [
                Outgoing('{"id": "1", "mediationTarget": "http://h", "poolCode": "A"}', f"g{number}")
                for number in range(more)
            ]
        )
        assert (await queue.depth()).oldest_at == began


async def test_cost_of_the_age_of_the_oldest_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue.db", SetClock()) as queue:
        costs = []
        for size in (2000, 20_000):
            sized = await another(queue.store, f"of {size}")
            await sized.publish([Outgoing("x", f"g{number}") for number in range(size)])
            costs.append(await instructions(queue, partial(inspect.oldest_at, queue=sized.name)))
        assert costs[1] < costs[0] * 1.1
