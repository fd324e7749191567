"""Hunt: has the player look for something that catches each mutant."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.mutant import ROOT, Hunter, Mutant
from tests.sim.seeds import EVENTS, JOBS, kind_of

SEEDS = 800  # a mutant that survives them all is not caught
TIMEOUT_S = 3600.0
KEPT = Path(__file__).parent / "caught_in.txt"
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

# As `kind of queue:seed`, in the order they are played in.
HISTORIES = [f"{kind_of(seed)}:{seed}" for seed in range(SEEDS)]
JOB_HISTORIES = [f"{JOBS}:{seed}" for seed in range(SEEDS)]
EVENT_HISTORIES = [f"{EVENTS}:{seed}" for seed in range(SEEDS)]
SIMULATED = {Hunter.SIMULATION: HISTORIES, Hunter.JOBS: JOB_HISTORIES, Hunter.EVENTS: EVENT_HISTORIES}


@dataclass(slots=True, frozen=True)
class Finding:
    """A history or a test that went wrong."""

    history: str
    checks: dict[str, str]  # name of what caught it -> how it was wrong


@dataclass(slots=True)
class Catch:
    """What a hunt brought home."""

    mutant: Mutant
    findings: list[Finding] = field(default_factory=list)

    @property
    def checks(self) -> list[str]:
        """Names of everything that caught it."""
        return sorted({check for finding in self.findings for check in finding.checks})

    @property
    def first_history(self) -> str:
        return self.findings[0].history if self.findings else ""

    @property
    def histories_needed(self) -> int:
        played = SIMULATED.get(self.mutant.hunter, [])
        return played.index(self.first_history) + 1 if self.first_history in played else 0


def hunt(
    mutants: Sequence[Mutant], most: int | None = None, *, to_the_end: bool = False, kept: bool = False
) -> list[Catch]:
    """Hunt each, in up to `most` histories, until the first one that goes wrong, or in all of them.

    Kept: begin with the history that caught it when `python -m tests.mutants --keep` ran.
    """
    first = kept_histories() if kept else {}
    jobs = [
        (mutant.name, [*first.get(mutant.name, []), *SIMULATED.get(mutant.hunter, [])[:most]]) for mutant in mutants
    ]
    found = _play(jobs, to_the_end)
    return [Catch(mutant, found[mutant.name]) for mutant in mutants]


def hunt_nothing(histories: Iterable[str]) -> list[Finding]:
    """What goes wrong in these histories, stateful tests and tests without any bug; the tests in one run of pytest."""
    wanted = list(histories)
    tests = [one for one in wanted if ".py" in one]
    parts = [[one] for one in wanted if ".py" not in one] + ([tests] if tests else [])
    return [finding for part in _play([("", part) for part in parts], True).values() for finding in part]


def kept_histories() -> dict[str, list[str]]:
    lines = [line.partition(" ") for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    return {name: [history] for history, _, name in lines}


def keep_histories(catches: Sequence[Catch]) -> None:
    """Write down where each mutant was caught, beside what is known of others."""
    known = kept_histories()
    for catch in catches:
        if catch.findings and catch.mutant.hunter in SIMULATED:
            known[catch.mutant.name] = [catch.first_history]
    KEPT.write_text("".join(f"{histories[0]} {name}\n" for name, histories in known.items()))


def _play(jobs: Sequence[tuple[str, list[str]]], to_the_end: bool) -> dict[str, list[Finding]]:
    """What the player printed, by the name of the bug. A player that breaks down is an error of ours, not a catch."""
    command = [sys.executable, "-m", "tests.mutants.player", *(["--to-the-end"] if to_the_end else [])]
    player = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS, "PYTEST_XDIST_WORKER": ""},
        input="".join(f"{json.dumps(job)}\n" for job in jobs),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if player.returncode:
        raise RuntimeError(f"the player broke down:\n{player.stderr[-4000:]}")
    found: dict[str, list[Finding]] = {name: [] for name, _ in jobs}
    for line in player.stdout.splitlines():
        name, findings = json.loads(line)
        found[name] += [Finding(history, checks) for history, checks in findings]
    return found
