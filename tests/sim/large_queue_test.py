"""The large queue does what the memory queue does, and its cost does not grow with the backlog."""

import random

import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.simulation.history import Facts, History, Kind
from flowcatalyst.simulation.large_queue import LargeQueue
from flowcatalyst.simulation.loop import VirtualClock, run_seeded
from tests.support.clocks import SetClock

VISIBILITY_S = 20.0


def facts_of(one: Delivery) -> tuple[object, ...]:
    return one.broker_id, one.receipt, one.body, one.group, one.receive_count, one.lease_until, one.failures


class Pair:
    """Both queues, asked the same things; every answer is compared."""

    def __init__(self, seed: int, *, ordered: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = SetClock()
        history = History(self.clock.monotonic)
        self.plain = MemoryQueue("q", self.clock, ordered=ordered, visibility_s=VISIBILITY_S)
        self.large = LargeQueue("q", self.clock, history, ordered=ordered, visibility_s=VISIBILITY_S)
        self.held: list[tuple[Delivery, Delivery]] = []  # also those whose receipt is worth nothing any more
        self.published = 0
        self.seen = 0

    async def step(self) -> None:
        names = ("publish", "receive", "receive", "ack", "ack", "nack", "extend", "wait", "close")
        weights = (4, 4, 4, 4, 4, 4, 2, 4, 0.1)
        await getattr(self, self.rng.choices(names, weights)[0])()
        assert len(self.plain) == len(self.large)

    async def publish(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self.published += 1
            group = self.rng.choice((None, "a", "b", "c", "d"))
            key = self.rng.choice((None, None, None, f"key-{self.rng.randint(0, 9)}"))
            message = Outgoing(f"body {self.published}", group, key)
            [plain] = await self.plain.publish([message])
            large = self.large.append(f"m{self.published}", message, Facts(group))
            assert plain == large

    async def receive(self) -> None:
        limit = self.rng.randint(1, 6)
        plain = await self.plain.receive(limit, 0.0)
        large = await self.large.receive(limit, 0.0)
        assert list(map(facts_of, plain)) == list(map(facts_of, large))
        self.seen += len(plain)
        self.held += zip(plain, large, strict=True)

    async def ack(self) -> None:
        plain, large = self.some()
        assert await self.plain.ack(plain) == await self.large.ack(large)

    async def nack(self) -> None:
        plain, large = self.some()
        delay_s, unlock = self.rng.choice((0.0, 1.0, 10.0, 30.0)), self.rng.random() < 0.2
        for one in (*plain, *large):
            one.failures = 3
        assert await self.plain.nack(plain, delay_s, unlock=unlock) == await self.large.nack(
            large, delay_s, unlock=unlock
        )

    async def extend(self) -> None:
        plain, large = self.some()
        assert await self.plain.extend(plain, 15.0) == await self.large.extend(large, 15.0)
        assert list(map(facts_of, plain)) == list(map(facts_of, large))

    async def wait(self) -> None:
        self.clock.now += self.rng.choice((0.1, 1.0, 5.0, 25.0))

    async def close(self) -> None:
        await self.plain.close()
        await self.large.close()

    def some(self) -> tuple[list[Delivery], list[Delivery]]:
        """Deliveries to settle, most of them recent; some stay here, so that stale receipts come up again."""
        recent = self.held[-12:] if self.rng.random() < 0.8 else self.held
        chosen = self.rng.sample(recent, min(len(recent), self.rng.randint(1, 4)))
        if self.rng.random() < 0.8:
            self.held = [pair for pair in self.held if pair not in chosen]
        return [plain for plain, _ in chosen], [large for _, large in chosen]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("seed", range(40))
async def test_large_queue_answers_every_call_as_the_memory_queue_does(seed: int, ordered: bool) -> None:
    pair = Pair(seed, ordered=ordered)
    for _ in range(400):
        await pair.step()
    assert pair.seen > 100, "the run must get somewhere"


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
async def test_large_queue_forgets_what_left_it(ordered: bool) -> None:
    pair = Pair(1, ordered=ordered)
    for _ in range(300):
        await pair.step()
    while len(pair.large):
        await pair.large.ack(await pair.large.receive(10, 0.0))
        pair.clock.now += 1.0
    pair.clock.now += 100.0
    assert await pair.large.receive(10, 0.0) == []
    assert pair.large.left == []
    inside = vars(pair.large)
    kept = {name: len(inside[name]) for name in ("_stored", "_hidden_until", "_timers", "_offers")}
    assert kept == {"_stored": 0, "_hidden_until": 0, "_timers": 0, "_offers": 0}
    assert len(inside["_lanes"]) <= 1, "an unordered queue has one lane, an empty ordered one has none"


def test_a_receive_waits_for_the_next_message_that_shows() -> None:
    async def live(loop: object) -> list[tuple[float, int]]:
        clock = VirtualClock()
        queue = LargeQueue("q", clock, History(clock.monotonic))
        queue.append("m", Outgoing("body", "g"), Facts("g"))
        took = []
        for delay_s in (3.0, 7.0):
            batch = await queue.receive(10, 20.0)
            took.append((clock.monotonic(), len(batch)))
            await queue.nack(batch, delay_s)
        batch = await queue.receive(10, 20.0)
        return [*took, (clock.monotonic(), len(batch))]

    assert run_seeded(1, live) == [(0.0, 1), (3.0, 1), (10.0, 1)]


async def test_large_queue_tells_the_history_what_a_simulated_queue_tells() -> None:
    clock = SetClock()
    history = History(clock.monotonic)
    queue = LargeQueue("q", clock, history)
    queue.append("m", Outgoing("body", "g"), Facts("g"))
    await queue.nack(await queue.receive(1, 0.0), 0.0)
    await queue.ack(await queue.receive(1, 0.0))
    kinds = [event.kind for event in history]
    assert kinds == [
        Kind.PUBLISHED,
        Kind.RECEIVED,
        Kind.NACK,
        Kind.NACKED,
        Kind.RECEIVED,
        Kind.ACK,
        Kind.REMOVED,
        Kind.ACKED,
    ]


async def test_a_message_that_left_its_lane_does_not_hide_those_behind_it() -> None:
    pair = Pair(1, ordered=True)
    for number, group in enumerate(("z", "a", "a", "a"), 1):
        message = Outgoing(f"body {number}", group)
        await pair.plain.publish([message])
        pair.large.append(f"m{number}", message, Facts(group))

    async def receive(queue: MemoryQueue, limit: int) -> list[Delivery]:
        return await queue.receive(limit, 0.0)

    taken: list[list[str]] = []
    for queue in (pair.plain, pair.large):
        pair.clock.now = 0.0
        await queue.ack([(first := await receive(queue, 4))[3]])
        pair.clock.now = VISIBILITY_S + 1  # all leases are over; the next receive shows what it does not take
        again = await receive(queue, 1)
        await queue.nack([first[2]], 0.0, unlock=True)
        message = Outgoing("body 5", "a")
        await queue.publish([message]) if queue is pair.plain else pair.large.append("m5", message, Facts("a"))
        await queue.ack([first[1], *again])
        taken.append([one.body for one in await receive(queue, 4) if isinstance(one.body, str)])
    assert taken[0] == taken[1] == ["body 3", "body 5"]
