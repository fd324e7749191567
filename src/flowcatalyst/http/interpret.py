"""What an answer means: response -> outcome. Pure, and as far as possible data.

`RESPONSES` and `FAILURES` are the table in docs/reference.md, "Answers". What follows from an outcome for a message is
in `router.policy`.
"""

from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from typing import Final

from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, RequestTimeoutError, TargetRefusedError, plain
from flowcatalyst.core.message import ErrorKind, Outcome, Result, Severity
from flowcatalyst.http.answer import read_answer
from flowcatalyst.http.contract import WHOLE, Content

DEFAULT_DELAY_S: Final = 30.0
MIN_DELAY_S: Final = 1
MAX_DELAY_S: Final = 43_200
EXCERPT_CHARS: Final = 500
PLAIN_SUCCESS: Final = frozenset([b"", b'{"ack":true}', b'{"ack": true}'])  # bodies of nearly every success

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
    _Row(0, 999, Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True, note="the status is not expected here"),
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


def interpret_failure(error: Exception) -> Outcome:
    """What an attempt without a complete response meant."""
    row = next((row for kind, row in FAILURES.items() if isinstance(error, kind)), UNEXPECTED_FAILURE)
    return replace(row, detail=plain(error))


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
            detail=f"HTTP {status} is not a success: {answer.unclear}",
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
    """1 to 43,200 s, as every queue accepts it; 0 and nonsense mean the default."""
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
