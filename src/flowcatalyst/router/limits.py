"""The numbers of a pool, and which they may be: settings, documents, scenarios and the API all go by this. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, Final

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.router.group import FailureScope

CAPACITY_PER_SLOT: Final = 20
MIN_CAPACITY: Final = 50
PARKED_LIMIT: Final = 10_000
MAX_CONCURRENCY: Final = 100_000
# The least that each number may be, where it is one: None stands for no limit, or for what is usual.
LEAST: Final = {"concurrency": 1, "rate_per_minute": 1, "max_delivery_attempts": 1, "capacity": 1, "parked_limit": 0}
NO_RATE: Final = 0  # how people may write that there is no rate limit
RETRYABLE: Final = frozenset({*range(400, 500), 501}) - {429}
RETRYABLE_IN_WORDS: Final = "400 to 499 except 429, and 501"


class Success(StrEnum):
    """Which answers say that a message was taken, unless their body refuses it."""

    ANY_2XX = "2xx"
    ONLY_200 = "200"


def problem_with_retry_statuses(statuses: Iterable[int]) -> str:
    """The end of a sentence about the first that no pool may retry; empty if all are fine."""
    wrong = sorted(set(statuses) - RETRYABLE)
    return f"has {wrong[0]}: only {RETRYABLE_IN_WORDS} are allowed" if wrong else ""


def as_text(value: object) -> object:
    """Who writes a status as the number that it is means the same."""
    return str(value) if type(value) is int else value


@dataclass(slots=True, frozen=True)
class PoolLimits:
    """All of these can change while the pool runs."""

    least: ClassVar[Mapping[str, int]] = LEAST

    concurrency: int
    rate_per_minute: int | None = None
    failure_scope: FailureScope = FailureScope.GROUP
    max_delivery_attempts: int | None = None  # None: 20 where the queue cannot redeliver in order, else unlimited
    capacity: int | None = None  # None: 20 per slot, at least 50
    parked_limit: int = PARKED_LIMIT  # messages beyond the capacity: they came along with others, or cannot start now
    retry_statuses: frozenset[int] = frozenset()  # 4xx and 501 that are tried again instead of becoming dead letters
    ack_before_next: bool = False  # a group goes on when its ack is durable, not when the verdict is in
    success: Success = Success.ANY_2XX
    # Each message asks for these: they are worked out once.
    effective_capacity: int = field(init=False, repr=False, compare=False)
    most: int = field(init=False, repr=False, compare=False)  # messages it may hold, parked ones included

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if problem := problem_with_retry_statuses(self.retry_statuses):
            raise ValueError(f"retry_statuses {problem}")
        capacity = self.capacity or max(self.concurrency * CAPACITY_PER_SLOT, MIN_CAPACITY)
        # No slots: it is a share, and what it cannot start is for another process.
        object.__setattr__(self, "effective_capacity", capacity if self.concurrency else 0)
        object.__setattr__(self, "most", capacity + self.parked_limit if self.concurrency else 0)


@dataclass(slots=True, frozen=True)
class PoolShare(PoolLimits):
    """What one of several processes may use of the limits of a pool: perhaps nothing, for now."""

    least: ClassVar[Mapping[str, int]] = {**LEAST, "concurrency": 0, "rate_per_minute": 0}

    @classmethod
    def of(cls, limits: PoolLimits, concurrency: int, rate_per_minute: int | None) -> "PoolShare":
        same = {one.name: getattr(limits, one.name) for one in fields(PoolLimits) if one.init}
        return cls(**{**same, "concurrency": concurrency, "rate_per_minute": rate_per_minute})


DEFAULT_POOL_LIMITS: Final = PoolLimits(concurrency=20)  # of the default pool where nobody configured it


def unconfigured_pools(configured: Collection[str]) -> dict[str, PoolLimits]:
    """What is made although nobody configured it, when a message needs it: the default pool."""
    return {} if DEFAULT_POOL in configured else {DEFAULT_POOL: DEFAULT_POOL_LIMITS}
