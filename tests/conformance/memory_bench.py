"""The memory queue on the bench of the conformance suite."""

from flowcatalyst.core.message import Capabilities, Delivery
from flowcatalyst.queues.contract import BrokerQueue
from flowcatalyst.queues.memory import MemoryQueue
from tests.conformance.bench import Bench
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
