"""What the router asks of a queue, and what a queue may differ in.

A difference between brokers is a field of `Capabilities` or `Batching`, never an optional method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import MAX_BODY_BYTES, Capabilities, Delivery, Settled


@dataclass(slots=True, frozen=True)
class Batching:
    """How many messages go into one call of a queue. Nothing of what it promises depends on it."""

    max_batch: int  # most messages one receive returns
    partial_pause_s: float = 0.0  # pause after a partly filled batch, where polls cost money
    settle_linger_s: float = 0.0  # how long to collect acks for a batch, where settle calls cost money
    settle_batch: int = 100  # this many acks are worth a call of their own


@dataclass(slots=True, frozen=True)
class FreeCapacity:
    """How many more messages each pool takes, by the pool code that messages name."""

    pools: Mapping[str, int]
    others: int = 0  # for all codes that no pool has, and `DEFAULT_POOL` if it is not among the pools

    def of(self, code: str) -> int:
        return self.pools.get(code, self.others)


class Demand(Protocol):
    """What the pools can take while a receive waits. It is live: capacity comes and goes meanwhile."""

    def free_capacity(self) -> FreeCapacity:
        """As it is now."""

    def on_growth(self, look_again: Callable[[], None]) -> Callable[[], None]:
        """Call `look_again` whenever a pool that had no free capacity has some. Calling what this returns ends that."""


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message to publish."""

    body: str
    group: str | None = None  # None: on its own, ordered with nothing
    deduplication_id: str | None = None


def check_outgoing(message: Outgoing) -> None:
    """Raise `InvalidMessageError` if no queue could take the message."""
    try:
        size = len(message.body.encode())
        (message.group or "").encode()
        (message.deduplication_id or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"body, group and deduplication id have to be valid Unicode: {error}") from None
    if size > MAX_BODY_BYTES:
        raise InvalidMessageError(f"body has {size} bytes, more than the {MAX_BODY_BYTES} allowed")


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
    delayed: int  # nacked, to be shown later
    # Wall time when the oldest message was published, whatever its state, as far as a bounded look tells. None: the
    # queue cannot tell, or is empty.
    oldest_at: float | None = field(default=None, compare=False)


@dataclass(slots=True, frozen=True)
class Loss:
    """Messages are gone from a queue, or what was known of them is, although nobody settled them."""

    text: str  # what happened, with what is known of it; part of a sentence
    messages: int | None  # how many are gone at least, as far as is known; None: nobody can tell
    withdrawn: bool = False  # they are there again: what was told of with this text is over


class Queue(Protocol):
    """One named queue. Calls fail as `QueueUnavailableError`; settle calls report each message on its own."""

    name: str
    capabilities: Capabilities
    batching: Batching

    @property
    def calls(self) -> Mapping[str, int]:
        """Requests to the broker so far, by kind, where they are worth counting: some cost money."""

    @property
    def setup_warnings(self) -> Sequence[str]:
        """What its operator should know about how the queue is set up at its broker; complete after a first receive."""

    @property
    def losses(self) -> list[Loss]:
        """What it noticed and nobody told an operator of yet. Who does takes it out of the list."""

    async def open(self) -> None:
        """Make it usable. It need not reach its broker for that: the other calls do, and try again each time."""

    async def close(self) -> None:
        """End it. What was received and not settled is shown again, in its order, at once or when its lease ends."""

    async def reconnect(self) -> None:
        """Use the present connection to the broker no more: it hangs. Calls under way on it fail, later ones dial."""

    def fit(self, capacity: int) -> None:
        """The router may own this many messages at once; it never asks for more than it has free capacity for."""

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages, oldest first in each group; empty when none came within `wait_s`.

        A queue that selects pools brings no more for a pool than `demand` has free capacity for then, and groups
        in the order in which they became ready, not by the age of their first message: what fails again and again is
        always the oldest. Other queues pass the demand by.

        It ends by itself a few seconds after `wait_s` at the latest, whatever the broker does.
        """

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`. With `unlock` they stop holding their group back meanwhile."""

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """Keep messages hidden for `seconds` from now and set their `lease_until`."""

    async def hurry(self, delivery: Delivery) -> bool:
        """Show a message that was nacked with a delay, and those of its group that were nacked with it, at once.

        False where it could not: it has been shown, or is shown when its delay is over. A queue that `hurries` goes by
        broker id and group, or by the receipt that it was nacked with.
        """

    def still_ours(self, delivery: Delivery) -> bool:
        """Whether a message that was received is still ours, as far as can be told without asking the broker.

        False where it came over a connection that is gone: somebody else may have it by now.
        """

    async def depth(self) -> Depth | None:
        """How many messages the queue holds, as far as the broker can tell; None if it cannot."""


class Publisher(Protocol):
    """The way into a queue."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order. They are durable when this returns.

        All are checked before the first is appended, as far as that is possible without the broker. If it fails, some
        may have been appended; repeating the call appends those with a deduplication id once only, where the broker
        deduplicates. Raises `QueueUnavailableError`, or `InvalidMessageError` if a message can never be published.
        """

    async def close(self) -> None: ...


class BrokerQueue(Queue, Publisher, Protocol):
    """Both ends of a queue."""
