"""Events: what a sender writes, what one is, and what may be sent. Pure.

`new_event` makes an `Event` of a `NewEvent`, or says in one sentence what is wrong with it. Data stays as its sender
wrote it, byte for byte, so that what is signed and forwarded is what came.
"""

import re
from array import array
from base64 import b64decode
from binascii import Error as Base64Error
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.core.payload import (
    JSON_TYPE,
    NO_PAYLOAD,
    check_content_type,
    check_size,
    given,
    is_json,
    payload_bytes,
)
from flowcatalyst.dispatch.event_types import MAX_TYPE_CHARS, InvalidEventTypeError, check_event_type
from flowcatalyst.dispatch.job import MAX_SEQUENCE, Name, as_seconds, as_time

MAX_SOURCE_CHARS: Final = 1024  # of a source and a subject
MAX_EVENT_GROUP_CHARS: Final = 191  # with the code of a subscription before it, it is the group of a job
MAX_DATA_DEPTH: Final = 64  # objects and lists within each other
MAX_EXTENSIONS: Final = 20
MAX_EXTENSION_NAME_CHARS: Final = 64
MAX_EXTENSION_CHARS: Final = 1024
MAX_EXTENSION_NUMBER: Final = (1 << 53) - 1  # what every reader of JSON keeps exactly
SEQUENCE: Final = "sequence"  # the extension that is the place of an event's jobs in their groups

Scalar: TypeAlias = str | int | bool
_Source = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_SOURCE_CHARS})]
_Group = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_EVENT_GROUP_CHARS})]
_Type = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TYPE_CHARS})]

_EXTENSION_NAME: Final = re.compile(r"[a-z0-9]+")
_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
_SPACE: Final = re.compile(r"\s")
_LONGEST_SHOWN: Final = 60
# What is a field here, by the name that CloudEvents has for it, where it is an attribute beside the extensions.
FIELDS: Final = {
    "specversion": "specVersion",
    "id": "id",
    "type": "type",
    "source": "source",
    "subject": "subject",
    "time": "time",
    "datacontenttype": "dataContentType",
    "messagegroup": "messageGroup",
    "deduplicationid": "deduplicationId",
    "correlationid": "correlationId",
    "causationid": "causationId",
    "data": "data",
}


class InvalidEventError(FlowCatalystError):
    """An event cannot be accepted as it is; the sender has to change it."""


