"""Windows of a pool's counts: differences of snapshots, however seldom or often they are taken."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.message import Result
from flowcatalyst.router.stats import DURATION_BUCKETS_S, PoolStats
from flowcatalyst.router.windows import LONGEST_WINDOW_S, SNAPSHOT_PERIOD_S, PoolWindows

FIVE_MINUTES_S, HALF_AN_HOUR_S = 300.0, 1800.0


def work(stats: PoolStats, messages: int = 1, duration_s: float = 0.02) -> None:
    for _ in range(messages):
        stats.attempt(Result.SUCCESS, duration_s)
        stats.delivered += 1


def test_a_young_pool_shows_all_it_did_and_how_long_that_was() -> None:
    stats = PoolStats()
    windows = PoolWindows(stats, now=1000.0)
    work(stats, 7)
    window = windows.window(FIVE_MINUTES_S, now=1010.0)
    assert (window.seconds, window.stats.delivered) == (10.0, 7)


def test_every_count_of_a_window_is_what_was_added_in_it() -> None:
    stats = PoolStats()
    work(stats, 5, duration_s=700.0)
    stats.attempt(Result.ERROR_CONFIG, 0.2)
    stats.retried, stats.nacked, stats.dead_lettered, stats.rate_limit_waits = 1, 2, 3, 4
    stats.lag(5.0)
    windows = PoolWindows(stats, now=0.0)
    work(stats, 3, duration_s=0.02)
    stats.lag(0.2)
    stats.lag(-3.0)
    stats.attempt(Result.ERROR_PROCESS, 0.06)
    stats.attempt(Result.ERROR_CONNECTION, 2000.0)
    stats.retried += 10
    stats.nacked += 20
    stats.dead_lettered += 30
    stats.rate_limit_waits += 40
    expected = PoolStats(delivered=3, retried=10, nacked=20, dead_lettered=30, rate_limit_waits=40)
    for duration_s in (0.02, 0.02, 0.02):
        expected.attempt(Result.SUCCESS, duration_s)
    expected.attempt(Result.ERROR_PROCESS, 0.06)
    expected.attempt(Result.ERROR_CONNECTION, 2000.0)
    expected.lag(0.2)
    expected.lag(0.0)
    found = windows.window(FIVE_MINUTES_S, now=1.0).stats
    assert found.duration_sum_s == pytest.approx(expected.duration_sum_s)
    found.duration_sum_s = expected.duration_sum_s
    assert found.lag_sum_s == pytest.approx(expected.lag_sum_s)
    found.lag_sum_s = expected.lag_sum_s
    assert found == expected


def test_what_is_older_than_the_window_is_left_out() -> None:
    stats = PoolStats()
    windows = PoolWindows(stats, now=0.0)
    for minute in range(1, 61):  # one message in each
        work(stats)
        windows.snapshot(minute * 60.0)
    assert windows.window(FIVE_MINUTES_S, now=3600.0).stats.delivered == 5
    assert windows.window(HALF_AN_HOUR_S, now=3600.0).stats.delivered == 30
    work(stats, 2)
    window = windows.window(FIVE_MINUTES_S, now=3659.0)
    assert (window.seconds, window.stats.delivered) == (359.0, 7)  # from the snapshot before its beginning on
    assert windows.window(FIVE_MINUTES_S, now=3660.0).stats.delivered == 6


def test_an_idle_pool_shows_nothing_after_a_while() -> None:
    stats = PoolStats()
    windows = PoolWindows(stats, now=0.0)
    work(stats, 9)
    for second in range(30, 3600, 30):
        windows.snapshot(float(second))
    window = windows.window(HALF_AN_HOUR_S, now=3570.0)
    assert (window.seconds, window.stats.delivered) == (HALF_AN_HOUR_S, 0)
    assert window.stats.mean_duration_s is None
    assert window.stats.duration_quantile_s(0.95) is None


def test_snapshots_that_come_too_often_are_not_kept() -> None:
    windows = PoolWindows(PoolStats(), now=0.0)
    for tenth in range(100_000):
        windows.snapshot(tenth / 10)
    assert len(windows) <= LONGEST_WINDOW_S / SNAPSHOT_PERIOD_S + 2
    assert windows.window(HALF_AN_HOUR_S, now=9999.9).seconds < HALF_AN_HOUR_S + 2 * SNAPSHOT_PERIOD_S


def test_without_snapshots_a_window_says_that_it_reaches_further_back() -> None:
    stats = PoolStats()
    windows = PoolWindows(stats, now=0.0)
    work(stats, 4)
    windows.snapshot(7200.0)
    window = windows.window(FIVE_MINUTES_S, now=7200.0)
    assert (window.seconds, window.stats.delivered) == (7200.0, 4)


@given(st.lists(st.tuples(st.floats(0.1, 200.0), st.integers(0, 3)), max_size=80), st.floats(0.0, 40.0))
def test_a_window_holds_exactly_what_happened_in_its_seconds(steps: list[tuple[float, int]], rest_s: float) -> None:
    stats = PoolStats()
    windows = PoolWindows(stats, now=0.0)
    now, done = 0.0, list[float]()
    for pause_s, messages in steps:
        now += pause_s
        windows.snapshot(now)
        now += 0.001
        work(stats, messages)
        done += [now] * messages
    now += rest_s
    for seconds in (FIVE_MINUTES_S, HALF_AN_HOUR_S):
        window = windows.window(seconds, now)
        assert window.stats.delivered == sum(at > now - window.seconds for at in done)
        assert window.seconds <= max(seconds + SNAPSHOT_PERIOD_S + 200.001, now)
        assert window.seconds >= min(seconds, now) - 1e-6


# Durations


def test_the_mean_is_that_of_all_attempts() -> None:
    stats = PoolStats()
    for duration_s in (0.1, 0.2, 0.6):
        stats.attempt(Result.SUCCESS, duration_s)
    assert stats.mean_duration_s == pytest.approx(0.3)


def test_no_attempt_has_neither_mean_nor_quantile() -> None:
    assert PoolStats().mean_duration_s is None
    assert PoolStats().duration_quantile_s(0.95) is None


def test_a_quantile_lies_where_even_spread_would_put_it() -> None:
    stats = PoolStats()
    work(stats, 90, duration_s=0.004)
    work(stats, 10, duration_s=0.2)  # between 0.1 and 0.25
    assert stats.duration_quantile_s(0.95) == pytest.approx(0.175)
    assert stats.duration_quantile_s(0.45) == pytest.approx(0.0025)
    assert stats.duration_quantile_s(0.9) == pytest.approx(0.005)
    assert stats.duration_quantile_s(1.0) == pytest.approx(0.25)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    stats = PoolStats()
    work(stats, 1, duration_s=5000.0)
    assert stats.duration_quantile_s(0.95) == DURATION_BUCKETS_S[-1]


@given(st.lists(st.floats(0.0, 900.0), min_size=1, max_size=200))
def test_the_estimate_is_in_the_bucket_of_the_true_quantile(durations: list[float]) -> None:
    stats = PoolStats()
    for duration_s in durations:
        stats.attempt(Result.SUCCESS, duration_s)
    estimate = stats.duration_quantile_s(0.5)
    true = statistics.median_low(durations)
    lower = max((bound for bound in DURATION_BUCKETS_S if bound < true), default=0.0)
    upper = min(bound for bound in DURATION_BUCKETS_S if bound >= true)
    assert estimate is not None
    assert lower <= estimate <= upper * (1 + 1e-9)
