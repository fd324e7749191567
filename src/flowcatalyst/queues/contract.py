"""What the router asks of a queue, and what a queue may differ in.

A difference between brokers is a field of `Capabilities`, never an optional method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowcatalyst.message import Delivery, Settled


@dataclass(slots=True, frozen=True)
class Capabilities:
    """The ways in which brokers differ, as far as the router cares."""

    ordered_redelivery: bool  # a message given back is shown again before the later ones of its group
    locks_groups: bool  # a group with a message in flight is shown to nobody else
    delayed_nack: bool  # honours the delay of a nack
    extends: bool  # can extend a lease
    max_batch: int  # most messages one receive returns
    visibility_s: float  # how long a received message stays hidden
    long_poll_s: float = 20.0  # how long one receive may wait; also how long a stop may have to wait for it
    partial_pause_s: float = 0.0  # pause after a partly filled batch, where polls cost money
    settle_linger_s: float = 0.0  # how long to collect acks for a batch, where settle calls cost money


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message to publish."""

    body: str
    group: str | None = None  # None: on its own, ordered with nothing
    deduplication_id: str | None = None


@dataclass(slots=True, frozen=True)
class Published:
    """What became of one published message."""

    broker_id: str
    duplicate: bool = False  # an equal deduplication id was published less than five minutes ago


@dataclass(slots=True, frozen=True)
class Depth:
    """How many messages a queue holds."""

    waiting: int  # could be received now
    leased: int  # received by somebody and not settled
    delayed: int  # given back, to be shown later


class Queue(Protocol):
    """One named queue. Calls fail as `QueueUnavailableError`; settle calls report each message on its own."""

    name: str
    capabilities: Capabilities

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` messages, oldest first in each group; empty when none came within `wait_s`."""

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`. With `unlock` they stop holding their group back meanwhile."""

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """Keep messages hidden for `seconds` from now and set their `lease_until`."""

    async def depth(self) -> Depth:
        """How many messages the queue holds, as far as the broker can tell."""


class Source(Protocol):
    """Where a delivery came from, as the core sees it: it can be ended there, and it can tell what that means."""

    name: str
    capabilities: Capabilities

    def ack(self, delivery: Delivery) -> None: ...

    def nack(self, delivery: Delivery, delay_s: float, *, unlock: bool = False) -> None: ...


class Publisher(Protocol):
    """The way into a queue."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order, all or none. They are durable when this returns."""
