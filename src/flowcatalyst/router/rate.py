"""A limit on starts in any 60 seconds. Pure: time comes in as an argument."""

from collections import deque
from math import inf

WINDOW_S = 60.0


class SlidingWindow:
    """At most `per_minute` permits in any window of 60 s; None means no limit, 0 that another process has them all.

    The limit can change at any time. Permits already given keep counting, so a lowered limit is obeyed at once and
    a raised one never lets more than the new number into a window. Starts without any limit are not remembered: a
    limit set later counts from then on.
    """

    def __init__(self, per_minute: int | None) -> None:
        self._starts: deque[float] = deque()
        self.per_minute: int | None = None
        self.change(per_minute)

    def __repr__(self) -> str:
        return f"<SlidingWindow {len(self._starts)}/{'unlimited' if self.per_minute is None else self.per_minute}>"

    def change(self, per_minute: int | None) -> None:
        if per_minute is not None and per_minute < 0:
            raise ValueError(f"a rate limit must be at least 0 per minute, not {per_minute}")
        self.per_minute = per_minute

    def available(self, now: float) -> int | None:
        """Permits to be had now; None: any number."""
        if self.per_minute is None:
            return None
        self._forget_old(now)
        return max(0, self.per_minute - len(self._starts))

    def next_permit_at(self, now: float) -> float:
        """When a permit can be had: `now` or later; infinity: not before the limit changes."""
        if self.per_minute is None:
            return now
        if not self.per_minute:
            return inf
        self._forget_old(now)
        if len(self._starts) < self.per_minute:
            return now
        return self._starts[len(self._starts) - self.per_minute] + WINDOW_S

    def used(self, now: float) -> int:
        """Starts of the last 60 s."""
        self._forget_old(now)
        return len(self._starts)

    def take(self, now: float) -> None:
        """Use a permit. Only right after `next_permit_at(now)` said `now`."""
        if self.per_minute is not None:
            assert len(self._starts) < self.per_minute
            self._starts.append(now)

    def _forget_old(self, now: float) -> None:
        starts = self._starts
        while starts and starts[0] + WINDOW_S <= now:
            starts.popleft()
