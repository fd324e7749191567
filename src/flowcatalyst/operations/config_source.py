"""Where a router configuration is fetched from: an HTTP server or a file.

HTTP goes over plain asyncio streams, not over pyreqwest: a process that ends soon after a request of that library is
now and then aborted by it (signal 6), and a failed first sync has to end the process with exit code 1.
"""

import asyncio
import base64
import re
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from flowcatalyst.delivery.contract import Target, parse_target
from flowcatalyst.errors import ConfigurationError, FlowCatalystError, TargetRefusedError

MAX_BYTES: Final = 4 * 1024 * 1024  # of a configuration: 10,000 pools take about 1 MiB
MAX_FRAMING_BYTES: Final = 256 * 1024  # headers and chunk sizes of a response
MAX_ETAG_LENGTH: Final = 1024
_READ_BYTES: Final = 64 * 1024
_HIDDEN: Final = "***"


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
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._get(known)
        except TimeoutError:
            raise ConfigUnavailableError(f"{self.label} did not answer within {timeout_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: TLS cannot verify such a host name
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise ConfigUnavailableError(f"{self.label} cannot be reached: {reason}") from None
        except _BadAnswerError as error:
            raise ConfigUnavailableError(f"{self.label} {error}") from None
        if answer.status == 304 and known is not None:
            return None
        if answer.status != 200:
            advice = ": redirects are not followed" if answer.status in (301, 302, 303, 307, 308) else ""
            raise ConfigUnavailableError(f"{self.label} answered {answer.status}{advice}")
        return Fetched(bytes(answer.body), _etag(answer))

    async def _get(self, known: str | None) -> "_Answer":
        target = _target(self.url)
        secure = target.scheme == "https"
        reader, writer = await asyncio.open_connection(
            target.host,
            target.port,
            ssl=(self.tls or _system_tls()) if secure else None,
            server_hostname=target.host.rstrip(".") if secure else None,
        )
        try:
            writer.write(_request(target, self.url, known))
            return await _read_answer(reader)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


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
            _target(part)
        except (TargetRefusedError, ValueError):
            # Without the reason: it may quote a piece of the password that stands in the wrong place.
            raise ConfigurationError(
                f"sync.config_url: {_scheme_only(part)} cannot be called: give an http(s) URL with a host name, other "
                "characters percent-encoded"
            ) from None
        return HttpSource(part, tls)
    if colon and scheme == "file":
        return FileSource(_path_of(part))
    if rest.startswith("//"):
        raise ConfigurationError(f"sync.config_url: {_scheme_only(part)} is not http, https or file")
    return FileSource(Path(part))


def _path_of(file_url: str) -> Path:
    _, _, rest = file_url.partition(":")
    path = unquote(rest.removeprefix("//localhost").removeprefix("//"))
    if not path.startswith("/") or path.startswith("//") or "\0" in path:
        raise ConfigurationError(f"sync.config_url: {file_url} names no local file: write file:///folder/name.json")
    return Path(path)


def _scheme_only(url: str) -> str:
    """Enough to find a wrong URL by; where its secrets stand nobody can tell."""
    return f"{url.partition('://')[0][:20]}://..."


def _target(url: str) -> Target:
    """What to dial. Raises `TargetRefusedError`."""
    scheme, separator, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    _, _, host = authority.rpartition("@")
    return parse_target(f"{scheme}{separator}{host}{rest[len(authority) :]}")


def _request(target: Target, url: str, known: str | None) -> bytes:
    lines = [
        f"GET {target.path} HTTP/1.1",
        f"host: {target.authority}",
        "user-agent: flowcatalyst",
        "accept: application/json",
        "connection: close",
    ]
    parts = urlsplit(url)
    if parts.username is not None:
        user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"authorization: Basic {base64.b64encode(user_info.encode()).decode()}")
    if known is not None:
        lines.append(f"if-none-match: {known}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class _BadAnswerError(Exception):
    """What a server did instead of answering."""


class _Answer:
    """A response as the parser reads it."""

    def __init__(self) -> None:
        self.status = 0  # of the final response, once its headers are complete
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.parser = HttpResponseParser(self)

    @property
    def wanted(self) -> bool:
        """Whether its body is worth reading."""
        return self.status in (0, 200)

    def may_end_here(self) -> bool:
        """Whether the end of the connection is the end of the response."""
        framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        return self.status != 0 and not framed

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is a trailer
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status >= 200:
            self.status = status
        else:
            self.headers.clear()  # interim: the response is still to come

    def on_body(self, chunk: bytes) -> None:
        if len(self.body) <= MAX_BYTES:
            self.body += chunk

    def on_message_complete(self) -> None:
        self.complete = self.status != 0


async def _read_answer(reader: asyncio.StreamReader) -> _Answer:
    """The response; its body only if the status is 200."""
    answer = _Answer()
    wire_bytes = 0
    while answer.wanted and not answer.complete:
        data = await reader.read(_READ_BYTES)
        if not data:
            if answer.may_end_here():
                break
            raise _BadAnswerError("closed the connection before its answer was complete")
        wire_bytes += len(data)
        try:
            answer.parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not answer.complete:
                raise _BadAnswerError(f"did not speak HTTP/1.1: {error}") from None
        if len(answer.body) > MAX_BYTES:
            raise _BadAnswerError(f"sent more than {MAX_BYTES} bytes")
        if wire_bytes - len(answer.body) > MAX_FRAMING_BYTES:
            raise _BadAnswerError("sent too many header or framing bytes")
    return answer


def _etag(answer: _Answer) -> str | None:
    """The ETag, if it can be sent back as it is."""
    etag = answer.headers.get("etag", "")
    return etag if etag and etag.isascii() and etag.isprintable() and len(etag) <= MAX_ETAG_LENGTH else None


@cache
def _system_tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes a while: it reads all the certificates
