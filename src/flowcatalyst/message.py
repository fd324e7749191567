"""The words of the router: pointer, delivery, outcome, verdict."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowcatalyst.delivery.contract import parse_target
from flowcatalyst.errors import InvalidMessageError, TargetRefusedError

if TYPE_CHECKING:
    from flowcatalyst.queues.contract import Source

DEFAULT_POOL: Final = "DEFAULT-POOL"
UNREADABLE: Final = ""  # stands for the pool of what becomes a dead letter as it comes; no pool is called so
DEFAULT_GROUP: Final = "__DEFAULT__"
MAX_BODY_BYTES: Final = 256 * 1024  # the limit of SQS, so that a message that fits here fits every broker
MAX_NAME_CHARS: Final = 256  # of ids, groups and pool codes: they are kept, logged and listed for each message
MAX_TARGET_CHARS: Final = 8192  # what servers take


class DispatchMode(StrEnum):
    """What a failure means for the messages behind it in the same group."""

    IMMEDIATE = "IMMEDIATE"
    NEXT_ON_ERROR = "NEXT_ON_ERROR"
    BLOCK_ON_ERROR = "BLOCK_ON_ERROR"


class MediationType(StrEnum):
    HTTP = "HTTP"


class MessagePointer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The routed message. It points at an endpoint; the payload itself stays with the application."""

    id: str
    mediation_target: str
    pool_code: str | None = None
    auth_token: str | None = None
    mediation_type: MediationType | None = None
    message_group_id: str | None = None
    high_priority: bool = False
    dispatch_mode: DispatchMode | None = None


_decoder = msgspec.json.Decoder(MessagePointer)
_REQUIRED: Final = ("id", "mediationTarget")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
encode_pointer = msgspec.json.Encoder().encode


def parse_pointer(body: str | bytes) -> MessagePointer:
    """The pointer in a queue body, or `InvalidMessageError` with the reason it is none."""
    try:
        pointer = _decoder.decode(body)
        check_pointer(pointer)
        if len(body) > MAX_NAME_CHARS:
            check_names(pointer)
    except (*_UNREADABLE, InvalidMessageError):
        return _parse_leniently(body)
    return pointer


def _parse_leniently(body: str | bytes) -> MessagePointer:
    """The pointer that another producer means, as far as that is clear; the error says what is not."""
    try:
        found = msgspec.json.decode(without_mark(body))
        if isinstance(found, dict):
            found = _as_we_write_it(found)
        pointer = msgspec.convert(found, MessagePointer)
    except _UNREADABLE as error:
        raise InvalidMessageError(f"body is not a message pointer: {error}") from None
    check_names(pointer)
    check_pointer(pointer)
    return pointer


def _as_we_write_it(found: dict[str, Any]) -> dict[str, Any]:
    """null is absent, a whole number that names something its digits, an enum in capitals, a space in a URL %20."""
    fields = {name: value for name, value in found.items() if value is not None or name in _REQUIRED}
    for name in ("id", "messageGroupId"):
        if type(value := fields.get(name)) is int:
            fields[name] = str(value)
    for name in ("mediationType", "dispatchMode"):
        if isinstance(value := fields.get(name), str):
            fields[name] = value.upper()
    target = fields.get("mediationTarget")
    if isinstance(target, str) and target == target.strip():
        fields["mediationTarget"] = target.replace(" ", "%20")
    return fields


def without_mark(body: str | bytes) -> str | bytes:
    """A body without the byte order mark that some producers begin with."""
    return body.removeprefix("\ufeff") if isinstance(body, str) else body.removeprefix(b"\xef\xbb\xbf")


class _PoolOnly(msgspec.Struct, rename="camel"):
    pool_code: str | None = None


_pool_decoder = msgspec.json.Decoder(_PoolOnly)


def pool_code_of(body: str | bytes) -> str:
    """The pool that a message asks for, the default pool if it names none; `UNREADABLE` if none will ever take it."""
    try:
        code = _pool_decoder.decode(without_mark(body)).pool_code
        if not code or code.isspace():
            parse_pointer(body)
            return DEFAULT_POOL
    except (InvalidMessageError, *_UNREADABLE):
        return UNREADABLE
    return code


def check_pointer(pointer: MessagePointer) -> None:
    """Raise `InvalidMessageError` unless the pointer can be routed and its header values can be sent."""
    if not pointer.id or pointer.id.isspace():
        raise InvalidMessageError("id is empty")
    check_target(pointer.mediation_target)
    token = pointer.auth_token
    if token and not (token.isascii() and token.isprintable()):
        raise InvalidMessageError("authToken has characters that cannot stand in an HTTP header")


def check_names(pointer: MessagePointer) -> None:
    """Raise `InvalidMessageError` if one of its names is too long."""
    check_name("id", pointer.id)
    check_name("poolCode", pointer.pool_code)
    check_name("messageGroupId", pointer.message_group_id)


def check_name(what: str, name: str | None) -> None:
    """Raise `InvalidMessageError` if a name that comes beside the pointer, as a deduplication id, is too long."""
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise _too_long(what, name)


def _too_long(what: str, text: str, most: int = MAX_NAME_CHARS) -> InvalidMessageError:
    return InvalidMessageError(f"{what} has {len(text)} characters, more than the {most} allowed")


