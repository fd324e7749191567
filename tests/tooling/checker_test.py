"""Each rule of the checker accepts what is right and names what is wrong, on the smallest history that shows it."""

import pytest

from flowcatalyst.core.message import ACK, DEFAULT_POOL, Nack, Reject, Retry, Settled
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.checker import RULES, check
from flowcatalyst.simulation.history import Event, Facts, Gauges, Kind, Lost
from flowcatalyst.simulation.rules.common import Promises
from flowcatalyst.simulation.rules.people import NOW
from tests.tooling.histories import (
    FAILED,
    GROUP_G,
    IMMEDIATE,
    NEXT,
    OK,
    PATIENCE,
    POOL,
    A,
    Line,
    P,
    R,
    V,
    W,
    after,
    broken,
    history,
    published,
)


def delivered(name: str) -> tuple[Line, ...]:
    return (A, name), (W, name, OK), (V, name, ACK)


RIGHT = history(
    (Kind.STARTED, ""),
    *published("m1", "m2"),
    (R, "m1", (1, 1)),
    (R, "m2", (2, 1)),
    (A, "m1"),
    (W, "m1", FAILED),
    (V, "m1", Retry(1.0)),
    *delivered("m1"),
    *delivered("m2"),
    (Kind.ACK, "m1", (1, 1)),
    (Kind.REMOVED, "m1"),
    (Kind.ACKED, "m1", Settled.OK),
    (Kind.ACK, "m2", (2, 1)),
    (Kind.REMOVED, "m2"),
    (Kind.ACKED, "m2", Settled.OK),
    (Kind.HEALED, ""),
    (Kind.IDLE, "", {"tracker": 0}),
    (Kind.STATS, DEFAULT_POOL, {"attempts": 3, "delivered": 2, "nacked": 0, "dead_lettered": 0}),
    (Kind.STOPPED, "", {"tracker": 0, "tasks": 0}),
    (Kind.ENDED, "", []),
)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_history_in_which_all_is_well_breaks_no_rule(ordered: bool) -> None:
    for faulty in (True, False):
        assert check(RIGHT, Promises(ordered_redelivery=ordered, faulty=faulty)) == []


