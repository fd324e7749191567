"""A shop on the platform: a process of its own with jobs, events and subscriptions, and the application behind them."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.api.running import Client, until
from tests.support.http_servers import Call, RawServer, raw_server, reply
from tests.support.router_process import Waits, router_process

EVENTS = "/api/events"
GROUPS = "/api/message-groups"
JOBS = "/api/dispatch-jobs"
SUBSCRIPTIONS = "/api/subscriptions"
BLOCK = "BLOCK_ON_ERROR"
TAKEN = reply(200, b'{"ack":true}', "Content-Type: application/json")
LATER = "2100-01-01T00:00:00Z"


@dataclass(slots=True)
class Application:
    """It knows what it is sent by the name in its payload, and refuses what it is told to refuse."""

    got: list[str] = field(default_factory=list)
    answers: dict[str, deque[bytes]] = field(default_factory=dict)

    def refuses(self, *names: str, times: int = 1) -> None:
        for name in names:
            self.answers[name] = deque([reply(503, b"the warehouse is closed")] * times)

    async def __call__(self, call: Call) -> None:
        body = msgspec.json.decode(call.body)
        name = body.get("name") or body.get("data", {}).get("name", "?")
        self.got.append(name)
        waiting = self.answers.get(name)
        await call.send(waiting.popleft() if waiting else TAKEN)


@dataclass(slots=True)
class Shop:
    """The process by its address, and what a test does there before it looks at the page."""

    url: str
    client: Client
    application: Application
    server: RawServer

    async def job(self, name: str, **more: Any) -> str:
        """Make one; its id."""
        usual = {"code": "order.paid", "targetUrl": self.server.url("/jobs"), "payload": {"name": name}}
        made = await self.client.post(JOBS, {**usual, "maxRetries": 0, **more})
        assert made.status == 201, made.text
        return str(made.json["id"])

    async def jobs_of(self, group: str, *names: str, **more: Any) -> list[str]:
        """Jobs of a group whose order a failure stops."""
        return [await self.job(name, messageGroup=group, mode=BLOCK, **more) for name in names]

    async def blocked(self, group: str, *names: str) -> list[str]:
        """Jobs of a group of which the first one failed for good: it is parked, and the others wait."""
        self.application.refuses(names[0])
        ids = await self.jobs_of(group, *names)
        await self.until(ids[0], "ERROR")
        return ids

    async def status(self, job: str) -> str:
        return str((await self.client.get(f"{JOBS}/{job}")).json["job"]["status"])

    async def until(self, job: str, status: str) -> None:
        async def is_so() -> bool:
            return await self.status(job) == status

        await until(is_so)

    async def subscribe(self, code: str, *patterns: str) -> None:
        body = {
            "code": code,
            "name": f"What {code} wants to know",
            "targetUrl": self.server.url(f"/webhooks/{code}"),
            "eventTypes": [{"eventTypeCode": one} for one in patterns],
        }
        made = await self.client.post(SUBSCRIPTIONS, body)
        assert made.status == 201, made.text

    async def event(self, name: str, kind: str, **more: Any) -> str:
        """Tell of one; its id."""
        sent = await self.client.post(EVENTS, {"type": kind, "source": "shop", "data": {"name": name}, **more})
        assert sent.status == 201, sent.text
        return str(sent.json["id"])

    async def until_got(self, *names: str) -> None:
        async def all_there() -> bool:
            return set(names) <= set(self.application.got)

        await until(all_there)


@asynccontextmanager
async def open_shop(folder: Path) -> AsyncIterator[Shop]:
    application = Application()
    waits = Waits(timeout_ms=60_000, backoff_s=(1.0, 2.0))
    async with (
        raw_server(application) as server,
        router_process(folder, waits) as router,
        aiohttp.ClientSession(router.url) as session,
    ):
        yield Shop(router.url, Client(session), application, server)


@dataclass(slots=True, frozen=True)
class Furnished:
    """Where single things are."""

    views: list[str]


async def furnish(shop: Shop) -> Furnished:
    """One of everything that the views of the platform show, with long names."""
    long = "x" * 180
    await shop.subscribe("billing", "invoice.*", "order.**", f"{'y' * 90}.*")
    await shop.subscribe("newsletter", "customer.*")
    await shop.client.post(f"{SUBSCRIPTIONS}/newsletter/pause")
    event = await shop.event("delivered", "invoice.sent", subject=f"invoice:{long}", messageGroup=f"invoice:{long}")
    await shop.event("waits", "customer.moved", subject="customer:4")
    failed, behind, _ = await shop.blocked("order:4711", "failed", "behind", "last")
    await shop.blocked(f"order:{long}", "long")
    await shop.client.post(f"{GROUPS}/order:4712/hold")
    await shop.jobs_of("order:4712", "held")
    waiting = await shop.job("waiting", scheduledFor=LATER)
    await shop.until_got("delivered")
    jobs = [f"jobs/{one}" for one in (failed, behind, waiting)]
    explained = [f"explain/{one}?kind=JOB" for one in (failed, behind)]
    views = [*jobs, *explained, f"events/{event}", f"explain/{event}?kind=EVENT", "subscriptions/billing"]
    return Furnished(views)
