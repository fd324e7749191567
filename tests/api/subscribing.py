"""A platform with subscriptions, and the application behind them: it verifies each webhook with the receiver kit."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowcatalyst.receiver import GroupGuard, MemoryGuardStore, Verdict, Webhook, verify
from tests.api.running import Answer, Client, Running, run_router, until
from tests.support.http_servers import Call, RawServer, raw_server, reply

EVENTS = "/api/events"
SUBSCRIPTIONS = "/api/subscriptions"
POOLS = "/api/dispatch-pools"
TAKEN = reply(200, b'{"ack":true}', "Content-Type: application/json")


@dataclass(slots=True)
class Subscriber:
    """An application behind all targets, by the code of the subscription, which is the last part of their paths.

    It knows events by the name in their data. What does not verify is answered with 401 and remembered.
    """

    secrets: dict[str, list[str]] = field(default_factory=dict)
    guard: GroupGuard = field(default_factory=lambda: GroupGuard(MemoryGuardStore()))
    got: list[tuple[str, str]] = field(default_factory=list)  # code and name, in order, those it failed too
    webhooks: list[Webhook] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    answers: dict[str, deque[int]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def fails(self, name: str, *statuses: int) -> None:
        self.answers[name] = deque(statuses)

    def hangs(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def names(self, code: str) -> list[str]:
        return [name for one, name in self.got if one == code]

    async def __call__(self, call: Call) -> None:
        code = call.path.rpartition("/")[2].partition("?")[0]
        try:
            webhook = verify(call.headers, call.body, self.secrets[code])
        except Exception as error:
            self.refused.append(repr(error))
            await call.send(reply(401))
            return
        body = webhook.json()
        data = body["data"] if "specversion" in body else body
        name = str(data.get("name", "?"))
        self.got.append((code, name))
        self.webhooks.append(webhook)
        if name in self.gates:
            await self.gates[name].wait()
        waiting = self.answers.get(name)
        if waiting:
            await call.send(reply(waiting.popleft()))
            return
        self.verdicts.append(self.guard.done(webhook))
        await call.send(TAKEN)


@dataclass(slots=True)
class Subscribing:
    """A platform at work, and the application."""

    running: Running
    subscriber: Subscriber
    server: RawServer

    @property
    def client(self) -> Client:
        return self.running.client

    def body(self, code: str, *patterns: str, **more: Any) -> dict[str, Any]:
        usual = {
            "code": code,
            "targetUrl": self.server.url(f"/hooks/{code}"),
            "eventTypes": [{"eventTypeCode": one} for one in patterns or ("order.*",)],
            "retryDelaysSeconds": [0.01],
        }
        return usual | more

    async def subscribe(self, code: str, *patterns: str, **more: Any) -> dict[str, Any]:
        made = await self.client.post(SUBSCRIPTIONS, self.body(code, *patterns, **more))
        assert made.status == 201, made.text
        self.subscriber.secrets[code] = [made.json["secret"]]
        found: dict[str, Any] = made.json
        return found

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        return {"type": "order.created", "source": "shop", "data": {"name": name}} | more

    async def send(self, name: str, **more: Any) -> dict[str, Any]:
        sent = await self.client.post(EVENTS, self.event(name, **more))
        assert sent.status == 201, sent.text
        found: dict[str, Any] = sent.json
        return found

    async def act(self, code: str, action: str, body: Any = None) -> Answer:
        return await self.client.post(f"{SUBSCRIPTIONS}/{code}/{action}", body)

    async def change(self, code: str, **change: Any) -> Answer:
        return await self.client.request("PATCH", f"{SUBSCRIPTIONS}/{code}", json=change)

    async def shown(self, code: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get(f"{SUBSCRIPTIONS}/{code}")).json
        return found

    async def until_got(self, code: str, *names: str) -> None:
        """Wait until a subscription got these, in this order and no others."""

        async def all_there() -> bool:
            return len(self.subscriber.names(code)) >= len(names)

        await until(all_there)
        assert self.subscriber.names(code) == list(names)
        assert self.subscriber.refused == []

    async def unfinished(self, code: str) -> list[dict[str, Any]]:
        jobs = (await self.client.get(f"/api/dispatch-jobs?subscription={code}&limit=1000")).json["items"]
        return [one for one in jobs if one["finishedAt"] is None]

    async def until_done(self, code: str) -> None:
        async def nothing_left() -> bool:
            return not await self.unfinished(code)

        await until(nothing_left)


@asynccontextmanager
async def subscribing(folder: Path, **settings: Any) -> AsyncIterator[Subscribing]:
    subscriber = Subscriber()
    platform = {"enabled": True} | settings.pop("platform", {})
    async with (
        raw_server(subscriber) as server,
        run_router(folder, platform=platform, **settings) as running,
    ):
        yield Subscribing(running, subscriber, server)