WRONG: dict[str, list[Event]] = {
    "one attempt per group": history(*published("m1", "m2"), (A, "m1"), (A, "m2")),
    "one attempt per message": history(*published("m2", facts=Facts("g", IMMEDIATE)), (A, "m2"), (A, "m2")),
    "first attempts in order": history(*published("m1", "m2"), *delivered("m2")),
    "ack before next": history(
        (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1, ack_before_next=True)),
        *published("m1", "m2"),
        *(*delivered("m1"), (Kind.ACK, "m1", 1), (Kind.ACKED, "m1", Settled.FAILED), (A, "m2")),
    ),
    "order across queues": history(
        *published("m1", facts=Facts("g", queue="fifo")),
        *published("m2", facts=Facts("g", queue="stream")),
        *((R, "m1", 1), (R, "m2", 1), (A, "m2")),
    ),
    "only what is ours is started": history(
        *published("m2"), (R, "m2", 1), (Kind.LOST, "m2", Lost.CONNECTION), (A, "m2")
    ),
    "leases are kept": history(*published("m2"), (R, "m2", 1), (R, "m2", 2)),
    "leaves its queue for a reason": history(*published("m2"), (Kind.REMOVED, "m2")),
    "nothing lost": history(*published("m1", "m2"), *delivered("m1"), (Kind.ENDED, "", [])),
    "another attempt has a cause": history(*published("m2"), *delivered("m2"), (A, "m2")),
    "acked once": history(*published("m2"), (Kind.ACK, "m2", 1), (Kind.ACKED, "m2", Settled.OK), (Kind.ACK, "m2", 1)),
    "newest receipt": history(*published("m2"), (R, "m2", 1), (R, "m2", 2), (Kind.ACK, "m2", 1)),
    "in flight within concurrency": history(
        (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)),
        *published("m1", facts=Facts("a")),
        *published("m2"),
        (A, "m1"),
        (A, "m2"),
    ),
    "messages within capacity": history(
        (Kind.LIMITS, DEFAULT_POOL, PoolLimits(5, capacity=2, parked_limit=1)),
        *published("m2"),
        (A, "m2", Gauges(2, 2)),
    ),
    "starts within the rate": history(
        (Kind.LIMITS, DEFAULT_POOL, PoolLimits(5, rate_per_minute=2)),
        *published("m1", "m2"),
        *((A, "m1"), (W, "m1", FAILED), (A, "m1"), (W, "m1", FAILED), (A, "m2")),
    ),
    "waits as long as asked": history(*published("m2"), (A, "m2"), (W, "m2", FAILED), (V, "m2", Retry(5.0)), (A, "m2")),
    "waits no longer than asked": history(
        *published("m2"), (A, "m2"), (W, "m2", PATIENCE), (V, "m2", Nack(1.0)), *after(10), (A, "m2")
    ),
    "progress": history(
        *((Kind.STARTED, ""), (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1))), *published("m2"), *after(30), (A, "m2")
    ),
    "nothing paused starts": history(*published("m2"), (Kind.PAUSED, "", GROUP_G), (A, "m2")),
    "what is released goes on": history(
        *((Kind.STARTED, ""), (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)), (Kind.PAUSED, "", POOL)),
        *(*published("m2"), *after(60), (Kind.RESUMED, "", POOL), *after(30), (A, "m2")),
    ),
    "what is skipped is not tried again": history(*published("m2"), (Kind.SKIP, "m2"), (A, "m2")),
    "a skip takes effect": history(
        *published("m2"), (Kind.SKIP, "m2", NOW), *after(5), (Kind.DEAD_LETTERED, "m2", "skipped by ann")
    ),
    "endpoints share their pool": history(
        *((Kind.STARTED, ""), (Kind.LIMITS, DEFAULT_POOL, PoolLimits(4))),
        *published("m0", "m1", "m3", "m4", facts=Facts("s", IMMEDIATE, pool=DEFAULT_POOL, target="http://silent/")),
        *published("m2"),
        *((A, "m0"), (A, "m1"), (A, "m3"), (A, "m4"), *after(40), (W, "m0", FAILED), (A, "m2")),
    ),
    "recovered endpoints are tried": history(
        *published("m2", facts=Facts("g", target="http://shop/")), (Kind.RECOVERED, "", "shop"), *after(62)
    ),
    "received no more than needed": history(*published("m2"), *((R, "m2", n) for n in range(4))),
    "isolation": history(*published("m2", facts=Facts("g", prompt_s=2.0)), *[(Kind.HEALED, "")] * 3, (A, "m2")),
    "nothing leaks": history((Kind.STOPPED, "", {"tasks": 1})),
    "metrics tell the truth": history(
        *published("m2"),
        *delivered("m2"),
        (Kind.STATS, DEFAULT_POOL, {"attempts": 1, "delivered": 0, "nacked": 0, "dead_lettered": 0}),
        (Kind.STOPPED, "", {}),
    ),
    "drains when faults stop": history(*published("m2"), (Kind.HEALED, ""), (Kind.ENDED, "", ["m2"])),
}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert WRONG.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_the_smallest_wrong_history_is_told(rule: str) -> None:
    about_router = {"nothing leaks", "metrics tell the truth", "drains when faults stop"}
    about_router.add("recovered endpoints are tried")
    assert broken(rule, WRONG[rule]) == ["" if rule in about_router else "m2"]


