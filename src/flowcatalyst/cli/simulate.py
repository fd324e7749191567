"""`flowcatalyst simulate`: what would happen, before production answers."""

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from flowcatalyst.core import interpreter
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.simulation.checker import check as check_history
from flowcatalyst.simulation.report import Report, make_report
from flowcatalyst.simulation.report_text import answer, print_report
from flowcatalyst.simulation.rules.common import Promises
from flowcatalyst.simulation.run_scenario import run_scenario
from flowcatalyst.simulation.scenario import load_scenario

EXIT_VIOLATIONS: Final = 1
MOST_VIOLATIONS: Final = 50
PIPE_WIDTH, NARROWEST, WIDEST = 100, 80, 120
STANDARD_OUTPUT: Final = "-"


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (TOML); docs/simulate.md describes it")],
    seed: Annotated[int, typer.Option(help="Another seed, another course of chance")] = 1,
    check: Annotated[bool, typer.Option("--check", help="Judge the run by the rules; exit 1 if one is broken")] = False,
    json: Annotated[str | None, typer.Option(help="Write the report as JSON to this file, or to - instead")] = None,
) -> None:
    """Play a scenario with the real router on virtual time, and report what became of the messages."""
    loaded = load_scenario(scenario)
    # Before the simulation, not after it.
    if json not in (None, STANDARD_OUTPUT) and (Path(json).is_dir() or not Path(json).parent.is_dir()):
        what = "it is a folder" if Path(json).is_dir() else f"there is no folder {Path(json).parent}"
        raise ConfigurationError(f"report {json} cannot be written, {what}: name another file with --json")
    interpreter.tune()
    clock = SystemClock()
    started_at = clock.monotonic()
    run = run_scenario(loaded, seed)
    wall_s = clock.monotonic() - started_at
    report = make_report(run)
    report.answer = answer(report)
    if check:
        promises = Promises(ordered_redelivery=run.scenario.queue.ordered)
        found = [f"{rule}: {violation}" for rule, violation in check_history(run.events, promises)]
        more = [f"and {len(found) - MOST_VIOLATIONS:,} more"] if len(found) > MOST_VIOLATIONS else []
        report.violations = found[:MOST_VIOLATIONS] + more
    if json is not None:
        _write_json(report, json)
    if json != STANDARD_OUTPUT:
        # Plain text, wide enough for the tables also where there is no terminal to ask.
        console = Console(highlight=False, markup=False, emoji=False, color_system=None)
        console.width = min(max(console.width, NARROWEST), WIDEST) if console.is_terminal else PIPE_WIDTH
        print_report(report, console, wall_s)
    if report.violations or report.errors:
        raise typer.Exit(EXIT_VIOLATIONS)


def _write_json(report: Report, where: str) -> None:
    text = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    if where == STANDARD_OUTPUT:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    try:
        Path(where).write_bytes(text)
    except OSError as error:
        raise ConfigurationError(f"report {where} cannot be written: {error.strerror}; name another file") from None
