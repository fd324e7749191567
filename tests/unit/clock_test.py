import time
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.core.clock import IdSource, SystemClock

NOW = 1_700_000_000.0


@dataclass
class HandClock:
    """Stands still until a test moves it."""

    now: float = NOW

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def test_id_is_a_uuid_of_version_7_in_its_usual_form() -> None:
    ids = IdSource(HandClock(), Random(1))
    for _ in range(100):
        made = ids.new_id()
        assert (UUID(made).version, UUID(made).variant, str(UUID(made))) == (7, RFC_4122, made)


def test_id_begins_with_the_milliseconds_since_1970() -> None:
    assert UUID(IdSource(HandClock(NOW + 0.25), Random(1)).new_id()).int >> 80 == 1_700_000_000_250


def test_ids_are_unique_and_increase_beyond_4096_in_one_millisecond() -> None:
    ids = IdSource(HandClock(), Random(1))
    made = [ids.new_id() for _ in range(3 * 4096 + 1)]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_burst_beyond_4096_does_not_repeat_ids_of_the_milliseconds_after_it() -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    made = [ids.new_id() for _ in range(5000)]
    clock.now += 0.001
    made += [ids.new_id() for _ in range(5000)]
    assert made == sorted(set(made))


def test_ids_increase_when_the_clock_runs_backwards() -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    before = ids.new_id()
    clock.now -= 3600
    assert before < ids.new_id() < ids.new_id()


@settings(deadline=None)
@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=50))
def test_ids_increase_however_the_clock_jumps(jumps: list[float]) -> None:
    clock = HandClock()
    ids = IdSource(clock, Random(1))
    made = [ids.new_id()]
    for jump in jumps:
        clock.now += jump
        made.append(ids.new_id())
    assert all(earlier < later for earlier, later in pairwise(made))


def test_id_of_a_clock_before_1970_is_still_valid_and_increases() -> None:
    ids = IdSource(HandClock(-1e6), Random(1))
    first, second = ids.new_id(), ids.new_id()
    assert first < second
    assert UUID(first).version == 7


def test_processes_that_start_alike_in_the_same_millisecond_never_make_the_same_id() -> None:
    alike = [seed for seed in range(60_000) if Random(seed).getrandbits(10) == 0][:20]  # their first random bits agree
    sources = [IdSource(HandClock(), Random(seed)) for seed in alike]
    made = [source.new_id() for source in sources for _ in range(5_000)]
    assert (len(sources), len(set(made))) == (20, 100_000)


def test_copy_of_a_process_makes_other_ids_than_the_original() -> None:
    original, copied = IdSource(HandClock()), IdSource(HandClock())
    copied.__dict__.update(original.__dict__)  # as a fork or a restored snapshot of the machine has it
    assert {original.new_id() for _ in range(1000)}.isdisjoint({copied.new_id() for _ in range(1000)})


def test_same_seed_and_clock_give_the_same_ids_so_that_a_run_can_be_replayed() -> None:
    one, again = IdSource(HandClock(), Random(7)), IdSource(HandClock(), Random(7))
    assert [one.new_id() for _ in range(10)] == [again.new_id() for _ in range(10)]
    assert one.rng.random() == again.rng.random()


def test_system_clock_reads_the_clocks_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as machine:
        machine.setattr(time, "monotonic", lambda: 7.0)
        machine.setattr(time, "time", lambda: NOW)
        clock = SystemClock()
    assert (clock.monotonic(), clock.wall()) == (7.0, NOW)
