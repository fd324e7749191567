"""Plays histories and tests with bugs planted: one warm process that forks a child for each bug.

A plant cannot be undone with certainty, a process can. Each child plants one bug, hunts it, and sends what caught it;
the parent prints a line of JSON for each bug.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from flowcatalyst.core import interpreter
from flowcatalyst.simulation.loop import SeededLoop
from tests.mutants.catalogue import MUTANTS, OF_POSTGRES, SURVIVORS
from tests.mutants.mutant import ROOT, Hunter, Mutant
from tests.sim.seeds import play_kind
from tests.stateful.rate_machine_test import RateMachine
from tests.stateful.scheduler_machine_test import SchedulerMachine
from tests.stateful.tracker_machine_test import TrackerMachine

STEP_LIMIT = 400_000  # the longest history of a sound router takes some 20,000
STEPS_AT_ONE_TIME = 20_000  # more than this without a pause is a loop that turns for ever
HISTORY_LIMIT_S = 60.0  # of processor time: one that goes on within a single step has to end as well
TEST_LIMIT_S = 15.0
THE_LOOP = "the loop"  # what catches a history that breaks or never ends
MACHINES: dict[str, type[RuleBasedStateMachine]] = {
    "groups": SchedulerMachine,
    "tracker": TrackerMachine,
    "rate": RateMachine,
}

Checks = dict[str, str]  # name of what caught it -> how it was wrong
Finding = tuple[str, Checks]  # the history, or test, that went wrong
Job = tuple[str, list[str]]  # name of a bug, or nothing; histories


class EndlessHistoryError(RuntimeError):
    """The history takes far more steps than any sound one."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Reads one job a line: [name of the bug, [histories]].")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--to-the-end", action="store_true", help="go on after the first history that went wrong")
    options = parser.parse_args()
    jobs: list[Job] = [json.loads(line) for line in sys.stdin]
    _limit_steps()
    interpreter.tune()  # what all children share is not copied to be looked at
    for name, findings in _hunt_all(jobs, options.jobs, options.to_the_end):
        print(json.dumps([name, findings]), flush=True)


def _hunt_all(jobs: list[Job], at_once: int, to_the_end: bool) -> Iterator[tuple[str, list[Finding]]]:
    fork, waiting, broken = get_context("fork"), iter(jobs), []
    running: dict[Connection, str] = {}
    while True:
        while len(running) < at_once and (job := next(waiting, None)) is not None:
            receiver, sender = fork.Pipe(duplex=False)
            fork.Process(target=_hunt, args=(job, to_the_end, sender), daemon=True).start()
            sender.close()
            running[receiver] = job[0]
        if not running:
            break
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            name = running.pop(ready)
            try:
                yield name, ready.recv()
            except EOFError:
                broken.append(name)
    if broken:
        raise SystemExit(f"could not be planted or hunted: {broken}")


def _hunt(job: Job, to_the_end: bool, sender: Connection) -> None:
    name, histories = job
    mutant = next((one for one in (*MUTANTS, *SURVIVORS, *OF_POSTGRES) if one.name == name), None)
    if mutant is not None:
        mutant.plant()
    findings: list[Finding] = []
    if mutant is not None and mutant.hunter is Hunter.TEST:
        signal.signal(signal.SIGPROF, lambda *_: _give_up(sender, mutant.where))
        signal.setitimer(signal.ITIMER_PROF, TEST_LIMIT_S)
    for finding in _findings(mutant, histories):
        findings.append(finding)
        if not to_the_end:
            break
    sender.send(findings)


def _give_up(sender: Connection, test: str) -> None:
    """A test that never ends has caught its bug. What it runs may swallow an exception, so this is the end."""
    sender.send([(test, {THE_LOOP: f"no end after {TEST_LIMIT_S:g} s"})])
    os._exit(0)


def _findings(mutant: Mutant | None, histories: Sequence[str]) -> Iterator[Finding]:
    if mutant is not None and mutant.hunter is Hunter.MACHINE:
        yield from _run_machine(mutant.where)
    elif mutant is not None and mutant.hunter is Hunter.TEST:
        yield from _run_tests(mutant.where)
    elif histories and ".py" in histories[0]:
        yield from _run_tests(*histories)
    else:
        for history in histories:
            yield from (_run_machine if history in MACHINES else _play)(history)


def _play(history: str) -> Iterator[Finding]:
    """What was found wrong with a history: name of the rule -> its first violation."""
    kind, _, seed = history.partition(":")
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, HISTORY_LIMIT_S)
    checks: Checks = {}
    try:
        played = play_kind(int(seed), kind)
    except Exception as error:
        checks = {THE_LOOP: repr(error)}
    else:
        for rule, violation in played.violations:
            checks.setdefault(rule, str(violation))
        if played.errors:
            checks[THE_LOOP] = played.errors[0]
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    if checks:
        yield history, checks


def _too_long(*_: object) -> None:
    raise EndlessHistoryError


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


def _run_machine(name: str) -> Iterator[Finding]:
    once = settings(
        max_examples=200,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    try:
        run_state_machine_as_test(MACHINES[name], settings=once)
    except Exception as error:
        yield name, {f"stateful test of {name}": repr(error)}


def _run_tests(*tests: str) -> Iterator[Finding]:
    """The first test that fails. One that cannot be found or collected is an error of ours, not a catch."""
    output = StringIO()
    with redirect_stdout(output):
        quietly = ("-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning")
        without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")  # takes longer to load than the test
        ended = pytest.main([*quietly, *without, *(str(ROOT / test) for test in tests)])
    if ended == pytest.ExitCode.TESTS_FAILED:
        failed = (line for line in output.getvalue().splitlines() if line.startswith("FAILED"))
        yield tests[0], {tests[0].rpartition("::")[2]: next(failed, "")}
    elif ended != pytest.ExitCode.OK:
        raise SystemExit(f"{tests}: {ended!r}\n{output.getvalue()}")


if __name__ == "__main__":
    main()
