"""Where a router configuration is fetched from: an HTTP server or a file."""

import base64
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import (
    ConfigurationError,
    ConnectError,
    DeliveryError,
    FlowCatalystError,
    RequestTimeoutError,
    TargetRefusedError,
)
from flowcatalyst.core.targets import Target, parse_target
from flowcatalyst.http.contract import Response
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client

MAX_BYTES: Final = 4 * 1024 * 1024  # of a configuration: 10,000 pools take about 1 MiB
MAX_ETAG_LENGTH: Final = 1024
_HIDDEN: Final = "***"
_ANYWHERE: Final = EgressGuard(True, ["0.0.0.0/0", "::/0"])  # an operator named the host


class ConfigUnavailableError(FlowCatalystError):
    """A source of the router configuration gave no configuration."""


@dataclass(slots=True, frozen=True)
class Fetched:
    """What a source said, and how to ask whether it still says the same."""

    text: bytes = field(repr=False)
    version: str | None  # None: the source cannot tell, it is read every time


@dataclass(slots=True, frozen=True)
class HttpSource:
    """A configuration behind an http(s) URL. Redirects are not followed."""

    url: str = field(repr=False)  # may hold credentials
    tls: ssl.SSLContext | None = field(default=None, repr=False)  # None: the system's certificates

    @property
    def label(self) -> str:
        """The URL without its secrets."""
        return masked(self.url)

    async def fetch(self, known: str | None, timeout_s: float) -> Fetched | None:
        """None if the source still says what it said in version `known`. Raises `ConfigUnavailableError`."""
        response = await self._get(known, timeout_s)
        if response.status == 304 and known is not None:
            return None
        if response.status != 200:
            setup_warnings = ": redirects are not followed" if response.status in (301, 302, 303, 307, 308) else ""
            raise ConfigUnavailableError(f"{self.label} answered {response.status}{setup_warnings}")
        if response.truncated:
            raise ConfigUnavailableError(f"{self.label} sent more than {MAX_BYTES} bytes")
        if coding := response.content().coding:
            raise ConfigUnavailableError(f"{self.label} sent an encoded body ({coding}), which was not asked for")
        etag = response.header("etag") or ""
        can_be_sent_back = etag and etag.isascii() and etag.isprintable() and len(etag) <= MAX_ETAG_LENGTH
        return Fetched(response.body, etag if can_be_sent_back else None)

    async def _get(self, known: str | None, timeout_s: float) -> Response:
        target = target_of(self.url)
        # A client for each fetch: they are minutes apart, and nothing is left to close.
        client = Http1Client(
            guard=_ANYWHERE,
            clock=SystemClock(),
            connect_timeout_s=timeout_s,
            max_body_bytes=MAX_BYTES,
            ssl_context=self.tls,
        )
        headers = [("user-agent", "flowcatalyst"), ("accept", "application/json"), ("accept-encoding", "identity")]
        if (login := login_of(self.url)) is not None:
            headers.append(("authorization", f"Basic {base64.b64encode(login.encode()).decode()}"))
        if (key := key_in(self.url)) is not None:
            headers.append(("x-api-key", key))
        if known is not None:
            headers.append(("if-none-match", known))
        try:
            return await client.get(target, headers, timeout_s)
        except RequestTimeoutError:
            raise ConfigUnavailableError(f"{self.label} did not answer within {timeout_s:g} s") from None
        except ConnectError as error:
            raise ConfigUnavailableError(f"{self.label} cannot be reached: {error}") from None
        except DeliveryError as error:
            what = str(error).removeprefix(f"{target.scheme}://{target.authority} ")
            raise ConfigUnavailableError(f"{self.label} {what}") from None
        finally:
            await client.close()


@dataclass(slots=True, frozen=True)
class FileSource:
    """A configuration in a local file."""

    path: Path

    @property
    def label(self) -> str:
        return str(self.path)

    async def fetch(self, known: str | None, timeout_s: float) -> Fetched | None:
        """None if the file is still the one of version `known`. Raises `ConfigUnavailableError`."""
        try:
            info = self.path.stat()
            if not stat.S_ISREG(info.st_mode):  # reading a pipe could block for ever
                raise ConfigUnavailableError(f"{self.label} is not a file")
            # Looked at before the reading: a change meanwhile makes another version next time.
            version = f"{info.st_mtime_ns}-{info.st_size}-{info.st_ino}"
            if version == known:
                return None
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigUnavailableError(f"{self.label} cannot be read: {error.strerror}") from None
        if len(text) > MAX_BYTES:
            raise ConfigUnavailableError(f"{self.label} has more than {MAX_BYTES} bytes")
        return Fetched(text, version)


def sources_from(setting: str, tls: ssl.SSLContext | None = None) -> list[HttpSource | FileSource]:
    """The sources of a comma-separated list of URLs and file paths, each once, in order.

    Raises `ConfigurationError` for one that can never be fetched.
    """
    parts = (part.strip() for part in setting.split(","))
    return list(dict.fromkeys(_source(part, tls) for part in parts if part))


def masked(url: str) -> str:
    """The URL with its user info and its query hidden."""
    parts = urlsplit(url)
    user_info, at, host = parts.netloc.rpartition("@")
    netloc = f"{_HIDDEN}@{host}" if user_info or at else host
    return urlunsplit((parts.scheme, netloc, parts.path, _HIDDEN if parts.query else "", ""))


def _source(part: str, tls: ssl.SSLContext | None) -> HttpSource | FileSource:
    scheme, colon, rest = part.partition(":")
    scheme = scheme.lower()
    if colon and scheme in ("http", "https"):
        try:
            target_of(part)
        except (TargetRefusedError, ValueError):
            # Without the reason: it may quote a piece of the password that stands in the wrong place.
            raise ConfigurationError(
                f"sync.config_url: {_scheme_only(part)} cannot be called: give an http(s) URL with a host name (other "
                "letters than ASCII in Punycode, xn--...), the rest percent-encoded"
            ) from None
        return HttpSource(part, tls)
    if colon and scheme == "file":
        path = unquote(rest.removeprefix("//localhost").removeprefix("//"))
        if not path.startswith("/") or path.startswith("//") or "\0" in path:
            raise ConfigurationError(f"sync.config_url: {part} is not a local file: write file:///folder/name.json")
        return FileSource(Path(path))
    if rest.startswith("//"):
        raise ConfigurationError(f"sync.config_url: {_scheme_only(part)} is not http, https or file")
    return FileSource(Path(part))


def _scheme_only(url: str) -> str:
    """Enough to find a wrong URL by; where its secrets stand nobody can tell."""
    return f"{url.partition('://')[0][:20]}://..."


def target_of(url: str) -> Target:
    """What to dial of a URL that may hold a login. Raises `TargetRefusedError`."""
    scheme, separator, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    _, _, host = authority.rpartition("@")
    return parse_target(f"{scheme}{separator}{host}{rest[len(authority) :]}")


def key_in(url: str) -> str | None:
    """A name without a password: it may be an API key, such as `GET /api/config/router` of a platform asks for."""
    parts = urlsplit(url)
    key = unquote(parts.username) if parts.username and parts.password is None else ""
    return key if key and key.isascii() and key.isprintable() else None


def login_of(url: str) -> str | None:
    """name:password of a URL; None if it has none."""
    parts = urlsplit(url)
    return None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