def check_target(target: str) -> None:
    """Raise `InvalidMessageError` unless the target can be called. The HTTP clients judge by the same function."""
    if not target:
        raise InvalidMessageError("mediationTarget is empty: give an http:// or https:// URL")
    if len(target) > MAX_TARGET_CHARS:
        raise _too_long("mediationTarget", target, MAX_TARGET_CHARS)
    try:
        parse_target(target)
    except TargetRefusedError as error:
        raise InvalidMessageError(f"mediationTarget cannot be called: {error}") from None


class Delivery(msgspec.Struct, eq=False):
    """One message as a queue handed it over, plus what the router learns about it on its way.

    A queue adapter fills the first block. `pointer` is set when the body parses; a delivery without one never
    reaches a pool.

    A Struct, since one is made for each message: that of a dataclass takes eight times as long.
    """

    broker_id: str  # unique over all queues of a router; adapters prefix it where the broker's own id is not
    receipt: Any  # opaque to all but the adapter; replaced when the queue redelivers (receipt adoption)
    body: str | bytes
    group: str | None  # as the broker knows it; the router fills in the pointer's, or the default group
    receive_count: int = 1
    lease_until: float = 0.0  # monotonic time when the queue shows the message again; 0: it has no lease
    failures: int = 0  # failed attempts so far; a queue that can tell hands it out with the next delivery

    source: "Source" = None  # type: ignore[assignment]  # where it came from and who settles it
    pointer: MessagePointer = None  # type: ignore[assignment]
    batch: int = 0
    pool: str = ""  # code of the pool that took it
    tries: int = 0  # attempts started since the router received it
    arrived_at: float = 0.0  # monotonic
    attempt_at: float = 0.0  # monotonic start of the latest attempt
    rejected: bool = False  # recorded as a dead letter; a copy that is replayed is a message of its own
    waits_for: str = ""  # why its group is on hold, in words; empty otherwise

    @property
    def ordered(self) -> bool:
        return self.pointer.dispatch_mode is not DispatchMode.IMMEDIATE

    @property
    def returns_in_order(self) -> bool:
        """Its queue shows it again before the later ones of its group if it is nacked."""
        return self.source.capabilities.ordered_redelivery

    @property
    def is_shown_again(self) -> bool:
        """It can go back, or is lost itself, when one before it was lost."""
        return self.returns_in_order or not self.source.holds(self)

    @property
    def blocks_group(self) -> bool:
        mode = self.pointer.dispatch_mode
        return mode is None or mode is DispatchMode.BLOCK_ON_ERROR


def named_group(delivery: Delivery) -> str:
    """The queue's word for the group counts first, then the pointer's; all others share the default group."""
    group = delivery.group or delivery.pointer.message_group_id
    return group if group and not group.isspace() else DEFAULT_GROUP


def adopt_receipt(owned: Delivery, again: Delivery) -> None:
    """The queue showed a message again that we have: only its newest receipt is good."""
    owned.receipt = again.receipt
    owned.lease_until = again.lease_until
    owned.receive_count = again.receive_count


class Result(StrEnum):
    """MediationResult of 002."""

    SUCCESS = "SUCCESS"
    ERROR_PROCESS = "ERROR_PROCESS"
    ERROR_CONFIG = "ERROR_CONFIG"
    ERROR_CONNECTION = "ERROR_CONNECTION"


class ErrorKind(StrEnum):
    NONE = "NONE"
    NOT_ACKED = "NOT_ACKED"
    RATE_LIMITED = "RATE_LIMITED"
    HTTP_ERROR = "HTTP_ERROR"
    TIMEOUT = "TIMEOUT"
    NETWORK_ERROR = "NETWORK_ERROR"


_PATIENCE: Final = (ErrorKind.NOT_ACKED, ErrorKind.RATE_LIMITED)


class Severity(StrEnum):
    WARN = "WARN"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


@dataclass(slots=True, frozen=True)
class Outcome:
    """What one attempt meant."""

    result: Result
    error: ErrorKind = ErrorKind.NONE
    delay_s: float | None = None  # asked for by the endpoint
    retryable: bool = False  # worth another attempt inside the router
    trips_breaker: bool = False  # the endpoint could not be reached, did not answer, or a gateway said so
    warning: Severity | None = None
    status: int | None = None
    detail: str = ""  # one line for logs and dead letters; never holds a token
    excerpt: str = ""  # beginning of the response body
    note: str = ""  # what is odd about an answer that is no error: worth one warning per endpoint

    @property
    def counts(self) -> bool:
        """A failure of the message or its endpoint, not an endpoint asking for patience."""
        return self.result is not Result.SUCCESS and self.error not in _PATIENCE


@dataclass(slots=True, frozen=True)
class Ack:
    """Delivered: remove it from its queue."""


@dataclass(slots=True, frozen=True)
class Retry:
    """Keep it at the head of its group and try again after a while."""

    after_s: float


@dataclass(slots=True, frozen=True)
class Nack:
    """Give it back to its queue, to be shown again after a while."""

    delay_s: float


@dataclass(slots=True, frozen=True)
class Reject:
    """Never deliverable: record a dead letter, then remove it from its queue."""

    reason: str


Verdict = Ack | Retry | Nack | Reject
ACK: Final = Ack()


class Settled(Enum):
    """What a queue said about one settle request."""

    OK = "ok"
    GONE = "gone"  # the receipt is no longer valid: somebody else may own the message now
    FAILED = "failed"  # did not happen; the same request may work later
