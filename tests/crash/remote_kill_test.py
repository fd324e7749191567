"""Three platforms on one PostgreSQL, a broker, and a router on "another machine": all of them are killed at random,
again and again.

What was accepted reaches every application, in the order of its mode and with valid signatures, as the receiver kit
judges it. The router knows pools and queues from a platform alone, as docs/dispatch.md tells it.
`REMOTE_KILL_ROUNDS=20` plays so many deaths with each broker.
"""

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from flowcatalyst.core.credentials import hash_key, new_key
from tests.crash.events_scene import Receiver, Scene
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.brokers import KINDS, QUEUE, Kind, Place, Places, places
from tests.support.http_servers import RawServer, raw_server
from tests.support.router_process import RouterProcess, Waits, router_process
from tests.support.tcp_proxy import TcpProxy

ROUNDS: Final = int(os.environ.get("REMOTE_KILL_ROUNDS", "2"))
PLATFORMS: Final = 3
POOL: Final = "FAR"
QUEUED_LIMIT_S: Final = 12.0  # what a lost callback costs
ORDERED: Final = [kind for kind in KINDS if kind.keeps_order]
PLATFORM: Final = """
public_url = "http://127.0.0.1:{port}"
queued_limit_s = {queued_limit_s}

[auth]
mode = "api_key"
admin = ["{hash}"]

[egress]
allow_private = true

[[queues]]
name = "{queue}"
uri = "{uri}"
visibility_s = {visibility_s}
poll = false
"""
HOW_TO_REACH_BROKERS: Final = """
[sqs]
wait_time_s = 2

[postgres]
user = "postgres"
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


class FarScene(Scene):
    """Besides the platforms there is a router, which calls back at an address that leads to any of them."""

    def __init__(
        self, folder: Path, database_url: str, receiver: Receiver, web: RawServer, place: Place, proxy: TcpProxy
    ) -> None:
        self.proxy = proxy
        key = new_key()
        settings = PLATFORM.format(
            port=proxy.port,
            queued_limit_s=QUEUED_LIMIT_S,
            hash=hash_key(key.encode()),
            queue=QUEUE,
            uri=place.uri,
            visibility_s=place.visibility_s,
        )
        super().__init__(folder, database_url, receiver, web, 1, settings + HOW_TO_REACH_BROKERS, key)
        self._config_url = ""
        self._router: RouterProcess
        self._victims: list[str] = []

    def any_port(self) -> int:
        if not self.alive:
            raise ConnectionRefusedError("no platform is alive")
        return urlsplit(self.luck.choice(list(self.alive.values())).url).port or 0

    async def start(self) -> None:
        for _ in range(PLATFORMS):
            await self.start_one()
        await self.make("/api/dispatch-pools", {"code": POOL, "concurrency": 10, "queue": QUEUE})
        made = await self.make("/api/api-keys", {"name": "router", "scopes": ["admin"]})
        await self.subscribe(dispatchPoolCode=POOL)
        await self.until_all_know()
        self._config_url = f"http://{made['key']}@127.0.0.1:{self.proxy.port}/api/config/router"
        await self.start_router()

    async def start_router(self) -> None:
        """It has no queue of its own, and no pool."""
        folder = self.folder / "router"
        folder.mkdir(exist_ok=True)
        waits = Waits(timeout_ms=10_000, more=HOW_TO_REACH_BROKERS)
        env = {"MESSAGE_ROUTER_CONFIG_URL": self._config_url}
        self._router = await self.stack.enter_async_context(router_process(folder, waits, command=("router",), env=env))

    async def replace_somebody(self, number: int) -> None:
        """Of two deaths one is that of the router."""
        self._victims = self._victims or self.luck.sample(["platform", "router"], 2)
        if self._victims.pop() == "platform":
            await super().replace_somebody(number)
            return
        await self._router.kill()
        await self.start_router()

    def processes(self) -> list[RouterProcess]:
        return [*self.alive.values(), self._router]

    async def delivered(self) -> dict[str, int]:
        """By pools, of each process since it started; those of the router are named `router:...`."""
        found: dict[str, int] = {}
        for process in self.processes():
            for pool in await self.ask("GET", f"{process.url}/monitoring/pool-stats"):
                name = f"router:{pool['code']}" if process is self._router else pool["code"]
                found[name] = found.get(name, 0) + pool["delivered"]
        return found


@asynccontextmanager
async def scene_with(place: Place, database: PostgresServer, folder: Path) -> AsyncIterator[FarScene]:
    receiver = Receiver(random.Random(place.kind.name))
    proxy = TcpProxy(lambda: scene.any_port())
    await proxy.mend()
    async with raw_server(receiver) as web:
        url = f"{database.url}?schema=far_{next(_schemas)}"
        scene = FarScene(folder, url, receiver, web, place, proxy)
        try:
            await scene.start()
            yield scene
        finally:
            await scene.close()
            await proxy.close()


@pytest.mark.parametrize("kind", ORDERED, ids=lambda kind: kind.name)
async def test_whoever_is_killed_every_event_reaches_everybody_by_a_router_elsewhere_in_order_and_signed(
    kind: Kind, brokers: Places, database: PostgresServer, tmp_path: Path
) -> None:
    async with scene_with(brokers.new(kind), database, tmp_path) as scene:
        await scene.kill_meanwhile(ROUNDS)
        delivered = await scene.delivered()
        assert delivered[f"router:{POOL}"] > 0
        assert sum(number for name, number in delivered.items() if not name.startswith("router:")) == 0
        await scene.end()
