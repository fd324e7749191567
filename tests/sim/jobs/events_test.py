"""The proof from an event to its webhooks: many seeded histories with subscriptions that change."""

import pytest

from tests.sim.jobs.events_play import play_events
from tests.sim.jobs.events_sometimes import ALL
from tests.sim.seeds import EVENTS, RunOfSeeds, run_seeds

SEEDS = 500


@pytest.fixture(scope="module")
def run() -> RunOfSeeds:
    return run_seeds(range(SEEDS), kind=EVENTS)


def test_no_promise_about_events_is_broken_in_500_histories(run: RunOfSeeds) -> None:
    assert run.count == SEEDS
    assert run.messages >= 16 * run.count
    assert not run.failures, "\n".join(map(str, run.failures))


def test_every_rare_thing_happened_to_events_or_the_simulation_is_asleep(run: RunOfSeeds) -> None:
    assert [name for name in ALL if not run.happened[name]] == []


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_gives_the_same_history_of_events(seed: int) -> None:
    first, second = play_events(seed), play_events(seed)
    assert (first.trace, first.steps) == (second.trace, second.steps)
    assert list(map(str, first.events)) == list(map(str, second.events))
    assert play_events(seed + 1).trace != first.trace
