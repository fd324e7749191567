"""What `flowcatalyst top` draws: a frame of a router, sorted as asked for and cut to the size of the terminal. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.text import Text

from flowcatalyst.cli.status import lag_in_words, queued_in_words, rate
from flowcatalyst.cli.words import NOTHING, blocked_for, duration, number, table, why_blocked
from flowcatalyst.core.terminal import visible

MOST_REASONS: Final = 3
LEAST_ROWS: Final = 2  # of a table, however small the terminal is
_COLOURS: Final = {"HEALTHY": "bold green", "WARNING": "bold yellow", "DEGRADED": "bold red"}

SortKey = Callable[[Mapping[str, Any]], Any]


@dataclass(slots=True, frozen=True)
class Sort:
    """One way to order a table."""

    name: str
    key: SortKey


POOL_SORTS: Final[Mapping[str, Sort]] = {
    "1": Sort("code", lambda pool: pool["code"]),
    "2": Sort("in flight", lambda pool: -pool["inFlight"]),
    "3": Sort("queued", lambda pool: -pool["queued"]),
    "4": Sort("parked", lambda pool: -pool["parked"]),
    "5": Sort("delivered", lambda pool: -pool["delivered"]),
}
GROUP_SORTS: Final[Mapping[str, Sort]] = {
    "b": Sort("blocked", lambda group: -(group["blockedForMs"] or group["heldForMs"] or 0)),
    "f": Sort("failed", lambda group: -(group["head"] or {"failures": 0})["failures"]),
    "w": Sort("behind", lambda group: -group["waitingBehind"]),
    "n": Sort("next attempt", lambda group: _last_if_none(group["nextAttemptInMs"])),
    "g": Sort("group", lambda group: group["group"]),
}


@dataclass(slots=True, frozen=True)
class Reading:
    """What was read of the router, at one time."""

    overview: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]]
    endpoints: Sequence[Mapping[str, Any]]  # those in trouble


@dataclass(slots=True, frozen=True)
class View:
    """What is to be drawn, and how."""

    url: str
    reading: Reading | None = None  # None: there is none yet
    problem: str = ""  # why there is no newer one
    paused: bool = False
    pools_by: str = "1"
    groups_by: str = "b"

    def after_key(self, key: str) -> "View":
        """The view that somebody asks for with a key."""
        if key in POOL_SORTS:
            return replace(self, pools_by=key)
        if key in GROUP_SORTS:
            return replace(self, groups_by=key)
        return replace(self, paused=not self.paused) if key in ("p", " ") else self


def in_trouble(endpoint: Mapping[str, Any]) -> bool:
    return endpoint["state"] != "CLOSED" or endpoint["pausedBy"] is not None or endpoint["downForMs"] is not None


def frame(view: View, width: int | None, height: int | None) -> list[Text]:
    """The lines of a screen of this size; None: as wide or as high as it gets."""
    lines = [_title(view)]
    if view.problem:
        lines.append(_line(view.problem, "bold red"))
    if view.reading is None:
        return lines if view.problem else [*lines, _line("The router is asked ...")]
    overview = view.reading.overview
    lines += [_line(_rates(overview)), _line(_counts(overview))]
    reasons = overview["reasons"][: MOST_REASONS if height is not None else None]
    for reason in reasons:
        text = f"{reason['level']} {reason['part']}: {reason['text']}"
        lines.append(_line(text, _COLOURS.get(reason["level"], "")))
    if left_out := len(overview["reasons"]) - len(reasons):
        lines.append(_line(f"and {left_out} more reasons: flowcatalyst status shows them"))
    tables = [one for one in (_pools(view), _groups(view), _endpoints(view.reading.endpoints)) if one.rows]
    free = None if height is None else height - len(lines) - 1 - 2 * len(tables)
    for one, size in zip(tables, _shares([len(one.rows) for one in tables], free), strict=True):
        lines += [_line(""), *one.lines(size, width)]
    if height is not None:
        lines = [*lines[: height - 1], _keys(view)]
    return lines


@dataclass(slots=True, frozen=True)
class _Table:
    """Before it is known how many of its rows there is space for."""

    header: Sequence[str]
    numbers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self, most: int, width: int | None) -> list[Text]:
        left_out = len(self.rows) - most
        title = f"{self.header[0]} ({left_out} more)" if left_out > 0 else self.header[0]
        first, *others = table([title, *self.header[1:]], self.rows[:most], self.numbers, width)
        return [_line(first, "bold"), *map(_line, others)]


def _title(view: View) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    if view.reading is not None:
        level = view.reading.overview["level"]
        title.append(level, _COLOURS.get(level, "bold"))
        at = str(view.reading.overview["at"])[11:19]
        title.append(visible(f"  {view.reading.overview['role']}  {view.url}  {at} UTC"))
    else:
        title.append(visible(view.url), "bold")
    if view.paused:
        title.append("  PAUSED", "bold yellow")
    return title


def _rates(overview: Mapping[str, Any]) -> str:
    figures = {
        "delivered": rate(overview["deliveredPerSecond"]),
        "failed": rate(overview["failedPerSecond"]),
        "in flight": number(overview["inFlight"]),
        "in the router": number(overview["buffered"]),
        "queued": queued_in_words(overview),
    }
    return "  ".join(f"{name} {value}" for name, value in figures.items())


def _counts(overview: Mapping[str, Any]) -> str:
    figures = {
        "lag": lag_in_words(overview),
        "blocked groups": number(overview["blockedGroups"]),
        "dead letters": number(overview["deadLetters"]),
        "warnings": number(overview["warnings"]),
    }
    return "  ".join(f"{name} {value}" for name, value in figures.items() if value)


def _pools(view: View) -> _Table:
    assert view.reading is not None
    header = ("POOL", "IN FLIGHT", "QUEUED", "PARKED", "DELIVERED", "")
    rows = [
        (
            pool["code"],
            f"{pool['inFlight']}/{pool['slots']}",
            number(pool["queued"]),
            number(pool["parked"]),
            number(pool["delivered"]),
            "paused" if pool["paused"] else "",
        )
        for pool in sorted(view.reading.overview["pools"], key=POOL_SORTS[view.pools_by].key)
    ]
    return _Table(header, header[1:5], rows)


def _groups(view: View) -> _Table:
    assert view.reading is not None
    header = ("BLOCKED GROUP", "FOR", "POOL", "FAILED", "BEHIND", "NEXT", "LAST ANSWER")
    rows = [
        (
            group["group"],
            blocked_for(group),
            group["pool"],
            NOTHING if group["head"] is None else number(group["head"]["failures"]),
            f"{number(group['waitingBehind'])}{'' if group['waitingBehindExact'] else '+'}",
            duration(group["nextAttemptInMs"]),
            why_blocked(group) or group["waitsFor"],
        )
        for group in sorted(view.reading.groups, key=GROUP_SORTS[view.groups_by].key)
    ]
    return _Table(header, ("FOR", "FAILED", "BEHIND", "NEXT"), rows)


def _endpoints(endpoints: Iterable[Mapping[str, Any]]) -> _Table:
    """The longest in trouble first."""
    header = ("ENDPOINT IN TROUBLE", "FOR", "STATE", "IN FLIGHT", "WAITING", "LAST ERROR")
    rows = [
        (
            one["endpoint"],
            duration(one["pausedForMs"] if one["pausedBy"] is not None else one["downForMs"]),
            one["state"] if one["pausedBy"] is None else "PAUSED",
            number(one["inFlight"]),
            number(one["waiting"]),
            one["lastError"] or NOTHING,
        )
        for one in sorted(endpoints, key=lambda one: -(one["downForMs"] or one["pausedForMs"] or 0))
    ]
    return _Table(header, ("FOR", "IN FLIGHT", "WAITING"), rows)


def _keys(view: View) -> Text:
    pause = "p go on" if view.paused else "p pause"
    pools = f"pools by {POOL_SORTS[view.pools_by].name} ({' '.join(POOL_SORTS)})"
    groups = f"groups by {GROUP_SORTS[view.groups_by].name} ({' '.join(GROUP_SORTS)})"
    return _line(f"q quit  {pause}  {pools}  {groups}", "dim")


def _shares(wanted: Sequence[int], room: int | None) -> list[int]:
    """How many rows each table gets of the lines that there are: as many as it needs, the rest is divided."""
    if room is None:
        return list(wanted)
    sizes = [min(LEAST_ROWS, one) for one in wanted]
    while sum(sizes) < room and (growing := [i for i, size in enumerate(sizes) if size < wanted[i]]):
        for position in growing[: room - sum(sizes)]:
            sizes[position] += 1
    return sizes


def _line(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")


def _last_if_none(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0
