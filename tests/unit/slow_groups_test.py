"""SlowGroups: whoever is slower than nearly all others is found, whatever the number of groups."""

import random

import pytest

from flowcatalyst.router.slow_groups import IDLE_S, MOST_WATCHED, REMEMBERED, SlowGroups


def noted(groups: SlowGroups, name: str, seconds: float, at: float = 0.0) -> None:
    """As who saves a call does it."""
    if seconds > groups.least_s or name in groups.by_name:
        groups.note(name, seconds, at)


@pytest.mark.parametrize("seed", range(10))
def test_groups_whose_attempts_are_all_slow_are_found_among_very_many(seed: int) -> None:
    rng, groups = random.Random(seed), SlowGroups()
    slow = {f"slow-{number}" for number in range(10)}
    for _ in range(20_000):
        noted(groups, f"g{rng.randrange(5000)}", rng.uniform(0.001, 0.1))
        if rng.random() < 0.01:
            noted(groups, rng.choice(sorted(slow)), rng.uniform(0.5, 1.0))
    slowest = sorted(groups.by_name, key=lambda name: -groups.by_name[name].mean_s)[:10]
    assert set(slowest) == slow
    assert len(groups.by_name) == MOST_WATCHED


def test_the_mean_of_a_group_follows_its_latest_attempts() -> None:
    groups = SlowGroups()
    for seconds in (1.0, 3.0):
        noted(groups, "a", seconds)
    assert (groups.by_name["a"].mean_s, groups.by_name["a"].attempts) == (2.0, 2)
    for _ in range(10 * REMEMBERED):
        noted(groups, "a", 0.1)
    assert groups.by_name["a"].mean_s == pytest.approx(0.1, rel=0.01)


def test_a_group_that_got_fast_makes_room_for_one_that_is_slower_than_it() -> None:
    groups = SlowGroups()
    for number in range(MOST_WATCHED):
        noted(groups, f"g{number}", 10.0)
    noted(groups, "new", 1.0)
    assert "new" not in groups.by_name
    for _ in range(100):
        noted(groups, "g0", 0.01)
    noted(groups, "new", 1.0)
    assert "new" in groups.by_name
    assert "g0" not in groups.by_name


def test_a_group_without_an_attempt_for_five_minutes_is_forgotten() -> None:
    groups = SlowGroups()
    for number in range(MOST_WATCHED):
        noted(groups, f"g{number}", 10.0, at=float(number))
    groups.forget_idle(IDLE_S + 5.0)
    assert list(groups.by_name) == [f"g{number}" for number in range(5, MOST_WATCHED)]
    noted(groups, "new", 0.001, at=IDLE_S)
    assert "new" in groups.by_name
