"""A way to a server that can be cut and mended while the server itself goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpProxy:
    """Listens on a port of its own and passes everything on."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Everything that is connected breaks, and nobody can connect."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        both = {writer, there_writer}
        self._writers |= both
        try:
            await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def tcp_proxy(to_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(to_port)
    await proxy.mend()
    try:
        yield proxy
    finally:
        proxy.cut()
        await asyncio.sleep(0.05)  # those who served see the end
