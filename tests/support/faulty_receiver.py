"""A receiver over real sockets that fails in every way an endpoint can, and judges the order of what it gets."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

from flowcatalyst.web.order_judge import OrderJudge

FAULTS = ("500", "429", "not_acked", "reset", "hang", "half", "drip", "flood")
_OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"ack":true}'
_PLAIN_FAULTS = {
    "500": b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    "429": b"HTTP/1.1 429 Slow down\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
    "not_acked": b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"ack":false,"delaySeconds":1}',
}


class FaultyReceiver:
    """Answers 200, or with probability `fault_rate` with one of `FAULTS`. Set `fault_rate` to 0 to heal it."""

    def __init__(self, fault_rate: float, seed: int = 1) -> None:
        self.fault_rate = fault_rate
        self.judge = OrderJudge()
        self.acked: dict[str, int] = {}  # message id -> how often it was answered with an ack
        self.faults: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.url = ""
        self._rng = random.Random(seed)
        self._next_faults = cycle(self._rng.sample(FAULTS, len(FAULTS)))  # every kind comes, whatever the luck
        self._writers: set[asyncio.StreamWriter] = set()
        self._arrival = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultyReceiver"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            await server.wait_closed()

    async def until_acked(self, count: int, deadline_s: float = 120.0) -> None:
        async with asyncio.timeout(deadline_s):
            while len(self.acked) < count:
                self._arrival.clear()
                await self._arrival.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        message_id = json.loads(await reader.readexactly(int(length[1])))["messageId"]
        self.judge.arrived("hook", message_id)
        if self._rng.random() < self.fault_rate:
            return await self._misbehave(next(self._next_faults), writer)
        self.judge.answered("hook", message_id, 200, for_good=True)
        self.acked[message_id] = self.acked.get(message_id, 0) + 1
        self._arrival.set()
        writer.write(_OK)
        await writer.drain()
        return True

    async def _misbehave(self, fault: str, writer: asyncio.StreamWriter) -> bool:
        """One failed answer; False if the connection is of no more use."""
        self.faults[fault] += 1
        if fault in _PLAIN_FAULTS:
            writer.write(_PLAIN_FAULTS[fault])
            await writer.drain()
            return True
        match fault:
            case "hang":
                await asyncio.sleep(3600)  # ends when the other side gives up and closes
            case "half":
                writer.write(_OK[:-5])
                await writer.drain()
            case "drip":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"1\r\nx\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.01)
            case "flood":
                writer.write(b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                    await writer.drain()
        return False  # "reset" and "half": the connection is aborted
