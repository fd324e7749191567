"""The random walk of the conformance suite finds out queues that break their word."""

from collections.abc import Sequence
from typing import Any

import pytest

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.memory import MemoryQueue
from tests.conformance.memory_bench import MemoryBench
from tests.conformance.random_walk import LEASE_S, Walk

pytestmark = pytest.mark.virtual_time


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
