"""The settings of pools and of what happens to failed messages; see `config` for the rest."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flowcatalyst.message import MAX_NAME_CHARS
from flowcatalyst.routing.groups import FailureScope
from flowcatalyst.routing.limits import PARKED_LIMIT, RETRYABLE, PoolLimits, Success
from flowcatalyst.routing.policy import Delays


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PoolSettings(Section):
    """One processing pool."""

    code: str = Field(min_length=1, max_length=MAX_NAME_CHARS, description="Name that messages use as poolCode")
    concurrency: int = Field(ge=1, le=100_000, description="Most attempts in flight at once")
    rate_limit_per_minute: int | None = Field(
        None, ge=0, description="Most attempts started in any 60 s; unset or 0: no limit"
    )
    failure_scope: FailureScope = Field(
        FailureScope.GROUP,
        description="After a failure, give back every later message of the group, or only those of the same batch",
    )
    max_delivery_attempts: int | None = Field(
        None,
        ge=1,
        description="Failed attempts after which a message becomes a dead letter; unset: 20 on queues that cannot "
        "redeliver in order, else no limit",
    )
    capacity: int | None = Field(
        None,
        ge=1,
        description="How many messages the pool asks for, waiting or in flight, what cannot start now not counted; "
        "unset: 20 per slot, at least 50",
    )
    parked_limit: int = Field(
        PARKED_LIMIT,
        ge=0,
        description="Messages it may hold beyond that: they wait for a retry or an endpoint, or came along from a "
        "broker that cannot be asked per pool",
    )
    retry_statuses: set[int] = Field(
        default_factory=set,
        description="4xx statuses and 501 that are tried again like a 500, as [401, 403, 404, 408]; others become dead "
        "letters at once",
    )
    ack_before_next: bool = Field(
        False,
        description="Start the next message of a group only when the ack of the one before is durable, so that not "
        "even a crash shows n again after n+1; costs throughput of single groups",
    )
    success: Success = Field(
        Success.ANY_2XX,
        description='Which statuses mean that a message was taken: "2xx", or "200" alone; any other 2xx is then tried '
        "again like a 500",
    )

    @field_validator("retry_statuses")
    @classmethod
    def _are_a_choice(cls, value: set[int]) -> set[int]:
        if wrong := sorted(value - RETRYABLE):
            raise ValueError(f"has {wrong[0]}: only 400 to 499 without 429, and 501 are a choice")
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

    backoff_s: list[float] = Field(
        default_factory=lambda: [1.0, 2.0],
        description="Pauses before the further attempts inside the router; their number is the number of retries",
    )
    give_back_s: float = Field(
        30.0, gt=0, description="Wait after the last of these attempts, unless the endpoint asked for another"
    )
    follower_s: float = Field(
        10.0,
        ge=0,
        description="Longest wait of messages that go back to their queue only because they follow a failed one",
    )
    longest_s: float = Field(
        300.0, gt=0, description="A message that goes on failing waits twice as long each time, up to this"
    )

    def delays(self) -> Delays:
        return Delays(tuple(self.backoff_s), self.give_back_s, self.follower_s, self.longest_s)
