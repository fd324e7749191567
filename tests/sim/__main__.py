"""Soak and replay.

python -m tests.sim 5000                      play seeds 0-4999, on all kinds of queue in turn
python -m tests.sim 5000 --first 100000       play 5000 seeds from another one on
python -m tests.sim 500 --kind mixed          play 500 seeds on queues of one kind
python -m tests.sim 500 --kind jobs           play 500 seeds of dispatch jobs
python -m tests.sim 500 --kind events         play 500 seeds of events that become jobs
python -m tests.sim --replay mixed:66         play one history, tell what is wrong with it
python -m tests.sim --replay mixed:66 --about m13
python -m tests.sim --replay jobs:12 --about j7
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.sim.jobs.events_sometimes import ALL as ALL_OF_EVENTS
from tests.sim.jobs.play import Played as PlayedJobs
from tests.sim.jobs.sometimes import ALL as ALL_OF_JOBS
from tests.sim.plan import ALL_KINDS
from tests.sim.play import Played
from tests.sim.seeds import EVENTS, JOBS, RunOfSeeds, keep_failing, parse_seed, play_kind, run_seeds
from tests.sim.sometimes import ALL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Soak and replay simulated histories.")
    parser.add_argument("count", nargs="?", type=int, default=1000, help="seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--kind", choices=(*ALL_KINDS, JOBS, EVENTS), default=None, help="queues of one kind, or jobs")
    parser.add_argument("--jobs", type=int, default=None, help="processes; one per core by default")
    parser.add_argument("--dry", action="store_true", help="do not keep the seeds that fail")
    parser.add_argument("--replay", metavar="KIND:SEED", help="play one history, as mixed:66 or unordered:7")
    parser.add_argument("--about", metavar="MESSAGE", help="with --replay: show the life of one message")
    options = parser.parse_args()
    if options.replay:
        kind, seed = parse_seed(options.replay)
        return _tell(play_kind(seed, kind), options.about)
    started = time.monotonic()
    run = run_seeds(range(options.first, options.first + options.count), options.jobs, options.kind)
    _summarise(run, time.monotonic() - started, {JOBS: ALL_OF_JOBS, EVENTS: ALL_OF_EVENTS}.get(options.kind, ALL))
    if run.failures and not options.dry:
        keep_failing(run.failures)
    return 1 if run.failures else 0


def _tell(played: Played | PlayedJobs, about: str | None) -> int:
    for rule, violation in played.violations:
        print(f"{rule}: {violation}")
    for error in played.errors:
        print(f"error: {error}")
    about = about or next((violation.message for _, violation in played.violations if violation.message), None)
    if isinstance(played, PlayedJobs):
        print(f"{played.plan.theme}, {len(played.plan.processes)} processes")
        lines: list[tuple[str, object]] = [(event.job, event) for event in played.events]
    else:
        queues = ", ".join(f"{one.name}={one.kind}" for one in played.plan.queues)
        print(f"{played.plan.theme}, queues {queues}")
        lines = [(event.message, event) for event in played.events]
    for name, event in lines:
        if about is None or name.partition("#")[0] == about or not name:
            print(event)
    print(f"{len(played.events)} events, {played.steps} steps, trace {played.trace:08x}")
    return 1 if played.violations or played.errors else 0


def _summarise(run: RunOfSeeds, seconds: float, rare: Sequence[str]) -> None:
    for failure in run.failures:
        print(failure)
    for name in rare:
        print(f"  {name:50} {run.happened[name]:7}")
    for theme, count in sorted(run.played.items()):
        print(f"  {theme:50} {count:7} histories, {1000 * run.seconds[theme] / count:5.0f} ms of a core each")
    print(f"{run.count} histories, {run.messages} messages, {run.attempts} attempts in {seconds:.1f} s")
    broken = Counter(line.partition(": at ")[0] for failure in run.failures for line in failure.text.splitlines())
    for rule, count in broken.most_common():
        print(f"  broken in {count:5} histories: {rule}")
    print(f"{len(run.failures)} failed")


if __name__ == "__main__":
    sys.exit(main())
