"""Events as CloudEvents 1.0, over HTTP: structured, batched and binary mode in, the structured form out. Pure.

Reading gives a `NewEvent`, which `new_event` judges as any other. `messagegroup`, `deduplicationid`, `correlationid`
and `causationid` are the fields of these names; what is left is extensions, `dataschema` among them.
"""

import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from flowcatalyst.core.json_words import why_not_json
from flowcatalyst.core.payload import JSON_TYPE, is_json
from flowcatalyst.dispatch.event import FIELDS, Event, InvalidEventError, NewEvent, Scalar, known_by

STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
HEADER_PREFIX: Final = "ce-"

_REQUIRED: Final = ("specversion", "id", "source", "type")
_ATTRIBUTES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BATCH: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY_JSON: Final = msgspec.json.Decoder(msgspec.Raw)
_SCALAR: Final = msgspec.json.Decoder(str | int | float | bool | None)
_ESCAPED: Final = re.compile(r"\\(.)")
_NOT_READ: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_SNAKE: Final = {  # as `NewEvent` has them
    "datacontenttype": "data_content_type",
    "messagegroup": "message_group",
    "deduplicationid": "deduplication_id",
    "correlationid": "correlation_id",
    "causationid": "causation_id",
}


class Mode(StrEnum):
    """How an HTTP request carries CloudEvents."""

    STRUCTURED = "STRUCTURED"
    BATCHED = "BATCHED"
    BINARY = "BINARY"


