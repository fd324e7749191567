"""Jobs: what one asks for, what one is, and what may be asked for. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError
from flowcatalyst.core.headers import check_headers
from flowcatalyst.core.json_words import in_digits
from flowcatalyst.core.message import (
    DEFAULT_POOL,
    MAX_NAME_CHARS,
    MAX_TARGET_CHARS,
    DispatchMode,
    Terms,
    check_name,
    check_target,
)
from flowcatalyst.core.payload import JSON_TYPE, check_payload, given, payload_bytes

MAX_METADATA_CHARS: Final = 8192
DEFAULT_SEQUENCE: Final = 99
_NUMBER_BITS: Final = 41
MAX_SEQUENCE: Final = (1 << 22) - 1
MAX_RETRIES: Final = 1000
DEFAULT_RETRIES: Final = 3
MAX_RETRY_DELAY_S: Final = 30 * 86_400.0
DEFAULT_RETRY_DELAYS_S: Final = (1.0, 5.0, 30.0, 300.0)  # the last one again and again
MAX_TIMEOUT_S: Final = 900.0
DEFAULT_TIMEOUT_S: Final = 30.0
_FIRST_TIME: Final = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST_TIME: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()

Name = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_NAME_CHARS})]
TargetUrl = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TARGET_CHARS})]


class InvalidJobError(FlowCatalystError):
    """A job cannot be accepted as it is; the sender has to change it."""


class Kind(StrEnum):
    EVENT = "EVENT"
    TASK = "TASK"


class Status(StrEnum):
    """Where a job stands. ERROR without a next attempt waits for a person."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


FINISHED: Final = (Status.COMPLETED, Status.CANCELLED, Status.EXPIRED)


