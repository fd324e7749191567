import gc
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from flowcatalyst.message import DEFAULT_GROUP, Delivery, DispatchMode
from flowcatalyst.routing import group as group_module
from flowcatalyst.routing.groups import TURNS_PER_CYCLE, FailureScope, GroupScheduler, Place
from tests.support import deliveries
from tests.support.deliveries import RecordingSource

delivery = partial(deliveries.delivery, source=RecordingSource())  # all of one queue
IMMEDIATE = DispatchMode.IMMEDIATE
EMPTY = "<GroupScheduler in_flight=0 buffered=0 empty>"


def scheduler_with(*messages: Delivery) -> GroupScheduler:
    scheduler = GroupScheduler()
    for message in messages:
        scheduler.submit(message)
    return scheduler


def ids(messages: Iterable[Delivery]) -> list[str]:
    return [message.pointer.id for message in messages]


def take(scheduler: GroupScheduler) -> Delivery:
    message = scheduler.take()
    assert message is not None, f"nothing ready in {scheduler!r}"
    return message


def take_all(scheduler: GroupScheduler) -> list[Delivery]:
    """Everything that may be in flight at once."""
    return list(iter(scheduler.take, None))


def run_dry(scheduler: GroupScheduler) -> list[str]:
    """Take and finish one message after the other until nothing may start."""
    taken: list[str] = []
    while (message := scheduler.take()) is not None:
        taken.append(message.pointer.id)
        scheduler.finish(message)
    return taken


def run(scheduler: GroupScheduler, failing: set[str], scope: FailureScope) -> tuple[list[str], list[str]]:
    """Deliver everything, one after the other; returns who was acked and who went back, in order."""
    acked: list[str] = []
    given_back: list[str] = []
    while (message := scheduler.take()) is not None:
        if message.pointer.id in failing:
            given_back += ids([message, *scheduler.fail(message, scope)])
        else:
            scheduler.finish(message)
            acked.append(message.pointer.id)
    return acked, given_back


