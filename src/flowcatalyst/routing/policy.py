"""The whole failure policy: response -> outcome -> verdict. Pure, and as far as possible data.

`RESPONSES` and `FAILURES` are the response table of 002. `decide` says what an outcome means for a message, given
what its queue can do.
"""

from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from typing import Final

import msgspec

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

DEFAULT_DELAY_S: Final = 30.0
FAST_FAIL_DELAY_S: Final = 10.0
MIN_DELAY_S: Final = 1
MAX_DELAY_S: Final = 43_200
MAX_HOLD_S: Final = 5.0  # longest a message may wait in memory where its queue could keep it in order instead
UNORDERED_MAX_ATTEMPTS: Final = 20
EXCERPT_CHARS: Final = 500


@dataclass(slots=True, frozen=True)
class Delays:
    """How long failures wait, in seconds. The defaults are those of 002."""

    backoff_s: tuple[float, ...] = (1.0, 2.0)  # before the second and the third attempt
    give_back_s: float = DEFAULT_DELAY_S  # after the last one, unless the endpoint asked for something else
    follower_s: float = FAST_FAIL_DELAY_S  # for what goes back only because it is behind a failed message


DEFAULT_DELAYS: Final = Delays()


@dataclass(slots=True, frozen=True)
class _Row:
    """One row of the response table: statuses first..last."""

    first: int
    last: int
    result: Result
    error: ErrorKind
    retryable: bool = False
    warning: Severity | None = None


# The first row that matches wins. 200 and 429 read more than the status; see `interpret`.
RESPONSES: Final = (
    _Row(200, 200, Result.SUCCESS, ErrorKind.NONE),
    _Row(429, 429, Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED),
    _Row(400, 499, Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, warning=Severity.ERROR),
    _Row(501, 501, Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, warning=Severity.CRITICAL),
    _Row(500, 599, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True),
    _Row(0, 999, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True),
)

# Attempts without a complete response. Only these count against the endpoint's circuit breaker.
FAILURES: Final[dict[type[Exception], Outcome]] = {
    ConnectError: Outcome(Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, retryable=True, trips_breaker=True),
    ConnectionBrokenError: Outcome(
        Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, retryable=True, trips_breaker=True
    ),
    RequestTimeoutError: Outcome(Result.ERROR_PROCESS, ErrorKind.TIMEOUT, retryable=True, trips_breaker=True),
    TargetRefusedError: Outcome(Result.ERROR_CONFIG, ErrorKind.NETWORK_ERROR, warning=Severity.ERROR),
}
UNEXPECTED_FAILURE: Final = Outcome(Result.ERROR_PROCESS, ErrorKind.NETWORK_ERROR, retryable=True)


class _Answer(msgspec.Struct, rename="camel"):
    """What an endpoint may say in a 200."""

    ack: bool = True
    delay_seconds: msgspec.Raw = msgspec.Raw()


_answer_decoder = msgspec.json.Decoder(_Answer, strict=False)  # "false" and 0 are false, as senders mean them
_ROW_BY_STATUS: Final = {
    status: next(row for row in RESPONSES if row.first <= status <= row.last) for status in range(1000)
}


def interpret(status: int, retry_after: str | None, body: bytes, wall_now: float) -> Outcome:
    """What a complete response meant."""
    row = _ROW_BY_STATUS[status]
    if row.result is Result.SUCCESS:
        return _interpret_200(body)
    delay_s = None
    if status == 429:
        asked = parse_retry_after(retry_after, wall_now)
        delay_s = clamp_delay(asked if asked is not None else DEFAULT_DELAY_S)
    return Outcome(
        row.result,
        row.error,
        delay_s=delay_s,
        retryable=row.retryable,
        warning=row.warning,
        status=status,
        detail=f"HTTP {status}",
        excerpt=_excerpt(body),
    )


def interpret_failure(error: Exception) -> Outcome:
    """What an attempt without a complete response meant."""
    row = next((row for kind, row in FAILURES.items() if isinstance(error, kind)), UNEXPECTED_FAILURE)
    return replace(row, detail=f"{type(error).__name__}: {error}")


def decide(
    outcome: Outcome,
    delivery: Delivery,
    queue: Capabilities,
    max_attempts: int | None,
    delays: Delays = DEFAULT_DELAYS,
) -> Verdict:
    """What to do with a message after an attempt, which `tries` and `failures` already count."""
    if outcome.result is Result.SUCCESS:
        return ACK
    if outcome.result is Result.ERROR_CONFIG:
        return Reject(outcome.detail)
    limit = max_attempts if max_attempts is not None else _default_max_attempts(queue)
    if limit is not None and outcome.counts and delivery.failures >= limit:
        return Reject(f"gave up after {delivery.failures} failed attempts; last: {outcome.detail}")
    if outcome.retryable and delivery.tries <= len(delays.backoff_s):
        return Retry(delays.backoff_s[delivery.tries - 1])
    return wait_before_next_attempt(outcome.delay_s or delays.give_back_s, delivery, queue)


def wait_for_breaker(wait_s: float, delivery: Delivery, queue: Capabilities) -> Verdict:
    """What to do with a message whose endpoint's breaker is open: nothing is spent, only time.

    Each time it comes in vain it stays away for longer: a long outage must not use up what its queue allows to receive.
    """
    if queue.ordered_redelivery and delivery.held_s + wait_s > MAX_HOLD_S:
        longer_s = min(wait_s * 2.0 ** min(delivery.receive_count - 1, 10), DEFAULT_DELAY_S)
        return Nack(max(MIN_DELAY_S, wait_s, longer_s))
    return Retry(wait_s)


def wait_before_next_attempt(delay_s: float, delivery: Delivery, queue: Capabilities) -> Verdict:
    """Where a message spends a long wait: in its queue, or at the head of its group."""
    # Where giving a message back would let its followers pass it, it waits at the head of its group instead. A
    # message that blocks nobody may always go back.
    if queue.ordered_redelivery or not delivery.blocks_group:
        return Nack(delay_s)
    return Retry(delay_s)


def _default_max_attempts(queue: Capabilities) -> int | None:
    return None if queue.ordered_redelivery else UNORDERED_MAX_ATTEMPTS


def _read_delay(raw: msgspec.Raw) -> float | None:
    try:
        return msgspec.json.decode(raw, type=float | None, strict=False) if len(bytes(raw)) else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _interpret_200(body: bytes) -> Outcome:
    if not body:
        return _SUCCESS_200
    try:
        answer = _answer_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _SUCCESS_200  # endpoints older than the ack field answer anything
    if answer.ack:
        return _SUCCESS_200
    delay = _read_delay(answer.delay_seconds)
    return Outcome(
        Result.ERROR_PROCESS,
        ErrorKind.NOT_ACKED,
        delay_s=clamp_delay(delay) if delay else None,
        status=200,
        detail="HTTP 200 with ack=false",
        excerpt=_excerpt(body),
    )


_SUCCESS_200: Final = Outcome(Result.SUCCESS, status=200, detail="HTTP 200")


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
