import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.router.breaker import IDLE_EVICTION_S, Breaker, Breakers, BreakerState

OK, FAILED = False, True


def state_of(breaker: Breaker) -> BreakerState:
    """A call, so that mypy does not take the state for fixed after the first assert."""
    return breaker.state


def call(breaker: Breaker, failed: bool, now: float = 0.0) -> None:
    """One call that is admitted and ends at once."""
    assert breaker.admit(now) is None
    breaker.record(failed, now, admitted_at=now)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(10):
        call(breaker, FAILED, at)
    assert state_of(breaker) is BreakerState.OPEN
    return breaker


def half_open(at: float = 5.0, probes: int = 1) -> Breaker:
    """A breaker that opened 5 s before `at`, with probes in flight."""
    breaker = opened(at - 5.0)
    for _ in range(probes):
        assert breaker.admit(at) is None
    assert state_of(breaker) is BreakerState.HALF_OPEN
    return breaker


class TestClosed:
    def test_admits_every_call(self) -> None:
        breaker = Breaker()
        assert [breaker.admit(0.0) for _ in range(1000)] == [None] * 1000
        assert (breaker.state, breaker.rejected) == (BreakerState.CLOSED, 0)

    def test_nine_failures_do_not_open_it_and_the_tenth_call_does(self) -> None:
        breaker = Breaker()
        for _ in range(9):
            call(breaker, FAILED)
        assert repr(breaker) == "<Breaker CLOSED 9/9 failed>"
        call(breaker, OK)
        assert state_of(breaker) is BreakerState.OPEN

    def test_opens_at_five_failures_of_ten(self) -> None:
        breaker = Breaker()
        for failed in [FAILED] * 4 + [OK] * 5:
            call(breaker, failed)
        call(breaker, FAILED)
        assert state_of(breaker) is BreakerState.OPEN

    def test_stays_closed_at_four_failures_of_ten(self) -> None:
        breaker = Breaker()
        for failed in [FAILED] * 4 + [OK] * 6:
            call(breaker, failed)
        assert state_of(breaker) is BreakerState.CLOSED
        assert breaker.failure_ratio == 0.4

    @settings(deadline=None)
    @given(st.lists(st.booleans(), max_size=60))
    def test_opens_exactly_when_half_of_the_last_ten_calls_failed(self, ends: list[bool]) -> None:
        breaker = Breaker()
        for count in range(1, len(ends) + 1):
            call(breaker, ends[count - 1])
            last_ten = ends[max(0, count - 10) : count]
            if len(last_ten) == 10 and sum(last_ten) >= 5:
                assert state_of(breaker) is BreakerState.OPEN
                return
            assert state_of(breaker) is BreakerState.CLOSED
            assert breaker.failure_ratio == sum(last_ten) / len(last_ten)

    def test_ratio_of_no_calls_is_zero(self) -> None:
        assert Breaker().failure_ratio == 0.0


class TestOpen:
    def test_refuses_for_five_seconds_and_says_when_to_ask_again(self) -> None:
        breaker = opened(at=100.0)
        assert breaker.admit(100.0) == 105.0
        assert breaker.admit(104.999) == 105.0
        assert (breaker.state, breaker.rejected) == (BreakerState.OPEN, 2)

    def test_admits_a_probe_after_five_seconds(self) -> None:
        breaker = opened(at=100.0)
        assert breaker.admit(105.0) is None
        assert state_of(breaker) is BreakerState.HALF_OPEN

    @pytest.mark.parametrize("failed", [OK, FAILED])
    def test_straggler_of_the_closed_time_changes_nothing(self, failed: bool) -> None:
        breaker = Breaker()
        for _ in range(13):
            breaker.admit(0.0)
        for _ in range(10):
            breaker.record(FAILED, 0.0, 5.0)
        for _ in range(3):
            breaker.record(failed, 4.0, 5.0)
        assert state_of(breaker) is BreakerState.OPEN
        assert breaker.admit(4.9) == 5.0

    def test_stragglers_do_not_count_once_it_has_closed_again(self) -> None:
        breaker = opened()
        breaker.record(FAILED, 1.0, 5.0)
        for _ in range(3):
            call(breaker, OK, 5.0)
        assert repr(breaker) == "<Breaker CLOSED 0/0 failed>"


