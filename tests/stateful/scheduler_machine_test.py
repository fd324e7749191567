"""The GroupScheduler against a model that is too simple to be wrong: lists, searched from end to end."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.router.group import FailureScope, Place
from flowcatalyst.router.groups import GroupScheduler
from tests.support.deliveries import UNORDERED, RecordingSource, delivery

GROUPS = ("a", "b", "c")
GATES = ("x", "y")
FIFO, STREAM = RecordingSource(name="fifo"), RecordingSource(UNORDERED, name="stream")
any_of_them = st.integers(0, 99)  # which one: modulo how many there are


Leaves = Callable[[Delivery], bool]


def everybody(message: Delivery) -> bool:
    return True


def who_returns_in_order(message: Delivery) -> bool:
    return message.source is FIFO


some = st.sampled_from([everybody, who_returns_in_order])
NewMessage = tuple[str, int, bool, DispatchMode | None, RecordingSource]  # with its group, batch and priority
new_message = st.tuples(
    st.sampled_from(GROUPS),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from([None, None, None, None, *DispatchMode]),
    st.sampled_from([FIFO, STREAM]),
)


@dataclass(eq=False)
class Group:
    """What a group should hold, and what it should wait for."""

    name: str | None
    head: list[Delivery] = field(default_factory=list)  # tried before; one at most
    high: list[Delivery] = field(default_factory=list)
    regular: list[Delivery] = field(default_factory=list)
    busy: Delivery | None = None
    acking: bool = False  # the busy one is done with, but for its ack
    held_until: float | None = None
    gate: str | None = None
    blocked: bool = False
    away: Delivery | None = None
    late: Delivery | None = None  # away too, but nobody waits for it any more

    @property
    def waiting(self) -> list[Delivery]:
        return self.head + self.high + self.regular

    @property
    def all(self) -> list[Delivery]:
        return self.waiting if self.busy is None else [self.busy, *self.waiting]

    @property
    def may_start(self) -> bool:
        return self.busy is None and self.held_until is None and self.gate is None and bool(self.waiting)

    @property
    def is_stalled(self) -> bool:
        return self.held_until is not None or self.blocked

    @property
    def is_there(self) -> bool:
        return self.busy is not None or self.away is not None or bool(self.waiting)

    def discard(self, message: Delivery) -> None:
        for tier in (self.head, self.high, self.regular):
            if message in tier:
                tier.remove(message)

    def end_hold(self) -> None:
        self.held_until = self.away = None

    def __str__(self) -> str:
        busy = [] if self.busy is None else [f"*{self.busy.pointer.id}"]
        hold = "" if self.held_until is None else f"@{self.held_until:g}"
        gate = "" if self.gate is None else f"|{self.gate}"
        away = "" if self.away is None else f"<{self.away.pointer.id}"
        waiting = [message.pointer.id for message in self.waiting]
        return f"{self.name or '-'}{hold}{gate}{away}[{' '.join(busy + waiting)}]"


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = GroupScheduler()
        self.groups: list[Group] = []
        self.gates: dict[str, list[Group]] = {}  # who waits there, in the order in which they came
        self.now = 0.0
        self.submitted: list[Delivery] = []
        self.finished: list[Delivery] = []
        self.nacked: list[Delivery] = []
        self.last_first_take: dict[tuple[str, bool], int] = {}  # (group, tier) -> number of the message
        self.taken_before: set[Delivery] = set()

    # What may happen

    @rule(messages=st.lists(new_message, min_size=1, max_size=4), takes=st.integers(0, 4))
    def submit(self, messages: list[NewMessage], takes: int) -> None:
        for group, batch, high, mode, source in messages:
            self._submit(delivery(f"m{len(self.submitted)}", group, batch, mode, high, source=source))
        for _ in range(takes):
            self.take()

    @precondition(lambda self: self.nacked)
    @rule(which=any_of_them)
    def come_back(self, which: int) -> None:
        """A queue shows a message again that went back to it."""
        old = self.nacked[which % len(self.nacked)]
        again = delivery(
            f"m{len(self.submitted)}",
            old.group,
            old.batch,
            old.pointer.dispatch_mode,
            old.pointer.high_priority,
            old.broker_id,
        )
        again.source = old.source
        self._submit(again)

    @precondition(lambda self: self.awaited)
    @rule(which=any_of_them)
    def come_back_as_awaited(self, which: int) -> None:
        awaited = self.awaited[which % len(self.awaited)]
        self.come_back(which=self.nacked.index(awaited))

    @rule()
    def take(self) -> None:
        message = self.scheduler.take()
        if message is None:
            assert not [str(group) for group in self.groups if group.may_start]
            return
        group = next(group for group in self.groups if message in group.waiting)
        assert group.may_start, f"{message.pointer.id} started although {group}"
        assert message is group.waiting[0], f"{message.pointer.id} started out of order in {group}"
        self._check_order_of_first_takes(message)
        group.discard(message)
        group.busy = message

    @precondition(lambda self: self.scheduler.has_ready)
    @rule()
    def take_all(self) -> None:
        while self.scheduler.has_ready:
            self.take()

    @precondition(lambda self: self.busy)
    @rule(which=any_of_them)
    def finish(self, which: int) -> None:
        busy = [group for group in self.groups if group.busy is not None]
        group = busy[which % len(busy)]
        message, group.busy, group.acking = group.busy, None, False
        assert message is not None
        self.scheduler.finish(message)
        self.finished.append(message)

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them)
    def await_ack(self, which: int) -> None:
        group, message = self._release(which)
        self.scheduler.await_ack(message)
        group.busy, group.acking = message, True

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them, seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 30.0]))
    def hold(self, which: int, seconds: float) -> None:
        group, message = self._release(which)
        self.scheduler.hold(message, self.now + seconds)
        group.head.insert(0, message)
        group.held_until = self.now + seconds

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them, gate=st.sampled_from(GATES), blocked=st.booleans())
    def wait_at(self, which: int, gate: str, blocked: bool) -> None:
        group, message = self._release(which)
        self.scheduler.wait_at(message, gate, blocked=blocked)
        group.head.insert(0, message)
        group.gate, group.blocked = gate, blocked
        self.gates.setdefault(gate, []).append(group)

    @precondition(lambda self: self.gates)
    @rule(gate=st.sampled_from(GATES), count=st.integers(0, 3))
    def open(self, gate: str, count: int) -> None:
        self.scheduler.open(gate, count)
        for group in self.gates.get(gate, [])[:count]:
            self._leave_gate(group)

    @precondition(lambda self: self.gates)
    @rule(count=st.integers(1, 3))
    def look_at_gates(self, count: int) -> None:
        looked_at = list(self.gates)[:count]
        assert list(islice(self.scheduler.gates_in_turn(), count)) == looked_at
        for gate in looked_at:
            self.gates[gate] = self.gates.pop(gate)  # behind the others

    @precondition(lambda self: any(group.waiting for group in self.groups))
    @rule(which=any_of_them)
    def let_go(self, which: int) -> None:
        waiting = [group for group in self.groups if group.waiting]
        group = waiting[which % len(waiting)]
        may_go = group.busy is None and group.away is None
        assert self.scheduler.let_go(group.waiting[-1]) is may_go
        if may_go:
            group.held_until = None
            self._leave_gate(group)

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them)
    def unstart(self, which: int) -> None:
        group, message = self._release(which)
        self.scheduler.unstart(message)
        group.head.insert(0, message)

    @precondition(lambda self: self.in_flight)
    @rule(
        which=any_of_them,
        scope=st.sampled_from(FailureScope),
        leaves=some,
        wait_s=st.sampled_from([None, 1.0, 30.0]),
    )
    def fail(self, which: int, scope: FailureScope, leaves: Leaves, wait_s: float | None) -> None:
        group, message = self._release(which)
        back_by = None if wait_s is None or not message.ordered else self.now + wait_s
        followers = self.scheduler.fail(message, scope, leaves, back_by)
        assert followers == [
            other
            for other in group.waiting
            if leaves(other) and (scope is FailureScope.GROUP or other.batch == message.batch)
        ]
        for follower in followers:
            group.discard(follower)
        if back_by is not None:
            group.away, group.late, group.held_until = message, None, back_by
        self.nacked += [message, *followers]

    @precondition(lambda self: self.submitted)
    @rule(which=any_of_them)
    def cut(self, which: int) -> None:
        message = self.submitted[which % len(self.submitted)]
        cut_off = self.scheduler.cut(message)
        group = next((group for group in self.groups if message in group.waiting), None)
        if group is None:
            assert cut_off == []
            return
        behind = group.waiting[group.waiting.index(message) :]
        assert cut_off == [other for other in behind if other.source is message.source]
        for one in cut_off:
            group.discard(one)
        if not group.is_there:
            self._drop(group)
        self.nacked += cut_off

    @precondition(lambda self: self.awaited)
    @rule(which=any_of_them)
    def cut_one_behind_a_message_that_is_awaited(self, which: int) -> None:
        behind = [message for group in self.groups if group.away is not None for message in group.waiting]
        if behind:
            self.cut(which=self.submitted.index(behind[which % len(behind)]))

    @precondition(lambda self: self.scheduler.held_count)
    @rule(seconds=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 30.0]))
    def end_holds(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.end_holds(self.now)
        for group in self.groups:
            if group.held_until is not None and group.held_until <= self.now:
                group.end_hold()

    @precondition(lambda self: len(self.submitted) > 12)
    @rule(leaves=some)
    def clear(self, leaves: Leaves) -> None:
        self._check_cleared(self.scheduler.clear_idle(leaves), self.groups, leaves)

    @precondition(lambda self: self.submitted)
    @rule(which=any_of_them, leaves=some)
    def clear_group(self, which: int, leaves: Leaves) -> None:
        message = self.submitted[which % len(self.submitted)]
        named = [group for group in self.groups if message.ordered and group.name == message.group]
        alone = [group for group in self.groups if not message.ordered and message in group.all]
        self._check_cleared(self.scheduler.clear_idle(leaves, of=message), named or alone, leaves)

    @precondition(lambda self: len(self.submitted) > 12)
    @rule()
    def forget_waiting(self) -> None:
        self.scheduler.forget_waiting()
        for group in self.groups:
            in_flight = None if group.acking else group.busy
            self.nacked += [message for message in group.all if message is not in_flight]
            group.head, group.high, group.regular = [], [], []
            group.busy, group.acking = in_flight, False
            if group.busy is None:
                self._drop(group)

    # What must always hold

    @invariant()
    def state_is_that_of_the_model(self) -> None:
        self.groups = [group for group in self.groups if group.is_there]
        found = re.findall(r"\S+\[[^]]*]", repr(self.scheduler))
        assert sorted(found) == sorted(str(group) for group in self.groups)

    @invariant()
    def counts_are_right(self) -> None:
        scheduler, groups = self.scheduler, [group for group in self.groups if group.is_there]
        assert scheduler.in_flight == len(self.in_flight)
        assert scheduler.unsettled == len(self.busy) - len(self.in_flight)
        assert scheduler.buffered == sum(len(group.waiting) for group in groups)
        assert scheduler.stalled == sum(len(group.waiting) for group in groups if group.is_stalled)
        assert len(scheduler) == scheduler.in_flight + scheduler.buffered + scheduler.unsettled
        assert len(list(scheduler)) == len(scheduler)
        assert scheduler.group_count == len(groups)
        assert scheduler.ready_count == len([group for group in groups if group.may_start])
        assert scheduler.has_ready == any(group.may_start for group in groups)

    @invariant()
    def holds_are_right(self) -> None:
        ends = [group.held_until for group in self.groups if group.held_until is not None]
        assert self.scheduler.held_count == len(ends)
        assert self.scheduler.next_hold_end() == min(ends, default=None)

    @invariant()
    def places_are_right(self) -> None:
        homes = {message: group for group in self.groups for message in group.all}
        for message in self.submitted:
            assert (message in self.scheduler) == (message in homes)
        for message, group in homes.items():
            first = group.away or group.busy or group.waiting[0]
            acking = group.acking and message is group.busy
            is_away = group.away is not None
            assert self.scheduler.place_of(message) == Place(first, group.held_until, group.gate, acking, is_away)
            assert self.scheduler.awaits_ack(message) == acking

    @invariant()
    def gates_are_right(self) -> None:
        assert list(self.scheduler.gates) == list(self.gates)
        assert all(group.gate == gate for gate, waiting in self.gates.items() for group in waiting)

    @invariant()
    def at_most_one_of_an_ordered_group_is_in_flight(self) -> None:
        running = [message.group for message in self.submitted if self.scheduler.is_in_flight(message)]
        ordered = [message.group for message in self.busy if message.ordered]
        assert len(running) == len(self.busy)
        assert len(ordered) == len(set(ordered))

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        waiting = [message for group in self.groups for message in group.waiting]
        everywhere = waiting + self.busy + self.finished + self.nacked
        assert len(everywhere) == len(self.submitted)
        assert set(everywhere) == set(self.submitted)

    def teardown(self) -> None:
        """Whatever happened before, everything can end, and then nothing is left."""
        for message in self.busy:
            self.scheduler.finish(message)
            self.finished.append(message)
        for gate in GATES:
            self.scheduler.open(gate, 1000)
        self.scheduler.end_holds(inf)
        for group in self.groups:
            group.busy = None
        while (taken := self.scheduler.take()) is not None:
            self._check_order_of_first_takes(taken)
            self.scheduler.finish(taken)
            self.finished.append(taken)
        assert repr(self.scheduler) == "<GroupScheduler in_flight=0 buffered=0 empty>"
        assert (self.scheduler.group_count, self.scheduler.held_count, self.scheduler.ready_count) == (0, 0, 0)
        assert (self.scheduler.stalled, self.scheduler.unsettled, list(self.scheduler.gates)) == (0, 0, [])
        assert self.scheduler.next_hold_end() is None
        ended = self.finished + self.nacked
        assert len(ended) == len(self.submitted)
        assert set(ended) == set(self.submitted)

    # How the model keeps its books

    @property
    def busy(self) -> list[Delivery]:
        return [group.busy for group in self.groups if group.busy is not None]

    @property
    def in_flight(self) -> list[Delivery]:
        return [group.busy for group in self.groups if group.busy is not None and not group.acking]

    @property
    def awaited(self) -> list[Delivery]:
        return [group.away for group in self.groups if group.away is not None]

    def _submit(self, message: Delivery) -> None:
        self.submitted.append(message)
        self.scheduler.submit(message)
        home = self._group_for_new(message)
        away = home.away or home.late
        if away is not None and away.source is message.source:
            returned = away.broker_id == message.broker_id
            if home.away is not None and (returned or message.blocks_group):
                home.end_hold()
                home.late = away
            if returned:
                home.late = None
                tier = home.high if message.pointer.high_priority else home.regular
                (tier if home.head or home.busy is not None else home.head).insert(0, message)
                self.taken_before.add(message)
                return
        (home.high if message.pointer.high_priority else home.regular).append(message)

    def _group_for_new(self, message: Delivery) -> Group:
        name = message.group if message.ordered else None
        found = [group for group in self.groups if name is not None and group.name == name]
        if not found:
            found = [Group(name)]
            self.groups += found
        return found[0]

    def _release(self, which: int) -> tuple[Group, Delivery]:
        busy = [group for group in self.groups if group.busy is not None and not group.acking]
        group = busy[which % len(busy)]
        message, group.busy = group.busy, None
        assert message is not None
        return group, message

    def _leave_gate(self, group: Group) -> None:
        if group.gate is not None:
            self.gates[group.gate].remove(group)
            if not self.gates[group.gate]:
                del self.gates[group.gate]
        group.gate, group.blocked = None, False

    def _drop(self, group: Group) -> None:
        group.head, group.high, group.regular = [], [], []
        group.end_hold()
        self._leave_gate(group)

    def _check_cleared(self, left: list[Delivery], groups: list[Group], leaves: Leaves) -> None:
        """Those groups leave whose messages all may; the others stay as they are."""
        leaving = [group for group in groups if group.busy is None and all(map(leaves, group.waiting))]
        for group in leaving:
            assert [message for message in left if message in group.waiting] == group.waiting
        assert len(left) == sum(len(group.waiting) for group in leaving)
        self.nacked += left
        for group in leaving:
            self._drop(group)

    def _check_order_of_first_takes(self, message: Delivery) -> None:
        """Needs no model of the scheduler: within a group and tier, first starts follow the order of submission."""
        if not message.ordered or message in self.taken_before:
            return
        self.taken_before.add(message)
        tier = (message.group or "", message.pointer.high_priority)
        number = self.submitted.index(message)
        assert number > self.last_first_take.get(tier, -1)
        self.last_first_take[tier] = number


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=60, deadline=None)
