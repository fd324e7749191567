"""Targets: where messages go, and what of a URL decides about it. Pure."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from flowcatalyst.core.errors import TargetRefusedError

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# A name is letters, digits, dots, dashes and underscores. In particular no "%": some URL parsers decode it, so that
# the host one of them checks would not be the host another one dials.
_HOST_NAME: Final = re.compile(r"[a-z0-9._-]{1,253}")

Origin = tuple[str, str, int]


@dataclass(slots=True, frozen=True)
class Target:
    """Where a request goes, in the parts that a client needs."""

    scheme: str
    host: str  # lower case; IPv6 without brackets
    port: int
    authority: str  # value of the Host header
    path: str  # with its query
    origin: Origin = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", (self.scheme, self.host, self.port))


@lru_cache(maxsize=4096)
def parse_target(url: str) -> Target:
    """The parts of an absolute http(s) URL, or `TargetRefusedError` with the reason it cannot be called."""
    # Checked before urlsplit, which silently removes tabs and newlines.
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise TargetRefusedError(
            "target has spaces, backslashes, control or non-ASCII characters: percent-encode them, or in a host name "
            "use Punycode (xn--...)"
        )
    try:
        parts = urlsplit(url)
        given_port = parts.port
    except ValueError as error:
        raise TargetRefusedError(f"target is not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        if not parts.scheme:
            raise TargetRefusedError("target has no scheme: begin it with http:// or https://")
        raise TargetRefusedError(f"target has scheme {parts.scheme!r}: only http and https work")
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
                raise AddressValueError("it has a zone id")
            return str(IPv6Address(host))
        except AddressValueError as error:
            raise TargetRefusedError(f"target host [{host}] is not an IPv6 address: {error}") from None
    if not _HOST_NAME.fullmatch(host):
        raise TargetRefusedError(f"target host {host!r} is not a host name")
    return host


@lru_cache(maxsize=4096)
def endpoint_of(url: str) -> str:
    """What shares a circuit breaker: scheme, host, port and path, without the query."""
    try:
        target = parse_target(url)
    except TargetRefusedError:
        return url  # the attempt itself will say what is wrong with it
    return f"{target.scheme}://{target.authority}{target.path.partition('?')[0]}"


@lru_cache(maxsize=4096)
def origin_of(url: str) -> str:
    """What shares connections: scheme, host and port. For a URL that cannot be called, the URL itself."""
    try:
        target = parse_target(url)
    except TargetRefusedError:
        return url
    return f"{target.scheme}://{target.authority}"
