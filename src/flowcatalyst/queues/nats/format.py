"""How messages look in JetStream: acknowledgement subjects, headers, groups. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from flowcatalyst.core.headers import header_safe
from flowcatalyst.core.message import without_mark
from flowcatalyst.queues.contract import Outgoing

GROUP_HEADER: Final = "FlowCatalyst-Group"
FORM_HEADER: Final = "FlowCatalyst-Group-Form"
ENCODED: Final = "percent"  # the group's name could not stand in a header as it is
ALONE: Final = "none"  # published without a group, whatever its subject says
ID_HEADER: Final = "Nats-Msg-Id"
STREAM_HEADER: Final = "Nats-Expected-Stream"
ACK, IN_PROGRESS, NAK = b"+ACK", b"+WPI", b"-NAK"
_ACK_PREFIX: Final = "$JS.ACK."
_WHOLE_SUBJECT: Final = 0  # instead of the number of a token
_EMPTY: Final = "%"  # no encoding of anything
_PLAIN_TOKENS, _LEAST_DOMAIN_TOKENS = 9, 11


class Receipt(NamedTuple):
    """How to settle a delivery."""

    reply: str  # the subject that JetStream listens on for it
    seq: int  # in its stream


class Place(NamedTuple):
    """What the reply subject of a delivery tells."""

    delivered: int  # how often, this time included
    seq: int  # of the message in its stream
    delivery: int  # running number of all deliveries of the consumer
    stored_at: float = 0.0  # wall time of the server; 0: it does not tell


def parse_reply(reply: str) -> Place | None:
    """$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQ.DELIVERY.TIME.PENDING, or with a domain and an account in front."""
    tokens = reply.split(".")
    first = 4 if len(tokens) == _PLAIN_TOKENS else 6
    if not reply.startswith(_ACK_PREFIX) or (first != 4 and len(tokens) < _LEAST_DOMAIN_TOKENS):
        return None
    try:
        delivered, seq, delivery, nanoseconds = map(int, tokens[first : first + 4])
        return Place(delivered, seq, delivery, nanoseconds / 1e9)
    except ValueError:
        return None


def pending_in(reply: str) -> int:
    """How many messages were behind this one in the stream when it was delivered."""
    tokens = reply.split(".")
    return int(tokens[8 if len(tokens) == _PLAIN_TOKENS else 10])


def made_up_reply(stream: str, consumer: str, seq: int, delivery: int) -> str:
    """The reply subject of a delivery that somebody else received. JetStream looks at the two numbers only."""
    return f"{_ACK_PREFIX}{stream}.{consumer}.1.{seq}.{delivery}.0.0"


def delayed_nak(delay_s: float) -> bytes:
    return b'-NAK {"delay": %d}' % int(delay_s * 1e9)


def headers_of(message: Outgoing, stream: str, group_header: str | None) -> dict[str, str]:
    headers = {STREAM_HEADER: stream}
    if message.group is None:
        headers[FORM_HEADER] = ALONE
    else:
        headers[group_header or GROUP_HEADER] = safe = header_safe(message.group) or _EMPTY
        if safe != message.group:
            headers[FORM_HEADER] = ENCODED
    if message.deduplication_id is not None:
        headers[ID_HEADER] = header_safe(message.deduplication_id) or _EMPTY
    return headers


def size_of(headers: Mapping[str, str], payload: bytes) -> int:
    """What counts towards the server's max_payload."""
    lines = sum(len(name) + len(value) + 4 for name, value in headers.items())
    return len("NATS/1.0\r\n\r\n") + lines + len(payload)


class _BodyGroup(msgspec.Struct):
    messageGroupId: str | int | None = None  # noqa: N815 - as it is called in the body


_decode_group = msgspec.json.Decoder(_BodyGroup).decode


def group_of(
    headers: Mapping[str, str] | None, subject: str, body: bytes, header: str | None, token: int | None
) -> str | None:
    """By header, else None where the body names it, else by the subject's token where one is set."""
    if headers:
        form = headers.get(FORM_HEADER)
        name = headers.get(header or GROUP_HEADER)
        if name is not None:
            if form != ENCODED:
                return name
            return "" if name == _EMPTY else unquote(name)
        if form == ALONE:
            return None
    if token is None or _body_names_group(body):
        return None
    if token == _WHOLE_SUBJECT:
        return subject
    tokens = subject.split(".")
    return tokens[token - 1] if token <= len(tokens) else None


def _body_names_group(body: bytes) -> bool:
    try:
        group = _decode_group(without_mark(body)).messageGroupId
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return group is not None and bool(str(group).strip())


class _Refusal(msgspec.Struct):
    description: str = "no reason given"
    err_code: int = 0


class PublishAnswer(msgspec.Struct):
    seq: int = 0
    duplicate: bool = False
    error: _Refusal | None = None


decode_publish_answer = msgspec.json.Decoder(PublishAnswer).decode