class TestHalfOpen:
    def test_admits_at_most_three_probes(self) -> None:
        breaker = half_open(at=5.0, probes=3)
        assert breaker.admit(5.0) == 6.0
        assert breaker.admit(6.5) == 7.5
        assert breaker.rejected == 2

    def test_three_successes_close_it(self) -> None:
        breaker = half_open(probes=3)
        breaker.record(OK, 6.0, 5.0)
        breaker.record(OK, 6.0, 5.0)
        assert state_of(breaker) is BreakerState.HALF_OPEN
        breaker.record(OK, 6.0, 5.0)
        assert state_of(breaker) is BreakerState.CLOSED

    def test_probes_one_after_the_other_close_it_too(self) -> None:
        breaker = opened()
        for now in (5.0, 6.0, 7.0):
            assert state_of(breaker) is not BreakerState.CLOSED
            call(breaker, OK, now)
        assert state_of(breaker) is BreakerState.CLOSED

    def test_successes_leave_no_place_for_a_fourth_probe(self) -> None:
        breaker = half_open(probes=3)
        breaker.record(OK, 6.0, 5.0)
        assert breaker.admit(6.0) == 7.0

    def test_one_failure_opens_it_for_another_five_seconds(self) -> None:
        breaker = half_open(at=5.0, probes=2)
        breaker.record(OK, 6.0, 5.0)
        breaker.record(FAILED, 7.0, 5.0)
        assert state_of(breaker) is BreakerState.OPEN
        assert breaker.admit(11.9) == 12.0
        assert breaker.admit(12.0) is None

    def test_successes_before_a_failure_do_not_count_for_the_next_half_open_time(self) -> None:
        breaker = half_open(at=5.0, probes=3)
        breaker.record(OK, 5.0, 5.0)
        breaker.record(OK, 5.0, 5.0)
        breaker.record(FAILED, 5.0, 5.0)
        call(breaker, OK, 10.0)
        assert state_of(breaker) is BreakerState.HALF_OPEN

    def test_closed_again_it_needs_ten_fresh_calls_to_open(self) -> None:
        breaker = half_open(probes=3)
        for _ in range(3):
            breaker.record(OK, 5.0, 5.0)
        for _ in range(9):
            call(breaker, FAILED, 6.0)
        assert state_of(breaker) is BreakerState.CLOSED
        call(breaker, FAILED, 6.0)
        assert state_of(breaker) is BreakerState.OPEN

    @pytest.mark.parametrize("probes", [1, 2, 3])
    @pytest.mark.parametrize("failed", [OK, FAILED])
    def test_call_from_before_the_opening_decides_nothing(self, failed: bool, probes: int) -> None:
        breaker = half_open(at=5.0, probes=probes)
        for _ in range(5):
            breaker.record(failed, 5.5, admitted_at=4.9)
            breaker.release(admitted_at=4.9)
        assert state_of(breaker) is BreakerState.HALF_OPEN
        assert [breaker.admit(5.5) for _ in range(3 - probes)] == [None] * (3 - probes)
        assert breaker.admit(5.5) is not None
        for _ in range(3):
            assert state_of(breaker) is BreakerState.HALF_OPEN
            breaker.record(OK, 6.0, admitted_at=5.0)
        assert state_of(breaker) is BreakerState.CLOSED

    def test_withdrawn_probe_makes_room_for_another(self) -> None:
        breaker = half_open(probes=3)
        breaker.release(5.0)
        assert breaker.admit(5.0) is None
        assert breaker.admit(5.0) is not None

    def test_withdrawn_probe_is_neither_success_nor_failure(self) -> None:
        breaker = half_open(probes=1)
        breaker.release(5.0)
        assert state_of(breaker) is BreakerState.HALF_OPEN
        for _ in range(2):
            call(breaker, OK, 6.0)
        assert state_of(breaker) is BreakerState.HALF_OPEN
        call(breaker, OK, 6.0)
        assert state_of(breaker) is BreakerState.CLOSED

    def test_withdrawing_more_than_was_admitted_makes_no_extra_room(self) -> None:
        breaker = half_open(probes=1)
        for _ in range(5):
            breaker.release(5.0)
        assert [breaker.admit(5.0) for _ in range(4)] == [None, None, None, 6.0]

    def test_withdraw_in_the_closed_state_changes_nothing(self) -> None:
        breaker = Breaker()
        call(breaker, FAILED)
        breaker.release(5.0)
        assert repr(breaker) == "<Breaker CLOSED 1/1 failed>"

    def test_reset_closes_it_and_forgets_what_was(self) -> None:
        breaker = opened()
        breaker.reset()
        assert breaker.admit(0.0) is None
        assert repr(breaker) == "<Breaker CLOSED 0/0 failed>"


