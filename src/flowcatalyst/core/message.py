"""The words of the router: pointer, delivery, outcome, verdict."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from flowcatalyst.core.errors import InvalidMessageError, TargetRefusedError
from flowcatalyst.core.headers import check_headers
from flowcatalyst.core.json_words import fault_in, why_not_json
from flowcatalyst.core.payload import NO_PAYLOAD, check_payload, given
from flowcatalyst.core.targets import parse_target

Headers: TypeAlias = tuple[tuple[str, str], ...]

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


_IMMEDIATE: Final = DispatchMode.IMMEDIATE  # each message asks, and an enum takes its time to find a member


class MediationType(StrEnum):
    HTTP = "HTTP"


class MessagePointer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The routed message. It points at an endpoint. Without a payload, that gets the message's id and nothing else."""

    id: str
    mediation_target: str
    pool_code: str | None = None
    auth_token: str | None = None
    mediation_type: MediationType | None = None
    message_group_id: str | None = None
    high_priority: bool = False
    dispatch_mode: DispatchMode | None = None
    payload: msgspec.Raw = NO_PAYLOAD  # JSON as it stood in the body
    content_type: str | None = None
    headers: dict[str, str] | None = None


_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(MessagePointer))
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoder = msgspec.json.Decoder(MessagePointer)
_CHOICES: Final[dict[str, list[str]]] = {"mediationType": [*MediationType], "dispatchMode": [*DispatchMode]}
_REQUIRED: Final = ("id", "mediationTarget")
_FOREIGN: Final = "if its producer does not write for FlowCatalyst, set the queue to raw (docs/messages.md)"
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
encode_pointer = msgspec.json.Encoder().encode


def parse_pointer(body: str | bytes) -> MessagePointer:
    """The pointer in a queue body, or `InvalidMessageError` with the reason it is none."""
    try:
        pointer = _decoder.decode(body)
        if pointer.payload and not given(pointer.payload):
            return _parse_leniently(body)
        check_pointer(pointer)
        if len(body) > MAX_NAME_CHARS:
            check_names(pointer)
    except (*_UNREADABLE, InvalidMessageError):
        return _parse_leniently(body)
    return pointer


def _parse_leniently(body: str | bytes) -> MessagePointer:
    """The pointer that another producer means, as far as that is clear; the error says what is not."""
    found: dict[str, msgspec.Raw] | None = None
    try:
        found = _fields_decoder.decode(without_mark(body))
        if missing := [f"`{name}`" for name in _REQUIRED if name not in found]:
            said = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            raise InvalidMessageError(f"body is not a message pointer: {said}; {_FOREIGN}")
        payload = given(found.pop("payload", NO_PAYLOAD))  # as it stands, not as it is read here
        fields = {name: msgspec.json.decode(raw) for name, raw in found.items() if name in _FIELDS}
        pointer = msgspec.structs.replace(msgspec.convert(_as_we_write_it(fields), MessagePointer), payload=payload)
    except msgspec.ValidationError as error:
        fault = fault_in(error, _CHOICES)
        hint = "" if found is not None else f"; {_FOREIGN}"
        raise InvalidMessageError(f"body is not a message pointer: {fault.sentence('it')}{hint}") from None
    except _UNREADABLE as error:
        raise InvalidMessageError(f"body is not a message pointer: {why_not_json(error)}; {_FOREIGN}") from None
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
        raise InvalidMessageError("authToken contains characters that are not allowed in an HTTP header")
    if pointer.payload or pointer.content_type is not None:
        check_payload(pointer.payload, pointer.content_type)
    if pointer.headers is not None:
        check_headers(pointer.headers, has_token=bool(token))


def check_names(pointer: MessagePointer) -> None:
    """Raise `InvalidMessageError` if one of its names is too long."""
    check_name("id", pointer.id)
    check_name("poolCode", pointer.pool_code)
    check_name("messageGroupId", pointer.message_group_id)


def check_name(what: str, name: str | None) -> None:
    """Raise `InvalidMessageError` if a name that comes beside the pointer, as a deduplication id, is too long."""
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise _too_long(what, name)


def refuse_nul(what: str, name: str | None) -> None:
    """Raise `InvalidMessageError` for a name with a NUL: one broker cuts it off there, another refuses it.

    For what is published. What a queue brings is read as it is.
    """
    if name is not None and "\0" in name:
        raise InvalidMessageError(f"{what} has a NUL character, which not every queue can carry")


def _too_long(what: str, text: str, most: int = MAX_NAME_CHARS) -> InvalidMessageError:
    return InvalidMessageError(f"{what} has {len(text)} characters, more than the {most} allowed")


