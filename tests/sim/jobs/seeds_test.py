"""The proof for dispatch jobs: many seeded histories of the real store and the real routers, judged by every rule."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.jobs.play import play
from tests.sim.jobs.sometimes import ALL
from tests.sim.seeds import JOBS, RunOfSeeds, run_seeds

SEEDS = 500
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run() -> RunOfSeeds:
    return run_seeds(range(SEEDS), kind=JOBS)


def test_no_promise_about_jobs_is_broken_in_500_histories(run: RunOfSeeds) -> None:
    assert run.count == SEEDS
    assert run.messages >= 16 * run.count
    assert not run.failures, "\n".join(map(str, run.failures))


def test_every_rare_thing_happened_to_jobs_or_the_simulation_is_asleep(run: RunOfSeeds) -> None:
    assert [name for name in ALL if not run.happened[name]] == []


@pytest.mark.parametrize("seed", range(8))
def test_the_same_seed_gives_the_same_history_of_jobs(seed: int) -> None:
    first, second = play(seed), play(seed)
    assert (first.trace, first.steps) == (second.trace, second.steps)
    assert list(map(str, first.events)) == list(map(str, second.events))
    assert play(seed + 1).trace != first.trace


def test_a_history_of_jobs_is_the_same_in_another_process_whatever_its_hashes() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", "from tests.sim.jobs.play import play; print([play(s).trace for s in (1, 5, 7)])"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert told == {f"{[play(seed).trace for seed in (1, 5, 7)]}\n"}
