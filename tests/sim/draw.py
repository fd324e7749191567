"""Draw: choices from a seed, in words."""

import random

from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success
from flowcatalyst.simulation.queue import QueueFaults

POOLS = (DEFAULT_POOL, "A", "B")


class Draw:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def limits(self) -> PoolLimits:
        rng = self.rng
        return PoolLimits(
            concurrency=(slots := rng.randint(1, 6)),
            rate_per_minute=rng.choice((None, None, None, rng.randint(20, 120))),
            failure_scope=FailureScope.BATCH if self.chance(0.05) else FailureScope.GROUP,
            max_delivery_attempts=rng.choice((None, None, rng.randint(2, 8))),
            capacity=rng.choice((None, None, rng.randint(3, 20))),
            ack_before_next=self.chance(0.2),
            success=Success.ONLY_200 if slots % 3 == 0 else Success.ANY_2XX,
        )

    def pools(self) -> dict[str, PoolLimits]:
        """Sometimes without the default pool, which is then made on demand."""
        wanted = [code for code in POOLS if self.chance(0.75)]
        return {code: self.limits() for code in wanted or [DEFAULT_POOL]}

    def queue_faults(self) -> QueueFaults:
        faults = QueueFaults()
        if self.chance(0.35):
            return faults
        for name in QueueFaults.__slots__:
            if self.chance(0.4):
                longest = 3.0 if name == "latency_s" else 0.25
                setattr(faults, name, self.rng.uniform(0.02, longest))
        return faults

    def mode(self) -> DispatchMode | None:
        modes = (None, None, DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE)
        return self.rng.choice(modes)
