"""What a message has sent instead of its id: any JSON value, or text, with its content type. Pure."""

import re
from functools import lru_cache
from typing import Final

import msgspec

from flowcatalyst.core.errors import InvalidMessageError

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_CONTENT_TYPE_CHARS: Final = 256
JSON_TYPE: Final = "application/json"
NO_PAYLOAD: Final = msgspec.Raw()

_NULL: Final = msgspec.Raw(b"null")
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER: Final = rf'[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"(?:[\t !#-\[\]-~]|\\[\t -~])*")'
_MEDIA_TYPE: Final = re.compile(rf"(?P<type>{_WORD}/{_WORD})(?:{_PARAMETER})*")
_TEXT: Final = msgspec.json.Decoder(str)


def given(payload: msgspec.Raw) -> msgspec.Raw:
    """null is absent, as for every field of a message."""
    return payload if payload and payload != _NULL else NO_PAYLOAD


def check_payload(payload: msgspec.Raw, content_type: str | None) -> None:
    """Raise `InvalidMessageError` unless the payload (empty: there is none) can be sent."""
    if content_type is not None:
        if not payload:
            raise InvalidMessageError("contentType is there without a payload")
        check_content_type(content_type)
    try:
        str(payload, "utf-8")
        sent = payload_bytes(payload, content_type) if content_type is not None else payload
    except (UnicodeError, msgspec.DecodeError):
        raise InvalidMessageError("payload is not valid Unicode") from None
    check_size("payload", len(sent))


def check_size(what: str, size: int) -> None:
    """Raise `InvalidMessageError` if there is more of it than is ever sent."""
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidMessageError(f"{what} has {size} bytes, more than the {MAX_PAYLOAD_BYTES} allowed")


def check_content_type(content_type: str) -> None:
    if len(content_type) > MAX_CONTENT_TYPE_CHARS or not _MEDIA_TYPE.fullmatch(content_type):
        raise InvalidMessageError("contentType is not a media type, such as text/plain or application/xml")


def payload_bytes(payload: msgspec.Raw, content_type: str) -> bytes:
    """What is sent: JSON as it stood in the message, but the text itself of a string that is not to be sent as JSON."""
    body = bytes(payload)
    if body.startswith(b'"') and not is_json(content_type):
        return _TEXT.decode(body).encode()
    return body


@lru_cache(maxsize=256)
def is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in (JSON_TYPE, "text/json") or media_type.endswith("+json")