class TestOrder:
    def test_a_group_may_go_on_when_its_ack_is_confirmed_or_where_nobody_asked_for_that(self) -> None:
        acked = (*delivered("m1"), (Kind.ACK, "m1", 1), (Kind.ACKED, "m1", Settled.GONE), (A, "m2"))
        for strict, lines in ((True, acked), (False, (*delivered("m1"), (A, "m2")))):
            limits = (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1, ack_before_next=strict))
            assert not broken("ack before next", history(limits, *published("m1", "m2"), *lines))

    def test_one_that_was_given_back_still_holds_its_group_on_a_queue_that_keeps_order(self) -> None:
        failed = ((A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(30.0)), (Kind.NACK, "m1", (30.0, 1)))
        assert broken("first attempts in order", history(*published("m1", "m2"), *failed, (A, "m2"))) == ["m2"]

    def test_a_failure_lets_the_others_pass_in_its_mode_and_only_then(self) -> None:
        failed = ((A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(30.0)))
        facts = Facts("g", NEXT, pool=DEFAULT_POOL)
        assert not broken("first attempts in order", history(*published("m1", "m2", facts=facts), *failed, (A, "m2")))
        untried = ((R, "m1", 1), (Kind.NACK, "m1", (5.0, 1)), (A, "m2"))
        assert broken("first attempts in order", history(*published("m1", "m2", facts=facts), *untried)) == ["m2"]

    def test_a_pool_with_batch_scope_lets_others_pass_after_a_failure(self) -> None:
        limits = (Kind.LIMITS, DEFAULT_POOL, PoolLimits(5, failure_scope=FailureScope.BATCH))
        failed = ((A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(30.0)))
        assert not broken("first attempts in order", history(limits, *published("m1", "m2"), *failed, (A, "m2")))
        assert broken("first attempts in order", history(limits, *published("m1", "m2"), (A, "m1"), (A, "m2"))) == [
            "m2"
        ]

    def test_high_priority_passes_regular_ones_but_not_its_own_tier(self) -> None:
        high = Facts("g", high_priority=True, pool=DEFAULT_POOL)
        assert not broken("first attempts in order", history((P, "m1"), (P, "h1", high), (A, "h1")))
        events = history((P, "h1", high), (P, "h2", high), (A, "h2"))
        assert broken("first attempts in order", events) == ["h2"]

    def test_on_a_queue_without_order_only_what_the_router_did_counts(self) -> None:
        both = published("m1", "m2")
        rule = "first attempts in order"
        assert not broken(rule, history(*both, (R, "m2", 1), (A, "m2")), ordered=False)  # m1 was never shown
        assert not broken(rule, history(*both, (R, "m2", 1), (R, "m1", 1), (A, "m2")), ordered=False)  # shown later
        assert broken(rule, history(*both, (R, "m1", 1), (R, "m2", 1), (A, "m2")), ordered=False) == ["m2"]
        crash = ((R, "m1", 1), (Kind.CRASHED, ""), (R, "m2", 1), (A, "m2"))
        assert not broken(rule, history(*both, *crash), ordered=False)  # its lease has to run out first

    def test_on_a_queue_without_order_giving_back_lets_others_pass(self) -> None:
        both, rule = published("m1", "m2"), "first attempts in order"
        received = ((R, "m1", 1), (R, "m2", 1))
        back = (Kind.NACK, "m1", (0.0, 1))
        assert broken(rule, history(*both, *received, back, (A, "m2")), ordered=False) == ["m2"]
        later = (Kind.NACK, "m1", (30.0, 1))
        assert broken(rule, history(*both, (R, "m1", 1), later, (R, "m2", 1), (A, "m2")), ordered=False) == ["m2"]
        together = ((Kind.NACK, "m2", (0.0, 1)), (R, "m2", 2), (A, "m2"))
        assert not broken(rule, history(*both, *received, back, *together), ordered=False)

    def test_a_group_is_free_again_when_the_attempt_was_cut_off(self) -> None:
        cut = ((A, "m1"), (Kind.UNKNOWN, "m1"), (A, "m1"))
        assert not broken("one attempt per group", history(*published("m1"), *cut))
        crash = ((A, "m1"), (Kind.CRASHED, ""), (A, "m1"))
        assert not broken("one attempt per message", history(*published("m1"), *crash))


class TestLoss:
    def test_a_dead_letter_is_a_reason_to_leave(self) -> None:
        events = history(
            *published("m1"), (Kind.DEAD_LETTERED, "m1", "HTTP 400"), (Kind.REMOVED, "m1"), (Kind.ENDED, "", [])
        )
        assert not broken("leaves its queue for a reason", events)
        assert not broken("nothing lost", events)

    def test_a_copy_may_leave_while_another_one_stays(self) -> None:
        copy = (P, "m1#2", Facts("g", copy_of="m1"))
        assert not broken("leaves its queue for a reason", history((P, "m1"), copy, (Kind.REMOVED, "m1#2")))
        both = history((P, "m1"), copy, (Kind.REMOVED, "m1#2"), (Kind.REMOVED, "m1"))
        assert broken("leaves its queue for a reason", both) == ["m1"]

    @pytest.mark.parametrize(
        "cause",
        [
            ((A, "m1"), (W, "m1", FAILED), (V, "m1", Retry(1.0))),
            ((A, "m1"), (Kind.UNKNOWN, "m1")),
            ((A, "m1"), (Kind.CRASHED, "")),
            (*delivered("m1"), (Kind.CRASHED, "")),
            ((A, "m1"), (W, "m1", FAILED), (V, "m1", Reject("HTTP 400"))),  # could not be buried
        ],
    )
    def test_causes_of_another_attempt(self, cause: tuple[Line, ...]) -> None:
        assert not broken("another attempt has a cause", history(*published("m1"), *cause, (A, "m1")))

    def test_what_has_left_its_queue_is_never_attempted_again(self) -> None:
        events = history(*published("m1"), *delivered("m1"), (Kind.REMOVED, "m1"), (Kind.CRASHED, ""), (A, "m1"))
        assert broken("another attempt has a cause", events) == ["m1"]

    def test_an_ack_may_be_repeated_when_the_queue_shows_the_message_again(self) -> None:
        again = ((Kind.ACK, "m1", 1), (Kind.ACKED, "m1", Settled.OK), (R, "m1", 2), (Kind.ACK, "m1", 2))
        assert not broken("acked once", history(*published("m1"), *again))
        unsure = ((Kind.ACK, "m1", 1), (Kind.ACKED, "m1", None), (Kind.ACK, "m1", 1))
        assert not broken("acked once", history(*published("m1"), *unsure))


