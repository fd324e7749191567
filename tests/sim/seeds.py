"""Many seeds, on all cores; and the file of seeds that failed once."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import process_time

from flowcatalyst.core import interpreter
from flowcatalyst.simulation.history import Kind
from tests.sim.jobs.events_play import play_events
from tests.sim.jobs.play import Played as PlayedJobs
from tests.sim.jobs.play import play as play_jobs
from tests.sim.plan import ALL_KINDS
from tests.sim.play import Played, play
from tests.sim.sometimes import happened

REGRESSION_FILE = Path(__file__).parent / "regression_seeds.txt"
CHUNK = 20
JOBS = "jobs"  # no kind of queue: histories of dispatch jobs
EVENTS = "events"  # and of events that become jobs


@dataclass(slots=True, frozen=True)
class Failure:
    """A history that broke a rule, and how to see it again."""

    kind: str
    seed: int
    text: str
    theme: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.seed}"

    def __str__(self) -> str:
        return f"{self.key} ({self.theme})\n{self.text}\n    replay: python -m tests.sim --replay {self.key}"


@dataclass(slots=True)
class RunOfSeeds:
    """What many histories have in common."""

    count: int = 0
    messages: int = 0
    attempts: int = 0
    failures: list[Failure] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)  # of one core, by theme
    played: Counter[str] = field(default_factory=Counter)  # by theme

    def add(self, other: "RunOfSeeds") -> None:
        self.count += other.count
        self.messages += other.messages
        self.attempts += other.attempts
        self.failures += other.failures
        self.happened.update(other.happened)
        for theme, seconds in other.seconds.items():
            self.seconds[theme] = self.seconds.get(theme, 0.0) + seconds
        self.played.update(other.played)


def kind_of(seed: int) -> str:
    """Which queues a run plays a seed on: all kinds in turn, so that each theme meets each kind."""
    return ALL_KINDS[seed % len(ALL_KINDS)]


def run_seeds(seeds: Sequence[int], jobs: int | None = None, kind: str | None = None) -> RunOfSeeds:
    """Play every seed once, on all cores; on queues of one kind if it is given."""
    chunks = [(kind, seeds[n : n + CHUNK]) for n in range(0, len(seeds), CHUNK)]
    total = RunOfSeeds()
    with ProcessPoolExecutor(jobs or os.cpu_count(), get_context("spawn"), initializer=_tune) as processes:
        for part in processes.map(_run_chunk, chunks):
            total.add(part)
    return total


def _tune() -> None:
    """As the routers they play. A function of this module, so that all it needs is loaded by then."""
    interpreter.tune()


def _run_chunk(chunk: tuple[str | None, Sequence[int]]) -> RunOfSeeds:
    kind, seeds = chunk
    total = RunOfSeeds()
    for seed in seeds:
        total.add(run_one(seed, kind or kind_of(seed)))
    return total


def run_one(seed: int, kind: str) -> RunOfSeeds:
    """Play one seed; whatever goes wrong is a failure of that seed."""
    run = RunOfSeeds(count=1)
    began = process_time()
    try:
        played = play_kind(seed, kind)
    except Exception as error:
        run.failures.append(Failure(kind, seed, f"the history could not be played: {error!r}"))
        return run
    theme = played.theme if isinstance(played, PlayedJobs) else played.plan.theme
    run.seconds[theme] = process_time() - began
    run.played[theme] = 1
    if problems := _problems(played):
        run.failures.append(Failure(kind, seed, "\n".join(problems), theme))
    if isinstance(played, PlayedJobs):
        run.messages, run.attempts = played.messages, played.attempts
        run.happened.update(played.happened())
    else:
        run.messages = len(played.plan.letters)
        run.attempts = sum(event.kind is Kind.ATTEMPT for event in played.events)
        run.happened.update(happened(played))
    return run


def play_kind(seed: int, kind: str) -> Played | PlayedJobs:
    """The history of a seed: on queues of a kind, or of jobs."""
    if kind == EVENTS:
        return play_events(seed)
    return play_jobs(seed) if kind == JOBS else play(seed, kind)


def _problems(played: Played | PlayedJobs) -> list[str]:
    """The first violation of each rule, and what broke."""
    first: dict[str, str] = {}
    count = Counter(rule for rule, _ in played.violations)
    for rule, violation in played.violations:
        first.setdefault(rule, f"{rule}: {violation}" + (f" (and {count[rule] - 1} more)" if count[rule] > 1 else ""))
    return [*first.values(), *played.errors[:3]]


def parse_seed(text: str) -> tuple[str, int]:
    """`mixed:66` -> ("mixed", 66)."""
    kind, _, number = text.partition(":")
    kinds = (*ALL_KINDS, JOBS, EVENTS)
    if kind not in kinds or not number.isdigit():
        raise SystemExit(f"{text!r} is not a seed: write one of {', '.join(kinds)} and a number, as mixed:66")
    return kind, int(number)


def regression_seeds() -> list[tuple[str, int]]:
    """Seeds that failed once, without the words behind them."""
    lines = REGRESSION_FILE.read_text().splitlines()
    return [parse_seed(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def keep_failing(failures: Iterable[Failure]) -> None:
    """Append new failures to the file, so that every test run plays them from now on."""
    known = set(regression_seeds())
    with REGRESSION_FILE.open("a") as file:
        for failure in failures:
            if (failure.kind, failure.seed) not in known:
                file.write(f"{failure.key}  {failure.text.splitlines()[0]}\n")
    print(f"kept in {REGRESSION_FILE.name}")
