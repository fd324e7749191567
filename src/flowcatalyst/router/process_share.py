"""ProcessShare: what this process may use of its pools while others are at work on the same store.

It takes part in two divisions, of slots and of permits. What they give holds for as long as our session at the store
lives. When that may have ended the fence is closed without anybody's help, and what is still in flight is cut off:
others may start as much from then on.
"""

from collections.abc import Mapping
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.queues.division import NOBODY, Division, Membership, Standing, Thing, next_division
from flowcatalyst.router.alarm import Alarm
from flowcatalyst.router.division import permits_of, share_of, slots_of
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.rate import WINDOW_S
from flowcatalyst.router.router import Router

STARTS_COUNT_S: Final = WINDOW_S + 1.0  # after the end of a process: clocks do not run equally fast

log = structlog.get_logger("flowcatalyst.processes")


class ProcessShare:
    """The `Member` that divides the limits of all pools of an engine."""

    def __init__(self, router: Router, fence: Fence, clock: Clock) -> None:
        self._router = router
        self._fence = fence
        self._now = clock.monotonic
        self._slots, self._permits = Membership(), Membership(STARTS_COUNT_S)
        self._alarm = Alarm(self._now, self._look_at_session)
        fence.share_until = 0.0

    def __repr__(self) -> str:
        return f"<ProcessShare slots={self._slots!r} permits={self._permits!r}>"

    @property
    def processes(self) -> int:
        """How many divide the limits; 0: we do not know."""
        return len(self._slots.division.newest.members)

    def divide(self, code: str, limits: PoolLimits) -> PoolLimits:
        """What we may use now of the limits of a pool."""
        return share_of(code, limits, self._slots, self._permits)

    def stop(self) -> None:
        """Nothing is in flight any more."""
        self._alarm.stop()

    # The `Member` of a store

    @property
    def hurries(self) -> bool:
        return not self._slots.is_settled

    def keeps_to(self, owner: int) -> Mapping[Thing, int]:
        now, pools = self._now(), self._router.all_pools()
        slots, permits = self._slots.future, self._permits.future
        few_slots = slots is not None and all(
            pool.in_flight <= slots_of(pool.code, pool.configured, slots) for pool in pools
        )
        few_permits = permits is not None and all(
            (most := permits_of(pool.code, pool.configured, permits)) is None or pool.rate.used(now) <= most
            for pool in pools
        )
        return {
            Thing.SLOTS: self._slots.keeps_to(owner, uses_no_more=few_slots, now=now),
            Thing.PERMITS: self._permits.keeps_to(owner, uses_no_more=few_permits, now=now),
        }

    def saw(self, owner: int, until: float, standing: Standing, now: float) -> Mapping[Thing, Division]:
        if self._slots.owner not in (NOBODY, owner):
            self.lost()  # what is in flight began in another session: we were paused
        was_closed, processes = not self._fence.allows(now), self.processes
        changed = self._slots.saw(owner, standing.divisions[Thing.SLOTS], now)
        changed |= self._permits.saw(owner, standing.divisions[Thing.PERMITS], now)
        self._fence.share_until = until
        self._alarm.set(until)
        if changed or was_closed:
            self._divide_pools()
        if processes != self.processes:
            log.info("processes_changed", action="processes_changed", processes=self.processes, owner=owner)
        found = {thing: next_division(standing.divisions[thing], standing.keeps_to[thing]) for thing in Thing}
        return {thing: division for thing, division in found.items() if division is not None}

    def lost(self) -> None:
        """We may use nothing. What waits here is for others, and what is in flight is cut off."""
        if not self.processes:
            return
        self._fence.share_until = 0.0
        self._slots.reset()
        self._permits.reset()
        in_flight = sum(pool.in_flight for pool in self._router.all_pools())
        log.warning("share_lost", action="share_lost", in_flight=in_flight)
        self._divide_pools()
        for pool in self._router.all_pools():
            pool.cancel()

    def _look_at_session(self) -> None:
        if self._now() < self._fence.share_until:
            self._alarm.set(self._fence.share_until)
        else:
            self.lost()

    def _divide_pools(self) -> None:
        for pool in self._router.all_pools():
            pool.divide()
