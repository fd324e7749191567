"""The rules about several queues and about starvation: what they excuse, and what they do not."""

from flowcatalyst.core.message import DEFAULT_POOL, Nack, Retry
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.history import Facts, Kind, Lost
from tests.tooling.histories import FAILED, NEXT, OK, PATIENCE, A, Line, P, R, V, W, after, broken, history, published

FROM_FIFO = Facts("g", pool=DEFAULT_POOL, queue="fifo")
FROM_STREAM = Facts("g", pool=DEFAULT_POOL, queue="stream")
UP: tuple[Line, ...] = ((Kind.STARTED, ""), (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)))


class TestOrderAcrossQueues:
    RULE = "order across queues"
    BOTH = (*published("m1", facts=FROM_FIFO), *published("m2", facts=FROM_STREAM))

    def test_each_queue_keeps_its_own_promise(self) -> None:
        line = (*published("m1", "m2", facts=FROM_STREAM), (R, "m2", 1), (A, "m2"))
        assert not broken("first attempts in order", history(*line))  # the stream did not show m1
        line = (*published("m1", "m2", facts=FROM_FIFO), (R, "m2", 1), (A, "m2"))
        assert broken("first attempts in order", history(*line)) == ["m2"]

    def test_what_came_first_is_owed_until_it_is_due_back_and_a_long_poll_later(self) -> None:
        failed = ((R, "m1", 1), (A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(5.0)), (Kind.NACK, "m1", (5.0, 1)))
        assert broken(self.RULE, history(*self.BOTH, *failed, *after(15), (R, "m2", 1), (A, "m2"))) == ["m2"]
        assert not broken(self.RULE, history(*self.BOTH, *failed, *after(30), (R, "m2", 1), (A, "m2")))

    def test_what_let_others_pass_was_settled_or_lost_or_came_at_the_same_moment_is_not_owed(self) -> None:
        both = (*published("m1", facts=Facts("g", NEXT, queue="fifo")), *published("m2", facts=FROM_STREAM))
        failed = ((R, "m1", 1), (A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(5.0)), (Kind.NACK, "m1", (5.0, 1)))
        assert not broken(self.RULE, history(*both, *failed, (R, "m2", 1), (A, "m2")))
        received = ((R, "m1", 1), (R, "m2", 1))
        assert not broken(self.RULE, history(*self.BOTH, *received, (A, "m1"), (W, "m1", OK), (A, "m2")))
        assert not broken(self.RULE, history(*self.BOTH, *received, (Kind.LOST, "m1", Lost.LEASE), (A, "m2")))
        assert not broken(self.RULE, history(*self.BOTH, *received, (Kind.CRASHED, ""), (R, "m2", 2), (A, "m2")))
        assert not broken(self.RULE, history(*self.BOTH, *received, (A, "m2"), step_s=0.0))

    def test_what_the_router_let_go_is_not_owed_although_its_queue_is_told_later(self) -> None:
        facts = Facts("g", pool=DEFAULT_POOL, queue="stream")
        lines = (*self.BOTH, *published("m0", facts=facts), (R, "m0", 1), (R, "m1", 1), (A, "m0"), (W, "m0", FAILED))
        failed, told = (V, "m0", Nack(5.0)), (Kind.NACK, "m1", (5.0, 1))
        passed: tuple[Line, ...] = ((R, "m2", 1), (A, "m2"))
        assert not broken(self.RULE, history(*lines, failed, *passed, told))
        assert broken(self.RULE, history(*lines, *passed, failed, told)) == ["m2"]
        assert "m2" in broken(self.RULE, history(*lines, failed, *passed, (A, "m1")))
        removed: Line = (Kind.LIMITS, DEFAULT_POOL, None)
        assert not broken(self.RULE, history(*self.BOTH, (R, "m1", 1), removed, *passed, (Kind.NACK, "m1", (0.0, 1))))


class TestOwnership:
    def test_a_message_shown_again_after_a_lost_connection_is_ours_again(self) -> None:
        lost = ((R, "m1", 1), (Kind.LOST, "m1", Lost.CONNECTION), (R, "m1", 2), (A, "m1"))
        assert not broken("only what is ours is started", history(*published("m1"), *lost))

    def test_a_message_that_was_given_back_may_be_shown_again(self) -> None:
        assert not broken(
            "leases are kept", history((P, "m1"), (R, "m1", 1), (Kind.NACK, "m1", (0.0, 1)), (R, "m1", 2))
        )

    def test_what_a_faulty_queue_shows_again_is_its_own_doing_until_the_faults_stop(self) -> None:
        again: tuple[Line, ...] = ((R, "m1", 1), (R, "m1", 2))
        assert not broken("leases are kept", history((P, "m1"), *again), faulty=True)
        late = history((P, "m1"), (Kind.HEALED, ""), *after(100), *again)
        assert broken("leases are kept", late, faulty=True) == ["m1"]

    def test_what_another_router_delivered_is_settled_and_may_leave(self) -> None:
        taken: tuple[Line, ...] = ((Kind.TAKEN, "m1"), (Kind.REMOVED, "m1"), (Kind.ENDED, "", []))
        assert not broken("leaves its queue for a reason", history((P, "m1"), *taken))
        assert not broken("nothing lost", history((P, "m1"), *taken))
        assert not broken("first attempts in order", history(*published("m1", "m2"), *taken, (A, "m2")))


