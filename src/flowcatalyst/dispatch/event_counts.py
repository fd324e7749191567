"""What this process counts about events: plain integers, read when somebody asks. Nothing is told apart by type or
source: whoever sends events chooses those."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from flowcatalyst.dispatch.store.platform_contract import EventAccepted

JOBS_BUCKETS: Final = (0, 1, 2, 5, 10, 50, 100, 1000)  # that one event made
MATCHING_BUCKETS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


@dataclass(slots=True)
class EventCounts:
    """Since the process started."""

    accepted: int = 0
    repeated: int = 0  # whose deduplication id was known
    jobs_sum: int = 0
    jobs_counts: list[int] = field(default_factory=lambda: [0] * (len(JOBS_BUCKETS) + 1))
    matching_sum_s: float = 0.0
    matching_counts: list[int] = field(default_factory=lambda: [0] * (len(MATCHING_BUCKETS_S) + 1))

    def matched(self, took_s: float) -> None:
        """It was found out who wants an event."""
        self.matching_sum_s += took_s
        self.matching_counts[bisect_left(MATCHING_BUCKETS_S, took_s)] += 1

    def kept(self, accepted: Sequence[EventAccepted]) -> None:
        """Events are durable, or were so before."""
        for one in accepted:
            if one.repeated:
                self.repeated += 1
                continue
            self.accepted += 1
            self.jobs_sum += one.kept.jobs
            self.jobs_counts[bisect_left(JOBS_BUCKETS, one.kept.jobs)] += 1
