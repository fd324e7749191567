"""A way to a server that can be cut and mended while the server itself goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class TcpProxy:
    """Listens on a port of its own and passes everything on, each connection to one of possibly many servers."""

    def __init__(self, to_port: int | Callable[[], int]) -> None:
        """`to_port` is asked for each connection, if it can be. It raises `ConnectionError` if nobody is there."""
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._servers: set[asyncio.StreamWriter] = set()
        self._server_may_know = asyncio.Event()
        self._half_dead: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.connections = 0  # made so far
        self.port = 0

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._server_may_know.set()

    def swallow(self) -> None:
        """What is connected stays so, but nothing comes through any more. New connections work."""
        self._half_dead |= self._clients | self._servers

    def cut(self) -> None:
        """Everything that is connected breaks, and nobody can connect."""
        self.cut_clients()
        self.cut_server()

    def cut_clients(self) -> None:
        """Clients see the break; the server does not until `cut_server`."""
        self._server_may_know.clear()
        if self._server is not None:
            self._server.close()
        for writer in self._clients:
            writer.transport.abort()

    def cut_server(self) -> None:
        self._server_may_know.set()
        for writer in self._servers:
            writer.transport.abort()

    async def close(self) -> None:
        """Cut, and every socket is closed when this returns."""
        self.cut()
        for task in self._serving:
            task.cancel()
        while self._serving:
            await asyncio.wait(self._serving)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._clients.add(writer)  # from now on: a cut breaks it while the server is being called
        try:
            await self._serve_client(reader, writer)
        except ConnectionError:
            pass  # of the server: the client sees its connection break
        finally:
            self._serving.discard(task)
            self._clients.discard(writer)
            writer.transport.abort()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._to_port if isinstance(self._to_port, int) else self._to_port()
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        self.connections += 1
        self._servers.add(there_writer)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_to_client(there_reader, writer))
                both.create_task(self._pass_to_server(reader, there_writer))
        finally:
            self._servers.discard(there_writer)
            there_writer.transport.abort()

    async def _pass_to_server(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pass_on(reader, writer)
        await self._server_may_know.wait()
        writer.transport.abort()

    async def _pass_to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._pass_on(reader, writer)
        writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if writer not in self._half_dead:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass


@asynccontextmanager
async def tcp_proxy(to_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(to_port)
    await proxy.mend()
    try:
        yield proxy
    finally:
        await proxy.close()
