"""The whole failure policy: response -> outcome -> verdict. Pure, and as far as possible data.

`RESPONSES` and `FAILURES` are the response table of 002. `decide` says what an outcome means for a message, given
what its queue can do.
"""

from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from typing import Final

from flowcatalyst.delivery.answer import read_answer
from flowcatalyst.delivery.contract import WHOLE, Content
from flowcatalyst.errors import (
    ConnectError,
    ConnectionBrokenError,
    RequestTimeoutError,
    TargetRefusedError,
)
from flowcatalyst.message import (
    ACK,
    Delivery,
    ErrorKind,
    Nack,
    Outcome,
    Reject,
    Result,
    Retry,
    Severity,
    Verdict,
)
from flowcatalyst.queues.contract import Capabilities
from flowcatalyst.routing.limits import PoolLimits, Success

DEFAULT_DELAY_S: Final = 30.0
FAST_FAIL_DELAY_S: Final = 10.0
MIN_DELAY_S: Final = 1
MAX_DELAY_S: Final = 43_200
LONGEST_DELAY_S: Final = 300.0
UNORDERED_MAX_ATTEMPTS: Final = 20
LEASE_PATIENCE_S: Final = 1.0
SHORTAGE_PAUSE_S: Final = 1.0  # before another try where this machine lacked what an attempt takes
RETURN_GRACE_S: Final = 30.0  # beyond its delay, for a nacked message whose group other queues feed too
EXCERPT_CHARS: Final = 500
PLAIN_SUCCESS: Final = frozenset([b"", b'{"ack":true}', b'{"ack": true}'])  # bodies of nearly every success


@dataclass(slots=True, frozen=True)
class Delays:
    """How long failures wait, in seconds. The defaults are those of 002."""

    backoff_s: tuple[float, ...] = (1.0, 2.0)  # before the second and the third attempt
    give_back_s: float = DEFAULT_DELAY_S  # after the last one, unless the endpoint asked for something else
    follower_s: float = FAST_FAIL_DELAY_S  # for what goes back only because it is behind a failed message, at most
    longest_s: float = LONGEST_DELAY_S  # a message that goes on failing waits twice as long each time, up to this

    def after(self, failures: int) -> float:
        """How long a message waits that has failed so often, once the quick retries are used up."""
        further = max(0, failures - len(self.backoff_s) - 1)
        return max(self.give_back_s, min(self.give_back_s * 2.0 ** min(further, 30), self.longest_s))


DEFAULT_DELAYS: Final = Delays()

REDIRECTED: Final = "redirects are not followed: give the final address as the target"


@dataclass(slots=True, frozen=True)
class _Row:
    """One row of the response table: statuses first..last."""

    first: int
    last: int
    result: Result
    error: ErrorKind
    retryable: bool = False
    warning: Severity | None = None
    trips_breaker: bool = False  # a gateway says that nobody is there, which is as good as no answer
    note: str = ""  # why an answer that is no error is retried


# The first row that matches wins. 2xx and 429 read more than the status; see `interpret`.
RESPONSES: Final = (
    _Row(200, 299, Result.SUCCESS, ErrorKind.NONE),
    _Row(429, 429, Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED),
    _Row(400, 499, Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, warning=Severity.ERROR),
    _Row(501, 501, Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, warning=Severity.CRITICAL),
    _Row(502, 504, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True, trips_breaker=True),
    _Row(500, 599, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True),
    _Row(300, 399, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True, note=REDIRECTED),
    _Row(0, 999, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True, note="it has no meaning here"),
)

# Attempts without a complete response.
FAILURES: Final[dict[type[Exception], Outcome]] = {
    ConnectError: Outcome(Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, retryable=True, trips_breaker=True),
    ConnectionBrokenError: Outcome(
        Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, retryable=True, trips_breaker=True
    ),
    RequestTimeoutError: Outcome(Result.ERROR_PROCESS, ErrorKind.TIMEOUT, retryable=True, trips_breaker=True),
    TargetRefusedError: Outcome(Result.ERROR_CONFIG, ErrorKind.NETWORK_ERROR, warning=Severity.ERROR),
}
UNEXPECTED_FAILURE: Final = Outcome(Result.ERROR_PROCESS, ErrorKind.NETWORK_ERROR, retryable=True)


_ROW_BY_STATUS: Final = {
    status: next(row for row in RESPONSES if row.first <= status <= row.last) for status in range(1000)
}
_DELIVERED: Final = {
    status: Outcome(Result.SUCCESS, status=status, detail=f"HTTP {status}") for status in range(200, 300)
}
DELIVERED: Final = _DELIVERED[200]


