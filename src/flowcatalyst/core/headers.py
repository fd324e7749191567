"""HTTP headers that a message brings along, and how any text can stand in one. Pure."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from flowcatalyst.core.errors import InvalidMessageError

MAX_HEADERS: Final = 32
MAX_HEADERS_BYTES: Final = 8 * 1024  # names and values of all of them: what servers take
OUR_PREFIX: Final = "X-FlowCatalyst-"

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONGEST_SHOWN: Final = 60
# What frames a request, belongs to its connection, or tells how its answer is read.
_ROUTERS_OWN: Final = frozenset(
    [
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ]
)


def header_safe(text: str) -> str:
    """The text, or where it cannot stand in a header its percent-encoding as UTF-8.

    What holds a % is encoded too, so that decoding always gives the text.
    """
    if text.isascii() and text.isprintable() and "%" not in text and text == text.strip():
        return text
    return quote(text, safe="")


def check_headers(headers: Mapping[str, str], has_token: bool = False) -> None:
    """Raise `InvalidMessageError` unless all of them can be sent. No value is repeated: it may be a secret."""
    if len(headers) > MAX_HEADERS:
        raise InvalidMessageError(f"headers has {len(headers)} entries, more than the {MAX_HEADERS} allowed")
    size = 0
    seen: set[str] = set()
    for name, value in headers.items():
        _check_name(name, has_token)
        if not (value.isascii() and value.isprintable()):
            raise InvalidMessageError(f"the header {name} may have printable ASCII characters only")
        if name.lower() in seen:
            raise InvalidMessageError(f"the header {name} is there twice: the case of its letters makes no difference")
        seen.add(name.lower())
        size += len(name) + len(value)
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessageError(f"headers has {size} bytes, more than the {MAX_HEADERS_BYTES} allowed")


def _check_name(name: str, has_token: bool) -> None:
    if not _TOKEN.fullmatch(name):
        shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
        raise InvalidMessageError(f"headers has {shown!r}, which is not the name of a header")
    lowered = name.lower()
    if lowered == "authorization" and has_token:
        raise InvalidMessageError("the header Authorization is made of authToken: leave one of the two out")
    if lowered == "content-type":
        raise InvalidMessageError("the header Content-Type is made of contentType: leave it out of headers")
    if lowered in _ROUTERS_OWN or lowered.startswith(OUR_PREFIX.lower()):
        raise InvalidMessageError(f"the header {name} is set by the router alone: leave it out of headers")
