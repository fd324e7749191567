"""What an AMQP 1.0 message means to the router: its text, its group, who it is, and how often it failed."""

import atexit
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
from proton import Message, symbol

from flowcatalyst.core.headers import TRACEPARENT, trace_context
from flowcatalyst.core.message import Headers

# Application properties of a copy that was sent again to be shown later. Valid names for JMS, too.
IDENTITY: Final = "flowcatalyst_id"
FAILURES: Final = "flowcatalyst_failures"
NOT_BEFORE: Final = "flowcatalyst_not_before"  # wall time
DELAY: Final = "flowcatalyst_delay"  # seconds
# What the scheduler of ActiveMQ Classic adds. A message that has its job id already is not scheduled again.
_OF_SCHEDULER: Final = ("scheduledJobId", "AMQ_SCHEDULED_")
_DELIVERY_DELAY: Final = symbol("x-opt-delivery-delay")  # milliseconds; both brokers know it
LONG_ID: Final = 16


@dataclass(slots=True, frozen=True)
class Content:
    """What the adapter needs to know of a message."""

    identity: str  # the same whenever the message is shown, also on another connection and as a delayed copy
    body: str | bytes
    group: str | None
    deliveries: int = 0  # earlier ones, as the broker counts them
    failures: int = 0
    not_before: float = 0.0  # wall time
    delay_s: float = 0.0
    is_copy: bool = False
    trace_context: Headers = ()
    made_at: float = 0.0  # wall time of its producer; 0: it does not tell


_reused = [Message()]  # making one costs half as much as decoding into it
atexit.register(_reused.clear)  # while Proton is whole: later its destructor would complain


def read(raw: bytes) -> Content:
    """Never fails: what cannot be decoded is handed over as it is, and becomes a dead letter."""
    message = _reused[0]
    try:
        message.decode(raw)
    except Exception:  # Proton and its codecs raise a dozen kinds, and this is foreign input
        return Content(_digest(raw, None), raw, None)
    group = message.group_id or None
    body = raw if message.body is None else _plain(message.body)
    properties = message.properties
    trace = trace_context(properties) if properties and TRACEPARENT in properties else ()
    if properties and IDENTITY in properties:
        return Content(
            str(properties[IDENTITY]),
            body,
            group,
            message.delivery_count,
            failures=int(_number(properties.get(FAILURES))),
            not_before=_number(properties.get(NOT_BEFORE)),
            delay_s=_number(properties.get(DELAY)),
            is_copy=True,
            trace_context=trace,
            made_at=message.creation_time,
        )
    contents = b"" if body is raw else body  # raw bytes hold counters, too, which change
    # The message's own id. Where it has none, its contents: two equal messages then look like one shown twice.
    # An id that is short may be a mere count that its producer begins anew with each run, so the contents are added.
    text = message.id.hex() if isinstance(message.id, bytes) else "" if message.id is None else str(message.id)
    identity = text if len(text) >= LONG_ID else f"{text}-{_digest(contents, group)}"
    return Content(identity, body, group, message.delivery_count, trace_context=trace, made_at=message.creation_time)


def write(body: str, group: str | None, message_id: str, wall: float) -> bytes:
    message = Message(body=body, id=message_id, durable=True, creation_time=wall)
    if group is not None:
        message.group_id = group
    return bytes(message.encode())


def delayed_copy(raw: bytes, content: Content, *, failures: int, delay_s: float, not_before: float) -> bytes:
    """The same message once more, for the broker to show after a delay."""
    message = Message()
    message.decode(raw)
    properties = {
        name: value for name, value in (message.properties or {}).items() if not name.startswith(_OF_SCHEDULER)
    }
    own = {IDENTITY: content.identity, FAILURES: failures, NOT_BEFORE: not_before, DELAY: delay_s}
    message.properties = {**properties, **own}
    message.annotations = {_DELIVERY_DELAY: round(delay_s * 1000)}
    message.instructions = None
    message.delivery_count = 0
    message.durable = True
    return bytes(message.encode())


def _digest(body: str | bytes, group: str | None) -> str:
    data = body if isinstance(body, bytes) else body.encode()
    return blake2b(data, digest_size=12, key=(group or "").encode()[:64]).hexdigest()


def _plain(body: object) -> str | bytes:
    """Text and bytes as they are; anything else, a JMS MapMessage for one, as JSON, or as Python shows it."""
    if type(body) is str or type(body) is bytes:
        return body
    if isinstance(body, str):
        return str(body)
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    try:
        return msgspec.json.encode(body, enc_hook=repr)
    except Exception:  # whatever somebody put into a message
        return repr(body)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
