"""What a pool counts on its hot path: plain integers, read when somebody asks."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from flowcatalyst.message import Result

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


@dataclass(slots=True)
class PoolStats:
    """Counts since the pool was made."""

    attempts: Counter[Result] = field(default_factory=Counter)  # attempts by what they meant
    delivered: int = 0
    retried: int = 0  # attempts followed by another one inside the router
    given_back: int = 0  # messages nacked to their queue
    dead_lettered: int = 0
    rate_limit_waits: int = 0
    duration_sum_s: float = 0.0
    duration_counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_S) + 1))

    def attempt(self, result: Result, duration_s: float) -> None:
        self.attempts[result] += 1
        self.duration_sum_s += duration_s
        self.duration_counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
