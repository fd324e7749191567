"""Group: the messages of one group in a pool, in order, and what it waits for. Pure."""

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from flowcatalyst.core.message import Delivery


class FailureScope(StrEnum):
    """Who is nacked together with a failed message of an ordered group."""

    GROUP = "group"  # every later message of the group
    BATCH = "batch"  # only the later ones of the same batch


class Place(NamedTuple):
    """Where a message stands."""

    first: Delivery  # stands or runs first in its group, or is awaited back from its queue
    held_until: float | None = None
    gate: str | None = None
    acking: bool = False  # done with, but for its ack
    is_away: bool = False  # the first is


class Group:
    """The messages of one group, in order. `head` is one that was tried already and comes before all others."""

    __slots__ = (
        "alone",
        "away",
        "away_hold",
        "blocked",
        "busy",
        "gate",
        "head",
        "held_until",
        "high",
        "hold",
        "is_ready",
        "name",
        "regular",
    )

    def __init__(self, name: str | None, alone: Delivery | None = None) -> None:
        self.name = name
        self.alone = alone  # the only message it ever has
        self.high: deque[Delivery] | None = None  # most groups never need one
        self.regular: deque[Delivery] = deque()
        self.head: Delivery | None = None
        self.busy: Delivery | None = None
        self.held_until: float | None = None
        self.hold = 0  # number of the hold that is in force; older ones in the heap mean nothing
        self.gate: str | None = None
        self.blocked = False  # at that gate for some time, not just until a slot of its endpoint is free
        self.away: Delivery | None = None  # was nacked to its queue and has to come back before others may start
        self.away_hold = 0  # number of the hold that waits for it
        self.is_ready = False  # stands in a ready queue

    def __len__(self) -> int:
        return (self.head is not None) + len(self.high or ()) + len(self.regular)

    def __iter__(self) -> Iterator[Delivery]:
        if self.head is not None:
            yield self.head
        yield from chain(self.high or (), self.regular)

    @property
    def urgent(self) -> bool:
        return bool(self.high) or (self.head is not None and self.head.pointer.high_priority)

    @property
    def is_stalled(self) -> bool:
        return self.held_until is not None or self.blocked

    @property
    def is_awaiting(self) -> bool:
        """Nothing of it starts before the message that is away came back, or its time is over."""
        return self.away is not None and self.held_until is not None and self.hold == self.away_hold

    def pop(self) -> Delivery:
        if self.head is not None:
            delivery, self.head = self.head, None
            return delivery
        return self.high.popleft() if self.high else self.regular.popleft()

    def __repr__(self) -> str:
        parts = [message.pointer.id for message in self]
        if self.busy is not None:
            parts.insert(0, f"*{self.busy.pointer.id}")
        hold = "" if self.held_until is None else f"@{self.held_until:g}"
        gate = "" if self.gate is None else f"|{self.gate}"
        away = f"<{self.away.pointer.id}" if self.away is not None and self.is_awaiting else ""
        return f"{self.name or '-'}{hold}{gate}{away}[{' '.join(parts)}]"
