"""The failure policy: outcome -> verdict. Pure.

What a response means is `http.interpret`. `decide` says what that means for a message, given what its queue can do.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from flowcatalyst.core.message import (
    ACK,
    SUCCESS,
    Capabilities,
    Delivery,
    ErrorKind,
    Nack,
    Outcome,
    Reject,
    Result,
    Retry,
    Terms,
    Verdict,
)
from flowcatalyst.http.interpret import DEFAULT_DELAY_S
from flowcatalyst.router.limits import PoolLimits, Success

FAST_FAIL_DELAY_S: Final = 10.0
LONGEST_DELAY_S: Final = 300.0
UNORDERED_MAX_ATTEMPTS: Final = 20
LEASE_PATIENCE_S: Final = 1.0
UNSIGNED_DELAY_S: Final = 2.0  # of what cannot be signed here: others may take it meanwhile
SHORTAGE_PAUSE_S: Final = 1.0  # before another try where this machine lacked what an attempt takes
RETURN_GRACE_S: Final = 30.0  # beyond its delay, for a nacked message whose group other queues feed too


@dataclass(slots=True, frozen=True)
class Delays:
    """How long failures wait, in seconds. docs/reference.md has the schedule that follows."""

    backoff_s: tuple[float, ...] = (1.0, 2.0)  # before the second and the third attempt
    nack_delay_s: float = DEFAULT_DELAY_S  # after the last one, unless the endpoint asked for something else
    follower_s: float = FAST_FAIL_DELAY_S  # for what is nacked only because it is behind a failed message, at most
    longest_s: float = LONGEST_DELAY_S  # a message that goes on failing waits twice as long each time, up to this

    def after(self, failures: int) -> float:
        """How long a message waits that has failed so often, once the quick retries are used up."""
        further = max(0, failures - len(self.backoff_s) - 1)
        return max(self.nack_delay_s, min(self.nack_delay_s * 2.0 ** min(further, 30), self.longest_s))


DEFAULT_DELAYS: Final = Delays()


def by_the_rule_of_a_pool(outcome: Outcome, limits: PoolLimits) -> Outcome:
    """What an answer with another status than 200 means where the pool has a say in it."""
    if outcome.result is not SUCCESS or limits.success is Success.ANY_2XX:
        return outcome
    return replace(
        outcome,
        result=Result.ERROR_PROCESS,
        error=ErrorKind.HTTP_ERROR,
        retryable=True,
        detail=f"HTTP {outcome.status}, not a success in this pool",
        note=f'HTTP {outcome.status} is retried: only 200 is a success in this pool (success = "200")',
    )


def away_s(receives: int, probe_s: float) -> float:
    """How long a message spends in its queue that only waits for its endpoint, because its pool is full of such.

    Longer each time, so that what can start is not looked for among the same ones again and again.
    """
    return max(probe_s, min(DEFAULT_DELAY_S * max(1, receives), LONGEST_DELAY_S))


def in_words(failures: int) -> str:
    return f"{failures} failed attempt{'' if failures == 1 else 's'}"


def decide(
    outcome: Outcome,
    delivery: Delivery,
    queue: Capabilities,
    limits: PoolLimits,
    delays: Delays = DEFAULT_DELAYS,
) -> Verdict:
    """What to do with a message after an attempt, which its `failures` already count."""
    if outcome.result is SUCCESS:
        return ACK
    if delivery.terms is not None:
        return by_its_own_terms(outcome, delivery.failures, delivery.terms, limits, delays)
    retryable = outcome.retryable or outcome.status in limits.retry_statuses
    if outcome.result is Result.ERROR_CONFIG and not retryable:
        return Reject(outcome.detail)
    most = limits.max_delivery_attempts
    if most is None and not queue.ordered_redelivery:
        most = UNORDERED_MAX_ATTEMPTS
    if most is not None and outcome.counts and delivery.failures >= most:
        return Reject(f"gave up after {in_words(delivery.failures)}; last: {outcome.detail}")
    if retryable and 0 < delivery.failures <= len(delays.backoff_s):
        return Retry(delays.backoff_s[delivery.failures - 1])
    delay_s = outcome.delay_s or (delays.after(delivery.failures) if outcome.counts else delays.nack_delay_s)
    return wait_before_next_attempt(delay_s, delivery, queue)


def by_its_own_terms(outcome: Outcome, failures: int, terms: Terms, limits: PoolLimits, delays: Delays) -> Verdict:
    """After a failure of a message that brings its own schedule: each attempt is told to its queue, which keeps it."""
    if not outcome.counts:
        return Nack(outcome.delay_s or delays.nack_delay_s)
    hopeless = outcome.result is Result.ERROR_CONFIG and not outcome.retryable
    delay_s = terms.delay_after(failures)
    if delay_s is None or (hopeless and outcome.status not in limits.retry_statuses):
        return Nack(inf)
    return Nack(max(delay_s, outcome.delay_s or 0.0))


def wait_before_next_attempt(delay_s: float, delivery: Delivery, queue: Capabilities) -> Verdict:
    """Where a message spends a long wait: in its queue, or at the head of its group."""
    # Where giving a message back would let its followers pass it, it waits at the head of its group instead. A
    # message that blocks nobody may always be nacked.
    if queue.ordered_redelivery or not delivery.blocks_group:
        return Nack(delay_s)
    return Retry(delay_s)
