"""What the scenarios share: a router process of any checkout, and receivers that log what reached them."""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 120.0  # the longest that a scenario watches
START_LIMIT_S = 30.0
MOST_IN_A_REQUEST = 1000  # messages that POST /api/messages takes at once


@dataclass(slots=True, frozen=True)
class Figure:
    """One line of the table."""

    what: str
    value: str


@dataclass(slots=True, frozen=True)
class Answer:
    """How a receiver answers one request. Without a status it never does, but keeps the connection open."""

    status: int | None = 200
    after_s: float = 0.0


OK = Answer()
SILENCE = Answer(None)


@dataclass(slots=True)
class Arrival:
    """A request as its receiver saw it; times are those of the monotonic clock."""

    message_id: str
    at: float
    answered_at: float | None = None
    status: int | None = None


@dataclass(slots=True)
class Receiver:
    """An HTTP server on loopback. `answer` may be changed at any time."""

    answer: Callable[[Arrival], Answer]
    keep_alive: bool = True
    port: int = 0
    arrivals: list[Arrival] = field(default_factory=list)

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def delivered(self, prefix: str = "") -> dict[str, float]:
        """When each message whose id begins so was answered with 200 for the first time."""
        found: dict[str, float] = {}
        for arrival in self.arrivals:
            if arrival.status == 200 and arrival.answered_at and arrival.message_id.startswith(prefix):
                found.setdefault(arrival.message_id, arrival.answered_at)
        return found

    def busy_s(self, start: float, end: float) -> float:
        """How many seconds of work it saw between two times, summed over its requests."""
        spans = ((max(arrival.at, start), min(arrival.answered_at or end, end)) for arrival in self.arrivals)
        return sum(max(0.0, until - since) for since, until in spans)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                arrival = Arrival(json.loads(body)["messageId"], time.monotonic())
                self.arrivals.append(arrival)
                answer = self.answer(arrival)
                if answer.status is None:
                    await reader.read()  # until the router gives up
                    return
                await asyncio.sleep(answer.after_s)
                arrival.answered_at, arrival.status = time.monotonic(), answer.status
                close = b"" if self.keep_alive else b"Connection: close\r\n"
                writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: 2\r\n\r\n{}" % (answer.status, close))
                await writer.drain()
                if not self.keep_alive:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled at the end of the scenario only, and Python 3.11 would print it
        finally:
            writer.close()


class Router:
    """A running router: its API from outside."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def publish(self, messages: Iterable[Mapping[str, object]], queue: str = "default") -> None:
        waiting = list(messages)
        for start in range(0, len(waiting), MOST_IN_A_REQUEST):
            chunk = waiting[start : start + MOST_IN_A_REQUEST]
            async with self._session.post(f"{self.url}/api/messages", params={"queue": queue}, json=chunk) as answer:
                said = await answer.json()
                assert said.get("accepted") == len(chunk), said

    async def get(self, path: str) -> str:
        async with self._session.get(self.url + path) as answer:
            return await answer.text()

    async def failed_attempts(self, pool: str) -> int:
        """Attempts of a pool that were no success, by its metrics."""
        line = rf'flowcatalyst_pool_attempts_total{{pool="{pool}",result="(\w+)"}} ([\d.]+)'
        found = re.findall(line, await self.get("/metrics"))
        assert found, "the metrics do not tell of attempts any more"
        return round(sum(float(count) for result, count in found if result != "SUCCESS"))

    @asynccontextmanager
    async def steadily(self, per_second: float, message: Callable[[int], Mapping[str, object]]) -> AsyncIterator[None]:
        """Publish one message after the other, until the end of the block."""

        async def feed() -> None:
            start = time.monotonic()
            for number in range(1_000_000):
                await asyncio.sleep(max(0.0, start + number / per_second - time.monotonic()))
                await self.publish([message(number)])

        task = asyncio.create_task(feed())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Stage:
    """One scenario's folder, receivers and router; all of them end with it."""

    def __init__(self, code: Path, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self._code = code
        self._stack = stack

    def at_the_end(self, callback: Callable[[], object]) -> None:
        self._stack.callback(callback)

    async def receiver(
        self, answer: Callable[[Arrival], Answer] = lambda _: OK, *, keep_alive: bool = True, port: int = 0
    ) -> Receiver:
        receiver = Receiver(answer, keep_alive)
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, backlog=1024)
        self._stack.callback(server.close)
        receiver.port = server.sockets[0].getsockname()[1]
        return receiver

    async def router(self, settings: str = "", env: Mapping[str, str] | None = None) -> Router:
        """`flowcatalyst up` with its default settings, but for those given here as TOML."""
        config = self.folder / "flowcatalyst.toml"
        config.write_text(settings)
        command = [sys.executable, "-m", "flowcatalyst", "up", "--port", "0"]
        command += ["--data-dir", str(self.folder / "data"), "--config", str(config)]
        log = self._stack.enter_context((self.folder / "router.log").open("ab"))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self._code / "src"), **(env or {})},
        )
        self._stack.push_async_callback(_end, process)
        assert process.stdout is not None
        async with asyncio.timeout(START_LIMIT_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[\d.:]+", line)
        assert found, f"it did not start: {line} {(self.folder / 'router.log').read_text()}"
        return Router(found[0], await self._stack.enter_async_context(aiohttp.ClientSession()))


@asynccontextmanager
async def stage(code: Path) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="scenario-") as folder:
        async with AsyncExitStack() as stack:
            yield Stage(code, Path(folder), stack)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Nothing of it is measured any more, so it need not drain."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


def message(message_id: str, target: str, pool: str, group: str | None = None) -> dict[str, Any]:
    """A message as POST /api/messages takes it, in a group of its own unless one is named."""
    return {"id": message_id, "mediationTarget": target, "poolCode": pool, "messageGroupId": group or message_id}


async def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition held within the time."""
    end = time.monotonic() + limit_s
    while not (held := condition()) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return held


def seconds(value: float | None, limit_s: float = LIMIT_S) -> str:
    """A time span, or that it did not come."""
    return f"{value:.1f} s" if value is not None else f"not in {limit_s:.0f} s"
