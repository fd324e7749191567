"""Connections that no honest client makes, a thousand of a kind, made again as soon as they are closed."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

import uvloop

REQUEST: Final = b"GET /monitoring/pool-stats HTTP/1.1\r\nHost: a\r\n\r\n"
METRICS: Final = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD: Final = b"POST /api/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CALL_BACK: Final = (
    b"POST /api/dispatch/process HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer fcj1." + b"A" * 200 + b"\r\n"
)
FILES: Final = b"".join(
    b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in (b"/", b"/dashboard/app.js", b"/dashboard/nothing.js")
)
PASSWORD: Final = REQUEST[:-2] + b"Authorization: Basic YWRtaW46d3Jvbmc=\r\n\r\n"  # admin:wrong
LIVE: Final = b"GET /monitoring/live HTTP/1.1\r\nHost: a\r\n"
BLOCK: Final = 64 * 1024


class Line:
    """One connection of a stranger."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.socket = sock
        self._loop = loop

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def read(self) -> bytes:
        """What the server says; `ConnectionError` when it has closed."""
        if not (data := await self._loop.sock_recv(self.socket, BLOCK)):
            raise ConnectionResetError
        return data

    async def until_closed(self) -> None:
        while True:
            await self.read()

    async def repeat(self, data: bytes, pause_s: float = 0.0) -> None:
        while True:
            await self.send(data)
            await asyncio.sleep(pause_s)


Attack = Callable[[Line], Awaitable[None]]


async def silent(line: Line) -> None:
    await line.until_closed()


async def slow_head(line: Line) -> None:
    await line.send(b"GET / HTTP/1.1\r\nX: ")
    await line.repeat(b"x", 1.0)


async def giant_header(line: Line) -> None:
    await line.send(b"GET / HTTP/1.1\r\nX: ")
    await line.repeat(b"x" * BLOCK)


async def many_headers(line: Line) -> None:
    await line.send(b"GET / HTTP/1.1\r\n")
    await line.repeat(b"a:\r\n" * (BLOCK // 4))


async def giant_url(line: Line) -> None:
    await line.send(b"GET /")
    await line.repeat(b"a&" * (BLOCK // 2))


async def many_parameters(line: Line) -> None:
    while True:
        await line.send(b"GET /health?" + b"a&" * 2000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        await line.read()


async def slow_body(line: Line) -> None:
    await line.send(HEAD + b"Content-Length: 1000000\r\n\r\n")
    await line.repeat(b" ", 1.0)


async def giant_body(line: Line) -> None:
    await line.send(HEAD + b"Content-Length: 100000000000\r\n\r\n")
    await line.repeat(b" " * BLOCK)


async def tiny_chunks(line: Line) -> None:
    await line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await line.repeat(b"1\r\nx\r\n" * (BLOCK // 6))


async def pipelined(line: Line) -> None:
    await line.repeat(b"GET / HTTP/1.1\r\n\r\n" * (BLOCK // 18))


async def pipelined_and_read(line: Line) -> None:
    while True:
        await line.send(REQUEST * 8)
        await line.read()


async def half_closed(line: Line) -> None:
    await line.send(REQUEST[:-2])
    line.socket.shutdown(socket.SHUT_WR)
    await line.until_closed()


async def reset(line: Line) -> None:
    await line.send(REQUEST)
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def kept_alive(line: Line) -> None:
    await line.send(REQUEST)
    await line.until_closed()


async def slow_reader(line: Line) -> None:
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await line.repeat(METRICS * 8, 0.1)


async def invalid_bytes(line: Line) -> None:
    await line.send(os.urandom(512))
    await line.until_closed()


async def requests(line: Line) -> None:
    while True:
        await line.send(REQUEST)
        await line.read()


async def wrong_keys(line: Line) -> None:
    while True:
        await line.send(REQUEST[:-2] + b"X-API-Key: " + b"k" * 4000 + b"\r\n\r\n")
        await line.read()


async def open_routes(line: Line) -> None:
    while True:
        await line.send(METRICS)
        await line.read()


async def call_backs(line: Line) -> None:
    """With a token that nobody made, and a body that nobody should read."""
    while True:
        await line.send(CALL_BACK + b"Content-Length: 16777216\r\n\r\n" + b" " * BLOCK)
        await line.read()
        await line.repeat(b" " * BLOCK)


async def dashboard_files(line: Line) -> None:
    while True:
        await line.send(FILES)
        await line.read()


async def wrong_passwords(line: Line) -> None:
    """Each takes a processor for a while, where passwords are what the router asks for."""
    while True:
        await line.send(PASSWORD)
        await line.read()


async def live_without_key(line: Line) -> None:
    while True:
        await line.send(LIVE + b"\r\n")
        await line.read()


async def live_unread(line: Line) -> None:
    """Not a stranger: a page with a key that listens and reads nothing."""
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await line.send(LIVE + b"X-API-Key: secret\r\n\r\n")
    await asyncio.sleep(5)


async def connect_only(line: Line) -> None:
    """Connect and close, over and over."""


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__: attack
    for attack in (
        silent,
        slow_head,
        giant_header,
        many_headers,
        giant_url,
        many_parameters,
        slow_body,
        giant_body,
        tiny_chunks,
        pipelined,
        pipelined_and_read,
        half_closed,
        reset,
        kept_alive,
        slow_reader,
        invalid_bytes,
        requests,
        wrong_keys,
        open_routes,
        call_backs,
        dashboard_files,
        wrong_passwords,
        live_without_key,
        live_unread,
        connect_only,
    )
}


PASSWORDS_ASKED: Final = frozenset({wrong_passwords.__name__})  # elsewhere the router asks for keys


async def attack_for_ever(attack: Attack, port: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(delay_s)
    while True:
        with suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await attack(Line(sock, loop))
        await asyncio.sleep(0.01)


async def main(port: int, connections: int, names: list[str]) -> None:
    """Attack until this process is killed."""

    def everybody() -> Iterator[Awaitable[None]]:
        for index in range(connections):
            for name in names:
                yield attack_for_ever(ATTACKS[name], port, index / connections)

    await asyncio.gather(*everybody())


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
