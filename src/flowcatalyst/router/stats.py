"""What a pool counts on its hot path: plain integers, read when somebody asks."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowcatalyst.core.message import Result
from flowcatalyst.router.slow_groups import SlowGroups

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
# From the time when a message could be delivered to its success.
LAG_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)


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
    lag_sum_s: float = 0.0  # of messages whose queue tells since when they could be delivered
    lag_counts: list[int] = field(default_factory=lambda: [0] * (len(LAG_BUCKETS_S) + 1))
    slow_groups: SlowGroups = field(default_factory=SlowGroups, compare=False)  # of late; a window has none

    def attempt(self, result: Result, duration_s: float) -> None:
        self.attempts[result] += 1
        self.duration_sum_s += duration_s
        self.duration_counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1

    def lag(self, seconds: float) -> None:
        """A message was delivered so long after it could be. Clocks differ: less than nothing is nothing."""
        self.lag_counts[bisect_left(LAG_BUCKETS_S, seconds)] += 1
        if seconds > 0.0:
            self.lag_sum_s += seconds

    @property
    def mean_duration_s(self) -> float | None:
        """None: there was no attempt."""
        attempts = sum(self.duration_counts)
        return self.duration_sum_s / attempts if attempts else None

    def duration_quantile_s(self, share: float) -> float | None:
        """How long the fastest `share` of the attempts took at most; None: there was no attempt."""
        return quantile(DURATION_BUCKETS_S, self.duration_counts, share)

    def lag_quantile_s(self, share: float) -> float | None:
        """How late the most punctual `share` of the messages came at most; None: there was none that can tell."""
        return quantile(LAG_BUCKETS_S, self.lag_counts, share)


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """What the least `share` of all that was counted in buckets is at most; None: nothing was.

    An estimate: it is taken as spread evenly over each bucket, and above the last bound as at that bound.
    """
    rank = sum(counts) * share
    lower, below = 0.0, 0
    for upper, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        lower, below = upper, below + count
    return bounds[-1] if rank else None
