"""HTTP/2 client on pyreqwest: offers h2 by ALPN on https and speaks HTTP/1.1 where the server prefers that.

pyreqwest resolves names itself unless told the address, so every origin gets a client of its own that is pinned to one
address the egress guard has checked. It can dial nothing else.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BuilderError, DetailedPyreqwestError, PyreqwestError
from pyreqwest.exceptions import RequestTimeoutError as PyreqwestTimeoutError
from pyreqwest.http import Url
from pyreqwest.request import StreamRequest

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import (
    ConnectError,
    ConnectionBrokenError,
    LocalShortageError,
    RequestTimeoutError,
    TargetRefusedError,
)
from flowcatalyst.core.targets import Origin, Target
from flowcatalyst.http.contract import MAX_BODY_BYTES, Response, check_header
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.shortage import shortage_among, shortage_of_files

MAX_ORIGINS: Final = 256
ORIGIN_IDLE_S: Final = 300.0
ADDRESS_TRUSTED_S: Final = 30.0  # then the name is resolved again, in case it moved
# Only an error with this cause arose before anything was sent. The exception's type does not tell: pyreqwest raises
# its ConnectError as well for a connection that breaks under a request.
_NOT_CONNECTED: Final = "client error (Connect)"
UNREADABLE: Final = b"?"
_SYSTEM_ERROR: Final = re.compile(r"\(os error (\d+)\)")


@dataclass(slots=True)
class PinnedClient:
    """A pyreqwest client that can dial one checked address only."""

    client: Client
    address: str
    trusted_until: float
    used_at: float


class Http2Client:
    """Posts over HTTP/2 or HTTP/1.1. One total deadline covers resolution, connecting, headers and body.

    What pyreqwest cannot do: `post` that is cancelled ends its wait at once, but the request itself runs on until the
    deadline; a request that a server refused by GOAWAY is sent again; header values beyond ASCII are lost.
    """

    def __init__(
        self,
        *,
        guard: EgressGuard,
        clock: Clock,
        connect_timeout_s: float = 30.0,
        request_timeout_s: float = 900.0,
        idle_limit_s: float = 4.0,
        root_certificates_pem: bytes | None = None,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._idle_limit_s = idle_limit_s
        self._root_certificates_pem = root_certificates_pem
        self._clients: OrderedDict[Origin, PinnedClient] = OrderedDict()  # used longest ago first
        self._closed = False

    def __repr__(self) -> str:
        pinned = (
            f"{scheme}://{host}:{port} at {pinned.address}" for (scheme, host, port), pinned in self._clients.items()
        )
        return f"<Http2Client {', '.join(pinned) or 'unused'}>"

    async def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Response:
        for name, value in headers:
            check_header(name, value)
        if lines:
            own = (line.partition(": ") for line in lines.removesuffix("\r\n").split("\r\n"))
            headers = [*headers, *((name, value) for name, _, value in own)]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout_s or self._request_timeout_s, self._request_timeout_s)
        failures: dict[str, PyreqwestError] = {}
        try:
            async with asyncio.timeout_at(deadline):
                addresses = await self._addresses(target)
                for address in addresses:
                    # pyreqwest cannot try two at a time: each gets its share, and all are tried.
                    pinned = self._pinned(target, address, self._connect_timeout_s / len(addresses))
                    request = _build(pinned, target, headers, body, deadline - loop.time())
                    try:
                        return await _exchange(request)
                    except PyreqwestError as error:
                        if _NOT_CONNECTED not in _causes(error):
                            if isinstance(error, PyreqwestTimeoutError):
                                raise TimeoutError from None
                            raise ConnectionBrokenError(
                                f"{_label(target)} broke the connection: {_reason(error)}"
                            ) from None
                        failures[address] = error
                        if self._clients.get(target.origin) is pinned:
                            del self._clients[target.origin]
        except TimeoutError:
            raise RequestTimeoutError(f"{_label(target)} did not answer completely before the deadline") from None
        if (number := shortage_among(_system_error(error) for error in failures.values())) is not None:
            raise LocalShortageError(number)
        reasons = "; ".join(f"{address}: {_reason(error)}" for address, error in failures.items())
        raise ConnectError(f"{_label(target)} cannot be reached ({reasons})")

    async def close(self) -> None:
        """Close every client; requests on the way fail."""
        self._closed = True
        while self._clients:
            _, pinned = self._clients.popitem()
            await pinned.client.close()

    async def _addresses(self, target: Target) -> list[str]:
        """Checked addresses to try, the one that already has connections first."""
        pinned = self._clients.get(target.origin)
        if pinned is not None and self._clock.monotonic() < pinned.trusted_until:
            return [pinned.address]
        addresses = [address for _, address in await self._guard.resolve(target.host, target.port)]
        pinned = self._clients.get(target.origin)  # another request may have come first meanwhile
        if pinned is not None and pinned.address in addresses:
            pinned.trusted_until = self._clock.monotonic() + ADDRESS_TRUSTED_S
            addresses.sort(key=lambda address: address != pinned.address)
        return addresses

    def _pinned(self, target: Target, address: str, connect_timeout_s: float) -> PinnedClient:
        """The origin's client, made anew when it is pinned to another address."""
        if self._closed:
            raise ConnectError("the HTTP client is closed")
        now = self._clock.monotonic()
        origin = target.origin
        pinned = self._clients.get(origin)
        if pinned is None or pinned.address != address:
            client = self._build_client(target, address, connect_timeout_s)
            pinned = PinnedClient(client, address, now + ADDRESS_TRUSTED_S, now)
            self._clients[origin] = pinned
        pinned.used_at = now
        self._clients.move_to_end(origin)
        # A dropped client closes its idle connections; requests still on the way keep what they need alive.
        while len(self._clients) > 1:
            unused, oldest = next(iter(self._clients.items()))
            if len(self._clients) <= MAX_ORIGINS and now - oldest.used_at < ORIGIN_IDLE_S:
                break
            del self._clients[unused]
        return pinned

    def _build_client(self, target: Target, address: str, connect_timeout_s: float) -> Client:
        builder = (
            ClientBuilder()
            .http2(True)
            .no_proxy()  # a proxy would dial in our place, unguarded
            .follow_redirects(False)
            .referer(False)
            .default_cookie_store(False)
            .gzip(False)
            .brotli(False)
            .zstd(False)
            .deflate(False)
            .user_agent("flowcatalyst")
            .connect_timeout(timedelta(seconds=connect_timeout_s))
            .pool_idle_timeout(timedelta(seconds=self._idle_limit_s))
            .resolve(target.host, address, target.port)
        )
        if self._root_certificates_pem is not None:
            builder = builder.add_root_certificate_pem(self._root_certificates_pem)
        try:
            return builder.build()
        except BuilderError:  # it reads the certificates of the system
            if (number := shortage_of_files()) is not None:
                raise LocalShortageError(number) from None
            raise


