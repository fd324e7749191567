"""Inspection: a look at what waits in a queue whose storage is ours, without receiving it.

Each look is bounded, waits for no writer and holds none up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.recalls import RecallableQueue

COUNTED: Final = 10_000  # messages of a group; further ones are not counted
SEARCHED: Final = 1_000_000  # messages that are looked at for an id


class Lock(StrEnum):
    """What keeps the messages of a group in their queue."""

    NONE = "NONE"  # whoever asks for its pool gets it
    LEASED = "LEASED"  # a router has some of it in hand
    DELAYED = "DELAYED"  # one of them was nacked with a delay


@dataclass(slots=True, frozen=True)
class StoredGroup:
    """A group as it stands in its queue."""

    group: str | None  # None: a message that is ordered with nothing
    pool: str
    lock: Lock
    due_in_s: float | None  # when its delay is over
    messages: int  # up to `COUNTED`
    head_id: str  # broker id of its first message
    head_failures: int
    head_published_at: float  # wall time
    queue: str


@dataclass(slots=True, frozen=True)
class StoredHead:
    """The first message of a group."""

    broker_id: str
    body: str


@dataclass(slots=True, frozen=True)
class StoredMessage:
    """A message as it stands in its queue."""

    broker_id: str
    body: str
    published_at: float  # wall time
    failures: int
    ahead: int  # messages of its group before it, up to `COUNTED`
    group: StoredGroup


def inspectable(queues: Iterable[Queue]) -> "list[InspectableQueue]":
    """Those that can be looked into, but for the queue of dispatch jobs: their store tells more of them."""
    return [one for one in queues if isinstance(one, InspectableQueue) and not isinstance(one, RecallableQueue)]


@runtime_checkable
class InspectableQueue(Protocol):
    """Calls fail as `QueueUnavailableError`."""

    name: str

    async def find(self, name: str) -> StoredMessage | None:
        """A message by its broker id, else by its application id among the first `SEARCHED` of the queue."""

    async def look_at(self, groups: Sequence[str]) -> dict[str, StoredGroup]:
        """Those of these groups that it holds messages of."""

    async def heads(self, groups: Sequence[str]) -> dict[str, StoredHead]:
        """The first message of each of these groups that it holds messages of."""

    async def delayed_groups(self, most: int) -> list[StoredGroup]:
        """Groups whose first message failed and waits for its next attempt, the next one due first."""
