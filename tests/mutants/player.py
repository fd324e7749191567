"""Runs in a process of its own, on a mutated copy of the package, and prints what caught the mutant.

One line of JSON for each history, or state machine, that went wrong.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import flowcatalyst
from flowcatalyst.simulation.loop import SeededLoop

STEP_LIMIT = 400_000  # the longest history of a sound router takes some 13,000
STEPS_AT_ONE_TIME = 20_000  # more than this without a pause is a loop that turns for ever
THE_LOOP = "the loop"  # what catches a history that breaks or never ends


class EndlessHistoryError(RuntimeError):
    """The history takes far more steps than any sound one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package-in", type=Path, required=True, help="where flowcatalyst must come from")
    parser.add_argument("--machine", help="run the stateful test of this module, not the simulation")
    parser.add_argument("--histories", default="", help="which ones, as 0:ordered,0:unordered,...")
    parser.add_argument("--to-the-end", action="store_true", help="go on after the first one that went wrong")
    options = parser.parse_args()
    assert Path(flowcatalyst.__file__).is_relative_to(options.package_in), flowcatalyst.__file__
    found = _run_machine(options.machine) if options.machine else _play_histories(options.histories.split(","))
    for finding in found:
        print(json.dumps(finding), flush=True)
        if not options.to_the_end:
            return


def _play_histories(names: list[str]) -> Iterator[dict[str, object]]:
    _limit_steps()
    for name in names:
        seed, _, kind = name.partition(":")
        if checks := _judge(int(seed), ordered=kind == "ordered"):
            yield {"history": name, "checks": checks}


def _judge(seed: int, *, ordered: bool) -> dict[str, str]:
    """What was found wrong with a history: name of the rule -> its first violation."""
    from tests.sim.play import play

    try:
        played = play(seed, ordered=ordered)
    except Exception as error:
        return {THE_LOOP: repr(error)}
    checks: dict[str, str] = {}
    for rule, violation in played.violations:
        checks.setdefault(rule, str(violation))
    if played.errors:
        checks[THE_LOOP] = played.errors[0]
    return checks


def _limit_steps() -> None:
    """End a history that would go on for ever."""
    run_once: Callable[[SeededLoop], None] = SeededLoop._run_once
    pauses: dict[SeededLoop, tuple[float, int]] = {}  # loop -> time of its latest pause, steps taken before

    def run_once_within_limit(loop: SeededLoop) -> None:
        paused_at, steps_before = pauses.setdefault(loop, (0.0, 0))
        if loop.time() > paused_at:
            pauses[loop] = (loop.time(), loop.steps)
        elif loop.steps - steps_before > STEPS_AT_ONE_TIME or loop.steps > STEP_LIMIT:
            loop.steps = 0  # the loop has to run once more, to be closed
            raise EndlessHistoryError
        run_once(loop)

    SeededLoop._run_once = run_once_within_limit  # type: ignore[assignment, method-assign]


def _run_machine(module: str) -> Iterator[dict[str, object]]:
    from hypothesis import Phase, settings
    from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

    from tests.stateful.rate_machine_test import RateMachine
    from tests.stateful.scheduler_machine_test import SchedulerMachine
    from tests.stateful.tracker_machine_test import TrackerMachine

    machines: dict[str, type[RuleBasedStateMachine]] = {
        "groups": SchedulerMachine,
        "tracker": TrackerMachine,
        "rate": RateMachine,
    }
    once = settings(
        max_examples=200,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    machine = machines[module]
    try:
        run_state_machine_as_test(machine, settings=once)
    except Exception as error:
        yield {"history": "", "checks": {machine.__name__: repr(error)}}


if __name__ == "__main__":
    main()
