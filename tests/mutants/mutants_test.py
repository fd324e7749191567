"""Planted bugs: the simulation and the tests are only as good as what they catch."""

import pytest

from tests.mutants.catalogue import MUTANTS, OF_POSTGRES, SURVIVORS
from tests.mutants.hunt import Catch, hunt, hunt_nothing
from tests.mutants.mutant import Hunter, Mutant

Hunts = dict[str, Catch]


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest) -> Hunts:
    """All hunts that this run asks for."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {one["mutant"].name: one["mutant"] for one in params if "mutant" in one}
    return {catch.mutant.name: catch for catch in hunt(list(wanted.values()), kept=True)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(hunts: Hunts, mutant: Mutant) -> None:
    assert hunts[mutant.name].checks


def test_without_a_bug_the_same_histories_and_tests_go_well(hunts: Hunts) -> None:
    found = {finding.history for catch in hunts.values() for finding in catch.findings}
    assert hunt_nothing(sorted(found) or ["embedded:1"]) == []


def test_every_survivor_can_still_be_planted_and_says_what_is_missing() -> None:
    assert all(mutant.missing for mutant in SURVIVORS)
    assert len(hunt(SURVIVORS, most=0)) == len(SURVIVORS)


def test_at_least_twenty_bugs_are_planted_in_what_jobs_need() -> None:
    assert sum(mutant.hunter is Hunter.JOBS for mutant in MUTANTS) >= 20


def test_at_least_twenty_bugs_are_planted_in_what_events_need() -> None:
    assert sum(mutant.hunter is Hunter.EVENTS for mutant in MUTANTS) >= 20


def test_names_of_bugs_tell_them_apart() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *SURVIVORS, *OF_POSTGRES)]
    assert len(names) == len(set(names)) >= 25
    assert all(mutant.where for mutant in MUTANTS if mutant.hunter in (Hunter.MACHINE, Hunter.TEST))