def mode_of(content_type: str | None, header_names: Iterable[str]) -> Mode | None:
    """How a request carries CloudEvents, by its Content-Type and the names of its headers; None: it carries none.

    Raises `InvalidEventError` for a format of CloudEvents that is not read, such as Avro.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type == STRUCTURED_TYPE:
        return Mode.STRUCTURED
    if media_type == BATCH_TYPE:
        return Mode.BATCHED
    if media_type.startswith("application/cloudevents"):
        raise InvalidEventError(f"Content-Type {media_type[:100]} is not read: send {STRUCTURED_TYPE} or {BATCH_TYPE}")
    return Mode.BINARY if any(name.lower() == "ce-specversion" for name in header_names) else None


def from_structured(body: bytes | msgspec.Raw) -> NewEvent:
    """One event in JSON. Its data stays as it is written. Raises `InvalidEventError`."""
    try:
        members = _ATTRIBUTES.decode(body)
        data = members.pop("data", msgspec.Raw())
        attributes: dict[str, Any] = {name: _scalar(name, raw) for name, raw in members.items()}
    except msgspec.ValidationError:
        raise InvalidEventError("a CloudEvent in JSON is an object") from None
    except _NOT_READ as error:
        raise InvalidEventError(f"the CloudEvent is not JSON: {why_not_json(error)}") from None
    data_base64 = attributes.pop("data_base64", None)
    if data_base64 is not None and not isinstance(data_base64, str):
        raise InvalidEventError("data_base64 must be text")
    return _event(attributes, data, data_base64)


def from_batch(body: bytes) -> list[NewEvent | InvalidEventError]:
    """Each event of a list in JSON, or what is wrong with it. Raises `InvalidEventError` if it is no list."""
    try:
        events = _BATCH.decode(body)
    except msgspec.ValidationError:
        raise InvalidEventError("a batch of CloudEvents is a list") from None
    except _NOT_READ as error:
        raise InvalidEventError(f"the batch of CloudEvents is not JSON: {why_not_json(error)}") from None
    read: list[NewEvent | InvalidEventError] = []
    for event in events:
        try:
            read.append(from_structured(event))
        except InvalidEventError as error:
            read.append(error)
    return read


def from_binary(headers: Iterable[tuple[str, str]], body: bytes) -> NewEvent:
    """An event whose attributes are `ce-` headers and whose data is the body. Raises `InvalidEventError`.

    A body of another Content-Type than JSON becomes the string of its text, or base64 if it is no UTF-8, as the JSON
    format has them.
    """
    attributes: dict[str, Any] = {}
    content_type: str | None = None
    for written, value in headers:
        name = written.lower()
        if name == "content-type":
            content_type = value
        elif name.startswith(HEADER_PREFIX):
            attribute = name.removeprefix(HEADER_PREFIX)
            if attribute in attributes:
                raise InvalidEventError(f"the header {name} is there twice")
            if attribute in ("datacontenttype", "data", "data_base64"):
                raise InvalidEventError(
                    f"the header {name} is no attribute here: the body is the data, its type Content-Type"
                )
            attributes[attribute] = _header_text(name, value)
    data, data_base64 = msgspec.Raw(), None
    if body:
        if is_json(content_type or JSON_TYPE):
            try:
                data = _ANY_JSON.decode(body)
            except _NOT_READ as error:
                said = "by its Content-Type" if content_type else "without a Content-Type"
                raise InvalidEventError(f"the body is JSON {said}, and cannot be read: {why_not_json(error)}") from None
        else:
            try:
                data = msgspec.Raw(msgspec.json.encode(body.decode()))
            except UnicodeError:
                data_base64 = b64encode(body).decode()
    if content_type is not None and body:
        attributes["datacontenttype"] = content_type
    return _event(attributes, data, data_base64)


def attributes_of(event: Event) -> dict[str, Scalar]:
    """All but the data, by the names that CloudEvents has for them; those that are not there are left out.

    The id is that of its sender, which is unique within its source, and ours if there was none.
    """
    found = {
        "specversion": event.spec_version,
        "id": event.sender_id or event.id,
        "type": event.type,
        "source": event.source,
        "subject": event.subject,
        "time": event.time.isoformat().replace("+00:00", "Z"),
        "datacontenttype": event.data_content_type or (JSON_TYPE if event.data else None),
        "messagegroup": event.message_group,
        "correlationid": event.correlation_id,
        "causationid": event.causation_id,
    }
    if event.sender_id is None or event.deduplication_id != known_by(event.source, event.sender_id):
        found["deduplicationid"] = event.deduplication_id
    return {**{name: value for name, value in found.items() if value is not None}, **event.extensions}


def envelope(event: Event) -> bytes:
    """The event as a CloudEvent in JSON: what a webhook gets unless it wants the data only. Data stay as they came."""
    members: dict[str, object] = dict(attributes_of(event))
    if event.data_base64 is not None:
        members["data_base64"] = event.data_base64
    elif event.data:
        members["data"] = event.data
    return msgspec.json.encode(members)


def _event(attributes: dict[str, Any], data: msgspec.Raw, data_base64: str | None) -> NewEvent:
    found = {name: value for name, value in attributes.items() if value is not None}
    if missing := [name for name in _REQUIRED if name not in found]:
        raise InvalidEventError(f"the CloudEvent has no {' and no '.join(missing)}")
    if found["specversion"] != "1.0":
        raise InvalidEventError(f"specversion is {str(found['specversion'])[:20]!r}: only 1.0 is read")
    fields: dict[str, Any] = {}
    for name in FIELDS:
        if (value := found.pop(name, None)) is not None:
            if not isinstance(value, str):
                raise InvalidEventError(f"{name} must be text")
            fields[_SNAKE.get(name, name)] = value
    del fields["specversion"]
    for name in found:
        if (written := name.lower()) in FIELDS:
            raise InvalidEventError(f"{name!r} is no attribute of a CloudEvent: it is written {written!r}")
    if "time" in fields:
        try:
            fields["time"] = msgspec.convert(fields["time"], datetime)
        except msgspec.ValidationError:
            raise InvalidEventError(f"time is {fields['time'][:40]!r}, which is no time of RFC 3339") from None
    return NewEvent(**fields, data=data, data_base64=data_base64, extensions=found)


def _scalar(name: str, raw: msgspec.Raw) -> str | int | float | bool | None:
    try:
        value: str | int | float | bool | None = _SCALAR.decode(raw)
    except msgspec.ValidationError:
        raise InvalidEventError(f"{name[:60]!r} must be text, a whole number, true or false") from None
    return value


def _header_text(name: str, value: str) -> str:
    """What a header says: without quotes round it, then percent-decoded, as the HTTP binding has it."""
    if not (value.isascii() and value.isprintable()):
        raise InvalidEventError(f"the header {name[:60]} has more than printable ASCII: percent-encode it")
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = _ESCAPED.sub(r"\1", text[1:-1])
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        raise InvalidEventError(f"the header {name[:60]} is not UTF-8 when it is percent-decoded") from None
