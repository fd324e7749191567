"""History: what happened to jobs in one run, in order, as facts that a checker can judge.

What a store did is told when it was committed, whether or not the answer reached anybody.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from flowcatalyst.core.message import Outcome, Settled
from flowcatalyst.dispatch.job import Job, JobState
from flowcatalyst.dispatch.store.contract import AttemptMade


class Kind(StrEnum):
    """What can happen. In brackets: what `Event.value` holds."""

    CREATED = "created"  # [Job] the store has it
    ANSWERED = "told"  # [id] somebody was told that his job is kept under this id
    TAKEN = "taken"  # [Lease] a process has it
    EXTENDED = "extended"  # [time until which]
    ATTEMPT = "attempt"  # [Sent] a request left for the endpoint
    ANSWER = "answer"  # [Outcome] the router knows what the attempt meant
    CUT_OFF = "cut off"  # [] nobody knows what the endpoint did
    ACKED = "acked"  # [Settlement]
    NACKED = "nacked"  # [Settlement]
    RETRIED = "retried"  # [] a person wants it tried again
    CANCELLED = "cancelled"  # []
    EXPIRED = "expired"  # []
    CHANGED = "changed"  # [Change] another mode, target, ...
    REFUSED = "refused"  # [Refusal]
    HELD = "held"  # [] nothing more of the group `job` is handed out
    HOLD_TOLD = "hold told"  # [place of HELD in the history] somebody was told that nothing of it starts
    RELEASED = "released"  # []
    STARTED = "started"  # [dict of concurrency by pool] a process works from now on
    STOPPING = "stopping"  # [] it was asked to end
    STOPPED = "stopped"  # [dict of what it still has in memory]
    CRASHED = "crashed"  # []
    SIGNED_OFF = "signed off"  # [] nobody believes any more that it lives: what it had is free
    PAUSED = "paused"  # [] it does nothing (SIGSTOP)
    RESUMED = "resumed"  # []
    STEPPED = "stepped"  # [seconds] the wall clock was set to another time
    HEALED = "healed"  # [] store and endpoints behave from now on
    FINAL = "final"  # [Final] how a job ended
    COUNTED = "counted"  # [Counts] what the store says of itself at the end


class Sent(NamedTuple):
    """Where an attempt goes, and in which pool."""

    pool: str
    target: str


class Refusal(NamedTuple):
    """What a person wanted and did not get. `in_flight`: because an attempt runs, where everybody is well."""

    wanted: Kind
    in_flight: bool = False


@dataclass(slots=True, frozen=True)
class Lease:
    """One handing-out: what was taken together has the same number."""

    number: int
    until: float


@dataclass(slots=True, frozen=True)
class Settlement:
    """What a process asked the store to do with a job, and what the store did."""

    result: Settled
    delay_s: float = 0.0
    unlock: bool = False
    outcome: Outcome | None = None  # of the attempt that is written down with it; None: there was none


@dataclass(slots=True, frozen=True)
class Final:
    """A job as the store has it in the end."""

    state: JobState
    attempts: tuple[AttemptMade, ...]
    lanes: tuple[str | None, ...]  # of its messages: the group of each, None for one of its own


@dataclass(slots=True, frozen=True)
class Counts:
    """Figures that a store keeps as it goes along, and the same by looking at every row."""

    kept: dict[str, Any]
    scanned: dict[str, Any]


@dataclass(slots=True, frozen=True)
class Event:
    at: float
    wall: float
    kind: Kind
    job: str = ""
    process: str = ""  # and which of its lives: p1/3
    value: Any = None

    def __str__(self) -> str:
        parts = [f"{self.at:9.3f}", f"{self.kind:10}", self.job, self.process, _in_short(self.value)]
        return " ".join(part for part in parts if part)


def _in_short(value: object) -> str:
    match value:
        case None:
            return ""
        case Job():
            when = f"{value.scheduled_for or ''}..{value.expires_at or ''}"
            return f"{value.mode} {value.group} #{value.sequence} {value.pool} {value.target} {value.terms} {when}"
        case Outcome():
            return f"{value.result} {value.detail}"
        case Settlement():
            nack = f"{value.delay_s:g} s {'unlock' * value.unlock}"
            return f"{value.result.value} {nack} {_in_short(value.outcome)}"
        case Final():
            tries = [made.status or made.error for made in value.attempts]
            return f"{value.state.status} {value.state.failures} failures {tries} in {value.lanes}"
    return str(value)


class History:
    """A list of events that knows the time."""

    def __init__(self, now: Callable[[], float], wall: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._now, self._wall = now, wall

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def add(self, kind: Kind, job: str = "", process: str = "", value: Any = None) -> None:
        self.events.append(Event(self._now(), self._wall(), kind, job, process, value))