class NewEvent(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """An event as its sender writes it. Unknown fields are errors: a typo in messageGroup would lose the order."""

    type: _Type
    source: _Source
    spec_version: Literal["1.0"] = "1.0"
    id: Name | None = None  # the sender's own, unique within its source
    subject: _Source | None = None
    time: datetime | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    data_base64: str | None = msgspec.field(default=None, name="dataBase64")  # instead of data: bytes that are no text
    data_content_type: str | None = None
    message_group: _Group | None = None
    deduplication_id: Name | None = None
    correlation_id: Name | None = None
    causation_id: Name | None = None
    extensions: dict[str, str | int | float | bool | None] = {}


class Event(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """An event that was accepted. Two are equal if all of them is, data byte by byte."""

    id: str  # ours, unique
    type: str
    source: str
    time: datetime  # UTC; when it came if its sender did not say
    sender_id: str | None = None  # the sender's own, unique within its source
    subject: str | None = None
    data: msgspec.Raw = NO_PAYLOAD  # JSON as it was written, empty: none. Of text that is no JSON, the string of it
    data_base64: str | None = msgspec.field(default=None, name="dataBase64")  # instead of data: bytes that are no text
    data_content_type: str | None = None
    message_group: str | None = None
    deduplication_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    extensions: dict[str, Scalar] = {}
    spec_version: str = "1.0"

    @property
    def sequence(self) -> int | None:
        """The place of its jobs in their groups, if its sender gave one."""
        said = self.extensions.get(SEQUENCE)
        return None if said is None else int(said)

    @property
    def data_is_json(self) -> bool:
        return bool(self.data) and is_json(self.data_content_type or JSON_TYPE)

    def data_bytes(self) -> bytes:
        """Its data as it is sent without an envelope: JSON as it was written, text, or bytes; null if there is none."""
        if self.data_base64 is not None:
            return b64decode(self.data_base64)
        return payload_bytes(self.data, self.data_content_type or JSON_TYPE) if self.data else b"null"


def new_event(asked: NewEvent, event_id: str, now: float) -> Event:
    """The event that was sent. Raises `InvalidEventError` with one sentence if it cannot be accepted.

    An event with an id of its sender's but no deduplicationId is known by its source and that id (CloudEvents: these
    two together are unique): `deduplication_id` is both, with a space between them, which no source has.
    """
    try:
        check_event_type("type", asked.type)
    except InvalidEventTypeError as error:
        raise InvalidEventError(str(error)) from None
    for what, text, most in (
        ("source", asked.source, MAX_SOURCE_CHARS),
        ("id", asked.id, MAX_NAME_CHARS),
        ("subject", asked.subject, MAX_SOURCE_CHARS),
        ("messageGroup", asked.message_group, MAX_EVENT_GROUP_CHARS),
        ("deduplicationId", asked.deduplication_id, MAX_NAME_CHARS),
        ("correlationId", asked.correlation_id, MAX_NAME_CHARS),
        ("causationId", asked.causation_id, MAX_NAME_CHARS),
    ):
        if text is not None and (not text or text.isspace()):
            raise InvalidEventError(f"{what} is empty")
        _check_text(what, text or "", most)
    if _SPACE.search(asked.source):
        raise InvalidEventError("source has a space, which no URI reference has: write %20")
    data = given(asked.data)
    _check_data(data, asked.data_base64, asked.data_content_type)
    time = as_time(now if asked.time is None else as_seconds(asked.time))
    deduplication_id = asked.deduplication_id
    if deduplication_id is None and asked.id is not None:
        deduplication_id = known_by(asked.source, asked.id)
    return Event(
        id=event_id,
        type=asked.type,
        source=asked.source,
        time=time or datetime.fromtimestamp(now, UTC),
        sender_id=asked.id,
        subject=asked.subject,
        data=data.copy(),  # a view of the whole body until then
        data_base64=asked.data_base64,
        data_content_type=asked.data_content_type,
        message_group=asked.message_group,
        deduplication_id=deduplication_id,
        correlation_id=asked.correlation_id,
        causation_id=asked.causation_id,
        extensions=_extensions(asked.extensions),
    )


def known_by(source: str, sender_id: str) -> str:
    """The deduplication id of an event that came without one."""
    return f"{source} {sender_id}"


def _check_text(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InvalidEventError(f"{what} has {len(text)} characters, more than the {most} allowed")
    if _CONTROL.search(text):
        raise InvalidEventError(f"{what} has a control character, which no attribute of an event may have")


def _check_data(data: msgspec.Raw, data_base64: str | None, content_type: str | None) -> None:
    try:
        if content_type is not None:
            check_content_type(content_type)
        if data_base64 is not None:
            if data:
                raise InvalidEventError("data and dataBase64 are both there: leave one of the two out")
            check_size("dataBase64", len(b64decode(data_base64, validate=True)))
            return
        check_size("data", len(data))
        str(data, "utf-8")
        if data:
            payload_bytes(data, content_type or JSON_TYPE)
    except InvalidMessageError as error:
        raise InvalidEventError(str(error).replace("contentType", "dataContentType")) from None
    except (Base64Error, ValueError):
        what = "data is not valid Unicode" if data_base64 is None else "dataBase64 is not base64"
        raise InvalidEventError(what) from None
    if depth_of(data) > MAX_DATA_DEPTH:
        raise InvalidEventError(f"data has objects and lists within each other more than {MAX_DATA_DEPTH} deep")


_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))


def depth_of(data: bytes | msgspec.Raw) -> int:
    """How deep the objects and lists of a JSON text are within each other; for those of few it may say more.

    Counted without decoding, since a decoder that recurses ends at a depth that depends on who calls it.
    """
    text = bytes(data)
    if (most := containers_in(text)) <= MAX_DATA_DEPTH:
        return most
    return max(accumulate(array("b", _STRINGS.sub(b"", text).translate(_STEPS, _NO_BRACKETS))), default=0)


def containers_in(text: bytes) -> int:
    """How many objects and lists a JSON text has at most: a bracket in a string counts too."""
    return text.count(b"[") + text.count(b"{")


def _extensions(asked: dict[str, str | int | float | bool | None]) -> dict[str, Scalar]:
    """Those that are there: null is absent, as for every field."""
    kept = {name: value for name, value in asked.items() if value is not None}
    if len(kept) > MAX_EXTENSIONS:
        raise InvalidEventError(f"extensions has {len(kept)} entries, more than the {MAX_EXTENSIONS} allowed")
    checked: dict[str, Scalar] = {}
    for name, value in kept.items():
        shown = repr(name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}...")
        if not _EXTENSION_NAME.fullmatch(name) or len(name) > MAX_EXTENSION_NAME_CHARS:
            most = f"{MAX_EXTENSION_NAME_CHARS} of a-z and 0-9"
            raise InvalidEventError(f"extensions has {shown}, which is no name of one: it has up to {most}")
        if name in FIELDS:
            raise InvalidEventError(f"extensions has {shown}: give it as {FIELDS[name]}, beside extensions")
        if isinstance(value, float):
            raise InvalidEventError(f"the extension {name} must be text, a whole number, true or false")
        if isinstance(value, str):
            _check_text(f"the extension {name}", value, MAX_EXTENSION_CHARS)
        elif abs(value) > MAX_EXTENSION_NUMBER:
            raise InvalidEventError(f"the extension {name} is a number beyond {MAX_EXTENSION_NUMBER}: give it as text")
        if name == SEQUENCE and not _is_sequence(value):
            raise InvalidEventError(f"the extension sequence is no whole number from 0 to {MAX_SEQUENCE}")
        checked[name] = value
    return checked


def _is_sequence(value: Scalar) -> bool:
    """A number, or the digits of one: CloudEvents has it as text, and in headers everything is."""
    if isinstance(value, str):
        return (
            value.isascii() and value.isdigit() and len(value) <= len(str(MAX_SEQUENCE)) and int(value) <= MAX_SEQUENCE
        )
    return not isinstance(value, bool) and 0 <= value <= MAX_SEQUENCE
