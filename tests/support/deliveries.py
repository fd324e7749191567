"""Deliveries as a queue would hand them over, and a `Source` that remembers how they were settled.

message = delivery("m1", group="order-1", batch=1)
source = RecordingSource(UNORDERED)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from flowcatalyst.core.message import Capabilities, Delivery, DispatchMode, MessagePointer, Told, encode_pointer

TARGET: Final = "http://127.0.0.1:9/hook"

ORDERED: Final = Capabilities(
    ordered_redelivery=True, locks_groups=True, delayed_nack=True, extends=True, visibility_s=30.0
)
UNORDERED: Final = Capabilities(
    ordered_redelivery=False, locks_groups=False, delayed_nack=True, extends=True, visibility_s=30.0
)


@dataclass(slots=True, frozen=True)
class GivenBack:
    """One nack as the source heard it."""

    delivery: Delivery
    delay_s: float
    unlock: bool


@dataclass(slots=True)
class RecordingSource:
    """A `Source` that does nothing but remember."""

    capabilities: Capabilities = ORDERED
    name: str = "test-queue"
    acked: list[Delivery] = field(default_factory=list)
    nacked: list[GivenBack] = field(default_factory=list)

    def ack(self, delivery: Delivery, done: Callable[[], None] | None = None) -> None:
        self.acked.append(delivery)

    def still_ours(self, delivery: Delivery) -> bool:
        return True

    def nack(self, delivery: Delivery, delay_s: float, *, unlock: bool = False, told: Told = None) -> None:
        self.nacked.append(GivenBack(delivery, delay_s, unlock))

    @property
    def acked_ids(self) -> list[str]:
        return [delivery.pointer.id for delivery in self.acked]

    @property
    def given_back_ids(self) -> list[str]:
        return [nack.delivery.pointer.id for nack in self.nacked]


def delivery(
    message_id: str,
    group: str | None = "g",
    batch: int = 1,
    mode: DispatchMode | None = None,
    high: bool = False,
    broker_id: str | None = None,
    *,
    target: str = TARGET,
    pool: str = "DEFAULT-POOL",
    source: RecordingSource | None = None,
) -> Delivery:
    """A routed delivery. Its broker id is derived from the message id unless given; "" means the broker has none."""
    pointer = MessagePointer(
        id=message_id,
        mediation_target=target,
        pool_code=pool,
        message_group_id=group,
        high_priority=high,
        dispatch_mode=mode,
    )
    made = Delivery(
        broker_id=f"broker-{message_id}" if broker_id is None else broker_id,
        receipt=f"receipt-{message_id}",
        body=encode_pointer(pointer),
        group=group,
    )
    made.pointer = pointer
    made.batch = batch
    made.source = source or RecordingSource()
    return made


def failed(failures: int, mode: DispatchMode | None = None) -> Delivery:
    """A message after so many failed attempts."""
    message = delivery("m1", mode=mode)
    message.tries = 1  # since it was received last
    message.failures = failures
    return message
