"""What a pool counts on its hot path: plain integers, read when somebody asks."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from flowcatalyst.core.message import Result

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


@dataclass(slots=True)
class PoolStats:
    """Counts since the pool was made, or in a window of its time: see `windows`."""

    attempts: Counter[Result] = field(default_factory=Counter)  # attempts by what they meant
    delivered: int = 0
    retried: int = 0  # attempts followed by another one inside the router
    nacked: int = 0  # messages nacked to their queue
    dead_lettered: int = 0
    rate_limit_waits: int = 0
    duration_sum_s: float = 0.0
    duration_counts: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BUCKETS_S) + 1))

    def attempt(self, result: Result, duration_s: float) -> None:
        self.attempts[result] += 1
        self.duration_sum_s += duration_s
        self.duration_counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1

    @property
    def mean_duration_s(self) -> float | None:
        """None: there was no attempt."""
        attempts = sum(self.duration_counts)
        return self.duration_sum_s / attempts if attempts else None

    def duration_quantile_s(self, share: float) -> float | None:
        """How long the fastest `share` of the attempts took at most; None: there was no attempt.

        An estimate: attempts are taken as spread evenly over their bucket, and above the last bound as at that bound.
        """
        rank = sum(self.duration_counts) * share
        lower_s, below = 0.0, 0
        for upper_s, attempts in zip(DURATION_BUCKETS_S, self.duration_counts, strict=False):
            if attempts and below + attempts >= rank:
                return lower_s + (upper_s - lower_s) * (rank - below) / attempts
            lower_s, below = upper_s, below + attempts
        return DURATION_BUCKETS_S[-1] if rank else None
