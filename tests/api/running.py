"""A whole router with its API on a free port, and a client that talks to it over HTTP."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
import pytest
from litestar import Litestar
from litestar.utils.signature import ParsedSignature

from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.reception import ConnectionLimits
from flowcatalyst.api.server import Listening
from flowcatalyst.app import serve as serve_module
from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.message import MessagePointer
from flowcatalyst.dispatch.store import sqlite as job_store
from flowcatalyst.dispatch.store.sqlite import SqliteJobQueue
from flowcatalyst.queues import factory as queue_factory
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.intake import outgoing_of
from tests.support.patience import PATIENCE_S

PROBLEM = "application/problem+json"
on_idle_router = pytest.mark.asyncio(loop_scope="session")


@dataclass(slots=True, frozen=True)
class Answer:
    status: int
    media_type: str
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.text)

    def assert_problem(self, status: int, *words: str) -> None:
        """It is a complete problem of this status whose sentence has these words, and it shows no inner parts."""
        assert (self.status, self.media_type) == (status, PROBLEM), self.text
        body = self.json
        assert (body["status"], body["type"]) == (status, "about:blank")
        assert body["title"]
        for word in words:
            assert word in body["detail"], body
        assert "Traceback" not in self.text


class Client:
    """Requests to one server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        given = dict(headers or {})
        data = None
        if json is not None:
            body = msgspec.json.encode(json)
        if body is not None:
            data = io.BytesIO(body)
            given.setdefault("Content-Type", "application/json")
        async with self._session.request(method, path, data=data, headers=given) as response:
            text = await response.text()
            return Answer(response.status, response.content_type, dict(response.headers), text)

    async def get(self, path: str) -> Answer:
        return await self.request("GET", path)

    async def post(self, path: str, json: Any = None, **more: Any) -> Answer:
        return await self.request("POST", path, json=json, **more)

    async def put(self, path: str, json: Any = None, **more: Any) -> Answer:
        return await self.request("PUT", path, json=json, **more)

    async def delete(self, path: str) -> Answer:
        return await self.request("DELETE", path)


@dataclass(slots=True, frozen=True)
class Running:
    """A router at work."""

    app: App
    client: Client
    listening: Listening

    def receiver(self, name: str) -> str:
        return f"{self.listening.url}/api/test/{name}"

    async def send(self, **message: Any) -> Answer:
        return await self.client.post("/api/messages", message)

    async def publish(self, name: str, target: str) -> None:
        """Put a message into the queue past the API, which refuses some."""
        pointer = MessagePointer(id=name, mediation_target=target)
        await self.app.queues["default"].publish([outgoing_of(pointer, None)])

    async def until_settled(self) -> None:
        """Wait until the queues are empty and the router owns nothing."""

        async def nothing_left() -> bool:
            depths = [await queue.depth() for queue in self.app.queues_to_show().values()]
            left = sum(depth.waiting + depth.leased + depth.delayed for depth in depths if depth is not None)
            return not left and not len(self.app.tracker)

        await until(nothing_left)

    async def until_dead(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many dead letters and return them."""

        async def enough() -> bool:
            return await self.app.dead_letters.count() >= count

        await until(enough)
        letters: list[dict[str, Any]] = (await self.client.get("/monitoring/dead-letters")).json
        return letters

    async def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/api/test/stats")).json
        return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until the condition holds; fail after a while."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.01)


_idle: list[Litestar] = []  # APIs without access control that no router has


@contextmanager
def _api_lent() -> Iterator[Callable[..., Litestar]]:
    """Instead of `build_api`, where there is no access control: to build one takes longer than most tests."""
    lent: list[Litestar] = []

    def lend(app: App, *, with_sandbox: bool) -> Litestar:
        assert with_sandbox
        lent.append(_idle.pop() if _idle else build_api(app))
        lent[-1].state.served.put(app)
        return lent[-1]

    yield lend
    _idle.extend(lent)


_parse_signature = ParsedSignature.from_fn
_signatures: WeakKeyDictionary[Callable[..., Any], ParsedSignature] = WeakKeyDictionary()


def _signature_parsed_once(handler: Callable[..., Any], names: dict[str, Any]) -> ParsedSignature:
    """The same for all routers, and a third of what it takes to build an API."""
    if handler not in _signatures:
        _signatures[handler] = _parse_signature(handler, names)
    return _signatures[handler]


@asynccontextmanager
async def run_router(
    folder: Path, *, limits: ConnectionLimits | None = None, **settings: Any
) -> AsyncIterator[Running]:
    with pytest.MonkeyPatch.context() as patch, _api_lent() as lend:
        # A stop waits for the poll under way.
        patch.setattr(queue_factory, "EmbeddedQueue", partial(EmbeddedQueue, long_poll_s=0.05))
        patch.setattr(job_store, "SqliteJobQueue", partial(SqliteJobQueue, long_poll_s=0.05))
        patch.setattr(serve_module, "build_api", build_api if "auth" in settings else lend)
        patch.setattr(ParsedSignature, "from_fn", _signature_parsed_once)
        app = App(Settings(data_dir=folder, port=0, **settings))
        async with serve(app, limits=limits) as listening, aiohttp.ClientSession(listening.url) as session:
            yield Running(app, Client(session), listening)