@lru_cache(maxsize=4096)  # those that can be called
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


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What a queue promises about order, leases and waits: the ways in which brokers differ."""

    ordered_redelivery: bool  # a nacked message is shown again before the later ones of its group
    locks_groups: bool  # a group with a message in flight is shown to nobody else
    delayed_nack: bool  # honours the delay of a nack
    extends: bool  # received messages have a lease, and it can be extended
    visibility_s: float  # how long a received message stays hidden; infinite: as long as its receiver is connected
    ordered_receive: bool = True  # messages of a group are first shown in the order they were published
    ordered_takeover: bool = True  # what a receiver that left or vanished had is shown before what comes after it
    selects_pools: bool = False  # can be asked for messages of certain pools; its storage is ours
    deduplicates: bool = True  # a deduplication id that was published a moment ago is not published again
    hurries: bool = False  # what was nacked with a delay can be shown again before that is over
    long_poll_s: float = 20.0  # how long one receive may wait; also how long a stop may have to wait for it


Told: TypeAlias = Callable[[], None] | None  # what to call when a queue knows


class Source(Protocol):
    """Where a delivery came from, as the core sees it: it can be ended there, and it can tell what that means."""

    name: str
    capabilities: Capabilities

    def ack(self, delivery: "Delivery", done: Callable[[], None] | None = None) -> None:
        """Remove the message from its queue; `done` is called when that is durable."""

    def nack(self, delivery: "Delivery", delay_s: float, *, unlock: bool = False, told: "Told" = None) -> None:
        """Requeue the message; `told` is called when its queue knows, or when it cannot be told."""

    def still_ours(self, delivery: "Delivery") -> bool:
        """Whether the message is still ours, as far as can be told without asking the broker."""


class Stamp(Protocol):
    """What the queue of a message adds to each request for it, besides its own headers."""

    def lines(self, delivery: "Delivery", body: bytes, wall: float) -> str:
        """Lines of headers, each with its CRLF. Raises `NotSignedError` if it may not be sent as things are."""

    def delivered(self, delivery: "Delivery") -> None:
        """It was: what comes after it in its group may say so."""


class Trace(Protocol):
    """What tracing began for a message."""

    def passed_on(self, headers: "Headers") -> "tuple[Headers, str]":
        """Headers without those that name a trace, and lines that name the span of the present attempt instead."""


@dataclass(slots=True, frozen=True)
class Terms:
    """What a message brings for itself: how long an attempt may take, and when it is tried again."""

    timeout_s: float
    max_retries: int
    delays_s: tuple[float, ...]  # before each retry; the last one again and again

    def delay_after(self, failures: int) -> float | None:
        """How long it waits that has failed so often; None: it is not tried again by itself."""
        if failures > self.max_retries:
            return None
        return self.delays_s[min(failures, len(self.delays_s)) - 1]


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
    message_id: str = ""  # its producer's own id for it at the broker, where that is not the broker id
    trace_context: Headers = ()  # of its producer, where that stands beside the body

    terms: Terms | None = None  # its own; None: those of the router
    due_at: float = 0.0  # wall time from which on it could be delivered; 0: its queue cannot tell
    expires_at: float = 0.0  # wall time from which on it is not started any more; 0: it does not expire
    position: int = 0  # in its group, as its queue counts attempts there; 0: it has none
    stamp: Stamp | None = None
    trace: Trace | None = None  # what was begun of it here; None: it is not traced

    source: Source = None  # type: ignore[assignment]  # where it came from and who settles it
    pointer: MessagePointer = None  # type: ignore[assignment]
    batch: int = 0
    pool: str = ""  # code of the pool that took it
    tries: int = 0  # attempts started since the router received it
    earlier: int = 0  # failed attempts that are known of from before that
    is_raw: bool = False  # its body itself is what is sent
    arrived_at: float = 0.0  # monotonic
    attempt_at: float = 0.0  # monotonic start of the latest attempt
    rejected: bool = False  # recorded as a dead letter; a copy that is replayed is a message of its own
    waits_for: str = ""  # why its group is on hold, in words; empty otherwise
    attempt: "Attempt | None" = None  # the latest one, for a queue that keeps them with the messages
    recalled: bool = False  # somebody wants it back in its queue: no further attempt of it starts here
    skip: str = ""  # why it becomes a dead letter instead of being tried, or tried again; empty: it is not skipped

    @property
    def number(self) -> int:
        """Of its latest attempt: in requests and logs alike it goes on after a redelivery."""
        return self.earlier + self.tries

    @property
    def ordered(self) -> bool:
        return self.pointer.dispatch_mode is not _IMMEDIATE

    @property
    def returns_in_order(self) -> bool:
        """Its queue shows it again before the later ones of its group if it is nacked."""
        return self.source.capabilities.ordered_redelivery

    @property
    def is_shown_again(self) -> bool:
        """It can be nacked, or is lost itself, when one before it was lost."""
        return self.returns_in_order or not self.source.still_ours(self)

    @property
    def blocks_group(self) -> bool:
        mode = self.pointer.dispatch_mode
        return mode is None or mode is DispatchMode.BLOCK_ON_ERROR


def named_group(delivery: Delivery) -> str:
    """The queue's word for the group counts first, then the pointer's; all others share the default group."""
    group = delivery.group or delivery.pointer.message_group_id
    return group if group and not group.isspace() else DEFAULT_GROUP


class Result(StrEnum):
    """What kind of end an attempt came to."""

    SUCCESS = "SUCCESS"
    ERROR_PROCESS = "ERROR_PROCESS"
    ERROR_CONFIG = "ERROR_CONFIG"
    ERROR_CONNECTION = "ERROR_CONNECTION"


SUCCESS: Final = Result.SUCCESS  # what nearly every attempt is asked for: an enum takes its time to find a member


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
    # A failure of the message or its endpoint, not an endpoint asking for patience. Each attempt asks.
    counts: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", self.result is not SUCCESS and self.error not in _PATIENCE)


@dataclass(slots=True, frozen=True)
class Attempt:
    """An attempt as a queue that keeps them writes it down, together with what follows from it."""

    began_at: float  # wall time
    duration_s: float
    outcome: Outcome


@dataclass(slots=True, frozen=True)
class Ack:
    """Delivered: remove it from its queue."""


@dataclass(slots=True, frozen=True)
class Retry:
    """Keep it at the head of its group and try again after a while."""

    after_s: float


@dataclass(slots=True, frozen=True)
class Nack:
    """Requeue it, to be shown again after a while; infinite: when somebody says so."""

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
