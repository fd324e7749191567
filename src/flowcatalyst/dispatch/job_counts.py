"""What this process counts about jobs: plain integers, read when somebody asks."""

from bisect import bisect_left
from dataclasses import dataclass, field
from math import isinf
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import ACK, DEFAULT_POOL, Delivery, Nack, Outcome, Verdict
from flowcatalyst.router.pool_tools import AttemptLog

# From the time when a job could start to its completion.
DURATION_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
MAX_PARKED_POOLS: Final = 20  # that are told apart: whoever makes jobs chooses their names
OTHER_POOLS: Final = "others"


@dataclass(slots=True)
class JobCounts:
    """Since the process started."""

    created: int = 0
    completed: int = 0
    failed: int = 0  # attempts that count as failures
    parked: int = 0  # jobs that wait for a person after one
    cancelled: int = 0
    expired: int = 0
    dropped: int = 0  # finished ones that were too old
    duration_sum_s: float = 0.0
    duration_counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_S) + 1))
    newly_parked: set[str] = field(default_factory=set)  # pools with jobs that were; who tells of one takes it out

    def attempt(self, delivery: Delivery, outcome: Outcome, verdict: Verdict, wall: float) -> None:
        """An attempt at a job ended."""
        self.failed += outcome.counts
        if verdict is ACK:
            self.completed += 1
            if delivery.due_at:
                took_s = max(0.0, wall - delivery.due_at)
                self.duration_sum_s += took_s
                self.duration_counts[bisect_left(DURATION_BUCKETS_S, took_s)] += 1
        elif isinstance(verdict, Nack) and isinf(verdict.delay_s):
            self.parked += 1
            pool = delivery.pointer.pool_code or DEFAULT_POOL
            known = pool in self.newly_parked or len(self.newly_parked) < MAX_PARKED_POOLS
            self.newly_parked.add(pool if known else OTHER_POOLS)


class CountedAttempts:
    """An attempt log that also counts the attempts at jobs."""

    def __init__(self, log: AttemptLog, counts: JobCounts, clock: Clock) -> None:
        self._log = log
        self._counts = counts
        self._clock = clock

    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        if delivery.terms is not None:
            self._counts.attempt(delivery, outcome, verdict, self._clock.wall())
        self._log.attempt(pool, delivery, outcome, verdict, duration_s)
