"""The memory queue, in each of its personalities, under the conformance suite, in virtual time."""

from collections.abc import Sequence
from typing import Any

import pytest

from flowcatalyst.message import Delivery, Settled
from flowcatalyst.queues.contract import BrokerQueue, Capabilities
from flowcatalyst.queues.memory import MemoryQueue
from tests.conformance.bench import Bench
from tests.conformance.queue_suite import QueueSuite
from tests.conformance.random_walk import LEASE_S, Walk
from tests.support.virtual_loop import VirtualClock


class MemoryBench(Bench):
    """All clients are one object: there is only this process."""

    has_server = False

    def __init__(self, ordered: bool, *, selects_pools: bool = False) -> None:
        super().__init__()
        self._selects_pools = selects_pools
        self.clock = VirtualClock()
        self._ordered = ordered
        self._queue: MemoryQueue | None = None

    @property
    def capabilities(self) -> Capabilities:
        return MemoryQueue("q", self.clock, ordered=self._ordered, selects_pools=self._selects_pools).capabilities

    def make(self, visibility_s: float) -> BrokerQueue:
        if self._queue is None:
            self._queue = MemoryQueue(
                "q",
                self.clock,
                ordered=self._ordered,
                selects_pools=self._selects_pools,
                visibility_s=visibility_s,
            )
        return self._queue

    async def cut(self, client: BrokerQueue) -> None:
        """Its leases run out."""

    def spoil(self, delivery: Delivery) -> None:
        delivery.receipt = (delivery.receipt[0], 1000)


@pytest.mark.parametrize(("ordered", "selects_pools"), [(True, False), (False, False), (True, True)])
async def test_many_random_walks(ordered: bool, selects_pools: bool) -> None:
    for seed in range(100):
        bench = MemoryBench(ordered, selects_pools=selects_pools)
        await Walk(bench, seed, ordered=bench.capabilities.ordered_takeover).go()


class Forgetful(MemoryQueue):
    """Confirms an ack now and then without doing it."""

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        done, forgotten = deliveries[:2], deliveries[2:]
        return [*await super().ack(done), *(Settled.OK for _ in forgotten)]


class Leaky(MemoryQueue):
    """Loses a message that is given back."""

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        return await self.ack(deliveries)


class Confused(MemoryQueue):
    """Shows what was given back behind its followers, though it claims to keep order."""

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        results = await super().nack(deliveries, delay_s, unlock=True)
        self._stored = dict(sorted(self._stored.items(), key=lambda one: (one[1].receives, one[0])))
        return results


class Generous(MemoryQueue):
    """Shows a message to two receivers at once."""

    def _lease(self, stored: Any, now: float) -> Delivery:
        delivery = super()._lease(stored, now)
        stored.visible_at = now
        return delivery


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Forgetful, "is shown after its ack"),
        (Leaky, "never shown"),
        (Confused, "is shown before"),
        (Generous, "is shown although held"),
    ],
)
async def test_a_random_walk_finds_out_a_queue_that_breaks_its_word(broken: type[MemoryQueue], words: str) -> None:
    bench = MemoryBench(ordered=True)
    bench._queue = broken("q", bench.clock, visibility_s=LEASE_S)
    with pytest.raises(AssertionError, match=words):
        await Walk(bench, 1, ordered=broken is Confused).go()


class TestOrderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=True)


class TestMemoryQueueThatSelectsPools(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=True, selects_pools=True)


class TestUnorderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=False)