class TestBounds:
    def test_a_pool_that_shrinks_may_end_what_it_has_but_start_nothing_above_the_limit(self) -> None:
        facts = Facts("g", IMMEDIATE)
        two = (
            *published("m1", "m2", "m3", facts=facts),
            (A, "m1"),
            (A, "m2"),
            (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)),
        )
        assert not broken("in flight within concurrency", history(*two, (W, "m1", OK), (W, "m2", OK), (A, "m3")))
        assert broken("in flight within concurrency", history(*two, (W, "m1", OK), (A, "m3"))) == ["m3"]

    def test_a_pool_whose_capacity_shrinks_may_hold_what_it_had_and_no_more(self) -> None:
        big = (Kind.LIMITS, DEFAULT_POOL, PoolLimits(5, capacity=9, parked_limit=0))
        small = PoolLimits(5, capacity=3, parked_limit=0)
        start = (big, *published("m1"), (A, "m1", Gauges(1, 7)), (Kind.LIMITS, DEFAULT_POOL, small))
        assert not broken("messages within capacity", history(*start, (A, "m1", Gauges(1, 6)), (A, "m1", Gauges(1, 2))))
        assert broken("messages within capacity", history(*start, (A, "m1", Gauges(1, 4)), (A, "m1", Gauges(1, 5))))

    def test_starts_older_than_a_minute_do_not_count(self) -> None:
        limits = (Kind.LIMITS, DEFAULT_POOL, PoolLimits(5, rate_per_minute=1))
        events = (limits, *published("m1"), (A, "m1"), (W, "m1", FAILED), (A, "m1"))
        assert not broken("starts within the rate", history(*events, step_s=30.0))
        assert broken("starts within the rate", history(*events, step_s=29.0)) == ["m1"]

    def test_a_prompt_message_that_never_starts_is_told(self) -> None:
        events = history(*published("m1", facts=Facts("g", prompt_s=2.0)), (Kind.ENDED, "", ["m1"]))
        assert broken("isolation", events) == ["m1"]


class TestWaits:
    def test_a_redelivery_may_be_attempted_at_once(self) -> None:
        failed = ((A, "m1"), (W, "m1", FAILED))
        again = ((V, "m1", Nack(30.0)), (Kind.NACK, "m1", (30.0, 1)), (R, "m1", 2), (A, "m1"))
        assert not broken("waits as long as asked", history(*published("m1"), *failed, *again))

    def test_what_was_given_back_is_not_attempted_before_it_comes_again(self) -> None:
        failed = ((A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(30.0)), (A, "m1"))
        assert broken("waits as long as asked", history(*published("m1"), *failed)) == ["m1"]


class TestEndings:
    def test_a_failing_queue_may_leave_messages_in_the_tracker_of_a_stopped_router(self) -> None:
        stopped = (Kind.STOPPED, "", {"tracker": 1, "tasks": 0})
        assert not broken("nothing leaks", history(stopped))
        assert broken("nothing leaks", history((Kind.HEALED, ""), stopped)) == [""]

    def test_a_dead_letter_that_a_crash_overtook_need_not_be_counted(self) -> None:
        dead_lettered = (
            (A, "m1"),
            (W, "m1", FAILED),
            (V, "m1", Reject("HTTP 400")),
            (Kind.DEAD_LETTERED, "m1", "HTTP 400"),
        )
        told = (Kind.STATS, DEFAULT_POOL, {"attempts": 1, "delivered": 0, "nacked": 0, "dead_lettered": 0})
        assert not broken("metrics tell the truth", history(*published("m1"), *dead_lettered, told, (Kind.CRASHED, "")))
        stopped = history(*published("m1"), *dead_lettered, told, (Kind.STOPPED, "", {}))
        assert broken("metrics tell the truth", stopped) == [""]
