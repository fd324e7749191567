"""LargeQueue: the simulated queue for long backlogs. Every call costs the logarithm of what it holds.

The memory queue looks at all its messages on each receive. This one keeps what can be had in heaps. A lane is what
locks together: a group on an ordered queue; on an unordered one nothing locks and all messages share one lane.
"""

import random
from heapq import heappop, heappush

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Demand, Outgoing, Published
from flowcatalyst.queues.memory import MemoryQueue, Receipt, _Stored
from flowcatalyst.simulation.history import History, Kind
from flowcatalyst.simulation.queue import Dice, QueueFaults, SimulatedQueue


class _Lane:
    """Heap entries may be out of date: they are checked when they come up."""

    __slots__ = ("hidden", "name", "offered", "visible")

    def __init__(self, name: str) -> None:
        self.name = name
        self.hidden = 0  # messages that are leased or wait for their time
        self.visible: list[int] = []  # heap of message numbers
        self.offered: int | None = None  # the number under which it stands in the heap of lanes


class LargeQueue(SimulatedQueue):
    """A SimulatedQueue that has no faults and does not mind a backlog."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        history: History,
        *,
        ordered: bool = True,
        visibility_s: float = 60.0,
        max_batch: int = 10,
    ) -> None:
        no_faults, dice = QueueFaults(), Dice(random.Random(0))
        super().__init__(
            name, clock, history, no_faults, dice, ordered=ordered, visibility_s=visibility_s, max_batch=max_batch
        )
        self._lanes: dict[str, _Lane] = {}
        self._offers: list[tuple[int, str]] = []  # heap: first message to be had, its lane
        self._hidden_until: dict[int, float] = {}  # by message number
        self._timers: list[tuple[float, int]] = []  # heap: when a hidden message shows, its number
        self._taking: set[str] = set()  # lanes that the batch under way has taken from: it may take more

    async def close(self) -> None:
        await super().close()
        for number in list(self._hidden_until):
            self._show(self._stored[number])

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        batch = await MemoryQueue.receive(self, limit, wait_s)  # without the search for faults in between
        for delivery in batch:
            self._history.add(Kind.RECEIVED, self.name_of(delivery), value=delivery.receipt)
        return batch

    def _append(self, message: Outgoing) -> Published:
        published = super()._append(message)
        if not published.duplicate:
            stored = self._stored[self._published]
            lane = self._lane_of(stored)
            heappush(lane.visible, stored.number)
            self._offer(lane)
        return published

    def _take(self, limit: int) -> list[Delivery]:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)
            if not self._is_stale(timer):
                self._show(self._stored[timer[1]])
        batch: list[Delivery] = []
        while len(batch) < limit and (stored := self._next_offered()) is not None:
            lane = self._lane_of(stored)
            self._taking.add(lane.name)
            heappop(lane.visible)
            batch.append(self._lease(stored, now))
            self._offer(lane)
        self._taking.clear()
        return batch

    def _lease(self, stored: _Stored, now: float) -> Delivery:
        delivery = super()._lease(stored, now)
        self._hide(stored)
        return delivery

    def _settle(self, receipt: Receipt, hide_s: float | None) -> Settled:
        stored = self._stored.get(receipt[0])
        result = super()._settle(receipt, hide_s)
        if stored is not None and result is Settled.OK:
            if hide_s is not None:
                self._hide(stored)
            elif self._hidden_until.pop(stored.number, None) is not None:
                self._free(self._lane_of(stored))
        return result

    def _requeue(self, receipt: Receipt, delay_s: float, failures: int, unlock: bool) -> Settled:
        stored = self._stored.get(receipt[0])
        before = None if stored is None else self._lane_of(stored)
        result = super()._requeue(receipt, delay_s, failures, unlock)
        if stored is not None and before is not None and (now_in := self._lane_of(stored)) is not before:
            now_in.hidden += 1
            self._free(before)
        return result

    def _next_visible(self, now: float, default: float) -> float:
        while self._timers and self._is_stale(self._timers[0]):
            heappop(self._timers)
        return self._timers[0][0] if self._timers else default

    # Messages: visible or hidden

    def _hide(self, stored: _Stored) -> None:
        """Hide it, or hide it until another time."""
        if stored.number not in self._hidden_until:
            self._lane_of(stored).hidden += 1
        self._hidden_until[stored.number] = stored.visible_at
        heappush(self._timers, (stored.visible_at, stored.number))

    def _show(self, stored: _Stored) -> None:
        del self._hidden_until[stored.number]
        lane = self._lane_of(stored)
        heappush(lane.visible, stored.number)
        self._free(lane)

    def _is_stale(self, timer: tuple[float, int]) -> bool:
        return self._hidden_until.get(timer[1]) != timer[0]

    # Lanes: open to the next receive or not

    def _lane_of(self, stored: _Stored) -> _Lane:
        name = stored.lane if self.capabilities.locks_groups else ""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
        return lane

    def _free(self, lane: _Lane) -> None:
        """One message of the lane is hidden no more."""
        lane.hidden -= 1
        self._offer(lane)
        self._forget_if_empty(lane)

    def _forget_if_empty(self, lane: _Lane) -> None:
        if not lane.hidden and not lane.visible:
            del self._lanes[lane.name]

    def _is_open(self, lane: _Lane) -> bool:
        return not lane.hidden or lane.name in self._taking or not self.capabilities.locks_groups

    def _offer(self, lane: _Lane) -> None:
        """Queue the lane under the number of its first message, if that can be had."""
        first = self._first_of(lane)
        if first is not None and self._is_open(lane) and (lane.offered is None or first < lane.offered):
            lane.offered = first
            heappush(self._offers, (first, lane.name))

    def _first_of(self, lane: _Lane) -> int | None:
        while lane.visible:
            number = lane.visible[0]
            stored = self._stored.get(number)
            if stored is not None and number not in self._hidden_until and self._lane_of(stored) is lane:
                return number
            heappop(lane.visible)
        return None

    def _next_offered(self) -> _Stored | None:
        """The oldest message that can be had now; it stays at the head of its lane."""
        while self._offers:
            number, name = heappop(self._offers)
            lane = self._lanes.get(name)
            if lane is None or lane.offered != number:
                continue
            lane.offered = None
            if self._is_open(lane) and self._first_of(lane) == number:
                return self._stored[number]
            self._offer(lane)
            self._forget_if_empty(lane)
        return None
