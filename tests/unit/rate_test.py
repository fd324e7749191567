from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.rate import WINDOW_S, SlidingWindow

# Steps of time that meet the edges of the window: none, tiny, a fraction, just short of it, exactly it, and beyond.
steps = st.sampled_from([0.0, 1e-9, 0.1, 1.0, 12.34, 30.0, nextafter(60.0, 0.0), 60.0, 61.0]) | st.floats(0, 90)
limits = st.integers(1, 5)
# A limit, the time since the step before, and how many starts are wanted then.
wanted = st.lists(st.tuples(limits, steps, st.integers(1, 4)), max_size=40)


def start(window: SlidingWindow, now: float) -> bool:
    """Use a permit if there is one, as a pool does."""
    if window.next_permit_at(now) > now:
        return False
    window.take(now)
    return True


class TestSlidingWindow:
    @settings(deadline=None)
    @given(limits, st.floats(0, 1e9), st.lists(steps, max_size=60))
    def test_no_window_of_60_s_ever_holds_more_starts_than_the_limit(
        self, limit: int, begin: float, times: list[float]
    ) -> None:
        window, now, starts = SlidingWindow(limit), begin, list[float]()
        for step in times:
            now += step
            if start(window, now):
                starts.append(now)
        for first, one_too_many in zip(starts, starts[limit:], strict=False):
            assert one_too_many >= first + WINDOW_S

    @settings(deadline=None)
    @given(wanted)
    def test_limit_in_force_is_obeyed_at_once_when_it_changes(self, plan: list[tuple[int, float, int]]) -> None:
        window, now, starts = SlidingWindow(1), 0.0, list[float]()
        for limit, step, count in plan:
            window.change(limit)
            now += step
            for _ in range(count):
                if start(window, now):
                    starts.append(now)
                    assert sum(earlier + WINDOW_S > now for earlier in starts) <= limit

    @settings(deadline=None)
    @given(wanted)
    def test_no_start_is_refused_that_the_limit_allows(self, plan: list[tuple[int, float, int]]) -> None:
        window, now, starts = SlidingWindow(1), 0.0, list[float]()
        for limit, step, count in plan:
            window.change(limit)
            now += step
            for _ in range(count):
                in_window = sum(earlier + WINDOW_S > now for earlier in starts)
                assert window.available(now) == max(0, limit - in_window)
                assert start(window, now) is (in_window < limit)
                if in_window < limit:
                    starts.append(now)

    @settings(deadline=None)
    @given(wanted)
    def test_next_permit_is_to_be_had_exactly_then_and_not_before(self, plan: list[tuple[int, float, int]]) -> None:
        window, now = SlidingWindow(1), 0.0
        for limit, step, count in plan:
            window.change(limit)
            now += step
            for _ in range(count):
                permit_at = window.next_permit_at(now)
                just_before = nextafter(permit_at, -inf)
                if permit_at > now:
                    if just_before > now:
                        assert window.available(just_before) == 0
                        assert window.next_permit_at(just_before) == permit_at
                    now = permit_at
                assert start(window, now)

    def test_burst_uses_up_the_limit_and_the_window_slides_start_by_start(self) -> None:
        window = SlidingWindow(3)
        assert [start(window, now) for now in (0.0, 10.0, 20.0, 30.0)] == [True, True, True, False]
        assert window.next_permit_at(30.0) == 60.0
        assert not start(window, nextafter(60.0, 0.0))
        assert start(window, 60.0)
        assert window.next_permit_at(60.0) == 70.0

    def test_raised_limit_gives_the_difference_at_once(self) -> None:
        window = SlidingWindow(1)
        assert start(window, 0.0)
        window.change(3)
        assert window.available(0.0) == 2
        assert [start(window, 0.0) for _ in range(3)] == [True, True, False]

    def test_lowered_limit_waits_until_enough_starts_left_the_window(self) -> None:
        window = SlidingWindow(4)
        for now in (0.0, 1.0, 2.0, 3.0):
            assert start(window, now)
        window.change(2)
        assert window.available(4.0) == 0
        assert window.next_permit_at(4.0) == 62.0
        assert not start(window, 61.0)
        assert start(window, 62.0)

    def test_no_limit_gives_any_number_of_permits_at_once(self) -> None:
        window = SlidingWindow(None)
        assert window.available(0.0) is None
        assert all(start(window, 0.0) for _ in range(10_000))

    def test_removing_the_limit_frees_those_who_wait(self) -> None:
        window = SlidingWindow(1)
        assert start(window, 0.0)
        assert not start(window, 0.0)
        window.change(None)
        assert window.next_permit_at(0.0) == 0.0
        assert start(window, 0.0)
        assert window.available(0.0) is None

    def test_starts_before_a_limit_was_removed_still_count_when_it_returns(self) -> None:
        window = SlidingWindow(2)
        assert start(window, 0.0)
        window.change(None)
        window.change(2)
        assert window.available(59.0) == 1
        assert window.available(60.0) == 2

    def test_limit_set_where_there_was_none_counts_from_then_on(self) -> None:
        window = SlidingWindow(None)
        for _ in range(3):
            assert start(window, 0.0)
        window.change(2)
        assert window.available(1.0) == 2

    def test_permit_that_does_not_exist_cannot_be_taken(self) -> None:
        window = SlidingWindow(1)
        window.take(0.0)
        with pytest.raises(AssertionError):
            window.take(0.0)

    def test_negative_limit_is_refused_and_the_old_one_stays(self) -> None:
        window = SlidingWindow(7)
        with pytest.raises(ValueError, match="at least 0 per minute"):
            window.change(-1)
        assert window.per_minute == 7
        with pytest.raises(ValueError, match="at least 0 per minute"):
            SlidingWindow(-1)

    def test_a_share_of_nothing_has_no_permit_until_it_grows(self) -> None:
        window = SlidingWindow(1)
        window.take(0.0)
        window.change(0)
        assert window.available(100.0) == 0
        assert window.next_permit_at(100.0) == inf
        window.change(1)
        assert window.next_permit_at(100.0) == 100.0

    def test_repr_shows_what_is_used_of_the_limit(self) -> None:
        window = SlidingWindow(5)
        window.take(0.0)
        assert repr(window) == "<SlidingWindow 1/5>"
        assert repr(SlidingWindow(None)) == "<SlidingWindow 0/unlimited>"


class TestPoolLimits:
    @pytest.mark.parametrize(("concurrency", "capacity"), [(1, 50), (2, 50), (3, 60), (20, 400)])
    def test_capacity_is_20_per_slot_and_at_least_50(self, concurrency: int, capacity: int) -> None:
        assert PoolLimits(concurrency).effective_capacity == capacity

    def test_capacity_that_is_set_wins(self) -> None:
        assert PoolLimits(20, capacity=7).effective_capacity == 7

    @pytest.mark.parametrize("name", ["concurrency", "rate_per_minute", "max_delivery_attempts", "capacity"])
    def test_number_below_one_is_refused_by_name(self, name: str) -> None:
        numbers = {"concurrency": 1, name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            PoolLimits(**numbers)  # type: ignore[arg-type]
