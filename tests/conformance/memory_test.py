"""The memory queue, in both of its personalities, under the conformance suite, in virtual time."""

import pytest

from flowcatalyst.message import Delivery
from flowcatalyst.queues.contract import BrokerQueue, Capabilities
from flowcatalyst.queues.memory import MemoryQueue
from tests.conformance.bench import Bench
from tests.conformance.queue_suite import QueueSuite
from tests.support.virtual_loop import VirtualClock


class MemoryBench(Bench):
    """All clients are one object: there is only this process."""

    has_server = False

    def __init__(self, ordered: bool) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self._ordered = ordered
        self._queue: MemoryQueue | None = None

    @property
    def capabilities(self) -> Capabilities:
        return MemoryQueue("q", self.clock, ordered=self._ordered).capabilities

    def make(self, visibility_s: float) -> BrokerQueue:
        if self._queue is None:
            self._queue = MemoryQueue("q", self.clock, ordered=self._ordered, visibility_s=visibility_s)
        return self._queue

    async def cut(self, client: BrokerQueue) -> None:
        """Its leases run out."""

    def spoil(self, delivery: Delivery) -> None:
        delivery.receipt = (delivery.receipt[0], 1000)


class TestOrderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=True)


class TestUnorderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=False)
