"""A platform on PostgreSQL, a broker, and a router on "another machine": either is killed at random, again and again.

What was accepted reaches the application, in order and with valid signatures, as the receiver kit judges it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import pytest

from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.receiver import Verdict
from tests.api.subscribing import EVENTS, POOLS, SUBSCRIPTIONS, Subscriber
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.brokers import KINDS, Kind, Place, Places, places
from tests.support.http_servers import Call, raw_server, reply
from tests.support.patience import PATIENCE_S
from tests.support.router_process import RouterProcess, Waits, router_process
from tests.support.tcp_proxy import TcpProxy

GROUPS: Final = 6
PER_GROUP: Final = 8
KILLS: Final = 4
QUEUED_LIMIT_S: Final = 12.0  # what a lost callback costs
PLATFORM: Final = """
[platform]
enabled = true
database_url = "{database}"
secret_key = "{key}"
public_url = "http://127.0.0.1:{port}"
queued_limit_s = {queued_limit_s}
"""
_schemas = count(1)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class MoodySubscriber(Subscriber):
    """It fails now and then."""

    luck: random.Random
    fault_rate = 0.15

    async def __call__(self, call: Call) -> None:
        if self.luck.random() < self.fault_rate:
            await call.send(reply(self.luck.choice((500, 503, 429))))
            return
        await super().__call__(call)


@dataclass(slots=True)
class Scene:
    """Both processes, what is between them, and where each is."""

    folder: Path
    place: Place
    proxy: TcpProxy
    platform_waits: Waits
    stacks: dict[str, AsyncExitStack] = field(default_factory=dict)
    processes: dict[str, RouterProcess] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        waits = self.platform_waits if name == "platform" else Waits(timeout_ms=10_000, more=self.place.toml)
        command = ("up",) if name == "platform" else ("router",)
        self.stacks[name] = stack = AsyncExitStack()
        process = await stack.enter_async_context(router_process(folder, waits, command=command))
        self.processes[name] = process
        if name == "platform":
            self.proxy._to_port = urlsplit(process.url).port or 0

    async def kill(self, name: str) -> None:
        await self.processes[name].kill()
        await self.stacks.pop(name).aclose()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Until it is taken: the platform may be dead just now."""
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            while True:
                try:
                    url = f"http://127.0.0.1:{self.proxy.port}{path}"
                    async with session.post(url, json=body) as response:
                        if response.status in (200, 201):
                            return await response.json()
                        assert response.status == 503, await response.text()
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)


@asynccontextmanager
async def scene_with(place: Place, database: PostgresServer, folder: Path) -> AsyncIterator[Scene]:
    proxy = TcpProxy(0)
    await proxy.mend()
    url = f"{database.url}?schema=far_{next(_schemas)}"
    toml = PLATFORM.format(database=url, key=new_secret_key(), port=proxy.port, queued_limit_s=QUEUED_LIMIT_S)
    queue = place.toml.replace("connections = 2", "connections = 2\npoll = false")
    scene = Scene(folder, place, proxy, Waits(timeout_ms=2_000, more=toml + queue))
    try:
        await scene.start("platform")
        await scene.start("router")
        yield scene
    finally:
        for stack in scene.stacks.values():
            await stack.aclose()
        await proxy.close()


@pytest.mark.parametrize(
    "kind", [one for one in KINDS if one.name in ("nats", "elasticmq-fifo")], ids=lambda one: one.name
)
async def test_whoever_is_killed_every_event_arrives_in_order_and_signed(
    kind: Kind, brokers: Places, database: PostgresServer, tmp_path: Path
) -> None:
    subscriber, luck = MoodySubscriber(), random.Random(kind.name)
    subscriber.luck = random.Random(1)
    place = brokers.new(kind)
    async with raw_server(subscriber) as server, scene_with(place, database, tmp_path) as scene:
        await scene.post(POOLS, {"code": "FAR", "concurrency": 10, "queue": place.settings["queues"][0]["name"]})
        made = await scene.post(
            SUBSCRIPTIONS,
            {
                "code": "shop",
                "targetUrl": server.url("/hooks/shop"),
                "eventTypes": [{"eventTypeCode": "order.*"}],
                "mode": "BLOCK_ON_ERROR",
                "dispatchPoolCode": "FAR",
                "maxRetries": 100,
                "retryDelaysSeconds": [0.05],
            },
        )
        subscriber.secrets["shop"] = [made["secret"]]

        async def send() -> None:
            for number in range(PER_GROUP):
                for group in range(GROUPS):
                    name = f"{group}-{number}"
                    event = {
                        "type": "order.created",
                        "source": "shop",
                        "data": {"name": name},
                        "messageGroup": str(group),
                    }
                    await scene.post(EVENTS, event | {"deduplicationId": name})
                await asyncio.sleep(0.1)

        async def kill_at_random() -> None:
            for _ in range(KILLS):
                await asyncio.sleep(luck.uniform(0.2, 2.0))
                victim = luck.choice(("platform", "router"))
                await scene.kill(victim)
                await scene.start(victim)

        async with asyncio.TaskGroup() as both:
            both.create_task(send())
            both.create_task(kill_at_random())
        subscriber.fault_rate = 0.0
        everything = {f"{group}-{number}" for group in range(GROUPS) for number in range(PER_GROUP)}
        async with asyncio.timeout(PATIENCE_S):
            while set(subscriber.names("shop")) != everything:
                await asyncio.sleep(0.1)
        assert subscriber.refused == []  # every signature was valid
        for group in range(GROUPS):
            mine = [name for name in subscriber.names("shop") if name.startswith(f"{group}-")]
            firsts = list(dict.fromkeys(mine))
            assert firsts == [f"{group}-{number}" for number in range(PER_GROUP)]
        assert Verdict.GAP not in subscriber.verdicts