def interpret(status: int, retry_after: str | None, body: bytes, wall_now: float, content: Content = WHOLE) -> Outcome:
    """What a response meant. `content` matters for a 2xx whose body is none of `PLAIN_SUCCESS`."""
    row = _ROW_BY_STATUS[status]
    if row.result is Result.SUCCESS:
        plain = body in PLAIN_SUCCESS and content is WHOLE
        return _DELIVERED[status] if plain else _interpret_body(status, body, content)
    delay_s = None
    if status == 429:
        asked = parse_retry_after(retry_after, wall_now)
        delay_s = clamp_delay(asked if asked is not None else DEFAULT_DELAY_S)
    return Outcome(
        row.result,
        row.error,
        delay_s=delay_s,
        retryable=row.retryable,
        trips_breaker=row.trips_breaker,
        warning=row.warning,
        status=status,
        detail=f"HTTP {status}",
        excerpt=_excerpt(body),
        note=f"HTTP {status} is retried: {row.note}" if row.note else "",
    )


def by_the_rule_of_a_pool(outcome: Outcome, limits: PoolLimits) -> Outcome:
    """What an answer with another status than 200 means where the pool has a say in it."""
    if outcome.result is not Result.SUCCESS or limits.success is Success.ANY_2XX:
        return outcome
    return replace(
        outcome,
        result=Result.ERROR_PROCESS,
        error=ErrorKind.HTTP_ERROR,
        retryable=True,
        detail=f"HTTP {outcome.status}, no success in this pool",
        note=f'HTTP {outcome.status} is retried: only 200 is a success in this pool (success = "200")',
    )


def interpret_failure(error: Exception) -> Outcome:
    """What an attempt without a complete response meant."""
    row = next((row for kind, row in FAILURES.items() if isinstance(error, kind)), UNEXPECTED_FAILURE)
    return replace(row, detail=f"{type(error).__name__}: {error}")


def decide(
    outcome: Outcome,
    delivery: Delivery,
    queue: Capabilities,
    limits: PoolLimits,
    delays: Delays = DEFAULT_DELAYS,
) -> Verdict:
    """What to do with a message after an attempt, which its `failures` already count."""
    if outcome.result is Result.SUCCESS:
        return ACK
    retryable = outcome.retryable or outcome.status in limits.retry_statuses
    if outcome.result is Result.ERROR_CONFIG and not retryable:
        return Reject(outcome.detail)
    most = limits.max_delivery_attempts
    if most is None and not queue.ordered_redelivery:
        most = UNORDERED_MAX_ATTEMPTS
    if most is not None and outcome.counts and delivery.failures >= most:
        return Reject(f"gave up after {delivery.failures} failed attempts; last: {outcome.detail}")
    if retryable and 0 < delivery.failures <= len(delays.backoff_s):
        return Retry(delays.backoff_s[delivery.failures - 1])
    delay_s = outcome.delay_s or (delays.after(delivery.failures) if outcome.counts else delays.give_back_s)
    return wait_before_next_attempt(delay_s, delivery, queue)


def wait_before_next_attempt(delay_s: float, delivery: Delivery, queue: Capabilities) -> Verdict:
    """Where a message spends a long wait: in its queue, or at the head of its group."""
    # Where giving a message back would let its followers pass it, it waits at the head of its group instead. A
    # message that blocks nobody may always go back.
    if queue.ordered_redelivery or not delivery.blocks_group:
        return Nack(delay_s)
    return Retry(delay_s)


def _interpret_body(status: int, body: bytes, content: Content) -> Outcome:
    answer = read_answer(body, content)
    if answer.taken:
        delivered = _DELIVERED[status]
        return replace(delivered, note=f"HTTP {status}: {answer.note}") if answer.note else delivered
    if answer.unclear:
        return Outcome(
            Result.ERROR_PROCESS,
            ErrorKind.HTTP_ERROR,
            retryable=True,
            status=status,
            detail=f"HTTP {status} that is no success: {answer.unclear}",
            excerpt=_excerpt(body),
            note=f"HTTP {status} is retried: {answer.unclear}",
        )
    return Outcome(
        Result.ERROR_PROCESS,
        ErrorKind.NOT_ACKED,
        delay_s=_asked_delay(answer.delay),
        status=status,
        detail=f"HTTP {status} with ack=false",
        excerpt=_excerpt(body),
    )


def _asked_delay(given: object) -> float | None:
    """The `delaySeconds` of a refusal, if it is a number or spells one."""
    try:
        delay_s = float(given) if isinstance(given, int | float | str) and not isinstance(given, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return clamp_delay(delay_s) if delay_s else None


def clamp_delay(seconds: float) -> float:
    """1 to 43,200 s, as every queue accepts it; 0 and nonsense mean the default, as in 002."""
    if not isfinite(seconds) or seconds == 0:
        return DEFAULT_DELAY_S
    return float(min(max(ceil(seconds), MIN_DELAY_S), MAX_DELAY_S))


def parse_retry_after(value: str | None, wall_now: float) -> float | None:
    """Seconds from a Retry-After header: a number of seconds or an HTTP date. None if it is neither."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value.lstrip("0")[:10] or 0)
    try:
        date = parsedate_to_datetime(value)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(date.timestamp() - wall_now, MIN_DELAY_S)
    except (ValueError, TypeError, OverflowError):
        return None


def _excerpt(body: bytes) -> str:
    return body[: EXCERPT_CHARS * 4].decode("utf-8", "replace")[:EXCERPT_CHARS]
