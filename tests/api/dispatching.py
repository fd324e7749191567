"""A router that dispatches jobs, on each kind of store, with an endpoint that answers as a test says."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.running import Answer, Client, Running, run_router, until
from tests.support.http_servers import Call, RawServer, raw_server, reply

on_sqlite = pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # where the store makes no difference
JOBS = "/api/dispatch-jobs"
GROUPS = "/api/message-groups"


@dataclass(slots=True)
class Endpoint:
    """Where jobs go. It knows them by the name in their payload, which is what a test calls them."""

    started: list[str] = field(default_factory=list)
    answers: dict[str, deque[bytes]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)  # those it answers only when the test says so

    def fails(self, name: str, *statuses: int) -> None:
        """Its next attempts are answered by these; what comes after them succeeds."""
        self.answers[name] = deque(reply(status) for status in statuses)

    def hangs(self, name: str) -> asyncio.Event:
        """It is answered when the event is set."""
        return self.gates.setdefault(name, asyncio.Event())

    async def __call__(self, call: Call) -> None:
        name = msgspec.json.decode(call.body)["name"]
        self.started.append(name)
        if name in self.gates:
            await self.gates[name].wait()
        waiting = self.answers.get(name)
        await call.send(waiting.popleft() if waiting else reply(200, b'{"ack":true}', "Content-Type: application/json"))


@dataclass(slots=True)
class Dispatching:
    """A router at work, the endpoint of its jobs, and the ids of the jobs that a test made, by their names."""

    running: Running
    endpoint: Endpoint
    server: RawServer
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def client(self) -> Client:
        return self.running.client

    def body(self, name: str = "x", **more: Any) -> dict[str, Any]:
        usual = {"code": "test", "targetUrl": self.server.url("/hook"), "payload": {"name": name}, "maxRetries": 0}
        return usual | more

    async def create(self, name: str, **more: Any) -> str:
        made = await self.client.post(JOBS, self.body(name, **more))
        assert made.status == 201, made.text
        self.ids[name] = made.json["id"]
        return self.ids[name]

    async def blocked(self, *names: str, group: str = "account:123", **more: Any) -> None:
        """Jobs of a group of which the first one fails and blocks the others."""
        self.endpoint.fails(names[0], 500)
        for name in names:
            await self.create(name, messageGroup=group, mode="BLOCK_ON_ERROR", **more)
        await self.until(names[0], "ERROR")

    async def whole(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"{JOBS}/{self.ids[name]}")).json
        return found

    async def status(self, name: str) -> str:
        return str((await self.whole(name))["job"]["status"])

    async def until(self, name: str, status: str) -> dict[str, Any]:
        async def is_so() -> bool:
            return await self.status(name) == status

        await until(is_so)
        return await self.whole(name)

    async def listed(self, query: str) -> list[str]:
        """Names of the jobs of a list, in its order."""
        answer = await self.client.get(f"{JOBS}?{query}")
        assert answer.status == 200, answer.text
        names = {job_id: name for name, job_id in self.ids.items()}
        return [names[one["id"]] for one in answer.json["items"]]

    async def act(self, name: str, action: str) -> Answer:
        return await self.client.post(f"{JOBS}/{self.ids[name]}/{action}")

    async def change(self, name: str, **change: Any) -> Answer:
        return await self.client.request("PATCH", f"{JOBS}/{self.ids[name]}", json=change)

    async def bulk(self, action: str, **more: Any) -> Answer:
        return await self.client.post(f"{JOBS}/{action}", more)


@asynccontextmanager
async def dispatching(folder: Path, **settings: Any) -> AsyncIterator[Dispatching]:
    endpoint = Endpoint()
    platform = {"enabled": True} | settings.pop("platform", {})
    async with (
        raw_server(endpoint) as server,
        run_router(folder, platform=platform, **settings) as running,
    ):
        yield Dispatching(running, endpoint, server)
