"""HTTP headers that a message brings along, and how any text can stand in one. Pure."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from flowcatalyst.core.errors import InvalidMessageError

MAX_HEADERS: Final = 32
MAX_HEADERS_BYTES: Final = 8 * 1024  # names and values of all of them: what servers take
OUR_PREFIX: Final = "X-FlowCatalyst-"
TRACEPARENT: Final = "traceparent"  # of W3C Trace Context: which span of which trace something belongs to
TRACESTATE: Final = "tracestate"
MAX_TRACE_CHARS: Final = 512  # of each of the two

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONGEST_SHOWN: Final = 60
# Version 00 has nothing more; a later one may. Neither id is zero.
_TRACEPARENT: Final = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
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


def trace_context(said: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """The headers that continue a trace, of what an event or a message says of it; none if it cannot be continued.

    The names are in small letters. A fault in them is no fault of the message: it starts a trace of its own.
    """
    parent, state = said.get(TRACEPARENT), said.get(TRACESTATE)
    if not isinstance(parent, str) or len(parent) > MAX_TRACE_CHARS or not _TRACEPARENT.fullmatch(parent):
        return ()
    if not isinstance(state, str) or not 0 < len(state) <= MAX_TRACE_CHARS:
        return ((TRACEPARENT, parent),)
    is_header = state.isascii() and state.isprintable()
    return ((TRACEPARENT, parent), (TRACESTATE, state)) if is_header else ((TRACEPARENT, parent),)


def names_trace(header: str) -> bool:
    """Whether a header of this name is part of what continues a trace."""
    return header.lower() in (TRACEPARENT, TRACESTATE)


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
