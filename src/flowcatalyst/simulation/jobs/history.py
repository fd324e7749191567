"""History: what happened to jobs in one run, in order, as facts that a checker can judge.

What a store did is told when it was committed, whether or not the answer reached anybody.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from flowcatalyst.core.message import Outcome, Settled
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.job import Job, JobState
from flowcatalyst.dispatch.store.contract import AttemptMade
from flowcatalyst.receiver import Verdict


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
    DIVIDED = "divided"  # [dict of PoolLimits by pool] what all processes may use together
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

    # Of events and subscriptions: `job` is the id of the event, or the code of the subscription
    INTAKE = "intake"  # [] a process begins to look who wants an event
    KEPT = "kept"  # [KeptEvent] the store has it, with its jobs
    EVENT_TOLD = "event told"  # [ToldEvent] somebody was told that his event is kept under this id
    ENTRY = "entry"  # [Version] the catalog has it like this from now on
    SEEN = "seen"  # [revision] a process knows the catalog, or one subscription, as it was then
    PAUSE = "pause"  # [] the store has a subscription as paused
    PAUSE_TOLD = "pause told"  # [place of PAUSE in the history] somebody was told that nothing of it starts
    RESUME = "resume"  # []
    RESUME_TOLD = "resume told"  # []
    REMOVE_TOLD = "remove told"  # [place of its ENTRY] somebody was told that all its jobs are over
    ROTATE_TOLD = "rotate told"  # [Rotation] somebody has a new secret
    REPLAY = "replay"  # [Replay] somebody asks for one
    REPLAY_TOLD = "replay told"  # [Replay] all its jobs are there
    RECEIVED = "received"  # [Received] the webhook of a job is at its endpoint


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
class KeptEvent:
    """An event as it was kept. `jobs` are those that the store really has."""

    type: str
    group: str | None
    key: str | None  # its deduplication id
    jobs: tuple[Job, ...]
    count: int  # of jobs, as the store says it
    created_at: float


class ToldEvent(NamedTuple):
    """What the sender of an event was told."""

    key: str | None
    jobs: int


@dataclass(slots=True, frozen=True)
class Version:
    """A subscription as the catalog has it from a revision on; None: it is not there."""

    revision: int
    document: StoredSubscription | None


class Rotation(NamedTuple):
    """A new secret, asked for at a wall time; those before sign for so long beside it."""

    secret: str
    wall: float
    overlap_s: float


@dataclass(slots=True, frozen=True)
class Replay:
    """Past events of a span for one subscription. Whoever repeats it gives the same id."""

    id: str
    span: tuple[float, float]


@dataclass(slots=True, frozen=True)
class Received:
    """A webhook as its receiver saw it."""

    subscription: str | None
    group: str | None
    seq: int | None
    prev: int | None
    signed_by: frozenset[str]  # secrets of the subscription whose signatures it has
    signatures: int  # that it has in all
    verdict: Verdict
    done: bool  # and handled
    was_done: bool  # a webhook with its id was handled before


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
        case KeptEvent():
            return f"{value.type} {value.group} {[job.id for job in value.jobs]}"
        case Version(document=None):
            return f"revision {value.revision}: removed"
        case Version(document=known) if known is not None:
            return f"revision {value.revision}: {known.status} {known.patterns} {known.mode} {known.target_url}"
        case Received():
            signed = f"{len(value.signed_by)}/{value.signatures}"
            return f"{value.group} {value.seq}/{value.prev} {value.verdict.value} {'done' * value.done} signed {signed}"
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
