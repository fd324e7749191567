"""The HTTP server: uvicorn inside our loop, on a socket that was bound before anything else started."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

import structlog
import uvicorn
from litestar import Litestar
from litestar.types import Receive, Scope, Send
from uvicorn.server import ServerState

from flowcatalyst.api.acceptor import Acceptor
from flowcatalyst.api.connection import Connection
from flowcatalyst.api.group_paths import with_one_segment
from flowcatalyst.api.reception import ConnectionLimits, Reception
from flowcatalyst.core.clock import Clock, SystemClock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.hosts import WHAT_TO_NAME
from flowcatalyst.core.tasks import Tasks

STOP_PATIENCE_S: Final = 1  # how long a stop waits for requests under way; idle connections are closed at once
GRAIN_S: Final = 0.005
DATE_S: Final = 1.0
KEEP_ALIVE_S: Final = 30
BACKLOG: Final = 1024

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it binds nothing
_HOW: Final = "(--port or FLOWCATALYST_PORT)"

log = structlog.get_logger("flowcatalyst.web")


@dataclass(slots=True, frozen=True)
class Listening:
    """A bound socket and its real address."""

    socket: socket.socket
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def url_from_here(self) -> str:
        host, port = self.from_here
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def from_here(self) -> tuple[str, int]:
        """Address and port for those on this machine: of all addresses the one that every machine has."""
        address = self.socket.getsockname()[0]
        return _LOOPBACK.get(address, address), self.port


class PortInUseError(ConfigurationError):
    """Another process has the port."""


def bind(host: str, port: int) -> Listening:
    """Bind the address of the API; port 0 takes a free one. Raises `ConfigurationError`."""
    listener = _bound(host, port)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return Listening(listener, host, listener.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raise what `bind` would raise, and let nobody connect meanwhile."""
    _bound(host, port).close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"invalid host {host} ({error.strerror}): {WHAT_TO_NAME}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it every answer waits 40 ms for the client to acknowledge its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        kind_of_error = PortInUseError if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind_of_error(_bind_error(host, port, error)) from None
    return listener


def _bind_error(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use: stop the other process or choose another port {_HOW}"
        case errno.EACCES:
            return f"port {port} on {host} needs privileges: choose a port above 1023 {_HOW}"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine, so port {port} cannot be bound: {WHAT_TO_NAME}"
        case _:
            return f"port {port} on {host} cannot be bound ({error.strerror}): choose another host or port"


@asynccontextmanager
async def api_server(
    api: Litestar, listening: Listening, limits: ConnectionLimits | None = None, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Serve the API from here to the end of the block."""

    async def as_routed(scope: Scope, receive: Receive, send: Send) -> None:
        """HEAD is GET without a body, which uvicorn leaves out. The name of a group is one segment of its path."""
        if scope.get("method") == "HEAD":
            scope = cast(Scope, {**scope, "method": "GET"})
        if path := with_one_segment(scope.get("raw_path", b"")):
            scope = cast(Scope, {**scope, "path": path})
        await api(scope, receive, send)

    config = uvicorn.Config(
        as_routed,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    reception = Reception(limits or ConnectionLimits(), clock or SystemClock(), asyncio.get_running_loop())
    logger = logging.getLogger("uvicorn.error")  # what the server has to say goes to our log
    logger.handlers = [_ToOurLog(logging.WARNING)]
    logger.propagate = False
    server = uvicorn.Server(config)
    # What remains of Server.serve: signals are the business of the process, and strangers and the stop ours.
    acceptor = Acceptor(listening.socket, lambda: Connection(reception, config, server.server_state), reception)
    acceptor.start()
    ticking = Tasks()
    ticking.spawn(_keep_date(server), "api server")
    log.info("api_started", action="api_started", url=listening.url)
    try:
        yield
    finally:
        await ticking.cancel()
        await acceptor.stop()
        listening.socket.close()
        await _end_connections(server.server_state)
        reception.close()
        log.info("api_stopped", action="api_stopped")


async def _keep_date(server: uvicorn.Server) -> None:
    """What is left of uvicorn's own loop, which also looks ten times a second whether it has to end."""
    while True:
        await server.on_tick(0)
        await asyncio.sleep(DATE_S)


async def _end_connections(state: ServerState) -> None:
    """Idle ones are closed at once, the others when they have their answer. uvicorn's own stop takes 0.1 s at least."""
    for connection in list(state.connections):
        connection.shutdown()
    try:
        async with asyncio.timeout(STOP_PATIENCE_S):
            while state.connections or state.tasks:  # noqa: ASYNC110 - of both uvicorn says nothing when they end
                await asyncio.sleep(GRAIN_S)
    except TimeoutError:
        late = set(state.tasks)
        log.warning("api_requests_cut_short", action="api_requests_cut_short", requests=len(late))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)  # let them see it


class _ToOurLog(logging.Handler):
    """Puts what uvicorn has to say into our log. A request cut short by a stop is nothing to report."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, asyncio.CancelledError):
            text = record.getMessage().strip()
            log.warning("server_says", action="server_says", text=text, exc_info=error)
