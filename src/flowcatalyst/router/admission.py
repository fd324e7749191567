"""Admission: how many messages a pool asks for, so that nothing is received that it cannot take."""

from collections.abc import Callable
from typing import Final

from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.rate import SlidingWindow

LOOK_AHEAD_S: Final = 0.25
MOST_DOUBLINGS: Final = 10
LOOKS_END_S: Final = 1.0  # without a look, after which the next one begins small again
MOST_AWAITED: Final = 100_000  # groups that wait for a nacked message: they cost memory, but no work
GRAIN_S: Final = 0.001  # a timer may ring this much early


class Admission:
    """What cannot start takes no place from what could.

    Messages on hold or at an open breaker do not count against the capacity. A slot that nothing in memory can use asks
    for more in any case. While there is something in memory that only its share of the slots keeps from starting it
    looks ahead now and then, further each time: something for another endpoint may be anywhere in the queue. Apart
    from that a pool does not ask for a few at a time, because each time costs a round trip.
    """

    def __init__(self, scheduler: GroupScheduler, rate: SlidingWindow, now: Callable[[], float]) -> None:
        self.on_capacity: Callable[[], None] = lambda: None  # called when there is room after somebody asked in vain
        self.asked_in_vain = False
        self.looks_ahead_at = 0.0  # not before, for what could start in place of those that wait for their share
        self._looks = 0  # ahead, one after the other
        self._look_left = 0  # how many more messages the latest of them may bring
        self._scheduler = scheduler
        self._rate = rate
        self._now = now

    def free_capacity(self, limits: PoolLimits) -> int:
        """How many more messages the pool asks for."""
        scheduler, capacity = self._scheduler, limits.effective_capacity
        some = max(1, capacity // 4)
        wanted = capacity - len(scheduler) + scheduler.stalled
        if wanted < some:
            now = self._now()
            idle = scheduler.in_flight + scheduler.ready_count < limits.concurrency
            if not idle or self._rate.next_permit_at(now) > now:
                return 0
            wanted = self._look_left if now + GRAIN_S < self.looks_ahead_at else self._look(some)
        allowed = limits.most - len(scheduler)
        if allowed >= some and scheduler.awaiting < MOST_AWAITED:
            return max(0, min(wanted, allowed))
        # It holds all it may: only what its groups wait for is taken, and looked for now and then.
        return some if scheduler.awaiting and self._now() + GRAIN_S >= self.looks_ahead_at else 0

    def note(self, free_capacity: int) -> None:
        """Somebody asked and was told this."""
        self.asked_in_vain |= not free_capacity

    def shed(self, limits: PoolLimits) -> int:
        """How many messages at gates may return to their queue now: all that the pool may hold waits, a slot is free.

        Their groups are let go from there, a few at a time and the latest first, so that something for another endpoint
        can come in.
        """
        scheduler, now = self._scheduler, self._now()
        some, idle = max(1, limits.effective_capacity // 4), scheduler.in_flight + scheduler.ready_count
        if limits.most - len(scheduler) >= some or idle >= limits.concurrency or not scheduler.gates:
            return 0
        if now + GRAIN_S < self.looks_ahead_at or self._rate.next_permit_at(now) > now:
            return 0
        self.looks_ahead_at = now + LOOK_AHEAD_S
        left = limits.effective_capacity
        for gate in list(scheduler.gates_in_turn()):
            groups = min(left, len(scheduler.gates[gate]))
            scheduler.open(gate, groups, last=True)
            left -= groups
        return limits.effective_capacity

    def begin_looks(self) -> None:
        """Something waits for its share of the slots: other things may have to be looked for."""
        now = self._now()
        if now - self.looks_ahead_at > LOOKS_END_S:  # else it is not the first, and may not put off a look that is due
            self._looks = self._look_left = 0
            self.looks_ahead_at = now + LOOK_AHEAD_S

    def pause_looks(self) -> None:
        """What a look brought was refused: there is no place for more of it yet."""
        self.looks_ahead_at = self._now() + LOOK_AHEAD_S

    def count_look(self, limits: PoolLimits) -> None:
        """A message came while others wait for their share. Did a look bring it, or was there room for it?"""
        some = max(1, limits.effective_capacity // 4)
        if limits.effective_capacity - len(self._scheduler) + self._scheduler.stalled >= some:
            return
        now = self._now()
        if now + GRAIN_S >= self.looks_ahead_at:
            self._look_left = self._look(some)
            self._looks += 1
            self.looks_ahead_at = now + LOOK_AHEAD_S
        self._look_left -= 1

    def _look(self, some: int) -> int:
        """How many messages the next look may bring."""
        return some << min(self._looks, MOST_DOUBLINGS)

    def tell(self) -> None:
        """There is free capacity, or never will be any: whoever asked in vain looks again."""
        self.asked_in_vain = False
        self.on_capacity()
