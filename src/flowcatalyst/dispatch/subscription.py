"""Subscriptions: which events somebody wants, and the jobs that follow from one. Pure.

`check_subscription` says in one sentence what is wrong with one; `jobs_of` makes the jobs of an event for those that
`Matcher` (matcher.py) found. Secrets are kept elsewhere: a job is signed when it is sent.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.headers import OUR_PREFIX, header_safe, names_trace, trace_context
from flowcatalyst.core.json_words import in_digits
from flowcatalyst.core.message import DEFAULT_POOL, MAX_NAME_CHARS, DispatchMode, Headers, Terms
from flowcatalyst.core.payload import JSON_TYPE
from flowcatalyst.dispatch.cloudevents import STRUCTURED_TYPE, envelope
from flowcatalyst.dispatch.event import MAX_EVENT_GROUP_CHARS, Event
from flowcatalyst.dispatch.event_types import InvalidEventTypeError, check_pattern
from flowcatalyst.dispatch.filters import FilterSpec, InvalidFilterError, compiled
from flowcatalyst.dispatch.job import (
    DEFAULT_RETRIES,
    DEFAULT_RETRY_DELAYS_S,
    DEFAULT_SEQUENCE,
    DEFAULT_TIMEOUT_S,
    InvalidJobError,
    Job,
    Kind,
    Name,
    NewJob,
    TargetUrl,
    new_job,
)

MAX_CODE_CHARS: Final = MAX_NAME_CHARS - MAX_EVENT_GROUP_CHARS - 1  # both, and a colon, are the group of a job
MAX_PATTERNS: Final = 50
MAX_DELAY_S: Final = 30 * 86_400.0
MAX_AGE_S: Final = 365 * 86_400.0

EVENT_ID: Final = f"{OUR_PREFIX}Event-Id"
EVENT_TYPE: Final = f"{OUR_PREFIX}Event-Type"
SUBSCRIPTION: Final = f"{OUR_PREFIX}Subscription"
CORRELATION_ID: Final = f"{OUR_PREFIX}Correlation-Id"
CAUSATION_ID: Final = f"{OUR_PREFIX}Causation-Id"

_CODE: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CODE_CHARS - 1}}}")
_SIGNATURE: Final = "webhook-"  # how the headers of Standard Webhooks begin
_BYTES_TYPE: Final = "application/octet-stream"


class InvalidSubscriptionError(FlowCatalystError):
    """A subscription cannot be accepted as it is; whoever wrote it has to change it."""


class SubscriptionStatus(StrEnum):
    """Jobs are made in either; those of a paused one wait, in order, until it is resumed."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"