def _build(
    pinned: PinnedClient, target: Target, headers: Sequence[tuple[str, str]], body: bytes, timeout_s: float
) -> StreamRequest:
    """The request, to a URL for which pyreqwest dials the pinned address and nothing else."""
    try:
        url = Url(f"{target.scheme}://{target.authority}{target.path}")
        if url.domain is None:
            # An IP address, perhaps in a form such as 127.1: it is dialled without asking a resolver, so the URL
            # must name the address that was checked.
            literal = f"[{pinned.address}]" if ":" in pinned.address else pinned.address
            url = Url(f"{target.scheme}://{literal}:{target.port}{target.path}")
        elif url.domain != target.host:
            raise TargetRefusedError(f"host {target.host} would be read as {url.domain}: write it that way")
    except ValueError as error:
        raise TargetRefusedError(f"{_label(target)} cannot be called: {error}") from None
    try:
        request = pinned.client.post(url).body_bytes(body)
        for name, value in headers:
            request = request.header(name, value)
        # The caller's deadline again: asyncio only ends the wait, this ends the request.
        return request.timeout(timedelta(seconds=max(timeout_s, 0.001))).build_streamed()
    except BuilderError as error:
        raise TargetRefusedError(f"{_label(target)} cannot be called: {_reason(error)}") from None


async def _exchange(request: StreamRequest) -> Response:
    async with request as answer:
        headers: list[tuple[bytes, bytes]] = []
        for name in dict.fromkeys(answer.headers.keys()):
            try:
                values = [value.encode("latin-1", "replace") for value in answer.headers.getall(name)]
            except ValueError:
                # pyreqwest cannot tell it because of a byte beyond ASCII. The message was delivered by now: an error
                # instead would deliver it again and again.
                values = [UNREADABLE]
            headers += [(name.encode("latin-1"), value) for value in values]
        names = {name for name, _ in headers}
        framed = answer.version == "HTTP/2.0" or not names.isdisjoint((b"content-length", b"transfer-encoding"))
        body = bytearray()
        while len(body) <= MAX_BODY_BYTES:  # one byte more shows that it is longer
            chunk = await answer.body_reader.read_chunk()
            if chunk is None:
                break
            body += memoryview(chunk)
        truncated = len(body) > MAX_BODY_BYTES
        return Response(answer.status, headers, bytes(body[:MAX_BODY_BYTES]), truncated, framed)


def _causes(error: PyreqwestError) -> list[str]:
    details = error.details if isinstance(error, DetailedPyreqwestError) else None
    return [cause["message"] for cause in (details and details["causes"]) or ()]


def _reason(error: PyreqwestError) -> str:
    """The innermost cause, which says most."""
    return (_causes(error) or [error.message])[-1]


def _system_error(error: PyreqwestError) -> OSError:
    """What the system said; pyreqwest tells it in words only."""
    found = _SYSTEM_ERROR.search(_reason(error))
    return OSError(int(found[1]) if found else 0, _reason(error))


def _label(target: Target) -> str:
    return f"{target.scheme}://{target.authority}"
