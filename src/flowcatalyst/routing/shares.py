"""SlotShares: how a pool divides its slots among those its messages go to. Pure: time comes in as an argument.

An endpoint that hangs keeps every slot it has until its attempts time out, perhaps for a quarter of an hour, and it
may have answered a moment ago. So nobody gets all slots of a pool that serves several: a tenth, at least one, stays
free for the others, unless the pool is very small. Who has not answered lately gets half of what the others leave free.
Who timed out gets one slot, and a deadline that is short at first, until it answers. One slot can always be had.

A share is counted twice, by endpoint (scheme, host, port and path) and by origin (without the path): one path that
hangs must not stop the others of its host, and a host that hangs must not get a share for each of its paths.
"""

from collections import OrderedDict
from typing import Final

ANSWERS_COUNT_S: Final = 60.0  # who answered within this time, or twice its slowest answer, is known to answer
FEWEST_TO_SPARE: Final = 4  # a smaller pool has no slot to keep free for somebody who is not there
OTHERS_COUNT_S: Final = 3600.0  # for so long a slot is kept free for somebody who is not there
FIRST_PROBE_S: Final = 10.0
MOST_REMEMBERED: Final = 1000


def probe_timeout_s(slowest_s: float, failed: int) -> float:
    """Deadline of an attempt at somebody who timed out before: short, but long enough for a slow one in the end."""
    return float(max(FIRST_PROBE_S, 2 * slowest_s) * 2 ** min(failed, 10))


class _Share:
    """What is known of one endpoint or origin."""

    __slots__ = ("answered_at", "in_flight", "slowest_s", "timed_out_at", "timeouts", "used_at")

    def __init__(self) -> None:
        self.in_flight = 0
        self.used_at = 0.0
        self.answered_at = float("-inf")
        self.slowest_s = 0.0  # of its answers, slowly forgotten
        self.timeouts = 0  # in a row, one after the other: those that hung together are one
        self.timed_out_at = float("-inf")

    def answers(self, now: float) -> bool:
        return now - self.answered_at <= max(ANSWERS_COUNT_S, 2 * self.slowest_s)


class SlotShares:
    """The shares of one pool on one level, endpoints or origins."""

    def __init__(self) -> None:
        self._shares: OrderedDict[str, _Share] = OrderedDict()  # used longest ago first
        self.all_in_flight = 0

    def __len__(self) -> int:
        return len(self._shares)

    def __repr__(self) -> str:
        return f"<SlotShares {' '.join(f'{name}={share.in_flight}' for name, share in self._shares.items())}>"

    def __contains__(self, name: str) -> bool:
        return name in self._shares

    def in_flight(self, name: str) -> int:
        share = self._shares.get(name)
        return 0 if share is None else share.in_flight

    def may_start(self, name: str, slots: int, now: float) -> bool:
        """Whether one more attempt fits into the share, in a pool with so many slots."""
        share = self._shares.get(name)
        return share is None or share.in_flight == 0 or share.in_flight < self.limit(name, slots, now)

    def limit(self, name: str, slots: int, now: float) -> int:
        share = self._shares.get(name)
        if share is not None and share.timeouts:
            return 1
        if share is None or not share.answers(now):
            used_by_others = self.all_in_flight - (share.in_flight if share is not None else 0)
            return max(1, (slots - used_by_others) // 2)
        self._forget_idle(now)
        alone = len(self._shares) == 1 or slots < FEWEST_TO_SPARE
        return slots if alone else slots - max(1, slots // 10)

    def timeout_s(self, name: str) -> float | None:
        """The deadline of the next attempt where it has to be short; None: the usual one."""
        share = self._shares.get(name)
        if share is None or not share.timeouts:
            return None
        return probe_timeout_s(share.slowest_s, share.timeouts - 1)

    def start(self, name: str, now: float) -> None:
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _Share()
            if len(self._shares) > MOST_REMEMBERED:
                self._forget_idle(float("inf"))
        else:
            self._shares.move_to_end(name)
        share.in_flight += 1
        share.used_at = now
        self.all_in_flight += 1

    def end(self, name: str, now: float, started_at: float, timed_out: bool | None) -> None:
        """An attempt ended. Timed out or not; None: it was cut off, which tells nothing."""
        share = self._shares[name]
        share.in_flight -= 1
        self.all_in_flight -= 1
        if timed_out:
            if share.answered_at <= started_at:  # else it was only this attempt that hung
                share.timeouts += started_at >= share.timed_out_at
            share.timed_out_at = now
        elif timed_out is not None:
            share.timeouts = 0
            share.answered_at = now
            share.slowest_s = max(now - started_at, 0.9 * share.slowest_s)

    def _forget_idle(self, now: float) -> None:
        """Forget the one used longest ago if it has not been for an hour; with the time infinite, in any case."""
        oldest = next(iter(self._shares))
        share = self._shares[oldest]
        if share.in_flight:
            self._shares.move_to_end(oldest)
        elif now - share.used_at > OTHERS_COUNT_S:
            del self._shares[oldest]