class NewJob(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A job as its sender writes it. Unknown fields are errors: a typo in messageGroup would lose the order."""

    target_url: TargetUrl
    code: Name
    kind: Kind = Kind.TASK
    payload: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    content_type: str | None = None
    headers: dict[str, str] = {}
    message_group: Name | None = None
    sequence: int = DEFAULT_SEQUENCE
    mode: Annotated[DispatchMode, msgspec.Meta(description="If left out: IMMEDIATE")] | None = None
    dispatch_pool_code: Name = DEFAULT_POOL
    timeout_seconds: float = DEFAULT_TIMEOUT_S
    max_retries: int = DEFAULT_RETRIES
    retry_delays_seconds: list[float] = []
    scheduled_for: datetime | None = None
    expires_at: datetime | None = None
    idempotency_key: Name | None = None
    metadata: dict[str, str] = {}


@dataclass(slots=True, frozen=True)
class Job:
    """A job as the store keeps it. Times are seconds since the epoch."""

    id: str
    kind: Kind
    code: str
    target: str
    payload: bytes | None  # as it is sent; None: its id is
    content_type: str
    headers: tuple[tuple[str, str], ...]
    group: str | None
    sequence: int
    mode: DispatchMode
    pool: str
    terms: Terms
    scheduled_for: float | None
    expires_at: float | None
    idempotency_key: str | None
    metadata: dict[str, str]
    created_at: float
    subscription: str | None = None  # that it was made for: it is signed with its secret, and paused with it

    @property
    def lane(self) -> str | None:
        """The group that it is ordered in; None: it is ordered with nothing."""
        return None if self.mode is DispatchMode.IMMEDIATE else self.group

    @property
    def due_at(self) -> float:
        """From when on it could be delivered, were it alone."""
        return max(self.created_at, self.scheduled_for or 0.0)


@dataclass(slots=True, frozen=True)
class JobState:
    """A job and how far it came."""

    job: Job
    status: Status
    attempts: int = 0  # that were made
    failures: int = 0  # those of them that count
    next_attempt_at: float | None = None
    finished_at: float | None = None
    last_error: str = ""
    position: int | None = None  # in its group, once an attempt failed: who goes first was decided then


def new_job(asked: NewJob, job_id: str, now: float) -> Job:
    """The job that was asked for. Raises `InvalidJobError` with one sentence if it can never be delivered."""
    try:
        check_target(asked.target_url)
        for what, name in (
            ("code", asked.code),
            ("messageGroup", asked.message_group),
            ("dispatchPoolCode", asked.dispatch_pool_code),
            ("idempotencyKey", asked.idempotency_key),
        ):
            check_name(what, name)
            if name is not None and (not name or name.isspace()):
                raise InvalidJobError(f"{what} is empty")
            check_text(what, name or "")
        check_headers(asked.headers)
        payload = given(asked.payload)
        check_payload(payload, asked.content_type)
    except InvalidMessageError as error:
        raise InvalidJobError(str(error).replace("mediationTarget", "targetUrl")) from None
    _check_range("sequence", asked.sequence, 0, MAX_SEQUENCE)
    _check_range("maxRetries", asked.max_retries, 0, MAX_RETRIES)
    _check_range("timeoutSeconds", asked.timeout_seconds, 0.001, MAX_TIMEOUT_S)
    if len(asked.retry_delays_seconds) > MAX_RETRIES:
        count = len(asked.retry_delays_seconds)
        raise InvalidJobError(f"retryDelaysSeconds has {count} entries, more than the {MAX_RETRIES} allowed")
    for delay_s in asked.retry_delays_seconds:
        _check_range("retryDelaysSeconds", delay_s, 0, MAX_RETRY_DELAY_S)
    mode = asked.mode or DispatchMode.IMMEDIATE
    if mode is not DispatchMode.IMMEDIATE and asked.message_group is None:
        raise InvalidJobError(f"mode {mode} orders the jobs of a group: give a messageGroup, or mode IMMEDIATE")
    if sum(map(len, (*asked.metadata, *asked.metadata.values()))) > MAX_METADATA_CHARS:
        raise InvalidJobError(f"metadata has more than the {MAX_METADATA_CHARS} characters allowed")
    for key, value in asked.metadata.items():
        check_text("metadata", key + value)
    content_type = asked.content_type or JSON_TYPE
    scheduled_for, expires_at = as_seconds(asked.scheduled_for), as_seconds(asked.expires_at)
    if expires_at is not None and expires_at <= max(now, scheduled_for or now):
        raise InvalidJobError("expiresAt is over before the job may start: give a later time, or none")
    return Job(
        id=job_id,
        kind=asked.kind,
        code=asked.code,
        target=asked.target_url,
        payload=payload_bytes(payload, content_type) if payload else None,
        content_type=content_type,
        headers=tuple(asked.headers.items()),
        group=asked.message_group,
        sequence=asked.sequence,
        mode=mode,
        pool=asked.dispatch_pool_code,
        terms=Terms(
            asked.timeout_seconds, asked.max_retries, tuple(asked.retry_delays_seconds) or DEFAULT_RETRY_DELAYS_S
        ),
        scheduled_for=scheduled_for,
        expires_at=expires_at,
        idempotency_key=asked.idempotency_key,
        metadata=asked.metadata,
        created_at=now,
    )


def check_text(what: str, text: str) -> None:
    """Raise `InvalidJobError` for what not every database can keep."""
    if "\0" in text:
        raise InvalidJobError(f"{what} has a NUL character, which no job may have")


def _check_range(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # NaN is in no range
        limits = f"{in_digits(least)} and {in_digits(most)}"
        raise InvalidJobError(f"{what} is {in_digits(value)}, which is not between {limits}")


def as_seconds(time: datetime | None) -> float | None:
    """Since the epoch. A time without a zone is UTC; one that UTC has no year for is the nearest that it has."""
    if time is None:
        return None
    seconds = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    return min(max(seconds, _FIRST_TIME), _LAST_TIME)


def position(sequence: int, number: int) -> int:
    """Where a job stands in its group, as one number: by its sequence, then by when it was made."""
    return sequence << _NUMBER_BITS | number


def number_at(place: int) -> int:
    """The number of the job that stands there."""
    return place & ((1 << _NUMBER_BITS) - 1)


def sequence_at(place: int) -> int:
    """The sequence of the job that stands there."""
    return place >> _NUMBER_BITS


def as_time(seconds: float | None) -> datetime | None:
    """Never after it, though a `datetime` has whole microseconds: who asks for what came from then on gets it too."""
    if seconds is None:
        return None
    seconds = min(max(seconds, _FIRST_TIME), _LAST_TIME)
    time = datetime.fromtimestamp(seconds, UTC)
    return time if time.timestamp() <= seconds else time - timedelta(microseconds=1)


def encode_headers(headers: tuple[tuple[str, str], ...]) -> str:
    return msgspec.json.encode(headers).decode()


def decode_headers(text: str) -> tuple[tuple[str, str], ...]:
    return msgspec.json.decode(text, type=tuple[tuple[str, str], ...])
