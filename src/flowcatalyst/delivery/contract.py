"""What the mediator asks of an HTTP client, and the words both of them use."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit

import msgspec

from flowcatalyst.errors import TargetRefusedError

MAX_BODY_BYTES: Final = 64 * 1024  # of a response: what follows is never read

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MAX_CACHED_HEADER_NAMES: Final = 1024
# A name is letters, digits, dots, dashes and underscores. In particular no "%": some URL parsers decode it, so that
# the host one of them checks would not be the host another one dials.
_HOST_NAME: Final = re.compile(r"[a-z0-9._-]{1,253}")
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

Origin = tuple[str, str, int]


@dataclass(slots=True, frozen=True)
class Target:
    """Where a request goes, in the parts that a client needs."""

    scheme: str
    host: str  # lower case; IPv6 without brackets
    port: int
    authority: str  # value of the Host header
    path: str  # with its query

    @property
    def origin(self) -> Origin:
        return (self.scheme, self.host, self.port)


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

    `timeout_s` is the total deadline of one request where it should be shorter than the client's own.

    Raises `LocalShortageError`, `ConnectError`, `ConnectionBrokenError`, `RequestTimeoutError` or `TargetRefusedError`.
    """

    async def post(
        self, target: Target, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float | None = None
    ) -> Response: ...

    async def close(self) -> None: ...


@lru_cache(maxsize=4096)
def parse_target(url: str) -> Target:
    """The parts of an absolute http(s) URL, or `TargetRefusedError` with the reason it cannot be called."""
    # Checked before urlsplit, which silently removes tabs and newlines.
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise TargetRefusedError("target has spaces, backslashes, control or non-ASCII characters: percent-encode them")
    try:
        parts = urlsplit(url)
        given_port = parts.port
    except ValueError as error:
        raise TargetRefusedError(f"target is not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefusedError(f"target has scheme {parts.scheme or '(none)'!r}: only http and https work")
    if "@" in parts.netloc:
        raise TargetRefusedError("target carries credentials in its URL")
    if given_port == 0:
        raise TargetRefusedError("target has port 0")
    default_port = _DEFAULT_PORTS[parts.scheme]
    port = given_port or default_port
    host = _checked_host(parts)
    shown_host = f"[{host}]" if ":" in host else host
    authority = shown_host if port == default_port else f"{shown_host}:{port}"
    path = parts.path or "/"
    return Target(parts.scheme, host, port, authority, f"{path}?{parts.query}" if parts.query else path)


def _checked_host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        try:
            if "%" in host:
                raise AddressValueError("it names a network zone")
            return str(IPv6Address(host))
        except AddressValueError as error:
            raise TargetRefusedError(f"target host [{host}] is not an IPv6 address: {error}") from None
    if not _HOST_NAME.fullmatch(host):
        raise TargetRefusedError(f"target host {host!r} is not a host name")
    return host


_good_header_names: set[str] = set()


def check_header(name: str, value: str) -> None:
    """Raise `TargetRefusedError` unless the header can be sent as one header and nothing else.

    The value itself is not repeated in the error: it may be a secret.
    """
    if name not in _good_header_names:
        _check_header_name(name)
    # The first test is the quick way for nearly every value; only latin-1 letters and tabs need the second.
    if not (value.isascii() and value.isprintable()) and not _HEADER_VALUE.fullmatch(value):
        raise TargetRefusedError(f"header {name} has characters that cannot stand in an HTTP header")


def _check_header_name(name: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise TargetRefusedError(f"{name!r} cannot be the name of a header")
    if name.lower() in _CLIENTS_OWN_HEADERS:
        raise TargetRefusedError(f"header {name} is set by the HTTP client alone")
    if len(_good_header_names) >= _MAX_CACHED_HEADER_NAMES:
        _good_header_names.clear()
    _good_header_names.add(name)
