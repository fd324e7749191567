"""The fence between a router that may work and one that may not. Pure: time comes in as an argument."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Fence:
    """Until when work may be started, on the monotonic clock. Pools look at it before each attempt.

    Nothing has to run for the fence to close: it holds right after a process wakes up from a pause.
    """

    until: float = math.inf  # inf: no standby configured
    share_until: float = math.inf  # our share of the pools is ours; inf: they are not divided

    def allows(self, now: float) -> bool:
        return now < self.until and now < self.share_until
