"""SlotShares: how a pool divides its slots among those its messages go to. Pure: time comes in as an argument.

An endpoint that hangs keeps every slot it has until its attempts time out, perhaps for a quarter of an hour, and it
may have answered a moment ago. So nobody gets all slots of a pool that serves several: a tenth, at least one, stays
free for the others, unless the pool is very small. Who has not answered lately gets half of what the others leave free.
Who timed out gets one slot, and a deadline that is short at first, until it answers. One slot can always be had.

What hangs says nothing of whether its endpoint is well again. So whoever has used up its share and is silent may start
one attempt more each time it has been silent twice as long, as long as that leaves a slot to others.

A share is counted twice, by endpoint (scheme, host, port and path) and by origin (without the path): one path that
hangs must not stop the others of its host, and a host that hangs must not get a share for each of its paths.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

ANSWERS_COUNT_S: Final = 60.0  # who answered within this time, or twice its slowest answer, is known to answer
FEWEST_TO_SPARE: Final = 4  # a smaller pool has no slot to keep free for somebody who is not there
OTHERS_COUNT_S: Final = 3600.0  # for so long a slot is kept free for somebody who is not there
FIRST_PROBE_S: Final = 10.0
MOST_REMEMBERED: Final = 1000
LOOKED_AT: Final = 8  # when one has to be forgotten
LATEST: Final = 64  # successes whose durations are kept
SLOW_S: Final = 5.0  # how long faster answers take makes no difference


def probe_timeout_s(slowest_s: float, failed: int) -> float:
    """Deadline of an attempt at somebody who timed out before: short, but long enough for a slow one in the end."""
    return float(max(FIRST_PROBE_S, 2 * slowest_s) * 2 ** min(failed, 10))


def slowest(slowest_s: float, took_s: float) -> float:
    """The slowest of the answers that took long, once one more came. It is forgotten slowly."""
    slowest_s = max(took_s, 0.9 * slowest_s)
    return slowest_s if slowest_s > SLOW_S else 0.0


class Share:
    """What is known of one endpoint or origin."""

    __slots__ = (
        "answered_at",
        "busy_from",
        "calm",
        "delivered",
        "failed",
        "in_flight",
        "name",
        "slowest_s",
        "timed_out_at",
        "timeouts",
        "took_s",
        "used_at",
    )

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.in_flight = 0
        self.busy_from = self.used_at = now  # when it had nothing in flight last, and when an attempt began last
        self.answered_at = float("-inf")
        self.slowest_s = 0.0  # of its answers that took long, slowly forgotten
        self.timeouts = 0  # in a row, one after the other: those that hung together are one
        self.timed_out_at = float("-inf")
        self.delivered = self.failed = 0  # attempts that ended so
        self.took_s = [0.0] * LATEST  # the latest successes, by their number
        self.calm = True  # it answers, and never takes long: one more answer that comes soon changes nothing

    def __repr__(self) -> str:
        return f"{self.name}={self.in_flight}"

    @property
    def timeout_s(self) -> float | None:
        """The deadline of the next attempt where it has to be short; None: the usual one."""
        return probe_timeout_s(self.slowest_s, self.timeouts - 1) if self.timeouts else None

    @property
    def latest_s(self) -> list[float]:
        """How long the latest successes took, in no order."""
        return self.took_s[: self.delivered] if self.delivered < LATEST else self.took_s

    def may_be_well_again(self, now: float) -> bool:
        """Whether one attempt more should find out: all that it has in flight has been silent for long."""
        silent_s = now - self.used_at  # since the latest of them began
        if self.timeouts:
            return silent_s > probe_timeout_s(
                self.slowest_s, self.timeouts - 1
            )  # that one is over, whatever came of it
        before_s = self.used_at - max(self.busy_from, self.answered_at)
        return self.answered_at <= self.used_at and silent_s >= max(FIRST_PROBE_S, 2 * self.slowest_s, before_s)

    def answers(self, now: float) -> bool:
        return now - self.answered_at <= max(ANSWERS_COUNT_S, 2 * self.slowest_s)

    def answered(self, now: float, took_s: float) -> None:
        self.timeouts = 0
        self.answered_at = now
        self.slowest_s = slowest(self.slowest_s, took_s)
        self.calm = not self.slowest_s

    def hung(self, now: float, started_at: float) -> None:
        """An attempt timed out."""
        if self.answered_at <= started_at:  # else it was only this attempt that hung
            self.timeouts += started_at >= self.timed_out_at
        self.timed_out_at = now
        self.calm = not self.timeouts and not self.slowest_s


class SlotShares:
    """The shares of one pool on one level, endpoints or origins."""

    def __init__(self, on_forget: Callable[[], object] = lambda: None) -> None:
        self._shares: OrderedDict[str, Share] = OrderedDict()  # those that `of` was asked for longest ago first
        self._on_forget = on_forget

    def __len__(self) -> int:
        return len(self._shares)

    def __repr__(self) -> str:
        return f"<SlotShares {' '.join(map(repr, self._shares.values()))}>"

    def __iter__(self) -> Iterator[Share]:
        return iter(list(self._shares.values()))

    def find(self, name: str) -> Share | None:
        return self._shares.get(name)

    def of(self, name: str, now: float) -> Share:
        """The share of an endpoint or origin, which has something to start now. It may be kept until `on_forget`."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(name, now)
            if len(self._shares) > MOST_REMEMBERED:
                self._make_place(now)
        return share

    def limit(self, share: Share, slots: int, in_flight: int, now: float) -> int:
        """How many attempts it may have in flight, in a pool with so many slots of which so many are in use.

        One that has none may start one whatever this says.
        """
        if share.timeouts:
            return 1
        if now - share.answered_at > ANSWERS_COUNT_S and not share.answers(now):
            return max(1, (slots - in_flight + share.in_flight) // 2)
        if len(self._shares) > 1:
            next_one = next(iter(self._shares.values()))  # in turn, and forgotten if nobody used it for an hour
            if next_one.in_flight or now - next_one.used_at <= OTHERS_COUNT_S:
                self._shares.move_to_end(next_one.name)
            else:
                self._forget(next_one)
        alone = len(self._shares) == 1 or slots < FEWEST_TO_SPARE
        return slots if alone else slots - max(1, slots // 10)

    def _make_place(self, now: float) -> None:
        """Forget one that has nothing in flight, rather not one that was used lately."""
        idle = None
        for _ in range(LOOKED_AT):
            share = next(iter(self._shares.values()))
            if not share.in_flight:
                idle = idle or share
                if now - share.used_at > ANSWERS_COUNT_S:
                    idle = share
                    break
            self._shares.move_to_end(share.name)
        if idle is not None:
            self._forget(idle)

    def _forget(self, share: Share) -> None:
        del self._shares[share.name]
        self._on_forget()