class TestDeadlineOfProbes:
    """Probes that hang would keep everybody away for as long as any attempt may take."""

    def test_only_probes_have_a_short_deadline(self) -> None:
        breaker = Breaker()
        breaker.admit(0.0)
        assert breaker.timeout_s is None
        assert opened().timeout_s is None
        assert half_open().timeout_s == 10.0

    def test_deadline_is_twice_what_the_slowest_answer_took_where_that_is_longer(self) -> None:
        breaker = Breaker()
        breaker.admit(0.0)
        breaker.record(OK, 40.0, admitted_at=0.0)
        for _ in range(9):
            call(breaker, FAILED, 40.0)
        assert breaker.admit(45.0) is None
        assert breaker.timeout_s == 80.0

    def test_slow_answers_are_forgotten_little_by_little(self) -> None:
        breaker = Breaker()
        breaker.admit(0.0)
        breaker.record(OK, 40.0, admitted_at=0.0)
        for _ in range(5):
            call(breaker, OK, 41.0)
        for _ in range(10):
            breaker.admit(42.0)
        for _ in range(10):
            breaker.record(FAILED, 42.0, admitted_at=42.0)
        assert breaker.admit(47.0) is None
        assert breaker.timeout_s == pytest.approx(2 * 40.0 * 0.9**5)

    def test_deadline_doubles_with_every_round_in_which_a_probe_hung(self) -> None:
        breaker, now, deadlines = opened(at=0.0), 0.0, []
        for _ in range(5):
            now += 5.0
            assert breaker.admit(now) is None
            assert breaker.timeout_s is not None
            deadlines.append(breaker.timeout_s)
            began, now = now, now + breaker.timeout_s
            breaker.record(FAILED, now, admitted_at=began)
        assert deadlines == [10.0, 20.0, 40.0, 80.0, 160.0]

    def test_deadline_does_not_grow_without_end(self) -> None:
        breaker, now = opened(at=0.0), 0.0
        for _ in range(50):
            now += 5.0
            assert breaker.admit(now) is None
            assert breaker.timeout_s is not None
            began, now = now, now + breaker.timeout_s
            breaker.record(FAILED, now, admitted_at=began)
        assert breaker.admit(now + 5.0) is None
        assert breaker.timeout_s == 10.0 * 2**10

    def test_probes_that_hang_together_count_as_one_round(self) -> None:
        breaker = half_open(at=5.0, probes=3)
        for _ in range(3):
            breaker.record(FAILED, 15.0, admitted_at=5.0)
        assert breaker.admit(20.0) is None
        assert breaker.timeout_s == 20.0

    def test_probe_that_is_refused_at_once_does_not_make_the_deadline_longer(self) -> None:
        breaker = half_open(at=5.0)
        breaker.record(FAILED, 5.1, admitted_at=5.0)
        assert breaker.admit(10.1) is None
        assert breaker.timeout_s == 10.0

    def test_an_answer_makes_the_deadline_short_again(self) -> None:
        breaker = half_open(at=5.0)
        breaker.record(FAILED, 15.0, admitted_at=5.0)
        call(breaker, OK, 20.0)
        assert breaker.admit(20.0) is None
        assert breaker.timeout_s == 10.0