class TestProgress:
    def test_a_group_waits_for_its_own_attempt_a_slot_a_permit_and_a_router(self) -> None:
        first = (*UP, *published("m1", "m2"), (A, "m1"), *after(40), (W, "m1", OK), (A, "m2"))
        assert not broken("progress", history(*first))
        other = (*published("m1", facts=Facts("other", pool=DEFAULT_POOL)), *published("m2"))
        assert not broken("progress", history(*UP, *other, (A, "m1"), *after(40), (W, "m1", OK), (A, "m2")))
        limits = (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1, rate_per_minute=1))
        rated = ((Kind.STARTED, ""), limits, *other, (A, "m1"), (W, "m1", OK), *after(58), (A, "m2"))
        assert not broken("progress", history(*rated))
        down = (*published("m2"), *after(60), *UP, (A, "m2"))
        assert not broken("progress", history(*down))

    def test_a_refusal_is_no_excuse(self) -> None:
        refused = (*published("m2"), (R, "m2", 1), (Kind.NACK, "m2", (60.0, 1)), *after(60), (R, "m2", 2), (A, "m2"))
        assert broken("progress", history(*UP, *refused)) == ["m2"]

    def test_one_that_could_neither_be_read_nor_buried_locks_its_group(self) -> None:
        poison = (
            *published("m1", facts=Facts("g", pool=DEFAULT_POOL, readable=False)),
            (R, "m1", 1),
            (Kind.NACK, "m1", (30.0, 1)),
        )
        assert not broken("progress", history(*UP, *poison, *published("m2"), *after(35), (A, "m2")))

    def test_a_stretch_that_ended_before_the_message_started_counts(self) -> None:
        other = (*published("m1", facts=Facts("other", pool=DEFAULT_POOL)), *published("m2"))
        busy = (*after(40), (A, "m1"), (W, "m1", OK), (A, "m2"))
        assert sorted(broken("progress", history(*UP, *other, *busy))) == ["m1", "m2"]

    def test_a_message_that_never_starts_is_told_at_the_end(self) -> None:
        assert broken("progress", history(*UP, *published("m2"), *after(60), (Kind.STOPPING, ""))) == ["m2"]

    def test_what_waits_for_a_connection_is_excused(self) -> None:
        assert not broken("progress", history(*UP, *published("m2"), (Kind.CUT, "", 10.0), *after(60), (A, "m2")))

    def test_an_endpoint_that_failed_or_is_slow_is_not_judged(self) -> None:
        failed = (*published("m1"), (A, "m1"), (W, "m1", FAILED), (V, "m1", Retry(1.0)), *after(60), (A, "m1"))
        assert not broken("progress", history(*UP, *failed, *published("m2"), *after(60), (A, "m2")))


class TestPatience:
    RULE = "waits no longer than asked"
    ASKED = ((A, "m1"), (W, "m1", PATIENCE), (V, "m1", Nack(1.0)))

    def test_a_message_that_is_due_may_wait_for_a_slot(self) -> None:
        other = published("m0", facts=Facts("other", pool=DEFAULT_POOL))
        busy = (*self.ASKED, (A, "m0"), *after(20), (W, "m0", OK), (A, "m1"))
        assert not broken(self.RULE, history(UP[1], *other, *published("m1"), *busy))

    def test_a_group_that_two_queues_feed_may_wait_for_the_other_one(self) -> None:
        both = (*published("m1", facts=FROM_FIFO), *published("m2", facts=FROM_STREAM))
        assert not broken(self.RULE, history(*both, *self.ASKED, *after(20), (A, "m1")))

    def test_an_endpoint_that_also_fails_may_have_an_open_breaker(self) -> None:
        failed = ((A, "m1"), (W, "m1", FAILED), (V, "m1", Nack(1.0)), *after(20), (A, "m1"))
        assert not broken(self.RULE, history(*published("m1"), *failed))


def test_a_recovered_endpoint_without_messages_need_not_be_tried() -> None:
    facts = Facts("g", target="http://shop/")
    recovered = (Kind.RECOVERED, "", "shop")
    rule = "recovered endpoints are tried"
    done = (*published("m1", facts=facts), (A, "m1"), (W, "m1", OK), recovered, *after(100))
    assert not broken(rule, history(*done))
    tried = (*published("m1", facts=facts), recovered, *after(50), (A, "m1"), *after(50))
    assert not broken(rule, history(*tried))


def test_attempts_that_hang_are_no_excuse_for_a_recovered_endpoint_unless_they_leave_no_slot() -> None:
    names = ["m0", "m1", "m2", "m3", "m4"]
    sent = [line for name in names for line in published(name, facts=Facts(name, target="http://shop/"))]
    recovered, rule = (Kind.RECOVERED, "", "shop"), "recovered endpoints are tried"
    hanging = [*sent, *((A, name) for name in names[:3])]
    assert broken(rule, history(*hanging, recovered, *after(100))) == [""]
    tight = [(Kind.LIMITS, DEFAULT_POOL, PoolLimits(4)), *hanging]
    assert not broken(rule, history(*tight, recovered, *after(100)))
    assert not broken(rule, history(*tight, recovered, (W, "m1", FAILED), *after(50)))
    assert broken(rule, history(*tight, recovered, (W, "m1", FAILED), *after(100))) == [""]


def test_receives_after_an_attempt_or_a_reload_do_not_count() -> None:
    receives: tuple[Line, ...] = ((R, "m1", 1), (R, "m1", 2))
    rule = "received no more than needed"
    assert not broken(rule, history((P, "m1"), (A, "m1"), *receives, *receives))
    assert not broken(rule, history((P, "m1"), *receives, (Kind.LIMITS, DEFAULT_POOL, None), *receives))
