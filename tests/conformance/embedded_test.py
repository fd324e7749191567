"""The embedded queue under the conformance suite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import BrokerQueue
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.conformance.bench import Bench
from tests.conformance.front_suite import FrontSuite
from tests.conformance.inspection_suite import InspectionSuite
from tests.conformance.queue_suite import QueueSuite


class EmbeddedBench(Bench):
    """Each client has a store of its own on the same file, as another process would."""

    has_server = False

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "queue.db"

    def make(self, visibility_s: float) -> BrokerQueue:
        return EmbeddedQueue(EmbeddedStore(self._file, self.clock), "orders", visibility_s=visibility_s)

    async def cut(self, client: BrokerQueue) -> None:
        """The real thing, a process that is killed, is in tests/crash/embedded_lease_test.py; here its leases end."""
        assert isinstance(client, EmbeddedQueue)
        await client.store.writer.close()

    def spoil(self, delivery: Delivery) -> None:
        delivery.receipt = delivery.receipt._replace(epoch=delivery.receipt.epoch + 1000)


class TestEmbeddedQueue(QueueSuite, FrontSuite, InspectionSuite):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        bench = EmbeddedBench(tmp_path)
        yield bench
        await bench.close()
