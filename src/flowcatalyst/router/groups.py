"""GroupScheduler: which message may start next. Pure: no await, no clock, no I/O.

Neither a scan over groups nor a worker per group: a queue of *ready* groups. A group is ready when it has messages,
none of them in flight, and nothing to wait for. Groups share their pool round-robin, every operation costs the same
with 100 groups as with 100,000 (holds cost the logarithm of the number of holds), and an empty group is forgotten.

What a group may wait for besides a slot: the end of a *hold*, a *gate* (its endpoint may start nothing more now), the
*ack* of its latest message, or the *return* of a message that was nacked to its queue, where another queue feeds the
same group. An IMMEDIATE message is a group of one that shares its name with nobody.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain, islice

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.group import FailureScope, Group, Place

# Of this many turns in a row the high tier gets all but one while both tiers wait: priority without starvation.
TURNS_PER_CYCLE = 8


class GroupScheduler:
    """Decides the order of starts. The caller tells it what became of each message it took."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.buffered = 0  # waiting, held for a retry, or behind one that is
        self.stalled = 0  # of the buffered: in a group that could not start now if a slot was free
        self.unsettled = 0  # done with, but their groups wait until their acks are durable
        self.held_count = 0  # groups on hold
        self.awaiting = 0  # of these, groups that wait for a nacked message to come back
        self._groups: dict[str, Group] = {}
        self._alone: dict[Delivery, Group] = {}  # IMMEDIATE messages
        self._busy: dict[Delivery, Group] = {}
        self._acking: set[Delivery] = set()
        self._ready_high: OrderedDict[Group, None] = OrderedDict()
        self._ready: OrderedDict[Group, None] = OrderedDict()
        # What groups wait at, in the order in which it was looked at last or came up.
        self.gates: OrderedDict[str, OrderedDict[Group, None]] = OrderedDict()
        self._holds: list[tuple[float, int, Group]] = []
        self._hold_count = 0  # breaks ties in the heap: equal times end in the order they began
        self._turn = 0

    def __len__(self) -> int:
        """Messages in the scheduler's care."""
        return self.in_flight + self.buffered + self.unsettled

    def __repr__(self) -> str:
        groups = " ".join(map(repr, self._all()))
        return f"<GroupScheduler in_flight={self.in_flight} buffered={self.buffered} {groups or 'empty'}>"

    @property
    def group_count(self) -> int:
        return len(self._groups) + len(self._alone)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready or self._ready_high)

    @property
    def ready_count(self) -> int:
        return len(self._ready) + len(self._ready_high)

    def __iter__(self) -> Iterator[Delivery]:
        """Every message in its care."""
        return chain(self._busy, chain.from_iterable(self._all()))

    def __contains__(self, delivery: Delivery) -> bool:
        if delivery in self._busy:
            return True
        group = self._group_of(delivery)
        return group is not None and delivery in group

    @property
    def awaited(self) -> Iterator[Delivery]:
        """Messages that were nacked and whose groups wait for them."""
        return (group.away for group in self._groups.values() if group.away is not None and group.is_awaiting)

    def awaits(self, delivery: Delivery) -> bool:
        """Whether its group waits for this very message to come back."""
        group = self._group_of(delivery)
        if group is None or group.away is None or not group.is_awaiting:
            return False
        return group.away.source is delivery.source and group.away.broker_id == delivery.broker_id

    def wait_longer(self, delivery: Delivery, back_by: float) -> None:
        """A message came back too early. If its group waits for it, it does so until then at most."""
        if self.awaits(delivery):
            group = self._groups[delivery.group or ""]
            self._end_hold(group)
            self._begin_hold(group, back_by)
            group.away_hold = group.hold
            self.awaiting += 1

    def is_in_flight(self, delivery: Delivery) -> bool:
        return delivery in self._busy

    def awaits_ack(self, delivery: Delivery) -> bool:
        return delivery in self._acking

    def under_way_since(self, before: float) -> Iterator[Delivery]:
        """Messages whose attempt began before that time and has not ended, in the order they began."""
        for delivery in self._busy:
            if delivery.attempt_at >= before:
                return
            if delivery not in self._acking:
                yield delivery

    @property
    def groups(self) -> Mapping[str, Group]:
        """The ordered ones."""
        return self._groups

    def has_group(self, name: str | None) -> bool:
        return name in self._groups

    def place_of(self, delivery: Delivery) -> Place:
        """Where a message stands; in front of nobody if it is not here."""
        group = self._group_of(delivery)
        if group is None:
            return Place(delivery)
        away = group.away if group.is_awaiting else None
        first = away or group.busy or next(iter(group), delivery)
        return Place(first, group.held_until, group.gate, delivery in self._acking, away is not None)

    # Messages in

    def submit(self, delivery: Delivery) -> None:
        """Append a message to its group. One that comes back from its queue goes where it was: to the head."""
        name, returned = delivery.group, False
        if not delivery.ordered or name is None:
            group = self._alone[delivery] = Group(None, delivery)
        elif (found := self._groups.get(name)) is not None:
            group = found
        else:
            group = self._groups[name] = Group(name)
        self.buffered += 1
        if group.away is not None and group.away.source is delivery.source:
            returned = group.away.broker_id == delivery.broker_id
            # Its queue keeps the order of its own messages, so what it shows of the group may go on from here; but for
            # one that failed and let the others pass, which comes when it likes.
            if group.is_awaiting and (returned or delivery.blocks_group):
                self._end_hold(group)
        if returned:
            group.away = None
            if group.head is None and group.busy is None:
                group.head = delivery
            elif delivery.pointer.high_priority:  # right behind one that was tried meanwhile
                group.high = deque([delivery, *(group.high or ())])
            else:
                group.regular.appendleft(delivery)
        elif delivery.pointer.high_priority:
            group.high = group.high or deque()
            group.high.append(delivery)
            if group in self._ready:
                del self._ready[group]
                self._ready_high[group] = None
        else:
            group.regular.append(delivery)
        if group.held_until is not None or group.blocked:  # it is stalled
            self.stalled += 1
        self._make_ready(group)

    def take(self) -> Delivery | None:
        """The next message to start, or None. Its group starts nothing else until the caller reports back."""
        if self._ready_high:
            self._turn = (self._turn + 1) % TURNS_PER_CYCLE
            tier = self._ready if self._turn == 0 and self._ready else self._ready_high
        elif self._ready:
            tier = self._ready
        else:
            return None
        group, _ = tier.popitem(last=False)
        group.is_ready = False
        delivery = group.pop()
        group.busy = delivery
        self._busy[delivery] = group
        self.buffered -= 1
        self.in_flight += 1
        return delivery

    # What became of a message that was taken

    def finish(self, delivery: Delivery) -> None:
        """The message left the router; the next one of its group may start."""
        self._make_ready(self._release(delivery))

    def await_ack(self, delivery: Delivery) -> None:
        """The message is done with, but the next one of its group waits for `finish`. It occupies no slot any more."""
        self._acking.add(delivery)
        self.in_flight -= 1
        self.unsettled += 1

    def unstart(self, delivery: Delivery) -> None:
        """The attempt never began: the message is at the head of its group again, at once."""
        self._make_ready(self._to_head(delivery))

    def hold(self, delivery: Delivery, until: float) -> None:
        """Put the message back at the head of its group and start nothing of the group before `until`."""
        self._begin_hold(self._to_head(delivery), until)

    def wait_at(self, delivery: Delivery, gate: str, *, blocked: bool = False) -> None:
        """Put the message back at the head of its group, which waits until the gate opens; blocked: for some time."""
        group = self._to_head(delivery)
        group.gate, group.blocked = gate, blocked
        self.gates.setdefault(gate, OrderedDict())[group] = None
        self.stalled += len(group) if blocked else 0

    def fail(
        self,
        delivery: Delivery,
        scope: FailureScope,
        leaves: Callable[[Delivery], bool] = lambda _: True,
        back_by: float | None = None,
    ) -> list[Delivery]:
        """The message is nacked. Returns the later ones of its group that must be nacked with it.

        Followers that may not leave, because their own queue would show them again in another order, stay. With
        `back_by` nothing of the group starts before the message, or another one of its queue, came back, or before
        that time.
        """
        group = self._release(delivery)
        followers = [
            message
            for message in group
            if leaves(message) and (scope is FailureScope.GROUP or message.batch == delivery.batch)
        ]
        if followers:
            self._take_out(group, followers)
        if back_by is None:
            self._make_ready(group)
        else:
            group.away = delivery
            self._begin_hold(group, back_by)
            group.away_hold = group.hold
            self.awaiting += 1
        return followers

    # Holds and gates

    def end_holds(self, now: float) -> None:
        """Make ready every group whose hold is over."""
        holds = self._holds
        while holds and holds[0][0] <= now:
            _, number, group = heappop(holds)
            if group.hold == number:
                was_awaiting = group.is_awaiting
                self._end_hold(group)
                if was_awaiting:
                    group.away = None
                self._make_ready(group)

    def next_hold_end(self) -> float | None:
        while self._holds and self._holds[0][2].hold != self._holds[0][1]:
            heappop(self._holds)
        return self._holds[0][0] if self._holds else None

    def gates_in_turn(self) -> Iterator[str]:
        """The gates, those first that were not looked at for longest."""
        for _ in range(len(self.gates)):
            gate = next(iter(self.gates))
            self.gates.move_to_end(gate)
            yield gate

    def open(self, gate: str, groups: int, *, last: bool = False) -> None:
        """Let so many groups that wait at a gate go, those that came first, or last; they come before others."""
        waiting = self.gates.get(gate)
        if waiting is None:
            return
        for group in reversed(list(islice(reversed(waiting) if last else waiting, groups))):
            del waiting[group]
            self._leave_gate(group)
            self._make_ready(group)
            (self._ready_high if group.urgent else self._ready).move_to_end(group, last=False)
        if not waiting:
            del self.gates[gate]

    def let_go(self, delivery: Delivery) -> bool:
        """End the hold of a message's group, or its wait at a gate: it is next. False: it waits for something else."""
        group = self._group_of(delivery)
        if group is None or group.busy is not None or group.is_awaiting:
            return False
        self._end_hold(group)
        if group.gate is not None:
            self._leave(group)
        self._make_ready(group)
        for tier in (self._ready_high, self._ready):
            if group in tier:  # where it was put: what made it urgent may be gone since
                tier.move_to_end(group, last=False)
        return True

    # Messages out

    def clear_idle(
        self,
        leaves: Callable[[Delivery], bool] = lambda _: True,
        *,
        of: Delivery | None = None,
        keep_awaiting: bool = False,
    ) -> list[Delivery]:
        """Forget every group that has nothing in flight and whose messages all leave; returns them, in order.

        With `of`, only the group of that message is looked at. With `keep_awaiting`, one that waits for a message to
        come back stays, empty.
        """
        if of is None:
            return [message for group in list(self._all()) for message in self._clear(group, leaves, keep_awaiting)]
        group = self._group_of(of)
        return [] if group is None else self._clear(group, leaves, keep_awaiting)

    def cut(self, delivery: Delivery, leaves: Callable[[Delivery], bool] = lambda _: True) -> list[Delivery]:
        """Forget a message that waits, and those behind it from the same queue that leave too; returns them all."""
        group = self._group_of(delivery)
        messages = [] if group is None else list(group)
        if group is None or delivery not in messages:
            return []
        behind = messages[messages.index(delivery) :]
        cut_off = [one for one in behind if one is delivery or (one.source is delivery.source and leaves(one))]
        self._take_out(group, cut_off)
        if not group and group.busy is None and not group.is_awaiting:
            self._drop(group)
        return cut_off

    def forget_waiting(self) -> None:
        """Forget all but attempts in flight: what waits, whatever for, and who waits for an ack."""
        for delivery in list(self._acking):
            self._release(delivery)
        for group in list(self._all()):
            self._take_out(group, list(group))
            if group.busy is None:
                self._drop(group)

    def _clear(self, group: Group, leaves: Callable[[Delivery], bool], keep_awaiting: bool) -> list[Delivery]:
        if group.busy is not None or not all(map(leaves, group)):
            return []
        left = list(group)
        if keep_awaiting and group.is_awaiting:
            self._take_out(group, left)
        else:
            self._drop(group)
        return left

    def _take_out(self, group: Group, gone: list[Delivery]) -> None:
        leaving = set(gone)
        group.head = None if group.head in leaving else group.head
        if group.high:
            group.high = deque(message for message in group.high if message not in leaving)
        group.regular = deque(message for message in group.regular if message not in leaving)
        self.buffered -= len(gone)
        if group.is_stalled:
            self.stalled -= len(gone)

    def _drop(self, group: Group) -> None:
        """Forget a group wherever it stands, with what it holds."""
        self._ready.pop(group, None)
        self._ready_high.pop(group, None)
        self._end_hold(group)
        if group.gate is not None:
            self._leave(group)
        self.buffered -= len(group)
        self._forget(group)

    # Groups

    def all_groups(self) -> list[Group]:
        """As of now, for somebody who looks at them later."""
        return [*self._groups.values(), *self._alone.values()]

    def _all(self) -> Iterator[Group]:
        return chain(self._groups.values(), self._alone.values())

    def _group_of(self, delivery: Delivery) -> Group | None:
        if delivery.ordered and delivery.group is not None:
            return self._groups.get(delivery.group)
        return self._alone.get(delivery)

    def _make_ready(self, group: Group) -> None:
        """Queue the group if it may start, forget it if it is empty."""
        if group.is_ready or group.busy is not None or group.held_until is not None or group.gate is not None:
            return
        if group.regular and group.head is None and not group.high:  # as nearly always
            group.is_ready = True
            self._ready[group] = None
        elif group:
            group.is_ready = True
            (self._ready_high if group.urgent else self._ready)[group] = None
        else:
            self._forget(group)

    def _leave(self, group: Group) -> None:
        gate = group.gate or ""
        del self.gates[gate][group]
        if not self.gates[gate]:
            del self.gates[gate]
        self._leave_gate(group)

    def _leave_gate(self, group: Group) -> None:
        self.stalled -= len(group) if group.blocked else 0
        group.gate, group.blocked = None, False

    def _begin_hold(self, group: Group, until: float) -> None:
        self._hold_count += 1
        self.held_count += 1
        self.stalled += len(group)
        group.held_until = until
        group.hold = self._hold_count
        heappush(self._holds, (until, self._hold_count, group))

    def _end_hold(self, group: Group) -> None:
        if group.held_until is not None:
            self.held_count -= 1
            self.awaiting -= group.is_awaiting
            self.stalled -= len(group)
            group.held_until = None
            group.hold = 0

    def _to_head(self, delivery: Delivery) -> Group:
        group = self._release(delivery)
        group.head = delivery
        self.buffered += 1
        return group

    def _release(self, delivery: Delivery) -> Group:
        group = self._busy.pop(delivery)
        group.busy = None
        if delivery in self._acking:
            self._acking.remove(delivery)
            self.unsettled -= 1
        else:
            self.in_flight -= 1
        return group

    def _forget(self, group: Group) -> None:
        if group.alone is not None:
            self._alone.pop(group.alone, None)
        else:
            self._groups.pop(group.name or "", None)
        if not self.group_count:  # an emptied dict keeps its table, a cleared one does not
            self._groups.clear()
            self._alone.clear()
            self._busy.clear()
            self._ready.clear()
            self._ready_high.clear()
            self._holds.clear()
