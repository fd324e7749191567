import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.clock import IdSource, SystemClock

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
TSID_EPOCH_S = 1_577_836_800  # 2020-01-01T00:00:00Z
NOW = 1_700_000_000.0


@dataclass
class HandClock:
    """Stands still until a test moves it."""

    now: float = NOW

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def number_of(tsid: str) -> int:
    number = 0
    for character in tsid:
        number = number * 32 + CROCKFORD.index(character)
    return number


def test_tsid_is_13_crockford_characters_and_fits_64_bits() -> None:
    ids = IdSource(HandClock(), Random(1))
    for _ in range(100):
        tsid = ids.tsid()
        assert len(tsid) == 13
        assert set(tsid) <= set(CROCKFORD)
        assert number_of(tsid) < 2**64


def test_tsid_begins_with_the_milliseconds_since_2020() -> None:
    assert (
        number_of(IdSource(HandClock(NOW + 0.25), Random(1)).tsid()) >> 22
        == (1_700_000_000 - TSID_EPOCH_S) * 1000 + 250
    )


def test_tsids_are_unique_and_increase_beyond_4096_in_one_millisecond() -> None:
    ids = IdSource(HandClock(), Random(1))
    made = [ids.tsid() for _ in range(3 * 4096 + 1)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_burst_beyond_4096_does_not_repeat_ids_of_the_milliseconds_after_it() -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    made = [ids.tsid() for _ in range(5000)]
    clock.now += 0.001
    made += [ids.tsid() for _ in range(5000)]
    assert made == sorted(set(made))


def test_tsids_increase_when_the_clock_runs_backwards() -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    before = ids.tsid()
    clock.now -= 3600
    assert before < ids.tsid() < ids.tsid()


@settings(deadline=None)
@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=50))
def test_tsids_increase_however_the_clock_jumps(jumps: list[float]) -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    made = [ids.tsid()]
    for jump in jumps:
        clock.now += jump
        made.append(ids.tsid())
    assert all(earlier < later for earlier, later in pairwise(made))


def test_tsid_of_a_clock_before_2020_is_still_valid_and_increases() -> None:
    ids = IdSource(HandClock(0.0), Random(1))
    first, second = ids.tsid(), ids.tsid()
    assert first < second
    assert len(first) == 13


def test_sources_of_different_processes_do_not_collide() -> None:
    one, other = IdSource(HandClock(), Random(1)), IdSource(HandClock(), Random(2))
    assert {one.tsid() for _ in range(10_000)}.isdisjoint({other.tsid() for _ in range(10_000)})


def test_same_seed_and_clock_give_the_same_ids_so_that_a_run_can_be_replayed() -> None:
    one, again = IdSource(HandClock(), Random(7)), IdSource(HandClock(), Random(7))
    assert [one.tsid() for _ in range(10)] == [again.tsid() for _ in range(10)]
    assert one.rng.random() == again.rng.random()


def test_system_clock_reads_the_clocks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as machine:
        machine.setattr(time, "monotonic", lambda: 7.0)
        machine.setattr(time, "time", lambda: NOW)
        clock = SystemClock()
    assert (clock.monotonic(), clock.wall()) == (7.0, NOW)
