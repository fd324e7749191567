"""Small histories for the checker, and what it says of them."""

from typing import Any

from flowcatalyst.core.message import DEFAULT_POOL, Capabilities, DispatchMode
from flowcatalyst.http.interpret import interpret
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.checker import check
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.rules.common import Promises

OK, FAILED = interpret(200, None, b"", 0.0), interpret(500, None, b"", 0.0)
Line = tuple[Kind, str] | tuple[Kind, str, Any]
P, R, A, W, V = Kind.PUBLISHED, Kind.RECEIVED, Kind.ATTEMPT, Kind.ANSWER, Kind.VERDICT
GROUP_G, POOL = (PauseKind.GROUP, "g"), (PauseKind.POOL, DEFAULT_POOL)
PATIENCE = interpret(429, "1", b"", 0.0)
QUEUES = {
    name: Capabilities(
        ordered_redelivery=ordered,
        locks_groups=ordered,
        delayed_nack=True,
        extends=True,
        visibility_s=60.0,
        long_poll_s=20.0,
    )
    for name, ordered in (("fifo", True), ("stream", False))
}
NEXT, IMMEDIATE = DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE


def history(*lines: Line, step_s: float = 1.0) -> list[Event]:
    """Events a second apart. About pools: the name stands where a message's would."""
    events = []
    for number, line in enumerate(lines):
        kind, name = line[0], line[1]
        value = line[2] if len(line) == 3 else None
        if kind is Kind.PUBLISHED and value is None:
            value = Facts("g", pool=DEFAULT_POOL)
        about_pool = kind in (Kind.LIMITS, Kind.STATS)
        pool = name if about_pool else DEFAULT_POOL if kind in (A, W, V, Kind.UNKNOWN, Kind.SKIP) else ""
        events.append(Event(number * step_s, kind, "" if about_pool else name, pool, value))
    return events


def broken(rule: str, events: list[Event], *, ordered: bool = True, faulty: bool = False) -> list[str]:
    promises = Promises(ordered_redelivery=ordered, queues=QUEUES, faulty=faulty)
    return [violation.message for _, violation in check(events, promises, [rule])]


def after(seconds: int) -> tuple[Line, ...]:
    """Nothing happens for a while."""
    return ((Kind.STEPPED, "", 0.0),) * seconds


def published(*names: str, facts: Facts | None = None) -> tuple[Line, ...]:
    return tuple((P, name, facts or Facts("g", pool=DEFAULT_POOL)) for name in names)
