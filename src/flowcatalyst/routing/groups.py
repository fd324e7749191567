"""GroupScheduler: which message may start next. Pure: no await, no clock, no I/O.

Neither a scan over groups nor a worker per group: a queue of *ready* groups. A group is ready when it has messages,
none of them in flight, and no hold. Groups share their pool round-robin, every operation costs the same with 100
groups as with 100,000 (holds cost the logarithm of the number of holds), and an empty group is forgotten.

An IMMEDIATE message is a group of one that shares its name with nobody.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

from flowcatalyst.message import Delivery

# Of this many turns in a row the high tier gets all but one while both tiers wait: priority without starvation.
TURNS_PER_CYCLE = 8


class FailureScope(StrEnum):
    """Who goes back to the queue together with a failed message of an ordered group."""

    GROUP = "group"  # every later message of the group
    BATCH = "batch"  # only the later ones of the same batch


_NO_HIGH: Final[deque[Delivery]] = deque()  # shared by all groups without high-priority messages; never filled


class _Group:
    """The messages of one group, in order. `head` is one that was tried already and comes before all others."""

    __slots__ = ("busy", "head", "held_until", "high", "name", "regular", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.high: deque[Delivery] = _NO_HIGH
        self.regular: deque[Delivery] = deque()
        self.head: Delivery | None = None
        self.busy: Delivery | None = None
        self.held_until: float | None = None
        self.waiting = False  # stands in a ready queue

    def __bool__(self) -> bool:
        return self.head is not None or bool(self.high) or bool(self.regular)

    def __iter__(self) -> Iterator[Delivery]:
        if self.head is not None:
            yield self.head
        yield from chain(self.high, self.regular)

    @property
    def urgent(self) -> bool:
        return bool(self.high) or (self.head is not None and self.head.pointer.high_priority)

    def pop(self) -> Delivery:
        if self.head is not None:
            delivery, self.head = self.head, None
            return delivery
        return self.high.popleft() if self.high else self.regular.popleft()

    def __repr__(self) -> str:
        parts = [message.pointer.id for message in self]
        if self.busy is not None:
            parts.insert(0, f"*{self.busy.pointer.id}")
        hold = "" if self.held_until is None else f"@{self.held_until:g}"
        return f"{self.name or '-'}{hold}[{' '.join(parts)}]"


class GroupScheduler:
    """Decides the order of starts. The caller tells it what became of each message it took."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.buffered = 0  # waiting, held for a retry, or behind one that is
        self._groups: dict[str, _Group] = {}
        self._busy: dict[Delivery, _Group] = {}
        self._alone: dict[_Group, None] = {}  # IMMEDIATE messages, for repr and clear; insertion-ordered
        self._ready_high: OrderedDict[_Group, None] = OrderedDict()
        self._ready: OrderedDict[_Group, None] = OrderedDict()
        self._holds: list[tuple[float, int, _Group]] = []
        self._hold_count = 0  # breaks ties in the heap: equal times end in the order they began
        self._turn = 0

    def __len__(self) -> int:
        """Messages in the scheduler's care, in flight or not."""
        return self.in_flight + self.buffered

    def __repr__(self) -> str:
        groups = " ".join(map(repr, self._all()))
        return f"<GroupScheduler in_flight={self.in_flight} buffered={self.buffered} {groups or 'empty'}>"

    @property
    def group_count(self) -> int:
        return len(self._groups) + len(self._alone)

    @property
    def held_count(self) -> int:
        return len(self._holds)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready or self._ready_high)

    @property
    def ready_count(self) -> int:
        return len(self._ready) + len(self._ready_high)

    def __iter__(self) -> Iterator[Delivery]:
        """Every message in its care."""
        return chain(self._busy, chain.from_iterable(self._all()))

    def _all(self) -> Iterator[_Group]:
        return chain(self._groups.values(), self._alone)

    def submit(self, delivery: Delivery) -> None:
        """Append a message to its group."""
        group = self._group_for(delivery)
        if delivery.pointer.high_priority:
            self._submit_high(group, delivery)
        else:
            group.regular.append(delivery)
        self.buffered += 1
        self._make_ready(group)

    def _submit_high(self, group: _Group, delivery: Delivery) -> None:
        if group.high is _NO_HIGH:
            group.high = deque()
        group.high.append(delivery)
        if group in self._ready:
            del self._ready[group]
            self._ready_high[group] = None

    def take(self) -> Delivery | None:
        """The next message to start, or None. Its group starts nothing else until the caller reports back."""
        group = self._next_ready()
        if group is None:
            return None
        group.waiting = False
        delivery = group.pop()
        group.busy = delivery
        self._busy[delivery] = group
        self.buffered -= 1
        self.in_flight += 1
        return delivery

    def finish(self, delivery: Delivery) -> None:
        """The message left the router; the next one of its group may start."""
        group = self._release(delivery)
        self._make_ready(group)

    def hold(self, delivery: Delivery, until: float) -> None:
        """Put the message back at the head of its group and start nothing of the group before `until`."""
        group = self._release(delivery)
        group.head = delivery
        group.held_until = until
        self.buffered += 1
        self._hold_count += 1
        heappush(self._holds, (until, self._hold_count, group))

    def put_back(self, delivery: Delivery) -> None:
        """The attempt never began: the message is at the head of its group again, at once."""
        group = self._release(delivery)
        group.head = delivery
        self.buffered += 1
        self._make_ready(group)

    def fail(self, delivery: Delivery, scope: FailureScope) -> list[Delivery]:
        """The message goes back to its queue. Returns the later ones of its group that must go back with it."""
        group = self._release(delivery)
        if scope is FailureScope.GROUP:
            followers = list(group)
            group.high.clear()
            group.regular.clear()
        else:
            followers = [message for message in group if message.batch == delivery.batch]
            group.high = deque(message for message in group.high if message.batch != delivery.batch)
            group.regular = deque(message for message in group.regular if message.batch != delivery.batch)
        self.buffered -= len(followers)
        self._make_ready(group)
        return followers

    def end_holds(self, now: float) -> None:
        """Make ready every group whose hold is over."""
        holds = self._holds
        while holds and holds[0][0] <= now:
            group = heappop(holds)[2]
            group.held_until = None
            self._make_ready(group)

    def next_hold_end(self) -> float | None:
        return self._holds[0][0] if self._holds else None

    def clear_idle(self, leaves: Callable[[Delivery], bool] = lambda _: True) -> list[Delivery]:
        """Forget every group that has nothing in flight and whose messages all leave; returns them, in order."""
        idle = [group for group in self._all() if group.busy is None and all(map(leaves, group))]
        left = [message for group in idle for message in group]
        for group in idle:
            self._ready.pop(group, None)
            self._ready_high.pop(group, None)
        gone = set(idle)
        self._holds = [hold for hold in self._holds if hold[2] not in gone]
        heapify(self._holds)
        self._groups = {name: group for name, group in self._groups.items() if group not in gone}
        self._alone = {group: None for group in self._alone if group not in gone}
        self.buffered -= len(left)
        return left

    def has_group(self, name: str | None) -> bool:
        return name in self._groups

    def cut(self, delivery: Delivery) -> list[Delivery]:
        """Forget a message that waits, and those behind it; returns them all. Empty if it does not wait here."""
        group = self._groups.get(delivery.group or "") if delivery.ordered else self._find_alone(delivery)
        if group is None or delivery not in group:
            return []
        messages = list(group)
        cut_off = messages[messages.index(delivery) :]
        gone = set(cut_off)
        group.head = None if group.head in gone else group.head
        group.high = deque(message for message in group.high if message not in gone)
        group.regular = deque(message for message in group.regular if message not in gone)
        self.buffered -= len(cut_off)
        if not group and group.busy is None:
            self._drop(group)
        return cut_off

    def _drop(self, group: _Group) -> None:
        """Forget an empty group wherever it stands."""
        self._ready.pop(group, None)
        self._ready_high.pop(group, None)
        self._holds = [hold for hold in self._holds if hold[2] is not group]
        heapify(self._holds)
        self._forget(group)

    def __contains__(self, delivery: Delivery) -> bool:
        if delivery in self._busy:
            return True
        group = self._groups.get(delivery.group or "") if delivery.ordered else None
        return delivery in group if group is not None else any(delivery in alone for alone in self._alone)

    def is_in_flight(self, delivery: Delivery) -> bool:
        return delivery in self._busy

    def place_of(self, delivery: Delivery) -> tuple[Delivery, float | None]:
        """The message that stands or runs first in the group of `delivery`, and until when the group is held."""
        group = self._groups.get(delivery.group or "") if delivery.ordered else None
        group = group or self._find_alone(delivery)
        if group is None:
            return delivery, None
        return group.busy or next(iter(group)), group.held_until

    def _find_alone(self, delivery: Delivery) -> _Group | None:
        return next((alone for alone in self._alone if alone.busy is delivery or delivery in alone), None)

    def _group_for(self, delivery: Delivery) -> _Group:
        name = delivery.group
        if not delivery.ordered or name is None:
            group = _Group(None)
            self._alone[group] = None
            return group
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = _Group(name)
        return found

    def _make_ready(self, group: _Group) -> None:
        """Queue the group if it may start, forget it if it is empty."""
        if group.waiting or group.busy is not None or group.held_until is not None:
            return
        if group:
            group.waiting = True
            (self._ready_high if group.urgent else self._ready)[group] = None
        else:
            self._forget(group)

    def _forget(self, group: _Group) -> None:
        if group.name is None:
            self._alone.pop(group, None)
        else:
            self._groups.pop(group.name, None)
        if not self.group_count:  # an emptied dict keeps its table, a cleared one does not
            self._groups.clear()
            self._alone.clear()
            self._busy.clear()
            self._ready.clear()
            self._ready_high.clear()

    def _next_ready(self) -> _Group | None:
        if not self._ready_high:
            return self._ready.popitem(last=False)[0] if self._ready else None
        self._turn = (self._turn + 1) % TURNS_PER_CYCLE
        if self._turn == 0 and self._ready:
            return self._ready.popitem(last=False)[0]
        return self._ready_high.popitem(last=False)[0]

    def _release(self, delivery: Delivery) -> _Group:
        group = self._busy.pop(delivery)
        group.busy = None
        self.in_flight -= 1
        return group
