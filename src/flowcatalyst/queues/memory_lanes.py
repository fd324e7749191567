"""The lanes of a memory queue that selects pools: what the embedded queue does with tables, as plainly as possible."""

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Protocol

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.contract import FreeCapacity

LANE_SHARE = 20  # messages of one lane in a batch while other lanes have some


class Stored(Protocol):
    """A message, as far as its lane cares."""

    number: int
    pool: str
    lane: str
    visible_at: float


class _Lane:
    """What locks together: a group, or a message on its own."""

    __slots__ = ("hidden", "messages", "name", "pool", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: dict[int, Stored] = {}  # by number, which is their order
        self.hidden: set[int] = set()
        self.pool: str | None = None  # of its first message; None while the lane is not ready
        self.turn = 0

    def of_its_pool(self) -> Iterator[Stored]:
        """Its messages up to the first one for another pool."""
        return takewhile(lambda message: message.pool == self.pool, self.messages.values())


class Lanes:
    """Which lanes are ready, by pool and in turn. It is told of every change; the cost is that of what changes."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._ready: dict[str, dict[str, _Lane]] = {}  # pool -> lane by name, longest ready first
        self._timers: list[tuple[float, int, str]] = []  # heap: when a hidden message shows, its number, its lane
        self._turns = 0

    def enter(self, message: Stored) -> None:
        lane = self._lanes.setdefault(message.lane, _Lane(message.lane))
        lane.messages[message.number] = message
        self._place(lane)

    def leave(self, message: Stored) -> None:
        lane = self._lanes[message.lane]
        del lane.messages[message.number]
        lane.hidden.discard(message.number)
        self._place(lane)

    def hide(self, message: Stored) -> None:
        """Until its `visible_at`."""
        lane = self._lanes[message.lane]
        lane.hidden.add(message.number)
        heappush(self._timers, (message.visible_at, message.number, message.lane))
        self._place(lane)

    def show(self, message: Stored) -> None:
        lane = self._lanes[message.lane]
        lane.hidden.discard(message.number)
        self._place(lane)

    def show_due(self, now: float) -> None:
        """Show what is hidden no longer, in the order of the times at which that ended."""
        while self._timers and self._timers[0][0] <= now:
            _, number, name = heappop(self._timers)
            lane = self._lanes.get(name)
            message = lane.messages.get(number) if lane is not None else None
            if message is not None and message.visible_at <= now:  # otherwise it was hidden again meanwhile
                self.show(message)

    def next_due(self, default: float) -> float:
        return self._timers[0][0] if self._timers else default

    def choose(self, limit: int, free_capacity: FreeCapacity | None) -> list[Stored]:
        """Up to `limit` messages, as many for each pool as it has capacity for: a share of each lane, then more."""
        free_capacity = free_capacity or FreeCapacity({}, limit)
        left = {code: free_capacity.of(code) for code in (*free_capacity.pools, DEFAULT_POOL)}
        batch: list[tuple[int, int, Stored]] = []
        begun: list[tuple[_Lane, Iterator[Stored]]] = []

        def pick(lane: _Lane, messages: Iterator[Stored], most: int) -> None:
            code = _who_pays(lane.pool, left)
            some = list(islice(messages, max(0, min(most, left[code], limit - len(batch)))))
            left[code] -= len(some)
            batch.extend((lane.turn, message.number, message) for message in some)

        for lane in self._in_turn(left):
            if len(batch) == limit:
                break
            begun.append((lane, lane.of_its_pool()))
            pick(*begun[-1], LANE_SHARE)
        for lane, rest in begun:
            pick(lane, rest, limit)
        return [message for _, _, message in sorted(batch, key=lambda row: row[:2])]

    def _in_turn(self, left: Mapping[str, int]) -> Iterator[_Lane]:
        """Lanes of pools that have free capacity, longest ready first."""
        queues = {pool: iter(lanes.values()) for pool, lanes in self._ready.items()}
        first = [(next(lanes), pool) for pool, lanes in queues.items()]
        heap = [(lane.turn, lane, pool) for lane, pool in first]
        heapify(heap)
        while heap:
            _, lane, pool = heappop(heap)
            if left[_who_pays(pool, left)] > 0:
                yield lane
                if (following := next(queues[pool], None)) is not None:
                    heappush(heap, (following.turn, following, pool))

    def _place(self, lane: _Lane) -> None:
        """Make it ready, or not ready, as its messages demand. Who becomes ready is last."""
        head = next(iter(lane.messages.values()), None)
        pool = head.pool if head is not None and not lane.hidden else None
        if lane.pool is not None and pool != lane.pool:
            del self._ready[lane.pool][lane.name]
            if not self._ready[lane.pool]:
                del self._ready[lane.pool]
        if pool is not None and pool != lane.pool:
            self._turns += 1
            lane.turn = self._turns
            self._ready.setdefault(pool, {})[lane.name] = lane
        lane.pool = pool
        if head is None:
            del self._lanes[lane.name]


def _who_pays(pool: str | None, left: Mapping[str, int]) -> str:
    """The pool that takes what names `pool`."""
    return pool if pool is not None and pool in left else DEFAULT_POOL
