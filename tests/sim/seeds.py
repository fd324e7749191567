"""Many seeds, on all cores; and the file of seeds that failed once."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from flowcatalyst.simulation.history import Kind
from tests.sim.play import play
from tests.sim.sometimes import happened

REGRESSION_FILE = Path(__file__).parent / "regression_seeds.txt"
CHUNK = 25


@dataclass(slots=True, frozen=True)
class Failure:
    """A history that broke a rule, and how to see it again."""

    ordered: bool
    seed: int
    text: str

    @property
    def key(self) -> str:
        return f"{'ordered' if self.ordered else 'unordered'}:{self.seed}"

    def __str__(self) -> str:
        return f"{self.text}\n    replay: python -m tests.sim --replay {self.key}"


@dataclass(slots=True)
class RunOfSeeds:
    """What many histories have in common."""

    count: int = 0
    messages: int = 0
    attempts: int = 0
    failures: list[Failure] = field(default_factory=list)
    happened: dict[bool, Counter[str]] = field(default_factory=lambda: {True: Counter(), False: Counter()})

    def add(self, other: "RunOfSeeds") -> None:
        self.count += other.count
        self.messages += other.messages
        self.attempts += other.attempts
        self.failures += other.failures
        for ordered, counts in other.happened.items():
            self.happened[ordered].update(counts)


def run_seeds(seeds: Sequence[int], jobs: int | None = None) -> RunOfSeeds:
    """Play every seed on both kinds of queue."""
    chunks = [(ordered, seeds[n : n + CHUNK]) for n in range(0, len(seeds), CHUNK) for ordered in (True, False)]
    total = RunOfSeeds()
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=get_context("spawn")) as processes:
        for part in processes.map(_run_chunk, chunks):
            total.add(part)
    return total


def _run_chunk(chunk: tuple[bool, Sequence[int]]) -> RunOfSeeds:
    ordered, seeds = chunk
    total = RunOfSeeds()
    for seed in seeds:
        total.add(run_one(seed, ordered=ordered))
    return total


def run_one(seed: int, *, ordered: bool) -> RunOfSeeds:
    """Play one seed; whatever goes wrong is a failure of that seed."""
    run = RunOfSeeds(count=1)
    try:
        played = play(seed, ordered=ordered)
    except Exception as error:
        run.failures.append(Failure(ordered, seed, f"the history could not be played: {error!r}"))
        return run
    problems = [f"{rule}: {violation}" for rule, violation in played.violations] + played.errors
    if problems:
        run.failures.append(Failure(ordered, seed, "\n".join(problems[:5])))
    run.messages = len(played.plan.letters)
    run.attempts = sum(event.kind is Kind.ATTEMPT for event in played.events)
    run.happened[ordered].update(happened(played))
    return run


def parse_seed(text: str) -> tuple[bool, int]:
    """`ordered:66` -> (True, 66)."""
    kind, _, number = text.partition(":")
    if kind not in ("ordered", "unordered") or not number.isdigit():
        raise SystemExit(f"{text!r} is not a seed: write ordered:66 or unordered:7")
    return kind == "ordered", int(number)


def regression_seeds() -> list[tuple[bool, int]]:
    """Seeds that failed once, without the words behind them."""
    lines = REGRESSION_FILE.read_text().splitlines()
    return [parse_seed(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def keep_failing(failures: Iterable[Failure]) -> None:
    """Append new failures to the file, so that every test run plays them from now on."""
    known = set(regression_seeds())
    with REGRESSION_FILE.open("a") as file:
        for failure in failures:
            if (failure.ordered, failure.seed) not in known:
                file.write(f"{failure.key}  {failure.text.splitlines()[0]}\n")
    print(f"kept in {REGRESSION_FILE.name}")