class TestBreakers:
    def test_every_endpoint_has_a_breaker_of_its_own(self) -> None:
        breakers = Breakers()
        for _ in range(10):
            call(breakers.get("http://a/hook"), FAILED)
        assert state_of(breakers.get("http://a/hook")) is BreakerState.OPEN
        assert state_of(breakers.get("http://b/hook")) is BreakerState.CLOSED
        assert [endpoint for endpoint, _ in breakers.items()] == ["http://a/hook", "http://b/hook"]

    def test_breaker_that_was_idle_for_an_hour_is_forgotten(self) -> None:
        breakers = Breakers()
        call(breakers.get("idle"), OK, now=1000.0)
        call(breakers.get("used"), OK, now=1000.1)
        breakers.evict_idle(1000.0 + IDLE_EVICTION_S - 0.001)
        assert len(breakers) == 2
        breakers.evict_idle(1000.0 + IDLE_EVICTION_S)
        assert [endpoint for endpoint, _ in breakers.items()] == ["used"]

    def test_an_hour_is_3600_seconds(self) -> None:
        assert IDLE_EVICTION_S == 3600.0

    def test_call_that_starts_and_a_call_that_ends_are_both_use(self) -> None:
        breakers = Breakers()
        breakers.get("started").admit(5000.0)
        breakers.get("ended").admit(0.0)
        breakers.get("ended").record(OK, 5000.0, 5.0)
        breakers.evict_idle(8599.0)
        assert len(breakers) == 2

    def test_refused_call_is_use_too(self) -> None:
        breakers = Breakers()
        for _ in range(10):
            call(breakers.get("down"), FAILED, now=0.0)
        breakers.get("down").admit(4.0)
        breakers.evict_idle(3602.0)
        assert len(breakers) == 1

    def test_forgotten_breaker_starts_closed(self) -> None:
        breakers = Breakers()
        for _ in range(10):
            call(breakers.get("down"), FAILED)
        breakers.evict_idle(3600.0)
        assert breakers.get("down").admit(3600.0) is None
        assert state_of(breakers.get("down")) is BreakerState.CLOSED


class TestBoundOfBreakers:
    def test_there_are_10_000_at_most_and_the_least_recently_used_goes_first(self) -> None:
        breakers = Breakers()
        for number in range(30_000):
            call(breakers.get(f"/orders/{number}"), OK, now=float(number))
            call(breakers.get("/orders/0"), OK, now=float(number))
        assert len(breakers) == 10_000
        kept = [endpoint for endpoint, _ in breakers.items()]
        assert kept[-2:] == ["/orders/29999", "/orders/0"]
        assert kept[0] == "/orders/20001"

    def test_open_breaker_and_one_with_calls_under_way_are_kept_while_others_can_go(self) -> None:
        breakers = Breakers(most=5)
        for _ in range(10):
            call(breakers.get("down"), FAILED)
        half_open = breakers.get("half open")
        for _ in range(10):
            call(half_open, FAILED)
        half_open.admit(10.0)
        breakers.get("under way").admit(0.0)
        for number in range(1000):
            call(breakers.get(f"/orders/{number}"), OK, now=1.0)
        kept = dict(breakers.items())
        assert {"down", "half open", "under way"} <= set(kept)
        assert len(kept) == 5
        assert state_of(kept["down"]) is BreakerState.OPEN
        assert kept["half open"] is half_open

    def test_bound_holds_when_all_are_open_or_have_calls_under_way(self) -> None:
        breakers = Breakers(most=3)
        for number in range(10):
            breakers.get(f"/{number}").admit(0.0)
        assert [endpoint for endpoint, _ in breakers.items()] == ["/9", "/7", "/8"]

    def test_breaker_whose_calls_ended_may_go_again(self) -> None:
        breakers = Breakers(most=2)
        breakers.get("a").admit(0.0)
        breakers.get("b").admit(0.0)
        call(breakers.get("c"), OK)
        breakers.get("b").record(OK, 1.0, 0.0)
        call(breakers.get("d"), OK)
        call(breakers.get("e"), OK)
        assert sorted(endpoint for endpoint, _ in breakers.items()) == ["d", "e"]

    def test_end_of_a_call_whose_breaker_was_forgotten_is_taken(self) -> None:
        breaker = Breaker()
        breaker.record(OK, 1.0, 0.0)
        breaker.release(0.0)
        assert breaker.at_rest

    def test_making_room_looks_at_each_breaker_once_for_each_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks = 0
        at_rest = Breaker.at_rest

        def counted(breaker: Breaker) -> bool:
            nonlocal looks
            looks += 1
            return bool(at_rest.fget(breaker))  # type: ignore[attr-defined]

        monkeypatch.setattr(Breaker, "at_rest", property(counted))
        breakers = Breakers(most=1000)
        for number in range(999):
            breakers.get(f"busy {number}").admit(0.0)
        for number in range(10_000):
            call(breakers.get(f"/orders/{number}"), OK)
        assert looks <= 999 + 10_000 + 1
