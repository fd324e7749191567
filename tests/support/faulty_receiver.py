"""A receiver over real sockets that fails in every way an endpoint can, and judges the order of what it gets."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from flowcatalyst.sandbox.order_judge import OrderJudge

FAULTS = ("500", "429", "not_acked", "reset", "hang", "half", "drip", "flood")
PROBE = "probe"  # id of a request of our own, see `catch_up`


@dataclass(slots=True, frozen=True)
class Answer:
    """A complete response."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    for_good: bool = False  # the next message of the group may come

    def encode(self) -> bytes:
        retry_after = f"Retry-After: {self.retry_after}\r\n" if self.retry_after is not None else ""
        head = f"HTTP/1.1 {self.status} Said\r\n{retry_after}Content-Length: {len(self.body)}\r\n\r\n"
        return head.encode() + self.body


OK = Answer(200, b'{"ack":true}', for_good=True)
ANSWERS = {
    "ok": OK,
    "400": Answer(400, for_good=True),
    "500": Answer(500),
    "429": Answer(429, retry_after="1"),
    "not_acked": Answer(200, b'{"ack":false,"delaySeconds":1}'),
}


class FaultyReceiver:
    """Answers 200, or with probability `fault_rate` with one of `FAULTS`. Set `fault_rate` to 0 to heal it.

    `script` says what to do with the next requests of a message, before luck is asked.
    """

    def __init__(self, fault_rate: float, seed: int = 1) -> None:
        self.fault_rate = fault_rate
        self.answer_after_s = 0.0
        self.script: dict[str, list[str]] = {}
        self.judge = OrderJudge()
        self.acked: dict[str, int] = {}  # message id -> how often it was answered for good
        self.faults: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self.arrivals = 0
        self.url = ""
        self._rng = random.Random(seed)
        self._next_faults = cycle(self._rng.sample(FAULTS, len(FAULTS)))  # every kind comes, whatever the luck
        self._writers: set[asyncio.StreamWriter] = set()
        self._hanging: list[asyncio.Future[str]] = []
        self._change = asyncio.Event()
        self._errors: list[Exception] = []

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
        assert self._errors == [], f"the receiver itself failed: {self._errors}"

    async def until_acked(self, count: int, deadline_s: float = 120.0) -> None:
        async with asyncio.timeout(deadline_s):
            while len(self.acked) < count:
                await self._next_change()

    async def until_arrived(self, count: int, deadline_s: float = 120.0) -> None:
        """Until `count` requests came, repeated ones included."""
        async with asyncio.timeout(deadline_s):
            while self.arrivals < count:
                await self._next_change()

    async def until_disconnected(self, deadline_s: float = 30.0) -> None:
        """Until everybody has closed their connections, and what that tells was noted."""
        async with asyncio.timeout(deadline_s):
            while self._writers:
                await self._next_change()

    async def catch_up(self) -> None:
        """Until every request was seen that was sent before this call.

        A new connection is accepted after those that came before it, and its request is read some passes of the loop
        later than what lies ready on the others.
        """
        port = int(self.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"messageId": PROBE})
        writer.write(f"POST /hook HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await reader.readexactly(len(OK.encode()))
        writer.close()
        await writer.wait_closed()

    def end_hanging(self, how: str) -> None:
        """End the requests that hang now: with one of `ANSWERS`, or with "reset"."""
        for hanging in self._hanging:
            if not hanging.done():
                hanging.set_result(how)

    async def _next_change(self) -> None:
        self._change.clear()
        await self._change.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        was_reset = False
        try:
            while await self._serve_one(reader, writer):
                pass
        except asyncio.IncompleteReadError:
            pass
        except ConnectionError:
            was_reset = True
        except Exception as error:
            self._errors.append(error)
        finally:
            await self._disconnected(writer, was_reset)
            self._writers.discard(writer)
            self._change.set()
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        message_id = await _read_request(reader)
        if message_id == PROBE:
            writer.write(OK.encode())
            return True
        if not self._arrived(message_id, writer):
            return False
        how = self._choose(message_id)
        if how == "hang":
            how = await self._hang(reader)
        if self.answer_after_s:
            await asyncio.sleep(self.answer_after_s)
        if how in ANSWERS:
            self._answering(message_id, writer, ANSWERS[how])
            writer.write(ANSWERS[how].encode())
            await writer.drain()
            return True
        await _misbehave(how, writer)
        self._cutting_off(writer)
        return False

    # What happens to a request. A witness writes it down.

    def _arrived(self, message_id: str, writer: asyncio.StreamWriter) -> bool:
        """A request is here. False if it does not count."""
        self.judge.arrived("hook", message_id)
        self.arrivals += 1
        self._change.set()
        return True

    def _answering(self, message_id: str, writer: asyncio.StreamWriter, answer: Answer) -> None:
        """A complete answer is about to be written."""
        self.judge.answered("hook", message_id, answer.status, for_good=answer.for_good)
        if answer.for_good:
            self.acked[message_id] = self.acked.get(message_id, 0) + 1
            self._change.set()

    def _cutting_off(self, writer: asyncio.StreamWriter) -> None:
        """The connection is about to end without a complete answer."""

    async def _disconnected(self, writer: asyncio.StreamWriter, was_reset: bool) -> None:
        """The connection has ended, or is about to."""

    # How it misbehaves

    def _choose(self, message_id: str) -> str:
        if planned := self.script.get(message_id):
            return planned.pop(0)
        if self._rng.random() >= self.fault_rate:
            return "ok"
        fault = next(self._next_faults)
        self.faults[fault] += 1
        return fault

    async def _hang(self, reader: asyncio.StreamReader) -> str:
        """How to end the request: as `end_hanging` says, else not at all, once the other side gave up and closed."""
        released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        closed = asyncio.ensure_future(reader.read(1))
        self._hanging.append(released)
        try:
            ends: list[asyncio.Future[Any]] = [released, closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if released.done():
                return released.result()
            closed.result()
            return "reset"
        finally:
            self._hanging.remove(released)
            closed.cancel()
            await asyncio.wait([closed])  # a reader serves one at a time


async def _read_request(reader: asyncio.StreamReader) -> str:
    """The id of the message that a request carries."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    message_id: str = json.loads(await reader.readexactly(int(length[1])))["messageId"]
    return message_id


async def _misbehave(fault: str, writer: asyncio.StreamWriter) -> None:
    """No complete answer. Returns when the connection is to be aborted, or raises when the other side ended it."""
    match fault:
        case "reset":
            pass
        case "half":
            writer.write(OK.encode()[:-5])
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
        case _:
            raise AssertionError(f"no fault is called {fault}")
