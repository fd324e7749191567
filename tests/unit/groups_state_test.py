"""What a scheduler of groups forgets, cuts off and counts, and what a step costs."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.router import group as group_module
from flowcatalyst.router.group import FailureScope, Place
from flowcatalyst.router.groups import GroupScheduler
from tests.support.groups import EMPTY, IMMEDIATE, delivery, ids, run_dry, scheduler_with, take, take_all


class TestClear:
    def test_clear_returns_what_waits_in_order_but_for_groups_with_a_message_in_flight(self) -> None:
        scheduler = scheduler_with(
            delivery("a1", "a"), delivery("a2", "a"), delivery("a3", "a"), delivery("i1", mode=IMMEDIATE)
        )
        running = take(scheduler)
        scheduler.submit(delivery("h1", "a", high=True))
        scheduler.submit(delivery("b1", "b"))
        assert ids(scheduler.clear_idle()) == ["b1", "i1"]
        assert repr(scheduler) == "<GroupScheduler in_flight=1 buffered=3 a[*a1 h1 a2 a3]>"
        assert scheduler.take() is None
        scheduler.finish(running)
        assert ids(scheduler.clear_idle()) == ["h1", "a2", "a3"]
        assert (repr(scheduler), scheduler.group_count) == (EMPTY, 0)

    def test_clear_returns_a_retried_head_before_its_followers_and_ends_its_hold(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.hold(take(scheduler), until=9.0)
        scheduler.submit(delivery("h1", high=True))
        assert ids(scheduler.clear_idle()) == ["m1", "h1", "m2"]
        assert (repr(scheduler), scheduler.held_count, scheduler.next_hold_end()) == (EMPTY, 0, None)

    def test_group_that_was_on_hold_when_cleared_may_start_at_once_afterwards(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        scheduler.hold(take(scheduler), until=9.0)
        scheduler.clear_idle()
        scheduler.submit(delivery("m2"))
        assert run_dry(scheduler) == ["m2"]
        scheduler.end_holds(9.0)
        assert repr(scheduler) == EMPTY

    @pytest.mark.parametrize("mode", [None, IMMEDIATE])
    @pytest.mark.parametrize("ending", ["finish", "fail", "unstart", "hold"])
    def test_message_in_flight_during_clear_can_still_end_in_every_way(
        self, ending: str, mode: DispatchMode | None
    ) -> None:
        scheduler = scheduler_with(delivery("m1", mode=mode), delivery("m2", mode=mode))
        running = take(scheduler)
        followers = ["m2"] if mode is None else []
        assert ids(scheduler.clear_idle()) == ([] if mode is None else ["m2"])
        match ending:
            case "finish":
                scheduler.finish(running)
                assert run_dry(scheduler) == followers
            case "fail":
                assert ids(scheduler.fail(running, FailureScope.GROUP)) == followers
            case "unstart":
                scheduler.unstart(running)
                assert run_dry(scheduler) == ["m1", *followers]
            case "hold":
                scheduler.hold(running, until=1.0)
                scheduler.end_holds(1.0)
                assert run_dry(scheduler) == ["m1", *followers]
        assert (repr(scheduler), scheduler.group_count) == (EMPTY, 0)

    def test_order_of_a_group_survives_a_clear_while_its_head_is_in_flight(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        running = take(scheduler)
        scheduler.clear_idle()
        scheduler.submit(delivery("m3"))
        assert scheduler.take() is None
        scheduler.finish(running)
        assert run_dry(scheduler) == ["m2", "m3"]


class TestCut:
    def test_waiting_message_is_cut_out_with_those_behind_it(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"), delivery("m3"))
        running = take(scheduler)
        second = next(message for message in scheduler if message.pointer.id == "m2")
        assert scheduler.cut(running) == []  # it is in flight
        assert ids(scheduler.cut(second)) == ["m2", "m3"]
        assert scheduler.cut(second) == []
        scheduler.finish(running)
        assert (repr(scheduler), scheduler.group_count) == (EMPTY, 0)

    def test_head_on_hold_is_cut_out_with_all_tiers_behind_it(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"), delivery("h1", high=True))
        held = take(scheduler)
        scheduler.hold(held, until=5.0)
        assert ids(scheduler.cut(held)) == ["h1", "m1", "m2"]
        assert (repr(scheduler), scheduler.group_count, scheduler.next_hold_end()) == (EMPTY, 0, None)

    def test_immediate_message_is_cut_out_alone(self) -> None:
        scheduler = scheduler_with(delivery("i1", mode=IMMEDIATE), delivery("i2", mode=IMMEDIATE), delivery("m1"))
        first = next(message for message in scheduler if message.pointer.id == "i1")
        assert ids(scheduler.cut(first)) == ["i1"]
        assert sorted(run_dry(scheduler)) == ["i2", "m1"]


class TestState:
    def test_counts_follow_a_message_through_its_life(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("a2", "a"), delivery("b1", "b"))
        assert (scheduler.in_flight, scheduler.buffered, len(scheduler)) == (0, 3, 3)
        assert (scheduler.ready_count, scheduler.has_ready, scheduler.group_count) == (2, True, 2)
        message = take(scheduler)
        assert (scheduler.in_flight, scheduler.buffered, len(scheduler)) == (1, 2, 3)
        assert (scheduler.ready_count, scheduler.group_count) == (1, 2)
        scheduler.fail(message, FailureScope.GROUP)
        assert (scheduler.in_flight, scheduler.buffered, len(scheduler)) == (0, 1, 1)
        assert (scheduler.ready_count, scheduler.group_count) == (1, 1)

    def test_empty_groups_are_forgotten(self) -> None:
        scheduler = GroupScheduler()
        for n in range(1000):
            scheduler.submit(delivery(f"m{n}", f"g{n}"))
            scheduler.submit(delivery(f"i{n}", mode=IMMEDIATE))
        assert scheduler.group_count == 2000
        run_dry(scheduler)
        assert scheduler.group_count == 0
        assert repr(scheduler) == EMPTY

    def test_memory_of_a_burst_of_groups_is_nacked(self) -> None:
        scheduler = GroupScheduler()
        for n in range(1000):
            scheduler.submit(delivery(f"m{n}", f"g{n}"))
            scheduler.submit(delivery(f"i{n}", mode=IMMEDIATE))
        for message in take_all(scheduler):
            scheduler.finish(message)
        tables: tuple[dict[Any, Any], ...] = (scheduler._groups, scheduler._alone, scheduler._busy)
        assert [sys.getsizeof(table) for table in tables] == [sys.getsizeof({})] * 3

    def test_group_in_flight_is_not_forgotten(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        running = take(scheduler)
        assert (scheduler.group_count, len(scheduler)) == (1, 1)
        scheduler.submit(delivery("m2"))
        assert scheduler.take() is None
        scheduler.finish(running)
        assert run_dry(scheduler) == ["m2"]

    def test_message_is_in_flight_from_take_to_the_report(self) -> None:
        message = delivery("m1")
        scheduler = scheduler_with(message)
        assert not scheduler.is_in_flight(message)
        scheduler.take()
        assert scheduler.is_in_flight(message)
        scheduler.unstart(message)
        assert not scheduler.is_in_flight(message)

    def test_report_about_a_message_that_is_not_in_flight_is_an_error_and_changes_nothing(self) -> None:
        message = delivery("m1")
        scheduler = scheduler_with(message)
        with pytest.raises(KeyError):
            scheduler.finish(message)
        assert repr(scheduler) == "<GroupScheduler in_flight=0 buffered=1 g[m1]>"
        assert run_dry(scheduler) == ["m1"]

    def test_place_names_who_is_first_in_the_group_and_until_when_it_is_held(self) -> None:
        m1, m2 = delivery("m1"), delivery("m2")
        scheduler = scheduler_with(m1, m2)
        assert scheduler.place_of(m1) == Place(m1)
        assert scheduler.place_of(m2) == Place(m1)
        scheduler.take()
        assert scheduler.place_of(m2) == Place(m1)
        scheduler.hold(m1, until=4.0)
        assert scheduler.place_of(m1) == Place(m1, held_until=4.0)
        assert scheduler.place_of(m2) == Place(m1, held_until=4.0)
        scheduler.end_holds(4.0)
        assert scheduler.place_of(m2) == Place(m1)

    def test_place_of_an_immediate_message_is_its_own(self) -> None:
        m1, i1, i2 = delivery("m1"), delivery("i1", mode=IMMEDIATE), delivery("i2", mode=IMMEDIATE)
        scheduler = scheduler_with(m1, i1, i2)
        assert scheduler.place_of(i2) == Place(i2)
        assert ids([take(scheduler), take(scheduler)]) == ["m1", "i1"]
        scheduler.hold(i1, until=6.0)
        assert scheduler.place_of(i1) == Place(i1, held_until=6.0)
        assert scheduler.place_of(i2) == Place(i2)

    def test_repr_is_one_line_of_full_state(self) -> None:
        scheduler = scheduler_with(
            delivery("a1", "a"), delivery("b1", "b"), delivery("b2", "b"), delivery("i1", mode=IMMEDIATE)
        )
        take(scheduler)
        scheduler.hold(take(scheduler), until=2.5)
        assert repr(scheduler) == "<GroupScheduler in_flight=1 buffered=3 a[*a1] b@2.5[b1 b2] -[i1]>"


@pytest.mark.thorough
class TestCost:
    """Counted in executed opcodes, so that the machine's speed does not matter."""

    @pytest.fixture(autouse=True)
    def _see_comparisons_made_in_c(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`deque.remove` and `in` scan without executing an opcode, unless elements compare in Python."""
        for kind in (group_module.Group, Delivery):
            monkeypatch.setattr(kind, "__eq__", lambda this, other: this is other)

    def test_work_per_message_is_the_same_with_100_groups_and_with_100_000(self) -> None:
        assert self._work_among(100) == self._work_among(100_000)

    def test_work_per_immediate_message_is_the_same_among_100_and_among_100_000(self) -> None:
        assert self._work_among(100, IMMEDIATE) == self._work_among(100_000, IMMEDIATE)

    def test_counting_would_notice_a_scan_over_groups(self) -> None:
        few, many = range(100), range(1000)
        assert count_opcodes(lambda: scan(few)) < count_opcodes(lambda: scan(many))

    def _work_among(self, others: int, mode: DispatchMode | None = None) -> list[int]:
        scheduler = scheduler_with(*(delivery(f"m{n}", f"g{n}", mode=mode) for n in range(others)))
        behind = delivery("behind", f"g{others // 2}", mode=mode)
        high = delivery("high", f"g{others // 3}", mode=mode, high=True)
        followers = [delivery("next-1", "g7", mode=mode), delivery("next-2", "g7", mode=mode)]
        taken: list[Delivery] = []
        steps: list[Callable[[], object]] = [
            lambda: scheduler.submit(behind),
            lambda: scheduler.submit(followers[0]),
            lambda: scheduler.submit(followers[1]),
            lambda: taken.extend(take(scheduler) for _ in range(8)),
            lambda: scheduler.finish(taken[0]),
            lambda: scheduler.hold(taken[1], 5.0),
            lambda: scheduler.hold(taken[2], 6.0),
            lambda: scheduler.end_holds(5.0),
            lambda: scheduler.next_hold_end(),
            lambda: scheduler.unstart(taken[3]),
            lambda: scheduler.fail(taken[4], FailureScope.GROUP),
            lambda: scheduler.fail(taken[7], FailureScope.BATCH),
            lambda: scheduler.is_in_flight(taken[5]),
            lambda: scheduler.wait_at(taken[5], "gate", blocked=True),
            lambda: scheduler.open("gate", 1),
            lambda: scheduler.await_ack(taken[6]),
            lambda: scheduler.finish(taken[6]),
            lambda: scheduler.submit(high),
            lambda: taken.append(take(scheduler)),
            lambda: (scheduler.ready_count, scheduler.has_ready, scheduler.group_count, len(scheduler)),
            lambda: scheduler.place_of(behind),
            lambda: behind in scheduler,
            lambda: scheduler.cut(behind),
            lambda: scheduler.clear_idle(of=high),
        ]
        return [count_opcodes(step) for step in steps]


def scan(numbers: range) -> int:
    return sum(1 for number in numbers if number >= 0)


def count_opcodes(step: Callable[[], object]) -> int:
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what it would clean up is no work of ours
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
        gc.enable()
    return executed
