"""What a group waits for besides a slot and a hold: a gate, an ack, or a message that has to come back."""

import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.group import FailureScope, Place
from flowcatalyst.router.groups import GroupScheduler
from tests.support.deliveries import UNORDERED, RecordingSource
from tests.support.groups import EMPTY, IMMEDIATE, delivery, ids, run_dry, scheduler_with, take

OTHER_QUEUE = RecordingSource(UNORDERED, name="other-queue")


def again(message: Delivery) -> Delivery:
    """The same message as its queue shows it the next time."""
    shown = delivery(message.pointer.id, message.group, broker_id=message.broker_id)
    shown.source = message.source
    return shown


def at_gate(*groups: str, gate: str = "slow", blocked: bool = False) -> GroupScheduler:
    """Groups with two messages each that wait at a gate, in this order."""
    scheduler = scheduler_with(*(delivery(f"{group}{n}", group) for n in (1, 2) for group in groups))
    for _ in groups:
        scheduler.wait_at(take(scheduler), gate, blocked=blocked)
    return scheduler


class TestGates:
    def test_group_at_a_gate_starts_nothing_and_others_go_on(self) -> None:
        scheduler = at_gate("a")
        scheduler.submit(delivery("b1", "b"))
        scheduler.end_holds(float("inf"))
        assert run_dry(scheduler) == ["b1"]
        assert repr(scheduler) == "<GroupScheduler in_flight=0 buffered=2 a|slow[a1 a2]>"
        assert (list(scheduler.gates), scheduler.next_hold_end()) == (["slow"], None)

    def test_so_many_groups_go_as_the_gate_is_opened_for_those_first_that_came_first(self) -> None:
        scheduler = at_gate("a", "b", "c")
        scheduler.open("slow", 2)
        assert scheduler.ready_count == 2
        assert run_dry(scheduler) == ["a1", "b1", "a2", "b2"]
        assert list(scheduler.gates) == ["slow"]
        scheduler.open("slow", 5)
        assert run_dry(scheduler) == ["c1", "c2"]
        assert (repr(scheduler), list(scheduler.gates)) == (EMPTY, [])

    def test_groups_that_waited_at_a_gate_come_before_those_that_are_ready_already(self) -> None:
        scheduler = at_gate("a", "b")
        scheduler.submit(delivery("c1", "c"))
        scheduler.open("slow", 2)
        assert run_dry(scheduler) == ["a1", "b1", "c1", "a2", "b2"]

    def test_a_group_that_lost_its_urgent_messages_while_it_was_ready_can_be_let_go(self) -> None:
        urgent, regular = delivery("h1", high=True), delivery("n1", source=OTHER_QUEUE)
        scheduler = scheduler_with(delivery("o1", "other", high=True), urgent, regular)
        scheduler.cut(urgent)
        assert scheduler.let_go(regular)
        assert run_dry(scheduler) == ["n1", "o1"]

    def test_group_with_a_high_priority_head_keeps_its_tier_when_its_gate_opens(self) -> None:
        scheduler = scheduler_with(delivery("urgent", "a", high=True), delivery("other", "b", high=True))
        scheduler.submit(delivery("r1", "c"))
        scheduler.wait_at(take(scheduler), "slow")
        scheduler.open("slow", 1)
        assert run_dry(scheduler) == ["urgent", "other", "r1"]

    def test_message_that_waited_at_a_gate_stays_the_head_of_its_group(self) -> None:
        scheduler = at_gate("a")
        scheduler.submit(delivery("high", "a", high=True))
        scheduler.open("slow", 1)
        assert run_dry(scheduler) == ["a1", "high", "a2"]

    def test_gates_that_were_looked_at_go_behind_the_others_so_that_each_gets_its_turn(self) -> None:
        scheduler = at_gate("a", "b", gate="one")
        scheduler.submit(delivery("c1", "c"))
        scheduler.wait_at(take(scheduler), "two")
        assert [next(scheduler.gates_in_turn()) for _ in range(3)] == ["one", "two", "one"]
        assert list(scheduler.gates_in_turn()) == ["two", "one"]

    def test_opening_a_gate_where_nobody_waits_changes_nothing(self) -> None:
        scheduler = at_gate("a")
        scheduler.open("another", 10)
        scheduler.open("slow", 0)
        assert (scheduler.take(), list(scheduler.gates)) == (None, ["slow"])

    @pytest.mark.parametrize("blocked", [False, True])
    def test_only_messages_at_a_gate_for_some_time_count_as_stalled(self, blocked: bool) -> None:
        scheduler = at_gate("a", blocked=blocked)
        assert scheduler.stalled == (2 if blocked else 0)
        scheduler.submit(delivery("a3", "a"))
        scheduler.submit(delivery("b1", "b"))
        assert scheduler.stalled == (3 if blocked else 0)
        scheduler.open("slow", 1)
        assert scheduler.stalled == 0

    def test_place_names_the_gate(self) -> None:
        scheduler = at_gate("a")
        first, second = scheduler
        assert scheduler.place_of(first) == Place(first, gate="slow")
        assert scheduler.place_of(second) == Place(first, gate="slow")
        scheduler.open("slow", 1)
        assert scheduler.place_of(second) == Place(first)

    def test_immediate_message_waits_at_a_gate_alone(self) -> None:
        scheduler = scheduler_with(*(delivery(f"i{n}", mode=IMMEDIATE) for n in (1, 2)))
        scheduler.wait_at(take(scheduler), "slow", blocked=True)
        assert (run_dry(scheduler), scheduler.stalled) == (["i2"], 1)
        scheduler.open("slow", 9)
        assert (run_dry(scheduler), repr(scheduler)) == (["i1"], EMPTY)

    @pytest.mark.parametrize("blocked", [False, True])
    def test_cleared_group_leaves_its_gate(self, blocked: bool) -> None:
        scheduler = at_gate("a", "b", blocked=blocked)
        assert ids(scheduler.clear_idle()) == ["a1", "a2", "b1", "b2"]
        assert (repr(scheduler), list(scheduler.gates), scheduler.stalled) == (EMPTY, [], 0)
        scheduler.open("slow", 2)
        assert scheduler.take() is None

    @pytest.mark.parametrize("blocked", [False, True])
    def test_message_that_is_cut_out_of_a_group_at_a_gate_leaves_those_before_it_there(self, blocked: bool) -> None:
        scheduler = at_gate("a", blocked=blocked)
        first, second = scheduler
        assert scheduler.cut(second) == [second]
        assert (scheduler.stalled, list(scheduler.gates)) == (1 if blocked else 0, ["slow"])
        assert scheduler.cut(first) == [first]
        assert (repr(scheduler), scheduler.stalled, list(scheduler.gates)) == (EMPTY, 0, [])


