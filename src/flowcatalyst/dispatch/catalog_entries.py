"""What the catalog keeps: subscriptions with their sealed secrets, and dispatch pools. Pure."""

from typing import Annotated, Any, Final

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.dispatch.subscription import Subscription
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import (
    LEAST,
    MAX_CONCURRENCY,
    NO_RATE,
    PARKED_LIMIT,
    RETRYABLE,
    PoolLimits,
    Success,
    problem_with_retry_statuses,
)

MAX_SECRETS: Final = 5  # of one subscription that sign at a time: each is one more signature in a header
MAX_NUMBER: Final = 2**31 - 1


class InvalidPoolError(FlowCatalystError):
    """A dispatch pool cannot be as it is asked for."""


class SealedSecret(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One secret of a subscription, as the database has it."""

    sealed: str
    created_at: float
    until: float | None = None  # it signs until then; None: until it is rotated


class StoredSubscription(Subscription, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A subscription as the catalog has it. What a newer version wrote besides is passed over: an event that it wants
    must not be lost."""

    secrets: tuple[SealedSecret, ...] = ()  # the newest first

    def signing(self, wall: float) -> list[SealedSecret]:
        """Those that sign at a time."""
        return [one for one in self.secrets if one.until is None or wall < one.until]


def plain_fields(subscription: Subscription) -> dict[str, Any]:
    """All that its owner wrote of it: not its secrets."""
    return {name: getattr(subscription, name) for name in Subscription.__struct_fields__}


class DispatchPool(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A pool as its owner writes it: the limits that every pool has. `check_pool` has to have accepted it.

    `queue` is the name of a queue through which routers on other machines get its jobs; null: they stay here.
    """

    code: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    concurrency: Annotated[int, msgspec.Meta(ge=LEAST["concurrency"], le=MAX_CONCURRENCY)]
    rate_limit_per_minute: Annotated[int, msgspec.Meta(ge=NO_RATE, le=MAX_NUMBER)] | None = None
    failure_scope: FailureScope = FailureScope.GROUP
    max_delivery_attempts: Annotated[int, msgspec.Meta(ge=LEAST["max_delivery_attempts"], le=MAX_NUMBER)] | None = None
    capacity: Annotated[int, msgspec.Meta(ge=LEAST["capacity"], le=MAX_NUMBER)] | None = None
    parked_limit: Annotated[int, msgspec.Meta(ge=LEAST["parked_limit"], le=MAX_NUMBER)] = PARKED_LIMIT
    retry_statuses: tuple[Annotated[int, msgspec.Meta(ge=min(RETRYABLE), le=max(RETRYABLE))], ...] = ()
    ack_before_next: bool = False
    success: Success = Success.ANY_2XX
    queue: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)] | None = None

    def limits(self) -> PoolLimits:
        return PoolLimits(
            concurrency=self.concurrency,
            rate_per_minute=self.rate_limit_per_minute or None,
            failure_scope=self.failure_scope,
            max_delivery_attempts=self.max_delivery_attempts,
            capacity=self.capacity,
            parked_limit=self.parked_limit,
            retry_statuses=frozenset(self.retry_statuses),
            ack_before_next=self.ack_before_next,
            success=self.success,
        )


class StoredPool(DispatchPool, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A pool as the catalog has it."""


def check_pool(asked: DispatchPool) -> None:
    """Raise `InvalidPoolError` with one sentence unless a router can have it."""
    for what, text in (("code", asked.code), ("queue", asked.queue)):
        if text is not None and (not text.isprintable() or text != text.strip()):
            raise InvalidPoolError(f"{what} begins or ends with a space, or has characters that cannot be printed")
    if problem := problem_with_retry_statuses(asked.retry_statuses):
        raise InvalidPoolError(f"retryStatuses {problem}")
