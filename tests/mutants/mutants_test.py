"""Planted bugs: the simulation and the stateful tests are only as good as what they catch."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.mutants.catalogue import MUTANTS, SURVIVORS
from tests.mutants.hunt import Catch, hunt, hunt_where_it_was_caught
from tests.mutants.mutant import PACKAGE, Hunter, Mutant

Hunts = dict[str, "Future[Catch]"]


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest) -> Iterator[Hunts]:
    """All hunts that this run asks for, started at once."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {one["mutant"].name: one["mutant"] for one in params if "mutant" in one}
    with ThreadPoolExecutor(os.cpu_count()) as hunters:
        yield {name: hunters.submit(hunt_where_it_was_caught, mutant) for name, mutant in wanted.items()}
        hunters.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(hunts: Hunts, mutant: Mutant) -> None:
    assert hunts[mutant.name].result().checks


def test_without_a_bug_the_same_histories_go_well(hunts: Hunts) -> None:
    catches = [future.result() for future in hunts.values()]
    histories = {catch.first_history for catch in catches if catch.mutant and catch.mutant.hunter is Hunter.SIMULATION}
    assert hunt(None, sorted(histories) or ["0:ordered"], to_the_end=True).findings == []


def test_every_survivor_can_still_be_planted_and_says_what_is_missing() -> None:
    for mutant in SURVIVORS:
        text = (PACKAGE / mutant.file).read_text()
        assert mutant.apply(text) != text
        assert mutant.missing


def test_names_of_bugs_tell_them_apart() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *SURVIVORS)]
    assert len(names) == len(set(names)) >= 25
