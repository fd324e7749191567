"""What a pool did in the last minutes: differences between snapshots of its counts. Its hot path pays nothing."""

from array import array
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final, TypeAlias

from flowcatalyst.core.message import Result
from flowcatalyst.router.stats import DURATION_BUCKETS_S, PoolStats

SNAPSHOT_PERIOD_S: Final = 30.0
LONGEST_WINDOW_S: Final = 30 * 60.0

# A pool's counts in a row. A thousand pools keep sixty sets of them each, so they are packed.
_Counts: TypeAlias = "array[float]"


@dataclass(slots=True, frozen=True)
class Snapshot:
    """What a pool had counted at a moment."""

    at: float
    counts: _Counts


@dataclass(slots=True, frozen=True)
class Window:
    """What a pool counted in the last `seconds`."""

    seconds: float
    stats: PoolStats


class PoolWindows:
    """Remembers the counts of one pool for half an hour. Times are monotonic.

    Somebody has to call `snapshot` every 30 seconds. If it is called less often, windows reach further back.
    """

    def __init__(self, stats: PoolStats, now: float) -> None:
        self._stats = stats
        self._snapshots = deque([Snapshot(now, _counts_of(stats))])

    def __len__(self) -> int:
        return len(self._snapshots)

    def snapshot(self, now: float) -> None:
        """Remember the counts of now. Called more often than every 30 seconds, it does nothing."""
        last = self._snapshots[-1]
        if now - last.at < SNAPSHOT_PERIOD_S:
            return
        counts = _counts_of(self._stats)
        # An idle pool keeps one set of counts, however long it is idle.
        self._snapshots.append(Snapshot(now, last.counts if counts == last.counts else counts))
        while self._snapshots[1].at <= now - LONGEST_WINDOW_S:
            self._snapshots.popleft()

    def window(self, seconds: float, now: float) -> Window:
        """From the last snapshot that is at least so old to now, or from the first one if none is.

        `seconds` of the window says how long that is: up to 30 seconds more than asked for, less in a young pool.
        """
        start = self._snapshots[0]
        for snapshot in self._snapshots:
            if snapshot.at > now - seconds:
                break
            start = snapshot
        changes = [new - old for new, old in zip(_counts_of(self._stats), start.counts, strict=True)]
        return Window(now - start.at, _stats_of(changes))


def _counts_of(stats: PoolStats) -> _Counts:
    return array(
        "d",
        [
            stats.delivered,
            stats.retried,
            stats.nacked,
            stats.dead_lettered,
            stats.rate_limit_waits,
            stats.duration_sum_s,
            stats.lag_sum_s,
            *(stats.attempts[result] for result in Result),
            *stats.duration_counts,
            *stats.lag_counts,
        ],
    )


def _stats_of(counts: list[float]) -> PoolStats:
    """The inverse of `_counts_of`."""
    delivered, retried, nacked, dead_lettered, rate_limit_waits, duration_sum_s, lag_sum_s, *rest = counts
    lags_from = len(Result) + len(DURATION_BUCKETS_S) + 1
    attempts, duration_counts, lag_counts = rest[: len(Result)], rest[len(Result) : lags_from], rest[lags_from:]
    return PoolStats(
        attempts=Counter(dict(zip(Result, map(int, attempts), strict=True))),
        delivered=int(delivered),
        retried=int(retried),
        nacked=int(nacked),
        dead_lettered=int(dead_lettered),
        rate_limit_waits=int(rate_limit_waits),
        duration_sum_s=duration_sum_s,
        duration_counts=list(map(int, duration_counts)),
        lag_sum_s=lag_sum_s,
        lag_counts=list(map(int, lag_counts)),
    )
