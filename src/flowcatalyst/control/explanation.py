"""Explanation: why something is not there yet, as data and in sentences, and what a person can do about it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from flowcatalyst.control.group_states import Answer, Head
from flowcatalyst.core.message import MessagePointer
from flowcatalyst.router.pauses import PauseKind, Stop

BY_A_PERSON: Final = "When a person lets it go on."  # an estimate

Fact = str | int | float | bool | None


class ThingKind(StrEnum):
    MESSAGE = "MESSAGE"
    GROUP = "GROUP"
    POOL = "POOL"
    JOB = "JOB"
    EVENT = "EVENT"
    UNKNOWN = "UNKNOWN"


class ThingState(StrEnum):
    IN_FLIGHT = "IN_FLIGHT"
    ON_HOLD = "ON_HOLD"  # until its next attempt
    WAITING = "WAITING"  # for its turn, a slot, a permit or its endpoint
    PARKED = "PARKED"  # the same, beyond the capacity of its pool
    IN_QUEUE = "IN_QUEUE"
    SCHEDULED = "SCHEDULED"
    PAUSED = "PAUSED"
    HELD = "HELD"
    STANDBY = "STANDBY"
    CONFIRMING = "CONFIRMING"  # delivered, but its queue did not confirm yet
    DELIVERED = "DELIVERED"
    DEAD_LETTER = "DEAD_LETTER"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    BLOCKED = "BLOCKED"
    IDLE = "IDLE"
    NEVER_SEEN = "NEVER_SEEN"


@dataclass(slots=True, frozen=True)
class Action:
    """What a person can do, and the request that does it."""

    what: str
    path: str
    text: str
    method: str = "POST"


@dataclass(slots=True)
class Explanation:
    id: str
    kind: ThingKind
    state: ThingState
    cause: str
    summary: str
    chain: list[str] = field(default_factory=list)  # from what is asked about to what it comes down to
    looked: list[str] = field(default_factory=list)
    pool: str | None = None
    group: str | None = None
    queue: str | None = None
    head: Head | None = None
    last_answer: Answer | None = None
    pointer: MessagePointer | None = None  # whose secrets an answer may repeat
    next_attempt_in_s: float | None = None
    estimate_s: float | None = None
    estimate: str = "It cannot be told when it goes out."
    safe_to_send_again: bool | None = None  # None: it is no message, or that cannot be told
    send_again: str = ""  # the same in one sentence; empty: it is no message
    given_up: str = ""  # why it becomes a dead letter when its turn comes; empty: it does not
    facts: dict[str, Fact] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)


def say_whether_to_send_again(found: Explanation) -> None:
    """Of a message that is known here."""
    if found.kind is not ThingKind.MESSAGE:
        return
    found.safe_to_send_again = False
    if found.state is ThingState.DELIVERED:
        found.send_again = "No, unless you want it twice: it was delivered."
    elif found.state is ThingState.DEAD_LETTER:
        found.send_again = "No: replay its dead letter instead."
    elif found.state is ThingState.CONFIRMING:
        found.send_again = "No: it is done with, and only its queue has to confirm that."
    elif found.given_up:
        found.send_again = "No: it becomes a dead letter, which can be replayed."
    else:
        found.send_again = "No: it is not lost, and is tried without that."


def segment(name: object) -> str:
    """A name as a part of a path or a query."""
    return quote(str(name), safe="")


def of_pool(code: str, act: str, text: str) -> Action:
    return Action(act, f"/monitoring/pools/{segment(code)}/{act}", text)


def of_message(message_id: str, act: str, text: str, what: str | None = None) -> Action:
    """A head is named by its broker id, never by its group: another may be the head by the time of the act."""
    return Action(what or act, f"/monitoring/messages/{segment(message_id)}/{act}", text)


def of_group(group: str, act: str, text: str) -> Action:
    return Action(act, f"/monitoring/groups/{segment(group)}/{act}", text)


def of_job(job_id: str, act: str, text: str) -> Action:
    return Action(act, f"/api/dispatch-jobs/{segment(job_id)}/{act}", text)


def of_stop(stop: Stop) -> Action:
    """Ends it."""
    if stop.kind is PauseKind.POOL:
        return of_pool(stop.name, "resume", f"resume pool {stop.name}")
    if stop.kind is PauseKind.GROUP:
        return of_group(stop.name, "release", f"release group {stop.name}")
    return Action("resume", f"/monitoring/endpoints/resume?endpoint={segment(stop.name)}", f"resume {stop.name}")


def seconds(value: float) -> str:
    """For people."""
    if value < 1.0:
        return "less than a second"
    if value < 120.0:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} minutes" if value < 7200.0 else f"{value / 3600:.1f} hours"
