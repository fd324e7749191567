"""`flowcatalyst simulate`: what would happen, before production answers."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from flowcatalyst.cli.entry import EXIT_INTERRUPTED
from flowcatalyst.core import interpreter
from flowcatalyst.core.clock import Clock, SystemClock
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
PROGRESS_EVERY_S: Final = 0.2
ERASE_LINE: Final = "\r\x1b[K"


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (TOML); docs/simulate.md describes it")],
    seed: Annotated[int, typer.Option(help="Another seed, another course of chance")] = 1,
    check: Annotated[bool, typer.Option("--check", help="Judge the run by the rules; exit 1 if one is broken")] = False,
    json: Annotated[str | None, typer.Option(help="Write the report as JSON to this file, or to - instead")] = None,
) -> None:
    """Tell what would become of the messages of a scenario.

    It is played with the real router on virtual time.
    """
    loaded = load_scenario(scenario)
    # Before the simulation, not after it.
    if json is not None and json != STANDARD_OUTPUT:
        _check_report_file(Path(json))
    interpreter.tune()
    clock = SystemClock()
    started_at = clock.monotonic()
    with _ends_at_once():
        run = run_scenario(loaded, seed, _progress(loaded.duration, clock))
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


@contextmanager
def _ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process without ceremony. There is nothing to save, and the tasks of a simulation that is cut off
    would complain, one by one, that their loop is gone."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if sys.stderr.isatty():
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def _progress(duration_s: float, clock: Clock) -> Callable[[float], None]:
    """Tells a terminal, a few times a second, how far the simulation is."""
    if not sys.stderr.isatty():
        return lambda now: None
    told_at = -PROGRESS_EVERY_S

    def tell(now: float) -> None:
        nonlocal told_at
        if clock.monotonic() - told_at >= PROGRESS_EVERY_S:
            told_at = clock.monotonic()
            rest = " and what is left after it" if now > duration_s else ""
            text = f"simulated {min(now, duration_s) / 60:,.0f} of {duration_s / 60:,.0f} minutes{rest}"
            print(f"{ERASE_LINE}{text}", end="", file=sys.stderr, flush=True)

    return tell


def _check_report_file(file: Path) -> None:
    try:
        what = (
            "it is a folder" if file.is_dir() else "" if file.parent.is_dir() else f"there is no folder {file.parent}"
        )
        if not what and not os.access(file if file.exists() else file.parent, os.W_OK):
            what = os.strerror(errno.EACCES)
    except OSError as error:
        what = error.strerror or str(error)
    if what:
        raise ConfigurationError(f"report {file} cannot be written, {what}: name another file with --json")


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
