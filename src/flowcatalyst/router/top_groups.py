"""What all groups in memory say together: how long messages wait in each pool, which groups are blocked, and the few
that are deepest, oldest and slowest. Pure: one pass over the groups, in slices between which others may run.

What a queue still holds of a group is not in here: only what the router has of it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappush, heapreplace, nlargest
from typing import Final, Protocol

from flowcatalyst.router.group import Group
from flowcatalyst.router.slow_groups import IDLE_S, SlowGroups

TOP: Final = 10
SLICE: Final = 500  # groups looked at without a pause: less than a millisecond


class Blocked(Protocol):
    """A group that waits for a message which was tried and is not settled."""

    group: str
    pool: str
    since: float


@dataclass(slots=True, frozen=True)
class TopGroup:
    """One of the first by some measure."""

    value: float  # messages, or seconds
    group: str
    pool: str
    attempts: int = 0  # that a mean is about


@dataclass(slots=True)
class GroupFigures:
    """By pool code; a pool that is not named has none."""

    waiting_s: dict[str, float] = field(default_factory=dict)  # the longest wait of those next in their groups
    blocked: dict[str, int] = field(default_factory=dict)
    blocked_s: dict[str, float] = field(default_factory=dict)  # the longest
    by_depth: list[TopGroup] = field(default_factory=list)
    by_age: list[TopGroup] = field(default_factory=list)
    by_latency: list[TopGroup] = field(default_factory=list)


class Surveyed(Protocol):
    """A pool, as far as it is looked at here."""

    code: str
    all_groups: Callable[[], list[Group]]

    @property
    def slow_groups(self) -> SlowGroups: ...


class _Top:
    """The first few of very many."""

    def __init__(self) -> None:
        self.least = 0.0  # what is no larger is not among them
        self._heap: list[tuple[float, int, str, str]] = []
        self._offered = 0  # breaks ties: who came first stays

    def offer(self, value: float, group: str, pool: str) -> None:
        self._offered -= 1
        one = (value, self._offered, group, pool)
        if len(self._heap) < TOP:
            heappush(self._heap, one)
        else:
            heapreplace(self._heap, one)
        if len(self._heap) == TOP:
            self.least = self._heap[0][0]

    def ranked(self) -> list[TopGroup]:
        return [TopGroup(value, group, pool) for value, _, group, pool in sorted(self._heap, reverse=True)]


class GroupSurvey:
    """One pass. `steps` does a slice of it with each step; `figures` is whole when it ends."""

    def __init__(self, pools: Iterable[Surveyed], blocked: Iterable[Blocked], now: float, wall: float) -> None:
        self.figures = GroupFigures()
        self._pools, self._blocked = list(pools), list(blocked)
        self._now, self._wall = now, wall

    def steps(self) -> Iterator[None]:
        yield from self._look_at_waiting()
        yield from self._look_at_blocked()
        now, slow = self._now, []
        for number, pool in enumerate(self._pools, 1):
            slow += [
                TopGroup(one.mean_s, name or "", pool.code, one.attempts)
                for name, one in pool.slow_groups.by_name.items()
                if one.last_at > now - IDLE_S
            ]
            if number % SLICE == 0:
                slow = nlargest(TOP, slow, key=lambda one: one.value)
                yield
        self.figures.by_latency = nlargest(TOP, slow, key=lambda one: one.value)

    def _look_at_waiting(self) -> Iterator[None]:
        depth, age, seen, now, wall = _Top(), _Top(), 0, self._now, self._wall
        for pool in self._pools:
            longest_s = 0.0
            for group in pool.all_groups():
                seen += 1
                if seen % SLICE == 0:
                    yield
                # Those of a tier came in their order. A group that went since the pass began counts as it went.
                first = group.head or (group.regular[0] if group.regular else None)
                if group.high and (first is None or group.high[0].arrived_at < first.arrived_at):
                    first = group.high[0]
                if first is None:
                    continue
                waited_s = wall - first.due_at if first.due_at else now - first.arrived_at
                longest_s = waited_s if waited_s > longest_s else longest_s
                if group.name is None:  # alone
                    continue
                if waited_s > age.least:
                    age.offer(waited_s, group.name, pool.code)
                if (waiting := len(group)) > depth.least:
                    depth.offer(waiting, group.name, pool.code)
            self.figures.waiting_s[pool.code] = longest_s
            seen += 1
        self.figures.by_depth, self.figures.by_age = depth.ranked(), age.ranked()

    def _look_at_blocked(self) -> Iterator[None]:
        seen: set[tuple[str, str]] = set()
        counts, longest = self.figures.blocked, self.figures.blocked_s
        for number, one in enumerate(self._blocked, 1):
            if (where := (one.pool, one.group)) not in seen:
                seen.add(where)
                counts[one.pool] = counts.get(one.pool, 0) + 1
            longest[one.pool] = max(longest.get(one.pool, 0.0), self._now - one.since)
            if number % SLICE == 0:
                yield
