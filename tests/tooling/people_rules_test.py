"""What people do by hand excuses what it touches, and nothing else."""

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Nack, Retry
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.history import Facts, Kind
from flowcatalyst.simulation.rules.people import NOW
from tests.tooling.histories import (
    FAILED,
    GROUP_G,
    IMMEDIATE,
    OK,
    PATIENCE,
    POOL,
    A,
    Line,
    R,
    V,
    W,
    after,
    broken,
    history,
    published,
)

SHOP = Facts("g", pool=DEFAULT_POOL, target="http://shop/orders")
STARTED: tuple[Line, ...] = ((Kind.STARTED, ""), (Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)))
STOPS = [GROUP_G, POOL, (PauseKind.ENDPOINT, "http://shop/orders"), (PauseKind.ENDPOINT, "http://shop")]
OTHERS = [
    (PauseKind.GROUP, "other"),
    (PauseKind.POOL, "other"),
    (PauseKind.ENDPOINT, "http://shop/other"),
    (PauseKind.ENDPOINT, "http://bank"),
]


class TestPauses:
    @pytest.mark.parametrize("stop", STOPS)
    def test_nothing_that_is_stopped_starts_until_it_is_resumed(self, stop: object) -> None:
        paused = (*published("m1", facts=SHOP), (Kind.PAUSED, "", stop))
        assert broken("nothing paused starts", history(*paused, (A, "m1"))) == ["m1"]
        assert not broken("nothing paused starts", history(*paused, (Kind.RESUMED, "", stop), (A, "m1")))

    @pytest.mark.parametrize("stop", OTHERS)
    def test_a_pause_stops_nothing_else(self, stop: object) -> None:
        events = history(*STARTED, *published("m1", facts=SHOP), (Kind.PAUSED, "", stop), *after(40), (A, "m1"))
        assert not broken("nothing paused starts", events)
        assert broken("progress", events) == ["m1"]

    def test_a_held_group_stops_only_what_has_an_order(self) -> None:
        events = history(*published("m1", facts=Facts("g", IMMEDIATE)), (Kind.PAUSED, "", GROUP_G), (A, "m1"))
        assert not broken("nothing paused starts", events)

    def test_a_pause_outlives_the_router(self) -> None:
        again = ((Kind.PAUSED, "", POOL), (Kind.CRASHED, ""), (Kind.STARTED, ""), (A, "m1"))
        assert broken("nothing paused starts", history(*published("m1"), *again)) == ["m1"]

    @pytest.mark.parametrize("stop", STOPS)
    def test_what_is_stopped_may_wait_and_then_not_for_longer_than_others(self, stop: object) -> None:
        paused = (
            *STARTED,
            *published("m1", facts=SHOP),
            (Kind.PAUSED, "", stop),
            *after(100),
            (Kind.RESUMED, "", stop),
        )
        for rule in ("progress", "what is released goes on"):
            assert not broken(rule, history(*paused, *after(10), (A, "m1")))
        assert broken("what is released goes on", history(*paused, *after(40), (A, "m1"))) == ["m1"]

    def test_what_waited_too_long_before_it_was_stopped_is_told(self) -> None:
        events = history(*STARTED, *published("m1"), *after(40), (Kind.PAUSED, "", POOL), *after(10))
        assert broken("progress", events) == ["m1"]

    def test_who_asked_for_patience_may_be_tried_late_if_somebody_stopped_it(self) -> None:
        asked = (*published("m1"), (A, "m1"), (W, "m1", PATIENCE), (V, "m1", Nack(1.0)), (Kind.PAUSED, "", GROUP_G))
        resumed = (*asked, *after(20), (Kind.RESUMED, "", GROUP_G))
        assert not broken("waits no longer than asked", history(*resumed, (A, "m1")))
        assert broken("waits no longer than asked", history(*resumed, *after(5), (A, "m1"))) == ["m1"]


class TestRetries:
    def test_a_retry_by_hand_need_not_wait(self) -> None:
        failed = (*published("m1"), (A, "m1"), (W, "m1", FAILED), (V, "m1", Retry(30.0)))
        assert not broken("waits as long as asked", history(*failed, (Kind.HURRIED, "m1"), (A, "m1")))
        other = history(*published("m2"), *failed, (Kind.HURRIED, "m2"), (A, "m1"))
        assert broken("waits as long as asked", other) == ["m1"]


