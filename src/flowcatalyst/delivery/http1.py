"""HTTP/1.1 client, made for many small requests to few origins.

`Http1Client` (here) connects and keeps deadlines, `http1_pool` decides who gets which connection, `http1_connection`
speaks the protocol. Nothing else may know their insides.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

from flowcatalyst.clock import Clock
from flowcatalyst.delivery.contract import Origin, Response, Target
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1_connection import Connection, encode_request
from flowcatalyst.delivery.http1_pool import OriginPool
from flowcatalyst.errors import ConnectError, RequestTimeoutError

DEFAULT_MAX_CONNECTIONS: Final = 1024


class Http1Client:
    """Posts over HTTP/1.1. One total deadline covers waiting for a connection, connecting, headers and body."""

    def __init__(
        self,
        *,
        guard: EgressGuard,
        clock: Clock,
        connect_timeout_s: float = 30.0,
        request_timeout_s: float = 900.0,
        max_connections_per_origin: int = DEFAULT_MAX_CONNECTIONS,
        idle_limit_s: float = 4.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._max_connections_per_origin = max_connections_per_origin
        self._idle_limit_s = idle_limit_s
        self._ssl_context = ssl_context
        self._pools: dict[Origin, OriginPool] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Http1Client {', '.join(map(repr, self._pools.values())) or 'unused'}>"

    async def post(self, target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> Response:
        request = encode_request(target, headers, body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request_timeout_s
        pool = self._pools.get(target.origin) or self._open_pool(target, loop)
        connection = pool.take_idle() or await self._obtain(pool, target, deadline)
        # Once handed to a connection, a request is never given to another one: the server may have acted on it.
        answer = connection.start(request, deadline)
        pool.watch(deadline)
        try:
            return await answer
        except asyncio.CancelledError:
            connection.abandon(answer)
            raise

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
        pool = self._pools[origin] = OriginPool(
            f"{target.scheme}://{target.authority}",
            self._max_connections_per_origin,
            self._idle_limit_s,
            self._clock,
            loop,
            on_unused=lambda: self._forget_pool(origin, pool),
        )
        return pool

    def _forget_pool(self, origin: Origin, pool: OriginPool) -> None:
        if self._pools.get(origin) is pool:
            del self._pools[origin]

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
                    pool.give_back(None)
                    raise
        except TimeoutError:
            raise RequestTimeoutError(f"{pool.label}: no connection before the deadline") from None

    async def _connect(self, pool: OriginPool, target: Target) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = await self._guard.resolve(target.host, target.port)
                failures = []
                for _, address in addresses:
                    try:
                        return await self._dial(pool, target, address)
                    except (OSError, ValueError) as error:  # ValueError: TLS cannot verify such a host name
                        failures.append(f"{address}: {error}")
        except TimeoutError:
            raise ConnectError(f"{pool.label} did not connect in {self._connect_timeout_s:g} s") from None
        raise ConnectError(f"{pool.label} cannot be reached ({'; '.join(failures)})")

    async def _dial(self, pool: OriginPool, target: Target, address: str) -> Connection:
        secure = target.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            pool.new_connection,
            address,
            target.port,
            ssl=self._tls() if secure else None,
            server_hostname=target.host.rstrip(".") if secure else None,
        )
        if self._closed:
            connection.discard()
            raise ConnectError("the HTTP client was closed")
        if not connection.usable:
            raise ConnectionResetError("the server closed the connection at once")
        return connection

    def _tls(self) -> ssl.SSLContext:
        # Made when first needed: reading the system's certificates takes a while.
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context
