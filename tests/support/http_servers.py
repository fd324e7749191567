"""A TCP or TLS server that says exactly the bytes a test wants, when the test wants it.

    async with raw_server(always(reply(204))) as server:
        ... server.url("/path"), server.connections, server.requests

A script is called once per request, with a `Call` that can send, wait, close and reset. Tests wait for the server with
`server.until(...)`, never by sleeping.
"""

import asyncio
import os
import signal
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass(slots=True)
class Call:
    """One request as the server read it, and the means to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int  # 1 for the first connection the server accepted
    number: int  # 1 for the first request the server read
    _writer: asyncio.StreamWriter
    _reader: asyncio.StreamReader

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close in order: what was sent still arrives, then the end."""
        self._writer.close()

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def until_client_is_gone(self) -> None:
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass


Script = Callable[[Call], Awaitable[None]]


def reply(status: int = 200, body: bytes = b"", *headers: str) -> bytes:
    """A complete response with a Content-Length."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def always(response: bytes) -> Script:
    """A script that answers every request with the same bytes."""

    async def script(call: Call) -> None:
        await call.send(response)

    return script


def in_turn(*scripts: Script) -> Script:
    """A script that answers the first request by the first script and so on; the last one answers the rest."""

    async def script(call: Call) -> None:
        await scripts[min(call.number, len(scripts)) - 1](call)

    return script


@dataclass(slots=True)
class Gate:
    """Holds answers back until a test opens it."""

    response: bytes = field(default_factory=reply)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, call: Call) -> None:
        await self.opened.wait()
        await call.send(self.response)


class RawServer:
    """See the module. Counts what came in and lets tests wait for it."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None, greeting: Script | None) -> None:
        self.script = script
        self.requests: list[Call] = []
        self.connections = 0  # accepted so far
        self.open_connections = 0
        self.port = 0
        self._tls = tls
        self._greeting = greeting
        self._changed = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    async def until(self, condition: Callable[["RawServer"], bool]) -> None:
        """Return when the condition holds; it is looked at after every change of the server's counts."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        self.open_connections += 1
        await self._notify()
        try:
            await self._serve(reader, writer, self.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # only stop() cancels, and asyncio would log a cancelled handler as an error
        finally:
            writer.transport.abort()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self._serving.discard(task)
            self.open_connections -= 1
            await self._notify()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        if self._greeting:
            await self._greeting(Call("", "", {}, b"", connection, 0, writer, reader))
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first_line, *lines = head.rstrip().split("\r\n")
            method, path, _ = first_line.split(" ")
            headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            call = Call(method, path, headers, body, connection, len(self.requests) + 1, writer, reader)
            self.requests.append(call)
            await self._notify()
            await self.script(call)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def raw_server(
    script: Script | None = None, *, tls: ssl.SSLContext | None = None, greeting: Script | None = None
) -> AsyncIterator[RawServer]:
    """A running server; without a script it answers 200. A greeting is said on accept, before any request."""
    server = RawServer(script or always(reply()), tls, greeting)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@dataclass(slots=True)
class PrivateCa:
    """A certificate authority of the test's own: contexts for a server at 127.0.0.1 and localhost and its clients."""

    ca: trustme.CA = field(default_factory=trustme.CA)

    def server_context(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        # Of this authority alone: reading the hundreds that a machine trusts takes longer than most tests.
        return ssl.create_default_context(cadata=self.root_pem.decode())

    @property
    def root_pem(self) -> bytes:
        return bytes(self.ca.cert_pem.bytes())


@asynccontextmanager
async def http2_front(nginx: str, server: RawServer, authority: PrivateCa, *names: str) -> AsyncIterator[int]:
    """The port of an nginx that speaks HTTP/2 over TLS and hands every request to `server`.

    `server` sees the protocol that the client used in the header X-Protocol.
    """
    port = closed_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        certificate = authority.ca.issue_cert(*(names or ("127.0.0.1", "localhost")))
        certificate.private_key_and_cert_chain_pem.write_to_path(home / "server.pem")
        (home / "nginx.conf").write_text(_NGINX.replace("HOME", folder).replace("OURS", str(port)) % server.port)
        # nginx goes to the background once it listens.
        starting = await asyncio.create_subprocess_exec(nginx, "-e", "stderr", "-c", str(home / "nginx.conf"))
        assert await starting.wait() == 0
        try:
            yield port
        finally:
            os.kill(int((home / "pid").read_text()), signal.SIGTERM)


_NGINX = """
daemon on; worker_processes 1; pid HOME/pid; error_log HOME/error.log;
events { worker_connections 256; }
http {
  access_log off; client_body_temp_path HOME/body; proxy_temp_path HOME/proxy; fastcgi_temp_path HOME/fastcgi;
  uwsgi_temp_path HOME/uwsgi; scgi_temp_path HOME/scgi; client_body_buffer_size 1m;
  server {
    listen 127.0.0.1:OURS ssl http2; ssl_certificate HOME/server.pem; ssl_certificate_key HOME/server.pem;
    location / {
      proxy_pass http://127.0.0.1:%d; proxy_http_version 1.1; proxy_buffering off;
      proxy_set_header Host $http_host; proxy_set_header X-Protocol $server_protocol;
    }
  }
}
"""


def closed_port() -> int:
    """A loopback port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
