"""What the mediator asks of an HTTP client, and the words both of them use."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from flowcatalyst.core.errors import TargetRefusedError
from flowcatalyst.core.targets import Target

MAX_BODY_BYTES: Final = 64 * 1024  # of a response: what follows is never read

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
# What frames a request or belongs to one connection is the client's to say.
_CLIENTS_OWN_HEADERS: Final = frozenset(
    [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)


@dataclass(slots=True, frozen=True)
class Content:
    """What a response says of its body, and how the body ended."""

    type: str = ""  # Content-Type, in lower case
    coding: str = ""  # content and transfer codings that have to be undone before the body can be read
    truncated: bool = False  # longer than what is read
    framed: bool = True  # False: it ended with its connection, which may have come too early


WHOLE: Final = Content()
_NO_CODINGS: Final = ("", "identity", "chunked")


class Response(msgspec.Struct, eq=False):
    """A response, its body read to the client's cap at most."""

    status: int
    headers: Iterable[tuple[bytes, bytes]]  # names in lower case
    body: bytes
    truncated: bool = False
    framed: bool = True

    def header(self, name: str) -> str | None:
        """The first value of a header; its name in any case."""
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    def content(self) -> Content:
        content_type, codings = "", []
        for name, value in self.headers:
            if name == b"content-type":
                content_type = value.decode("latin-1").lower()
            elif name in (b"content-encoding", b"transfer-encoding"):
                words = (word.strip() for word in value.decode("latin-1").lower().split(","))
                codings += [word for word in words if word not in _NO_CODINGS]
        return Content(content_type, ", ".join(codings), self.truncated, self.framed)


class HttpClient(Protocol):
    """Sends each request at most once and returns any response, whatever its status.

    `timeout_s` is the total deadline of one request where it should be shorter than the client's own. `headers` are
    those that many requests share, so that a client may remember them; `lines` are those of this one, each as
    "Name: value" and CR LF, and nothing in them is checked again.

    Raises `LocalShortageError`, `ConnectError`, `ConnectionBrokenError`, `RequestTimeoutError` or `TargetRefusedError`.
    """

    async def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Response: ...

    async def close(self) -> None: ...


def check_header(name: str, value: str) -> None:
    """Raise `TargetRefusedError` unless the header can be sent as one header and nothing else.

    The value itself is not repeated in the error: it may be a secret.
    """
    _check_header_name(name)
    # The first test is the quick way for nearly every value; only latin-1 letters and tabs need the second.
    if not (value.isascii() and value.isprintable()) and not _HEADER_VALUE.fullmatch(value):
        raise TargetRefusedError(f"header {name} contains characters that are not allowed in an HTTP header")


@lru_cache(maxsize=1024)  # errors are not kept
def _check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise TargetRefusedError(f"{name!r} is not a valid header name")
    if name.lower() in _CLIENTS_OWN_HEADERS:
        raise TargetRefusedError(f"header {name} is set by the HTTP client alone")
