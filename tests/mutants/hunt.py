"""Hunt: plays histories on a mutated copy of the package until something catches the mutant."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.mutant import ROOT, Hunter, Mutant, mutated_package

SEEDS = 400  # of each kind of queue; a mutant that survives them all is not caught
TIMEOUT_S = 1800.0  # even for all histories of a mutant that makes them long
KEPT = Path(__file__).parent / "caught_in.txt"
THE_CLOCK = "the clock"  # what catches a history that hangs within one step

# As `seed:kind of queue`, in the order they are played in.
HISTORIES = [f"{seed}:{kind}" for seed in range(SEEDS) for kind in ("ordered", "unordered")]


@dataclass(slots=True, frozen=True)
class Finding:
    """A history that went wrong. For a state machine there is no history, only its name among the checks."""

    history: str
    checks: dict[str, str]  # name of what caught it -> how it was wrong


@dataclass(slots=True)
class Catch:
    """What a hunt brought home."""

    mutant: Mutant | None
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
        return HISTORIES.index(self.first_history) + 1 if self.first_history in HISTORIES else 0


def hunt_where_it_was_caught(mutant: Mutant) -> Catch:
    """A short cut: begin with the history that caught it when `python -m tests.mutants --keep` ran."""
    return hunt(mutant, [*kept_histories().get(mutant.name, []), *HISTORIES])


def kept_histories() -> dict[str, list[str]]:
    lines = [line.partition(" ") for line in KEPT.read_text().splitlines()] if KEPT.exists() else []
    return {name: [history] for history, _, name in lines}


def keep_histories(catches: Sequence[Catch]) -> None:
    """Write down where each mutant was caught."""
    lines = [
        f"{catch.first_history} {catch.mutant.name}\n" for catch in catches if catch.mutant and catch.first_history
    ]
    KEPT.write_text("".join(lines))


def hunt(mutant: Mutant | None, histories: Sequence[str] = HISTORIES, *, to_the_end: bool = False) -> Catch:
    """Play until the first history that goes wrong, or all of them."""
    what = ["--machine", Path(mutant.file).stem] if mutant is not None and mutant.hunter is Hunter.MACHINES else []
    what += ["--histories", ",".join(histories)]
    what += ["--to-the-end"] if to_the_end else []
    with mutated_package(mutant) as folder:
        command = [sys.executable, "-m", "tests.mutants.player", "--package-in", str(folder), *what]
        paths = os.pathsep.join([str(folder), str(ROOT)])
        return Catch(mutant, _run(command, {**os.environ, "PYTHONPATH": paths}))


def _run(command: list[str], environment: dict[str, str]) -> list[Finding]:
    """What the player printed. A player that breaks down is an error of ours, not a catch."""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as player:
        try:
            output, errors = player.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            player.kill()
            output, errors = player.communicate()
            return [*_read(output), Finding("", {THE_CLOCK: f"no end after {TIMEOUT_S:g} s"})]
    if player.returncode:
        raise RuntimeError(f"the player broke down:\n{errors[-2000:]}")
    return _read(output)


def _read(output: str) -> list[Finding]:
    return [Finding(**json.loads(line)) for line in output.splitlines()]
