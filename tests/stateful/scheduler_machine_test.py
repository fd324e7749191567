"""The GroupScheduler against a model that is too simple to be wrong: lists, searched from end to end."""

import re
from dataclasses import dataclass, field
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowcatalyst.message import Delivery, DispatchMode
from flowcatalyst.routing.groups import FailureScope, GroupScheduler
from tests.support.deliveries import delivery

GROUPS = ("a", "b", "c")
any_of_them = st.integers(0, 99)  # which one: modulo how many there are


@dataclass
class Group:
    """What a group should hold."""

    name: str | None
    head: list[Delivery] = field(default_factory=list)  # tried before; one at most
    high: list[Delivery] = field(default_factory=list)
    regular: list[Delivery] = field(default_factory=list)
    busy: Delivery | None = None
    held_until: float | None = None

    @property
    def waiting(self) -> list[Delivery]:
        return self.head + self.high + self.regular

    @property
    def may_start(self) -> bool:
        return self.busy is None and self.held_until is None and bool(self.waiting)

    def discard(self, message: Delivery) -> None:
        for tier in (self.head, self.high, self.regular):
            if message in tier:
                tier.remove(message)

    def __str__(self) -> str:
        busy = [] if self.busy is None else [f"*{self.busy.pointer.id}"]
        hold = "" if self.held_until is None else f"@{self.held_until:g}"
        return f"{self.name or '-'}{hold}[{' '.join(busy + [message.pointer.id for message in self.waiting])}]"


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = GroupScheduler()
        self.groups: list[Group] = []
        self.now = 0.0
        self.submitted: list[Delivery] = []
        self.finished: list[Delivery] = []
        self.given_back: list[Delivery] = []
        self.last_first_take: dict[tuple[str, bool], int] = {}  # (group, tier) -> number of the message
        self.taken_before: set[Delivery] = set()

    # What may happen

    @rule(
        group=st.sampled_from(GROUPS),
        batch=st.integers(1, 2),
        high=st.booleans(),
        mode=st.sampled_from([None, None, *DispatchMode]),
    )
    def submit(self, group: str, batch: int, high: bool, mode: DispatchMode | None) -> None:
        message = delivery(f"m{len(self.submitted)}", group, batch, mode, high)
        self.submitted.append(message)
        self.scheduler.submit(message)
        home = self._group_for_new(message)
        (home.high if high else home.regular).append(message)

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

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them)
    def finish(self, which: int) -> None:
        message = self._release(which)[1]
        self.scheduler.finish(message)
        self.finished.append(message)

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them, seconds=st.sampled_from([0.0, 0.5, 1.0, 2.0, 30.0]))
    def hold(self, which: int, seconds: float) -> None:
        group, message = self._release(which)
        self.scheduler.hold(message, self.now + seconds)
        group.head = [message]
        group.held_until = self.now + seconds

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them)
    def put_back(self, which: int) -> None:
        group, message = self._release(which)
        self.scheduler.put_back(message)
        group.head = [message]

    @precondition(lambda self: self.in_flight)
    @rule(which=any_of_them, scope=st.sampled_from(FailureScope))
    def fail(self, which: int, scope: FailureScope) -> None:
        group, message = self._release(which)
        followers = self.scheduler.fail(message, scope)
        assert followers == [
            other for other in group.waiting if scope is FailureScope.GROUP or other.batch == message.batch
        ]
        for follower in followers:
            group.discard(follower)
        self.given_back += [message, *followers]

    @precondition(lambda self: self.submitted)
    @rule(which=any_of_them)
    def cut(self, which: int) -> None:
        message = self.submitted[which % len(self.submitted)]
        cut_off = self.scheduler.cut(message)
        group = next((group for group in self.groups if message in group.waiting), None)
        if group is None:
            assert cut_off == []
            return
        assert cut_off == group.waiting[group.waiting.index(message) :]
        for one in cut_off:
            group.discard(one)
        if not group.waiting:
            group.held_until = None
        self.given_back += cut_off

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 2.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def end_holds(self) -> None:
        self.scheduler.end_holds(self.now)
        for group in self.groups:
            if group.held_until is not None and group.held_until <= self.now:
                group.held_until = None

    @precondition(lambda self: self.submitted)
    @rule(which=any_of_them)
    def ask_for_a_place(self, which: int) -> None:
        message = self.submitted[which % len(self.submitted)]
        for group in self.groups:
            if message is group.busy or message in group.waiting:
                assert self.scheduler.place_of(message) == (group.busy or group.waiting[0], group.held_until)

    @precondition(lambda self: len(self.submitted) > 5)
    @rule()
    def clear(self) -> None:
        left = self.scheduler.clear_idle()
        self.given_back += left
        for group in self.groups:
            if group.busy:
                assert not [message for message in left if message in group.waiting]
                continue
            assert [message for message in left if message in group.waiting] == group.waiting
            group.head, group.high, group.regular = [], [], []
            group.held_until = None

    # What must always hold

    @invariant()
    def state_is_that_of_the_model(self) -> None:
        self.groups = [group for group in self.groups if group.busy or group.waiting]
        found = re.findall(r"\S+\[[^]]*]", repr(self.scheduler))
        assert sorted(found) == sorted(str(group) for group in self.groups)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.scheduler.in_flight == len(self.in_flight)
        assert self.scheduler.buffered == sum(len(group.waiting) for group in self.groups)
        assert len(self.scheduler) == self.scheduler.in_flight + self.scheduler.buffered
        assert self.scheduler.group_count == len([group for group in self.groups if group.busy or group.waiting])
        assert self.scheduler.ready_count == len([group for group in self.groups if group.may_start])
        assert self.scheduler.has_ready == any(group.may_start for group in self.groups)

    @invariant()
    def holds_are_right(self) -> None:
        ends = [group.held_until for group in self.groups if group.held_until is not None]
        assert self.scheduler.held_count == len(ends)
        assert self.scheduler.next_hold_end() == min(ends, default=None)

    @invariant()
    def at_most_one_of_an_ordered_group_is_in_flight(self) -> None:
        running = [message.group for message in self.submitted if self.scheduler.is_in_flight(message)]
        ordered = [message.group for message in self.in_flight if message.ordered]
        assert len(running) == len(self.in_flight)
        assert len(ordered) == len(set(ordered))

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        waiting = [message for group in self.groups for message in group.waiting]
        everywhere = waiting + self.in_flight + self.finished + self.given_back
        assert len(everywhere) == len(self.submitted)
        assert set(everywhere) == set(self.submitted)

    def teardown(self) -> None:
        """Whatever happened before, everything can end, and then nothing is left."""
        for message in self.in_flight:
            self.scheduler.finish(message)
            self.finished.append(message)
        self.scheduler.end_holds(inf)
        for group in self.groups:
            group.busy = group.held_until = None
        while (taken := self.scheduler.take()) is not None:
            self._check_order_of_first_takes(taken)
            self.scheduler.finish(taken)
            self.finished.append(taken)
        assert repr(self.scheduler) == "<GroupScheduler in_flight=0 buffered=0 empty>"
        assert (self.scheduler.group_count, self.scheduler.held_count, self.scheduler.ready_count) == (0, 0, 0)
        assert self.scheduler.next_hold_end() is None
        ended = self.finished + self.given_back
        assert len(ended) == len(self.submitted)
        assert set(ended) == set(self.submitted)

    # How the model keeps its books

    @property
    def in_flight(self) -> list[Delivery]:
        return [group.busy for group in self.groups if group.busy is not None]

    def _group_for_new(self, message: Delivery) -> Group:
        name = message.group if message.ordered else None
        found = [group for group in self.groups if name is not None and group.name == name]
        if not found:
            found = [Group(name)]
            self.groups += found
        return found[0]

    def _release(self, which: int) -> tuple[Group, Delivery]:
        busy = [group for group in self.groups if group.busy is not None]
        group = busy[which % len(busy)]
        message, group.busy = group.busy, None
        assert message is not None
        return group, message

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
TestScheduler.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
