"""HTTP/1.1 client, made for many small requests to few origins.

`Http1Client` (here) connects and keeps deadlines, `pool` decides who gets which connection, `connection`
speaks the protocol. Nothing else may know their insides.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConnectError, LocalShortageError, RequestTimeoutError
from flowcatalyst.core.targets import Origin, Target
from flowcatalyst.http.contract import MAX_BODY_BYTES, Response
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.connection import Connection, NotSentError, encode_request
from flowcatalyst.http.http1.pool import OriginPool, PoolLimits
from flowcatalyst.http.shortage import shortage_among
from flowcatalyst.http.tls import system_context

DEFAULT_MAX_CONNECTIONS: Final = 1024
MAX_DISTRUSTED: Final = 4096
NEXT_ADDRESS_S: Final = 0.25  # after which the next address of a host is tried beside the first (RFC 8305)

log = structlog.get_logger("flowcatalyst.http1")


class Http1Client:
    """Speaks HTTP/1.1, over TLS too.

    One total deadline covers waiting for a connection, connecting, headers and body.
    """

    def __init__(
        self,
        *,
        guard: EgressGuard,
        clock: Clock,
        connect_timeout_s: float = 30.0,
        request_timeout_s: float = 900.0,
        max_connections_per_origin: int = DEFAULT_MAX_CONNECTIONS,
        max_body_bytes: int = MAX_BODY_BYTES,
        idle_limit_s: float = 4.0,
        rest_s: float = 0.005,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._limits = PoolLimits(max_connections_per_origin, max_body_bytes, idle_limit_s, rest_s)
        self._ssl_context = ssl_context
        self._pools: dict[Origin, OriginPool] = {}
        self._sent_unasked: OrderedDict[Origin, None] = OrderedDict()  # never trusted with a kept connection again
        self._closed = False

    def __repr__(self) -> str:
        return f"<Http1Client {', '.join(map(repr, self._pools.values())) or 'unused'}>"

    def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Coroutine[Any, Any, Response]:
        return self._exchange(target, encode_request(target, headers, body, "POST", lines), timeout_s)

    def get(
        self, target: Target, headers: Sequence[tuple[str, str]], timeout_s: float | None = None
    ) -> Coroutine[Any, Any, Response]:
        return self._exchange(target, encode_request(target, headers, b"", "GET"), timeout_s)

    async def _exchange(self, target: Target, request: bytes, timeout_s: float | None) -> Response:
        loop = asyncio.get_running_loop()
        limit_s = self._request_timeout_s
        deadline = loop.time() + (limit_s if timeout_s is None else min(timeout_s, limit_s))
        while True:
            pool = self._pools.get(target.origin) or self._open_pool(target, loop)
            connection = pool.take_idle() or await self._obtain(pool, target, deadline)
            answer = connection.start(request, deadline)
            pool.watch(deadline)
            try:
                return await answer
            except NotSentError:
                continue
            except asyncio.CancelledError:
                connection.abandon(answer)
                raise
            # Otherwise the server may have acted on the request: it is never given to another connection.

    async def close(self) -> None:
        """Close every connection; requests on the way fail."""
        self._closed = True
        pools = list(self._pools.values())
        self._pools.clear()
        for pool in pools:
            pool.close()
        for pool in pools:
            if pool.all_closed is not None:
                await pool.all_closed

    def _open_pool(self, target: Target, loop: asyncio.AbstractEventLoop) -> OriginPool:
        if self._closed:
            raise ConnectError("the HTTP client is closed")
        origin = target.origin

        def forget() -> None:
            if self._pools.get(origin) is pool:
                del self._pools[origin]

        pool = self._pools[origin] = OriginPool(
            f"{target.scheme}://{target.authority}",
            self._limits,
            self._clock,
            loop,
            reuses=origin not in self._sent_unasked,
            on_unasked=lambda: self._distrust(origin),
            on_unused=forget,
        )
        return pool

    def _distrust(self, origin: Origin) -> None:
        if origin not in self._sent_unasked:
            log.warning(
                "unasked_data",
                action="unasked_data",
                origin=f"{origin[0]}://{origin[1]}:{origin[2]}",
                consequence="connections are no longer reused: an answer could be taken for that of another message",
            )
        self._sent_unasked[origin] = None
        if len(self._sent_unasked) > MAX_DISTRUSTED:
            self._sent_unasked.popitem(last=False)

    async def _obtain(self, pool: OriginPool, target: Target, deadline: float) -> Connection:
        """A usable connection, in a place taken for it."""
        try:
            async with asyncio.timeout_at(deadline):
                connection = await pool.turn()
                if connection is not None and connection.usable:
                    return connection
                try:
                    return await self._connect(pool, target)
                except BaseException:
                    pool.release(None)
                    raise
        except TimeoutError:
            raise RequestTimeoutError(f"{pool.label}: no connection before the deadline") from None

    async def _connect(self, pool: OriginPool, target: Target) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = [address for _, address in await self._guard.resolve(target.host, target.port)]
                return await self._dial_first(pool, target, addresses)
        except TimeoutError:
            raise ConnectError(f"{pool.label} did not connect in {self._connect_timeout_s:g} s") from None

    async def _dial_first(self, pool: OriginPool, target: Target, addresses: list[str]) -> Connection:
        """The first connection that comes about. An address that takes its time does not keep the next one waiting."""
        failures: dict[str, OSError | ValueError] = {}
        dials: dict[asyncio.Task[Connection], str] = {}
        try:
            while addresses or dials:
                if addresses:
                    address = addresses.pop(0)
                    dials[asyncio.get_running_loop().create_task(self._dial(pool, target, address))] = address
                done, _ = await asyncio.wait(
                    dials, timeout=NEXT_ADDRESS_S if addresses else None, return_when=asyncio.FIRST_COMPLETED
                )
                for dial in done:
                    error = dial.exception()
                    if error is None and dial.result().usable:  # it may have ended since its dial did
                        del dials[dial]
                        return dial.result()
                    error = error or ConnectionResetError("the server closed the connection at once")
                    if not isinstance(error, OSError | ValueError):  # ValueError: TLS cannot verify such a host name
                        raise error
                    failures[dials.pop(dial)] = error
        finally:
            for dial in dials:
                dial.cancel()
                dial.add_done_callback(_discard_loser)
        if (number := shortage_among(failures.values())) is not None:
            raise LocalShortageError(number)
        reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
        raise ConnectError(f"{pool.label} cannot be reached ({reasons})")

    async def _dial(self, pool: OriginPool, target: Target, address: str) -> Connection:
        secure = target.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            pool.new_connection,
            address,
            target.port,
            ssl=(self._ssl_context or system_context()) if secure else None,
            server_hostname=target.host.rstrip(".") if secure else None,
        )
        if self._closed:
            connection.discard()
            raise ConnectError("the HTTP client was closed")
        return connection


def _discard_loser(dial: asyncio.Task[Connection]) -> None:
    if not dial.cancelled() and dial.exception() is None:
        dial.result().discard()
