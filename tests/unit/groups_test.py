"""The order of messages within a group, and whose turn it is among groups."""

import pytest

from flowcatalyst.core.message import DEFAULT_GROUP, DispatchMode
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.groups import TURNS_PER_CYCLE, GroupScheduler
from tests.support.groups import EMPTY, IMMEDIATE, delivery, ids, run, run_dry, scheduler_with, take, take_all


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
        scheduler.unstart(take(scheduler))
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
        scheduler.unstart(take(scheduler))
        scheduler.submit(delivery("h1", high=True))
        assert (scheduler.in_flight, scheduler.buffered, scheduler.held_count) == (0, 3, 0)
        assert run_dry(scheduler) == ["m1", "h1", "m2"]

    def test_group_of_a_message_put_back_goes_behind_the_groups_that_wait(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"))
        scheduler.unstart(take(scheduler))
        assert run_dry(scheduler) == ["b1", "a1"]


class TestFailure:
    """Three scenarios of a failure in a group, and what each scope makes of them."""

    def test_scenario_1_failure_takes_its_group_along_and_no_other(self) -> None:
        for scope in FailureScope:
            scheduler = scheduler_with(
                delivery("msg1", "order-12345"),
                delivery("msg2", "order-12345"),
                delivery("msg3", "order-12345"),
                delivery("msg4", "order-67890"),
            )
            acked, nacked = run(scheduler, {"msg2"}, scope)
            assert (sorted(acked), nacked) == (["msg1", "msg4"], ["msg2", "msg3"])
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
