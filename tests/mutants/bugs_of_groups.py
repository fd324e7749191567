"""Bugs in the order of a group: its scheduler, and what a message says of itself."""

from collections.abc import Callable
from math import inf, nextafter
from typing import Any, Final

from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.groups import GroupScheduler
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()
Leaves = Callable[[Delivery], bool]
GATES = "tests/unit/group_waits_test.py::TestGates"


@BUGS.add("a retry waits at the tail of its group")
def _() -> None:
    @instead_of(GroupScheduler, "hold")
    def hold(original: Any, self: Any, delivery: Delivery, until: float) -> None:
        original(self, delivery, until)
        group = self._group_of(delivery)
        group.head = None
        group.regular.append(delivery)


@BUGS.add("a new message ends the hold of its group", machine="groups")
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        original(self, delivery)
        group = self._group_of(delivery)
        self._end_hold(group)
        self._make_ready(group)


@BUGS.add("a group with an attempt in flight may start another one")
def _() -> None:
    @instead_of(GroupScheduler, "_make_ready")
    def make_ready(original: Any, self: Any, group: Any) -> None:
        busy = group.busy
        group.busy = None if len(group) else busy
        original(self, group)
        group.busy = busy


@BUGS.add("the two tiers of a group are two groups")
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        if delivery.pointer.high_priority:
            delivery.group = f"{delivery.group} (urgent)"
        original(self, delivery)


@BUGS.add("a message that failed where others may pass starts beside its group")
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        if delivery.failures and not delivery.blocks_group:
            delivery.group = None
        original(self, delivery)


@BUGS.add("the next message of a group is not started after one that is done")
def _() -> None:
    @instead_of(GroupScheduler, "finish")
    def finish(original: Any, self: Any, delivery: Delivery) -> None:
        self._release(delivery)


@BUGS.add(
    "a hold that ends now has not ended",
    test="tests/unit/groups_test.py::TestHold::test_group_on_hold_starts_nothing_before_its_time",
)
def _() -> None:
    @instead_of(GroupScheduler, "end_holds")
    def end_holds(original: Any, self: Any, now: float) -> None:
        original(self, nextafter(now, -inf))


@BUGS.add(
    "a failure gives back only the followers of its own batch",
    test="tests/integration/failure_and_order_test.py::"
    "test_scenario_3_another_batch_of_the_group_goes_on_in_batch_scope_only",
)
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(original: Any, self: Any, delivery: Delivery, scope: FailureScope, *more: Any) -> Any:
        return original(self, delivery, FailureScope.BATCH, *more)


@BUGS.add("a failure gives back the regular followers and forgets the urgent ones")
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(original: Any, self: Any, *args: Any) -> Any:
        return [message for message in original(self, *args) if not message.pointer.high_priority]


@BUGS.add("the followers of a failed message are neither kept nor given back")
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(original: Any, self: Any, *args: Any) -> Any:
        original(self, *args)
        return []


@BUGS.add("a lost lease takes one message out of the middle of its group", machine="groups")
def _() -> None:
    @instead_of(GroupScheduler, "cut")
    def cut(original: Any, self: Any, delivery: Delivery, *which: Any) -> Any:
        cut_off = original(self, delivery, *which)
        for message in cut_off[1:]:
            self.submit(message)
        return cut_off[:1]


@BUGS.add("what is given back leaves its hold behind")
def _() -> None:
    @instead_of(GroupScheduler, "_drop")
    def drop(original: Any, self: Any, group: Any) -> None:
        held = group.held_until is not None
        original(self, group)
        self.held_count += held


@BUGS.add("a group that lost its messages is not forgotten", machine="groups")
def _() -> None:
    @instead_of(GroupScheduler, "cut")
    def cut(original: Any, self: Any, delivery: Delivery, *which: Any) -> Any:
        group = self._group_of(delivery)
        cut_off = original(self, delivery, *which)
        if cut_off and group.name is not None:
            self._groups.setdefault(group.name, group)
        return cut_off


@BUGS.add("a message that ended still counts as in flight")
def _() -> None:
    @instead_of(GroupScheduler, "finish")
    def finish(original: Any, self: Any, delivery: Delivery) -> None:
        original(self, delivery)
        self.in_flight += 1


@BUGS.add("a message without a dispatch mode does not block its group")
def _() -> None:
    @instead_of(Delivery, "blocks_group")
    def blocks_group(original: Any, self: Any) -> bool:
        return bool(self.pointer.dispatch_mode is DispatchMode.BLOCK_ON_ERROR)


@BUGS.add("a message that lets others pass when it fails is not ordered at all")
def _() -> None:
    @instead_of(Delivery, "ordered")
    def ordered(original: Any, self: Any) -> bool:
        return self.pointer.dispatch_mode in (None, DispatchMode.BLOCK_ON_ERROR)


