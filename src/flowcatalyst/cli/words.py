"""What commands say of a router, for a terminal: numbers, durations, tables, questions."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.terminal import visible

NARROW: Final = 80
LEAST_CELL: Final = 8
LEAST_SENTENCE: Final = 18
GAP: Final = "  "
NOTHING: Final = "-"


class NotDoneError(FlowCatalystError):
    """The router did not do it."""


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def width_of_terminal() -> int | None:
    """None: nobody looks, so that nothing has to be cut."""
    return shutil.get_terminal_size((NARROW, 24)).columns if sys.stdout.isatty() else None


def duration(milliseconds: float | None) -> str:
    """Two figures are enough to act on."""
    if milliseconds is None:
        return NOTHING
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{hours:.0f} h" if hours < 72 else f"{hours / 24:.0f} days"


def number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def clipped(text: str, width: int) -> str:
    """Without its middle, if it is longer: ids differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :] if tail else ''}"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """In a terminal its lines fit."""
    for line in table(header, rows, numbers, width_of_terminal()):
        print(line)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str], width: int | None) -> list[str]:
    """Its lines. Columns of `numbers` end on the right. To fit the width, sentences, which the last column has, lose
    their ends first, then the longest cells their middle."""
    texts = [list(header), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    if width is not None:
        most = width - len(GAP) * (len(header) - 1)
        widths[-1] = max(min(widths[-1], most - sum(widths[:-1])), min(widths[-1], LEAST_SENTENCE))
        while sum(widths) > most and max(widths) > LEAST_CELL:
            widths[widths.index(max(widths))] -= 1
    lines = []
    for row in texts:
        cells = [clipped(cell, length) for cell, length in zip(row[:-1], widths, strict=False)]
        cells.append(row[-1] if len(row[-1]) <= widths[-1] else f"{row[-1][: widths[-1] - 1]}…")
        placed = [
            cell.rjust(length) if title in numbers else cell.ljust(length)
            for title, cell, length in zip(header, cells, widths, strict=True)
        ]
        lines.append(GAP.join(placed).rstrip())
    return lines


def print_text(text: str, indent: str = "", first: str | None = None) -> None:
    """A sentence, in lines that fit. What comes from elsewhere is made visible."""
    lines = [visible(text)]
    if (width := width_of_terminal()) is not None:
        lines = textwrap.wrap(lines[0], max(width - len(indent), NARROW // 2), break_on_hyphens=False) or [""]
    for position, line in enumerate(lines):
        print(f"{indent if position or first is None else first}{line}")


def said(answer: Mapping[str, Any]) -> None:
    """What became of an action. Raises `NotDoneError` if it was not done."""
    if not answer["done"]:
        raise NotDoneError(answer["text"])
    print_text(answer["text"])


def confirm(question: str, yes: bool) -> None:
    """Raises `NotDoneError` if a person says no, or cannot be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotDoneError("nothing is done without a yes: add --yes where nobody can be asked")
    if not typer.confirm(visible(question)):
        raise NotDoneError("nothing was done")


def command(*words: str, options: Sequence[str] = ()) -> str:
    """As somebody would type it. What looks like an option comes after a --."""
    dashes = ["--"] if any(word.startswith("-") for word in words) else []
    return visible(shlex.join(["flowcatalyst", *words[:-1], *options, *dashes, words[-1]]))


def answer_in_words(answer: Mapping[str, Any] | None) -> str:
    """The last answer of an endpoint; empty if there is none."""
    if answer is None:
        return ""
    status = "" if answer["status"] is None else str(answer["status"])
    detail = answer["detail"] if status in answer["detail"] else f"{status} {answer['detail']}".strip()
    return f"{detail}: {answer['excerpt']}" if answer["excerpt"] else str(detail)


def blocked_for(group: Mapping[str, Any]) -> str:
    """How long a group is blocked, or held."""
    return duration(group["heldForMs"] if group["state"] == "HELD" else group["blockedForMs"])


def why_blocked(group: Mapping[str, Any]) -> str:
    """Who holds a group, or what its head was last answered; empty if nobody and nothing."""
    if group["state"] == "HELD":
        return f"held by {group['heldBy']}"
    return answer_in_words(group["lastAnswer"])