class TestOrder:
    def test_messages_of_a_group_start_in_the_order_they_were_submitted(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"), delivery("m3"))
        assert run_dry(scheduler) == ["m1", "m2", "m3"]

    def test_one_message_of_a_group_is_in_flight_at_a_time(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        first = take(scheduler)
        assert scheduler.take() is None
        scheduler.submit(delivery("m3"))
        assert scheduler.take() is None
        assert repr(scheduler) == "<GroupScheduler in_flight=1 buffered=2 g[*m1 m2 m3]>"
        scheduler.finish(first)
        assert ids(take_all(scheduler)) == ["m2"]

    def test_different_groups_are_in_flight_together(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"), delivery("a2", "a"), delivery("c1", "c"))
        assert ids(take_all(scheduler)) == ["a1", "b1", "c1"]

    def test_groups_share_their_turns_round_robin(self) -> None:
        scheduler = scheduler_with(
            *(delivery(f"a{n}", "a") for n in range(3)),
            *(delivery(f"b{n}", "b") for n in range(3)),
            *(delivery(f"c{n}", "c") for n in range(2)),
        )
        assert run_dry(scheduler) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2"]

    def test_group_that_finishes_goes_behind_the_groups_that_wait(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("a2", "a"), delivery("b1", "b"))
        scheduler.finish(take(scheduler))
        scheduler.submit(delivery("c1", "c"))
        assert run_dry(scheduler) == ["b1", "a2", "c1"]

    def test_default_group_is_ordered_like_any_other(self) -> None:
        scheduler = scheduler_with(delivery("m1", DEFAULT_GROUP), delivery("m2", DEFAULT_GROUP))
        first = take(scheduler)
        assert scheduler.take() is None
        assert ids(scheduler.fail(first, FailureScope.GROUP)) == ["m2"]
        assert repr(scheduler) == EMPTY

    def test_nothing_is_ready_in_an_empty_scheduler(self) -> None:
        scheduler = GroupScheduler()
        assert scheduler.take() is None
        assert (len(scheduler), scheduler.has_ready, scheduler.ready_count) == (0, False, 0)
        assert repr(scheduler) == EMPTY


class TestPriority:
    def test_high_tier_of_a_group_starts_before_its_regular_tier(self) -> None:
        scheduler = scheduler_with(
            delivery("r1"), delivery("h1", high=True), delivery("r2"), delivery("h2", high=True), delivery("r3")
        )
        assert run_dry(scheduler) == ["h1", "h2", "r1", "r2", "r3"]

    def test_group_with_a_high_priority_message_starts_before_regular_groups(self) -> None:
        scheduler = scheduler_with(delivery("r1", "a"), delivery("r2", "b"), delivery("h1", "c", high=True))
        assert run_dry(scheduler) == ["h1", "r1", "r2"]

    def test_high_priority_message_overtakes_other_groups_even_when_its_own_group_waits_already(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"), delivery("b2", "b", high=True))
        assert run_dry(scheduler) == ["b2", "a1", "b1"]

    def test_high_priority_message_that_arrives_behind_an_attempt_starts_next_in_the_pool(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"))
        running = take(scheduler)
        scheduler.submit(delivery("a2", "a", high=True))
        scheduler.finish(running)
        assert run_dry(scheduler) == ["a2", "b1"]

    def test_of_every_cycle_of_turns_the_regular_tier_gets_one(self) -> None:
        scheduler = scheduler_with(
            *(delivery(f"h{n}", f"high-{n}", high=True) for n in range(4 * TURNS_PER_CYCLE)),
            *(delivery(f"r{n}", f"regular-{n}") for n in range(4)),
        )
        turns = "".join(taken[0] for taken in run_dry(scheduler)[: 3 * TURNS_PER_CYCLE])
        assert turns == "hhhhhhhr" * 3

    def test_regular_tier_does_not_starve_under_endless_high_priority_traffic(self) -> None:
        scheduler = scheduler_with(delivery("regular", "r"))
        for n in range(TURNS_PER_CYCLE):
            scheduler.submit(delivery(f"h{n}", f"h{n}", high=True))
            scheduler.submit(delivery(f"H{n}", f"H{n}", high=True))
            message = take(scheduler)
            if message.pointer.id == "regular":
                return
            scheduler.finish(message)
        pytest.fail(f"the regular message got none of {TURNS_PER_CYCLE} turns: {scheduler!r}")

    def test_turn_of_the_regular_tier_is_not_wasted_when_nothing_regular_waits(self) -> None:
        high = [delivery(f"h{n}", f"h{n}", high=True) for n in range(2 * TURNS_PER_CYCLE)]
        assert run_dry(scheduler_with(*high)) == ids(high)

    @pytest.mark.parametrize("mode", [None, IMMEDIATE])
    def test_retried_high_priority_message_keeps_its_tier_among_ready_groups(self, mode: DispatchMode | None) -> None:
        scheduler = scheduler_with(delivery("h1", "a", mode=mode, high=True), delivery("r1", "b"), delivery("r2", "c"))
        scheduler.hold(take(scheduler), until=1.0)
        scheduler.end_holds(1.0)
        assert run_dry(scheduler) == ["h1", "r1", "r2"]

    def test_high_priority_message_put_back_keeps_its_tier_among_ready_groups(self) -> None:
        scheduler = scheduler_with(delivery("h1", "a", high=True), delivery("r1", "b"))
        scheduler.put_back(take(scheduler))
        assert run_dry(scheduler) == ["h1", "r1"]

    def test_in_flight_message_is_not_overtaken_by_a_high_priority_one_of_its_group(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        running = take(scheduler)
        scheduler.submit(delivery("h1", high=True))
        assert scheduler.take() is None
        scheduler.finish(running)
        assert run_dry(scheduler) == ["h1"]


class TestHold:
    def test_group_on_hold_starts_nothing_before_its_time(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.hold(take(scheduler), until=10.0)
        scheduler.submit(delivery("h1", high=True))
        assert repr(scheduler) == "<GroupScheduler in_flight=0 buffered=3 g@10[m1 h1 m2]>"
        scheduler.end_holds(9.999)
        assert scheduler.take() is None
        scheduler.end_holds(10.0)
        assert ids(take_all(scheduler)) == ["m1"]

    def test_retried_head_comes_before_high_priority_and_later_messages(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.hold(take(scheduler), until=1.0)
        scheduler.submit(delivery("h1", high=True))
        scheduler.end_holds(1.0)
        assert run_dry(scheduler) == ["m1", "h1", "m2"]

    def test_hold_of_one_group_does_not_delay_another(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"), delivery("b2", "b"))
        scheduler.hold(take(scheduler), until=1000.0)
        assert run_dry(scheduler) == ["b1", "b2"]

    def test_message_on_hold_is_buffered_and_occupies_no_slot(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        scheduler.hold(take(scheduler), until=1.0)
        assert (scheduler.in_flight, scheduler.buffered, scheduler.held_count) == (0, 1, 1)
        assert not scheduler.has_ready

    def test_next_hold_end_is_the_earliest_of_all(self) -> None:
        scheduler = scheduler_with(*(delivery(name, name) for name in "abc"))
        assert scheduler.next_hold_end() is None
        for message, until in zip(take_all(scheduler), (7.0, 3.0, 5.0), strict=True):
            scheduler.hold(message, until)
        assert scheduler.next_hold_end() == 3.0
        scheduler.end_holds(3.0)
        assert scheduler.next_hold_end() == 5.0
        scheduler.end_holds(100.0)
        assert scheduler.next_hold_end() is None
        assert scheduler.held_count == 0

    def test_groups_come_back_in_the_order_their_holds_end_and_ties_in_the_order_they_began(self) -> None:
        scheduler = scheduler_with(*(delivery(name, name) for name in "abcd"))
        for message, until in zip(take_all(scheduler), (2.0, 1.0, 2.0, 1.0), strict=True):
            scheduler.hold(message, until)
        scheduler.end_holds(2.0)
        assert run_dry(scheduler) == ["b", "d", "a", "c"]

    def test_message_can_be_held_again_and_again(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        for until in (1.0, 2.0, 3.0):
            scheduler.hold(take(scheduler), until)
            assert scheduler.take() is None
            scheduler.end_holds(until)
        assert run_dry(scheduler) == ["m1", "m2"]
        assert repr(scheduler) == EMPTY

    def test_message_put_back_is_the_next_of_its_group_at_once(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.put_back(take(scheduler))
        scheduler.submit(delivery("h1", high=True))
        assert (scheduler.in_flight, scheduler.buffered, scheduler.held_count) == (0, 3, 0)
        assert run_dry(scheduler) == ["m1", "h1", "m2"]

    def test_group_of_a_message_put_back_goes_behind_the_groups_that_wait(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"))
        scheduler.put_back(take(scheduler))
        assert run_dry(scheduler) == ["b1", "a1"]


class TestFailure:
    """Scenarios 1 to 3 of 000, "Example Scenarios", and what the strict scope makes of them."""

    def test_scenario_1_failure_takes_its_group_along_and_no_other(self) -> None:
        for scope in FailureScope:
            scheduler = scheduler_with(
                delivery("msg1", "order-12345"),
                delivery("msg2", "order-12345"),
                delivery("msg3", "order-12345"),
                delivery("msg4", "order-67890"),
            )
            acked, given_back = run(scheduler, {"msg2"}, scope)
            assert (sorted(acked), given_back) == (["msg1", "msg4"], ["msg2", "msg3"])
            assert repr(scheduler) == EMPTY

    def test_scenario_2_all_later_messages_of_the_batch_cascade(self) -> None:
        for scope in FailureScope:
            scheduler = scheduler_with(*(delivery(f"msg{n}", "order-12345", batch=2) for n in range(1, 6)))
            assert run(scheduler, {"msg3"}, scope) == (["msg1", "msg2"], ["msg3", "msg4", "msg5"])
            assert repr(scheduler) == EMPTY

    def test_scenario_3_batch_scope_lets_another_batch_of_the_group_go_on(self) -> None:
        scheduler = self._two_batches_of_one_group()
        assert run(scheduler, {"msg1"}, FailureScope.BATCH) == (["msg3", "msg4"], ["msg1", "msg2"])
        assert repr(scheduler) == EMPTY

    def test_scenario_3_group_scope_lets_nobody_pass_the_failed_message(self) -> None:
        scheduler = self._two_batches_of_one_group()
        assert run(scheduler, {"msg1"}, FailureScope.GROUP) == ([], ["msg1", "msg2", "msg3", "msg4"])
        assert repr(scheduler) == EMPTY

    def _two_batches_of_one_group(self) -> GroupScheduler:
        return scheduler_with(
            delivery("msg1", "order-12345", batch=1),
            delivery("msg2", "order-12345", batch=1),
            delivery("msg3", "order-12345", batch=2),
            delivery("msg4", "order-12345", batch=2),
        )

    def test_batch_scope_picks_its_followers_out_of_both_tiers_and_keeps_the_order_of_the_rest(self) -> None:
        scheduler = scheduler_with(
            delivery("m1", batch=1),
            delivery("m2", batch=2),
            delivery("m3", batch=1),
            delivery("m4", batch=2),
        )
        failed = take(scheduler)
        scheduler.submit(delivery("h1", batch=1, high=True))
        scheduler.submit(delivery("h2", batch=2, high=True))
        assert ids(scheduler.fail(failed, FailureScope.BATCH)) == ["h1", "m3"]
        assert repr(scheduler) == "<GroupScheduler in_flight=0 buffered=3 g[h2 m2 m4]>"
        assert run_dry(scheduler) == ["h2", "m2", "m4"]

    def test_group_scope_takes_both_tiers(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        failed = take(scheduler)
        scheduler.submit(delivery("h1", high=True))
        assert ids(scheduler.fail(failed, FailureScope.GROUP)) == ["h1", "m2"]
        assert repr(scheduler) == EMPTY

    def test_failed_message_is_not_among_its_own_followers(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        assert scheduler.fail(take(scheduler), FailureScope.GROUP) == []
        assert repr(scheduler) == EMPTY

    def test_messages_submitted_after_a_failure_start_at_once(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.fail(take(scheduler), FailureScope.GROUP)
        scheduler.submit(delivery("m1-again"))
        assert run_dry(scheduler) == ["m1-again"]

    def test_failure_after_a_hold_leaves_no_hold_behind(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        scheduler.hold(take(scheduler), until=1.0)
        scheduler.end_holds(1.0)
        assert ids(scheduler.fail(take(scheduler), FailureScope.GROUP)) == ["m2"]
        assert (repr(scheduler), scheduler.next_hold_end()) == (EMPTY, None)


class TestImmediate:
    def test_immediate_messages_of_one_group_are_all_in_flight_together(self) -> None:
        scheduler = scheduler_with(*(delivery(f"i{n}", "g", mode=IMMEDIATE) for n in range(4)))
        assert scheduler.ready_count == 4
        assert ids(take_all(scheduler)) == ["i0", "i1", "i2", "i3"]

    def test_immediate_message_passes_a_blocked_group_of_its_name(self) -> None:
        scheduler = scheduler_with(delivery("m1", "g"), delivery("m2", "g"))
        blocked = take(scheduler)
        scheduler.submit(delivery("i1", "g", mode=IMMEDIATE))
        assert ids(take_all(scheduler)) == ["i1"]
        assert ids(scheduler.fail(blocked, FailureScope.GROUP)) == ["m2"]
        assert repr(scheduler) == "<GroupScheduler in_flight=1 buffered=0 -[*i1]>"

    def test_failed_immediate_message_takes_nobody_along(self) -> None:
        for scope in FailureScope:
            scheduler = scheduler_with(delivery("i1", mode=IMMEDIATE), delivery("i2", mode=IMMEDIATE), delivery("m1"))
            assert scheduler.fail(take(scheduler), scope) == []
            assert run_dry(scheduler) == ["i2", "m1"]

    def test_held_immediate_message_holds_nobody_else(self) -> None:
        scheduler = scheduler_with(delivery("i1", mode=IMMEDIATE), delivery("i2", mode=IMMEDIATE), delivery("m1"))
        scheduler.hold(take(scheduler), until=5.0)
        assert run_dry(scheduler) == ["i2", "m1"]
        scheduler.end_holds(5.0)
        assert run_dry(scheduler) == ["i1"]
        assert repr(scheduler) == EMPTY

    def test_message_without_any_group_is_ordered_with_nobody(self) -> None:
        scheduler = scheduler_with(delivery("m1", None), delivery("m2", None))
        assert ids(take_all(scheduler)) == ["m1", "m2"]

    @pytest.mark.parametrize("mode", [DispatchMode.NEXT_ON_ERROR, DispatchMode.BLOCK_ON_ERROR])
    def test_every_mode_but_immediate_is_ordered(self, mode: DispatchMode) -> None:
        scheduler = scheduler_with(delivery("m1", mode=mode), delivery("m2", mode=mode))
        assert ids(take_all(scheduler)) == ["m1"]


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
    @pytest.mark.parametrize("ending", ["finish", "fail", "put_back", "hold"])
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
            case "put_back":
                scheduler.put_back(running)
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

    def test_memory_of_a_burst_of_groups_is_given_back(self) -> None:
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
        scheduler.put_back(message)
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
            lambda: scheduler.put_back(taken[3]),
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
