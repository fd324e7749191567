"""The settings of pools and of what happens to failed messages; see `settings` for the rest."""

from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.core.settings import Section
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import (
    LEAST,
    MAX_CONCURRENCY,
    NO_RATE,
    PARKED_LIMIT,
    PoolLimits,
    Success,
    as_text,
    problem_with_retry_statuses,
)
from flowcatalyst.router.policy import Delays

Pause = Annotated[float, Field(ge=0)]


class PoolSettings(Section):
    """One processing pool."""

    code: str = Field(min_length=1, max_length=MAX_NAME_CHARS, description="Name that messages use as poolCode")
    concurrency: int = Field(ge=LEAST["concurrency"], le=MAX_CONCURRENCY, description="Most attempts in flight at once")
    rate_limit_per_minute: int | None = Field(
        None, ge=NO_RATE, description="Most attempts started in any 60 s; unset or 0: no limit"
    )
    failure_scope: FailureScope = Field(
        FailureScope.GROUP,
        description="After a failure, nack every later message of the group too, or only those of the same batch",
    )
    max_delivery_attempts: int | None = Field(
        None,
        ge=LEAST["max_delivery_attempts"],
        description="Failed attempts after which a message becomes a dead letter; unset: 20 on queues that cannot "
        "redeliver in order, else no limit",
    )
    capacity: int | None = Field(
        None,
        ge=LEAST["capacity"],
        description="How many messages the pool asks for, waiting or in flight, what cannot start now not counted; "
        "unset: 20 per slot, at least 50",
    )
    parked_limit: int = Field(
        PARKED_LIMIT,
        ge=LEAST["parked_limit"],
        description="Messages it may park beyond its capacity: they wait for a retry or an endpoint, or came along "
        "from a broker that cannot be asked per pool",
    )
    retry_statuses: set[int] = Field(
        default_factory=set,
        description="4xx statuses and 501 that are tried again like a 500, such as [401, 403, 404, 408]; others become "
        "dead letters at once",
    )
    ack_before_next: bool = Field(
        False,
        description="Start the next message of a group only when the ack of the one before is durable, so that not "
        "even a crash shows n again after n+1; costs throughput of single groups",
    )
    success: Annotated[Success, BeforeValidator(as_text)] = Field(
        Success.ANY_2XX,
        description='Which statuses mean success: "2xx", or "200" alone; any other 2xx is then tried again like a 500',
    )

    @field_validator("retry_statuses")
    @classmethod
    def _are_a_choice(cls, value: set[int]) -> set[int]:
        if problem := problem_with_retry_statuses(value):
            raise ValueError(problem)
        return value

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


class RetrySettings(Section):
    """How long failed messages wait. The defaults suit production; tests shorten them."""

    backoff_s: list[Pause] = Field(
        default_factory=lambda: [1.0, 2.0],
        description="Pauses before the further attempts inside the router; their number is the number of retries",
    )
    nack_delay_s: float = Field(
        30.0, gt=0, description="Wait after the last of these attempts, unless the endpoint asked for another"
    )
    follower_s: float = Field(
        10.0,
        ge=0,
        description="Longest delay of messages that are nacked only because they follow a failed one",
    )
    longest_s: float = Field(
        300.0, gt=0, description="A message that goes on failing waits twice as long each time, up to this"
    )

    def delays(self) -> Delays:
        return Delays(tuple(self.backoff_s), self.nack_delay_s, self.follower_s, self.longest_s)
