"""The numbers of a pool. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flowcatalyst.routing.groups import FailureScope

CAPACITY_PER_SLOT: Final = 20
MIN_CAPACITY: Final = 50
PARKED_LIMIT: Final = 10_000
RETRYABLE: Final = frozenset({*range(400, 500), 501}) - {429}


class Success(StrEnum):
    """Which answers say that a message was taken, unless their body refuses it."""

    ANY_2XX = "2xx"
    ONLY_200 = "200"


@dataclass(slots=True, frozen=True)
class PoolLimits:
    """All of these can change while the pool runs."""

    concurrency: int
    rate_per_minute: int | None = None
    failure_scope: FailureScope = FailureScope.GROUP
    max_delivery_attempts: int | None = None  # None: 20 where the queue cannot redeliver in order, else unlimited
    capacity: int | None = None  # None: 20 per slot, at least 50
    parked_limit: int = PARKED_LIMIT  # messages beyond the capacity: they came along with others, or cannot start now
    retry_statuses: frozenset[int] = frozenset()  # 4xx and 501 that are tried again instead of becoming dead letters
    ack_before_next: bool = False  # a group goes on when its ack is durable, not when the verdict is in
    success: Success = Success.ANY_2XX

    def __post_init__(self) -> None:
        for name in ("concurrency", "rate_per_minute", "max_delivery_attempts", "capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if wrong := sorted(status for status in self.retry_statuses if status not in RETRYABLE):
            raise ValueError(f"retry_statuses has {wrong[0]}: only 400 to 499 without 429, and 501 are a choice")

    @property
    def effective_capacity(self) -> int:
        return self.capacity or max(self.concurrency * CAPACITY_PER_SLOT, MIN_CAPACITY)

    @property
    def most(self) -> int:
        """How many messages the pool may hold, parked ones included."""
        return self.effective_capacity + self.parked_limit


DEFAULT_POOL_LIMITS: Final = PoolLimits(concurrency=20)  # of the default pool where nobody configured it