@BUGS.add(
    "the group that became ready last starts first",
    test="tests/unit/groups_test.py::TestOrder::test_groups_share_their_turns_round_robin",
)
def _() -> None:
    @instead_of(GroupScheduler, "_make_ready")
    def make_ready(original: Any, self: Any, group: Any) -> None:
        waited = group.waiting
        original(self, group)
        if group.waiting and not waited:
            (self._ready_high if group.urgent else self._ready).move_to_end(group, last=False)


# Where two queues feed a group


@BUGS.add("a nacked message is not waited for where another queue feeds its group")
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(original: Any, self: Any, delivery: Delivery, scope: FailureScope, leaves: Leaves, *_: Any) -> Any:
        return original(self, delivery, scope, leaves)


@BUGS.add(
    "a nacked message that does not come back is waited for, for ever",
    test="tests/integration/group_order_test.py::TestSeveralQueuesFeedOneGroup::"
    "test_group_goes_on_where_a_nacked_head_never_comes_back",
)
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(
        original: Any, self: Any, delivery: Delivery, scope: FailureScope, leaves: Leaves, back_by: float | None
    ) -> Any:
        return original(self, delivery, scope, leaves, None if back_by is None else 1e9)


@BUGS.add(
    "a message that comes back while another one is in flight is overwritten when that one goes to the head",
    test="tests/unit/group_waits_test.py::TestReturn",
)
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        group = self._group_of(delivery)
        away = None if group is None else group.away
        original(self, delivery)
        if away is not None and away.broker_id == delivery.broker_id and group.head is None:
            (group.high or group.regular).popleft()
            group.head = delivery


@BUGS.add("a message that comes back goes to the end of its group")
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        before = self._group_of(delivery)
        away = None if before is None else before.away
        original(self, delivery)
        if away is not None and away.broker_id == delivery.broker_id:
            group = self._group_of(delivery)
            group.head = None
            group.regular.append(delivery)


@BUGS.add("a group goes on waiting although its nacked message came back")
def _() -> None:
    @instead_of(GroupScheduler, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> None:
        group = self._group_of(delivery)
        away = None if group is None else group.away
        if away is not None:
            group.away = None
        original(self, delivery)
        if away is not None:
            group.away = away


@BUGS.add(
    "the followers of a failed message go back even if their own queue does not keep order",
    test="tests/integration/group_order_test.py::TestSeveralQueuesFeedOneGroup::"
    "test_what_waited_behind_a_head_that_is_nacked_keeps_its_order_and_stays_behind",
)
def _() -> None:
    @instead_of(GroupScheduler, "fail")
    def fail(
        original: Any, self: Any, delivery: Delivery, scope: FailureScope, leaves: Leaves, *back_by: float | None
    ) -> Any:
        return original(self, delivery, scope, lambda _: True, *back_by)


@BUGS.add("a lost message takes those of another queue along")
def _() -> None:
    @instead_of(GroupScheduler, "cut")
    def cut(original: Any, self: Any, delivery: Delivery, *which: Any) -> Any:
        group = self._group_of(delivery)
        behind = [] if group is None or delivery not in list(group) else list(group)
        cut_off = original(self, delivery, *which)
        others = [one for one in behind[behind.index(delivery) :] if one not in cut_off] if cut_off else []
        self._take_out(group, others) if others else None
        if others and not group and group.busy is None and group.away is None:
            self._drop(group)
        return [*cut_off, *others]


# Gates


@BUGS.add("one group may go when a gate opens for many", test=GATES)
def _() -> None:
    @instead_of(GroupScheduler, "open")
    def open_gate(original: Any, self: Any, gate: str, groups: int) -> None:
        original(self, gate, 1)


@BUGS.add("a gate opens for those first that came last", test=GATES)
def _() -> None:
    @instead_of(GroupScheduler, "wait_at")
    def wait_at(original: Any, self: Any, delivery: Delivery, gate: str, **options: Any) -> None:
        original(self, delivery, gate, **options)
        self.gates[gate].move_to_end(self._group_of(delivery), last=False)


@BUGS.add("what waits at an open breaker counts twice as waiting", test=GATES)
def _() -> None:
    @instead_of(GroupScheduler, "wait_at")
    def wait_at(original: Any, self: Any, delivery: Delivery, gate: str, *, blocked: bool = False) -> None:
        original(self, delivery, gate, blocked=blocked)
        self.stalled += len(self._group_of(delivery)) if blocked else 0


@BUGS.add("what left a gate still counts as waiting there", test=GATES)
def _() -> None:
    @instead_of(GroupScheduler, "_leave_gate")
    def leave_gate(original: Any, self: Any, group: Any) -> None:
        stalled = self.stalled
        original(self, group)
        self.stalled = stalled