class EventTypeBinding(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    """An event type that is wanted, or a pattern of them."""

    event_type_code: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": 255})]


class Subscription(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A subscription as its owner writes it and as it is kept.

    `check_subscription` has to have accepted it.
    """

    code: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_CODE_CHARS, "pattern": _CODE.pattern})]
    target_url: TargetUrl
    event_types: tuple[EventTypeBinding, ...]
    name: Name | None = None
    status: SubscriptionStatus = SubscriptionStatus.ACTIVE
    filters: tuple[FilterSpec, ...] = ()
    mode: DispatchMode = DispatchMode.IMMEDIATE
    sequence: int = DEFAULT_SEQUENCE
    dispatch_pool_code: Name = DEFAULT_POOL
    timeout_seconds: float = DEFAULT_TIMEOUT_S
    max_retries: int = DEFAULT_RETRIES
    retry_delays_seconds: tuple[float, ...] = ()
    delay_seconds: float = 0.0
    max_age_seconds: float | None = None
    data_only: bool = False
    headers: dict[str, str] = {}

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(binding.event_type_code for binding in self.event_types)


def check_subscription(asked: Subscription) -> None:
    """Raise `InvalidSubscriptionError` with one sentence unless it can be kept and its jobs can be sent."""
    if not _CODE.fullmatch(asked.code):
        rule = f"up to {MAX_CODE_CHARS} letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise InvalidSubscriptionError(f"code is {asked.code[: MAX_CODE_CHARS + 1]!r}: it has {rule}")
    if not 0 < len(asked.event_types) <= MAX_PATTERNS:
        raise InvalidSubscriptionError(f"eventTypes has {len(asked.event_types)} entries, not 1 to {MAX_PATTERNS}")
    if asked.name is not None and (not asked.name.isprintable() or not asked.name.strip()):
        raise InvalidSubscriptionError("name is empty, or has characters that cannot be printed")
    if asked.name is not None and len(asked.name) > MAX_NAME_CHARS:
        raise InvalidSubscriptionError(f"name has {len(asked.name)} characters, more than the {MAX_NAME_CHARS} allowed")
    for header in asked.headers:
        if header.lower().startswith(_SIGNATURE):
            raise InvalidSubscriptionError(
                f"the header {header[:60]} is part of the signature: leave it out of headers"
            )
    if not 0 <= asked.delay_seconds <= MAX_DELAY_S:  # NaN is in no range
        given = in_digits(asked.delay_seconds)
        raise InvalidSubscriptionError(f"delaySeconds is {given}, not between 0 and {in_digits(MAX_DELAY_S)}")
    if asked.max_age_seconds is not None and not asked.delay_seconds < asked.max_age_seconds <= MAX_AGE_S:
        least = f"more than delaySeconds ({in_digits(asked.delay_seconds)}) and at most {in_digits(MAX_AGE_S)}"
        raise InvalidSubscriptionError(f"maxAgeSeconds is {in_digits(asked.max_age_seconds)}: it has to be {least}")
    try:
        for number, pattern in enumerate(asked.patterns):
            check_pattern(f"eventTypes[{number}].eventTypeCode", pattern)
        compiled(asked.filters)
        new_job(_likeness(asked), "", 0.0)
    except (InvalidEventTypeError, InvalidFilterError, InvalidJobError) as error:
        raise InvalidSubscriptionError(str(error)) from None


def _likeness(asked: Subscription) -> NewJob:
    """A job like those that it makes: what may not be in one may not be in it."""
    return NewJob(
        target_url=asked.target_url,
        code=asked.code,
        headers=asked.headers,
        message_group=asked.code,
        sequence=asked.sequence,
        mode=asked.mode,
        dispatch_pool_code=asked.dispatch_pool_code,
        timeout_seconds=asked.timeout_seconds,
        max_retries=asked.max_retries,
        retry_delays_seconds=list(asked.retry_delays_seconds),
    )


def jobs_of(event: Event, subscriptions: Sequence[Subscription], new_id: Callable[[], str], now: float) -> list[Job]:
    """One job for each subscription, in their order: what the store keeps in one transaction with the event.

    With thousands of subscriptions, `making_jobs` lets others have their turns.
    """
    return list(making_jobs(event, subscriptions, new_id, now))


def making_jobs(
    event: Event, subscriptions: Sequence[Subscription], new_id: Callable[[], str], now: float
) -> Iterator[Job]:
    """The same one by one. What is sent is made before the first, and shared by all.

    Its group is that of the event in the name of the subscription. An event without a group is ordered with nothing:
    its jobs are IMMEDIATE, whatever the subscription says.
    """
    wrapped = envelope(event) if any(not one.data_only for one in subscriptions) else b""
    plain = event.data_bytes() if any(one.data_only for one in subscriptions) else b""
    group, sequence = event.message_group, event.sequence
    about = [(EVENT_ID, event.id), (EVENT_TYPE, event.type)]
    about += [(CORRELATION_ID, event.correlation_id)] if event.correlation_id is not None else []
    about += [(CAUSATION_ID, event.causation_id)] if event.causation_id is not None else []
    context = tuple((name, header_safe(value)) for name, value in about)
    context += (trace := trace_context(event.extensions))
    for one in subscriptions:
        yield Job(
            id=new_id(),
            kind=Kind.EVENT,
            code=event.type,
            target=one.target_url,
            payload=plain if one.data_only else wrapped,
            content_type=_data_type(event) if one.data_only else STRUCTURED_TYPE,
            headers=(*_besides(trace, one.headers), *context, (SUBSCRIPTION, one.code)),
            group=None if group is None else f"{one.code}:{group}",
            sequence=one.sequence if sequence is None else sequence,
            mode=DispatchMode.IMMEDIATE if group is None else one.mode,
            pool=one.dispatch_pool_code,
            terms=Terms(one.timeout_seconds, one.max_retries, one.retry_delays_seconds or DEFAULT_RETRY_DELAYS_S),
            scheduled_for=now + one.delay_seconds if one.delay_seconds else None,
            expires_at=None if one.max_age_seconds is None else now + one.max_age_seconds,
            idempotency_key=None,
            metadata={"eventId": event.id, "subscription": one.code},
            created_at=now,
            subscription=one.code,
        )


def _besides(trace: Headers, own: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """The headers of a subscription; those that name a trace give way to that of the event."""
    return (header for header in own.items() if not (trace and names_trace(header[0])))


def _data_type(event: Event) -> str:
    """Of the data as they are sent alone."""
    if event.data_content_type is not None and (event.data or event.data_base64 is not None):
        return event.data_content_type
    return JSON_TYPE if event.data_base64 is None else _BYTES_TYPE
