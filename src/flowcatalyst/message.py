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
DEFAULT_GROUP: Final = "__DEFAULT__"
MAX_BODY_BYTES: Final = 256 * 1024  # the limit of SQS, so that a message that fits here fits every broker


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
encode_pointer = msgspec.json.Encoder().encode


def parse_pointer(body: str | bytes) -> MessagePointer:
    """The pointer in a queue body, or `InvalidMessageError` with the reason it is none."""
    try:
        pointer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidMessageError(f"body is not a message pointer: {error}") from None
    check_pointer(pointer)
    return pointer


class _PoolOnly(msgspec.Struct, rename="camel"):
    pool_code: str | None = None


_pool_decoder = msgspec.json.Decoder(_PoolOnly)


def pool_code_of(body: str | bytes) -> str:
    """The pool that a message asks for, also if the rest of its body cannot be read; the default pool if none."""
    try:
        code = _pool_decoder.decode(body).pool_code
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return DEFAULT_POOL
    return code if code and not code.isspace() else DEFAULT_POOL


def check_pointer(pointer: MessagePointer) -> None:
    """Raise `InvalidMessageError` unless the pointer can be routed and its header values can be sent."""
    if not pointer.id or pointer.id.isspace():
        raise InvalidMessageError("id is empty")
    check_target(pointer.mediation_target)
    token = pointer.auth_token
    if token and not (token.isascii() and token.isprintable()):
        raise InvalidMessageError("authToken has characters that cannot stand in an HTTP header")


def check_target(target: str) -> None:
    """Raise `InvalidMessageError` unless the target can be called. The HTTP clients judge by the same function."""
    if not target:
        raise InvalidMessageError("mediationTarget is empty: give an http:// or https:// URL")
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
    note: str = ""  # what is odd about a success: worth one warning per endpoint

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
