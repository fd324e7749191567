"""History: what happened in one run, in order, as facts that a checker can judge."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flowcatalyst.core.message import DispatchMode


class Kind(StrEnum):
    """What can happen. In brackets: what `Event.value` holds."""

    PUBLISHED = "published"  # [Facts] the queue has it
    RECEIVED = "received"  # [receipt] the queue showed it to the router
    LOST = "lost"  # [Lost] it is no longer the router's, and the router can know
    TAKEN = "taken"  # [] another router delivered it
    ATTEMPT = "attempt"  # [Gauges | None] a request left for the endpoint
    ANSWER = "answer"  # [Outcome] the router knows what the attempt meant
    UNKNOWN = "unknown"  # [] the attempt was cut off: nobody knows what the endpoint did
    VERDICT = "verdict"  # [Verdict] what the pool decided
    DEAD_LETTERED = "buried"  # [reason] a dead letter is durable
    UNRECORDED = "unrecorded"  # [] a dead letter could not be written
    ACK = "ack"  # [receipt] the router asked the queue to remove it
    ACKED = "acked"  # [Settled | None] what it was told; None: the call failed as a whole
    REMOVED = "removed"  # [] it is gone from the queue
    NACK = "nack"  # [(delay_s, receipt)] the router asked for it
    NACKED = "nacked"  # [(delay_s, Settled)] what the queue really did
    HURRIED = "hurried"  # [] somebody wanted it at once: its queue shows it, or the router looks at it
    SKIP = "skip"  # [what the person was told] somebody gave it up
    PAUSED = "paused"  # [(PauseKind, name)] somebody stopped something
    RESUMED = "resumed"  # [(PauseKind, name)] and let it go on
    LIMITS = "limits"  # [PoolLimits | None] of a pool from now on; None: it is no longer configured
    STATS = "stats"  # [dict] what the pool counted, when its router ended
    STARTED = "started"  # [] a router began to work
    STOPPING = "stopping"  # [] it was asked to end
    STOPPED = "stopped"  # [dict[str, int]] it ended in order; what was left in its hands
    CRASHED = "crashed"  # [] it ended at once
    CUT = "cut"  # [time] a connection to a queue broke; by then everything it had is back
    STEPPED = "stepped"  # [seconds] the wall clock was set to another time
    RECOVERED = "recovered"  # [host] an endpoint answers again
    HEALED = "healed"  # [] queues and endpoints behave from now on
    IDLE = "idle"  # [dict[str, int]] everything is done; what the router still holds in memory
    ENDED = "ended"  # [list[str]] what was still in the queue at the end


class Lost(StrEnum):
    """How a message stops being the router's without being settled."""

    CONNECTION = "its connection broke"
    LEASE = "its lease ran out"


@dataclass(slots=True, frozen=True)
class Facts:
    """What is known of a message when it is published."""

    group: str | None
    mode: DispatchMode | None = None
    high_priority: bool = False
    pool: str = ""
    target: str = ""
    readable: bool = True
    copy_of: str | None = None  # the same application message once more, under another broker id
    prompt_s: float | None = None  # nothing stands in its way: its first attempt is due within this time
    queue: str = ""  # empty: there is only one

    @property
    def ordered(self) -> bool:
        return self.readable and self.group is not None and self.mode is not DispatchMode.IMMEDIATE

    @property
    def host(self) -> str:
        return self.target.partition("://")[2].partition("/")[0]


@dataclass(slots=True, frozen=True)
class Gauges:
    """What the pool says of itself at the moment an attempt starts, the attempt included."""

    in_flight: int
    buffered: int


@dataclass(slots=True, frozen=True)
class Event:
    at: float
    kind: Kind
    message: str = ""
    pool: str = ""
    value: Any = None

    def __str__(self) -> str:
        parts = [f"{self.at:10.3f}", f"{self.kind:9}", self.message, self.pool]
        return " ".join(part for part in [*parts, "" if self.value is None else str(self.value)] if part)


class History:
    """A list of events that knows the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._now = now

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def add(self, kind: Kind, message: str = "", pool: str = "", value: Any = None) -> None:
        self.events.append(Event(self._now(), kind, message, pool, value))

    def about(self, message: str) -> list[Event]:
        """The life of one message, for people who look for a bug."""
        return [event for event in self.events if event.message == message]