class TestSkips:
    RULE = "what is skipped is not tried again"

    def test_a_skip_during_an_attempt_may_end_in_any_way_but_in_another_attempt(self) -> None:
        skipped = (*published("m1"), (A, "m1"), (Kind.SKIP, "m1"))
        for end in (
            (W, "m1", OK),
            (Kind.DEAD_LETTERED, "m1", "HTTP 400"),
            (Kind.DEAD_LETTERED, "m1", "skipped by ann"),
        ):
            assert not broken(self.RULE, history(*skipped, end, (Kind.REMOVED, "m1")))
        assert broken(self.RULE, history(*skipped, (W, "m1", FAILED), (A, "m1"))) == ["m1"]

    def test_a_skip_says_so_and_leaves_a_dead_letter(self) -> None:
        skipped = (*published("m1"), (Kind.SKIP, "m1"))
        assert broken(self.RULE, history(*skipped, (Kind.DEAD_LETTERED, "m1", "HTTP 400"))) == ["m1"]
        assert broken(self.RULE, history(*skipped, (Kind.REMOVED, "m1"))) == ["m1"]

    def test_one_that_another_router_took_may_become_a_dead_letter_all_the_same(self) -> None:
        taken = ((Kind.TAKEN, "m1"), (Kind.REMOVED, "m1"), (W, "m1", FAILED))
        dead = (Kind.DEAD_LETTERED, "m1", "skipped by ann")
        assert not broken(self.RULE, history(*published("m1"), (A, "m1"), (Kind.SKIP, "m1"), *taken, dead))

    def test_nobody_else_is_skipped(self) -> None:
        events = history(*published("m1", "m2"), (Kind.SKIP, "m1"), (Kind.DEAD_LETTERED, "m2", "skipped by ann"))
        assert broken(self.RULE, events) == ["m2"]

    def test_a_skip_goes_with_the_router_that_was_told(self) -> None:
        events = history(*published("m1"), (Kind.SKIP, "m1"), (Kind.CRASHED, ""), (A, "m1"))
        assert not broken(self.RULE, events)

    @pytest.mark.parametrize("cause", [(Kind.UNRECORDED, "m1"), (Kind.LOST, "m1"), (R, "m1", 2), (Kind.CRASHED, "")])
    def test_a_skip_takes_longer_for_a_reason(self, cause: Line) -> None:
        late = (
            *published("m1"),
            (Kind.SKIP, "m1", NOW),
            cause,
            *after(9),
            (Kind.DEAD_LETTERED, "m1", "skipped by ann"),
        )
        assert not broken("a skip takes effect", history(*late))

    def test_a_skip_waits_for_a_slot_and_for_its_pool_to_be_resumed(self) -> None:
        slot = ((Kind.LIMITS, DEFAULT_POOL, PoolLimits(1)), *published("m0", facts=Facts("a")), (A, "m0"))
        skipped = (*published("m1"), (Kind.SKIP, "m1", NOW), *after(9))
        dead = (Kind.DEAD_LETTERED, "m1", "skipped by ann")
        assert not broken("a skip takes effect", history(*slot, *skipped, (W, "m0", OK), dead))
        resumed = (Kind.RESUMED, "", POOL)
        assert not broken("a skip takes effect", history((Kind.PAUSED, "", POOL), *skipped, resumed, dead))
        fewer = ((Kind.LIMITS, DEFAULT_POOL, PoolLimits(2)), *slot[1:], slot[0])
        assert not broken("a skip takes effect", history(*fewer, *skipped, (W, "m0", OK), dead))
        more = (*slot, (Kind.LIMITS, DEFAULT_POOL, PoolLimits(2)))
        assert broken("a skip takes effect", history(*more, *skipped, (W, "m0", OK), dead)) == ["m1"]

    def test_a_skip_of_what_is_a_dead_letter_already_has_nothing_left_to_do(self) -> None:
        dead: tuple[Line, ...] = ((Kind.SKIP, "m1"), (Kind.DEAD_LETTERED, "m1", "skipped by ann"), (Kind.SKIP, "m1"))
        rule = "what is skipped is not tried again"
        assert not broken(rule, history(*published("m1"), *dead, (Kind.REMOVED, "m1")))
        again = ((Kind.CRASHED, ""), (Kind.SKIP, "m1"), (Kind.REMOVED, "m1"))
        assert broken(rule, history(*published("m1"), *dead, *again)) == ["m1"]