class TestAwaitedAck:
    def test_next_of_the_group_waits_for_the_ack_and_occupies_no_slot_meanwhile(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"), delivery("b1", "b"))
        first = take(scheduler)
        scheduler.await_ack(first)
        assert (scheduler.in_flight, scheduler.unsettled, scheduler.buffered, len(scheduler)) == (0, 1, 2, 3)
        assert run_dry(scheduler) == ["b1"]
        assert first in scheduler
        scheduler.finish(first)
        assert (scheduler.in_flight, scheduler.unsettled, len(scheduler)) == (0, 0, 1)
        assert (run_dry(scheduler), repr(scheduler)) == (["m2"], EMPTY)

    def test_group_that_waits_for_an_ack_is_not_cleared(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"))
        first = take(scheduler)
        scheduler.await_ack(first)
        assert scheduler.clear_idle() == []
        scheduler.finish(first)
        assert ids(scheduler.clear_idle()) == ["m2"]

    def test_what_comes_meanwhile_waits_too(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        first = take(scheduler)
        scheduler.await_ack(first)
        scheduler.submit(delivery("m2"))
        assert scheduler.take() is None
        scheduler.finish(first)
        assert run_dry(scheduler) == ["m2"]


class TestReturn:
    """A message was nacked to its queue, and another queue feeds its group too."""

    def test_nothing_of_the_group_starts_before_the_message_is_back_and_then_it_is_first(self) -> None:
        first = delivery("m1")
        scheduler = scheduler_with(first, delivery("n1", source=OTHER_QUEUE))
        assert scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0) == []
        assert repr(scheduler) == "<GroupScheduler in_flight=0 buffered=1 g@60<m1[n1]>"
        scheduler.submit(delivery("n2", source=OTHER_QUEUE))
        scheduler.submit(delivery("high", high=True, source=OTHER_QUEUE))
        scheduler.end_holds(59.9)
        assert (scheduler.take(), scheduler.stalled, scheduler.held_count) == (None, 3, 1)
        scheduler.submit(again(first))
        assert (scheduler.stalled, scheduler.held_count, scheduler.next_hold_end()) == (0, 0, None)
        assert run_dry(scheduler) == ["m1", "high", "n1", "n2"]
        assert repr(scheduler) == EMPTY

    def test_a_group_that_waits_for_a_nacked_message_cannot_be_let_go(self) -> None:
        behind = delivery("n1", source=OTHER_QUEUE)
        scheduler = scheduler_with(delivery("m1"), behind)
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        assert not scheduler.let_go(behind)
        assert (scheduler.take(), repr(scheduler)) == (None, "<GroupScheduler in_flight=0 buffered=1 g@60<m1[n1]>")

    def test_group_waits_although_nothing_of_it_is_left_here(self) -> None:
        first = delivery("m1")
        scheduler = scheduler_with(first)
        scheduler.fail(take(scheduler), FailureScope.GROUP, back_by=60.0)
        assert (scheduler.group_count, len(scheduler), scheduler.has_group("g")) == (1, 0, True)
        scheduler.submit(delivery("n1", source=OTHER_QUEUE))
        assert scheduler.take() is None
        scheduler.submit(again(first))
        assert run_dry(scheduler) == ["m1", "n1"]

    def test_another_message_of_the_same_queue_ends_the_wait_in_its_own_place(self) -> None:
        """Its queue keeps the order of its own messages: the one that is awaited was handled elsewhere."""
        scheduler = scheduler_with(delivery("m1"), delivery("n1", source=OTHER_QUEUE))
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        scheduler.submit(delivery("m2"))
        assert run_dry(scheduler) == ["n1", "m2"]

    def test_group_goes_on_when_the_message_stays_away_for_too_long(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("n1", source=OTHER_QUEUE))
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        scheduler.end_holds(60.0)
        assert (run_dry(scheduler), repr(scheduler), scheduler.group_count) == (["n1"], EMPTY, 0)

    def test_empty_group_whose_message_stays_away_is_forgotten(self) -> None:
        scheduler = scheduler_with(delivery("m1"))
        scheduler.fail(take(scheduler), FailureScope.GROUP, back_by=60.0)
        scheduler.end_holds(60.0)
        assert (scheduler.group_count, scheduler.held_count, scheduler.next_hold_end()) == (0, 0, None)

    def test_message_that_comes_too_late_takes_its_place_like_a_new_one(self) -> None:
        first = delivery("m1")
        scheduler = scheduler_with(first, delivery("n1", source=OTHER_QUEUE), delivery("n2", source=OTHER_QUEUE))
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        scheduler.end_holds(60.0)
        running = take(scheduler)
        scheduler.submit(again(first))
        scheduler.finish(running)
        assert run_dry(scheduler) == ["n2", "m1"]

    def test_only_followers_that_may_leave_do_and_the_others_keep_their_order(self) -> None:
        scheduler = scheduler_with(
            delivery("m1"), delivery("n1", source=OTHER_QUEUE), delivery("m2"), delivery("n2", source=OTHER_QUEUE)
        )
        followers = scheduler.fail(
            take(scheduler), FailureScope.GROUP, lambda message: message.source is not OTHER_QUEUE
        )
        assert ids(followers) == ["m2"]
        assert run_dry(scheduler) == ["n1", "n2"]

    def test_followers_that_leave_do_not_count_as_stalled(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("m2"), delivery("n1", source=OTHER_QUEUE))
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda m: m.source is not OTHER_QUEUE, back_by=9.0)
        assert (scheduler.buffered, scheduler.stalled) == (1, 1)

    def test_place_names_the_message_that_has_to_come_back_and_until_when_it_is_awaited(self) -> None:
        first, follower = delivery("m1"), delivery("n1", source=OTHER_QUEUE)
        scheduler = scheduler_with(first, follower)
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        assert scheduler.place_of(follower) == Place(first, held_until=60.0, is_away=True)

    def test_cleared_group_waits_for_nobody_any_more(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("n1", source=OTHER_QUEUE))
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        assert ids(scheduler.clear_idle()) == ["n1"]
        assert (repr(scheduler), scheduler.held_count, scheduler.next_hold_end()) == (EMPTY, 0, None)

    def test_group_from_which_the_last_message_is_cut_still_waits_for_the_one_that_is_away(self) -> None:
        first, follower = delivery("m1"), delivery("n1", source=OTHER_QUEUE)
        scheduler = scheduler_with(first, follower)
        scheduler.fail(take(scheduler), FailureScope.GROUP, lambda _: False, back_by=60.0)
        assert scheduler.cut(follower) == [follower]
        assert (scheduler.held_count, scheduler.stalled) == (1, 0)
        scheduler.submit(delivery("n2", source=OTHER_QUEUE))
        assert scheduler.take() is None
        scheduler.submit(again(first))
        assert run_dry(scheduler) == ["m1", "n2"]

    @pytest.mark.parametrize("ends", ["hold", "wait_at", "unstart"])
    def test_message_that_returns_while_another_one_is_in_flight_comes_right_behind_it(self, ends: str) -> None:
        scheduler = scheduler_with(delivery("x", "g", broker_id="x"))
        scheduler.fail(take(scheduler), FailureScope.GROUP, back_by=30.0)
        scheduler.submit(delivery("y", "g", broker_id="y"))  # of the same queue, which keeps its order: it may start
        busy = take(scheduler)
        scheduler.submit(delivery("z", "g", broker_id="z"))
        scheduler.submit(delivery("x", "g", broker_id="x"))
        more = {"hold": (0.0,), "wait_at": ("gate",), "unstart": ()}
        getattr(scheduler, ends)(busy, *more[ends])
        scheduler.end_holds(1.0)
        scheduler.open("gate", 1)
        assert (scheduler.buffered, run_dry(scheduler)) == (3, ["y", "x", "z"])
        assert repr(scheduler) == EMPTY


class TestSources:
    def test_cut_takes_only_what_came_from_the_same_queue(self) -> None:
        messages = [
            delivery("m1"),
            delivery("m2"),
            delivery("n1", source=OTHER_QUEUE),
            delivery("m3"),
            delivery("n2", source=OTHER_QUEUE),
        ]
        scheduler = scheduler_with(*messages)
        assert ids(scheduler.cut(messages[1])) == ["m2", "m3"]
        assert run_dry(scheduler) == ["m1", "n1", "n2"]

    def test_cut_of_a_head_on_hold_leaves_the_hold_to_those_who_stay(self) -> None:
        scheduler = scheduler_with(delivery("m1"), delivery("n1", source=OTHER_QUEUE))
        held = take(scheduler)
        scheduler.hold(held, until=5.0)
        assert scheduler.cut(held) == [held]
        assert (scheduler.stalled, scheduler.buffered) == (1, 1)
        scheduler.end_holds(5.0)
        assert run_dry(scheduler) == ["n1"]


class TestClearGroup:
    def test_only_the_group_of_that_message_is_cleared(self) -> None:
        first = delivery("a1", "a")
        scheduler = scheduler_with(first, delivery("a2", "a"), delivery("b1", "b"))
        scheduler.finish(take(scheduler))
        assert ids(scheduler.clear_idle(of=first)) == ["a2"]
        assert run_dry(scheduler) == ["b1"]

    def test_group_with_a_message_in_flight_is_not_cleared(self) -> None:
        first = delivery("a1", "a")
        scheduler = scheduler_with(first, delivery("a2", "a"))
        take(scheduler)
        assert scheduler.clear_idle(of=first) == []
        assert scheduler.buffered == 1

    def test_group_with_a_message_that_may_not_leave_is_not_cleared(self) -> None:
        first = delivery("a1", "a")
        scheduler = scheduler_with(first, delivery("a2", "a"), delivery("n1", "a", source=OTHER_QUEUE))
        scheduler.finish(take(scheduler))
        assert scheduler.clear_idle(lambda message: message.source is not OTHER_QUEUE, of=first) == []
        assert run_dry(scheduler) == ["a2", "n1"]

    def test_message_whose_group_is_gone_clears_nothing(self) -> None:
        scheduler = scheduler_with(delivery("a1", "a"), delivery("b1", "b"))
        assert scheduler.clear_idle(of=delivery("c1", "c")) == []
        assert scheduler.clear_idle(of=delivery("i1", "a", mode=IMMEDIATE)) == []
        assert scheduler.buffered == 2
