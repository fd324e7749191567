"""Real platforms on one store, killed at random under load: every event that was accepted reaches every subscription,
in order, and each webhook is signed.

`EVENTS_KILL_ROUNDS=20` plays so many deaths in each test.
"""

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from flowcatalyst.client import AsyncClient, ClientError
from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.receiver import GroupGuard, MemoryGuardStore, Verdict, WebhookError, verify
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.http_servers import Call, RawServer, raw_server, reply
from tests.support.router_process import RouterProcess, Waits, router_process

ROUNDS: Final = int(os.environ.get("EVENTS_KILL_ROUNDS", "5"))
MODES: Final = {"block": "BLOCK_ON_ERROR", "next": "NEXT_ON_ERROR", "now": "IMMEDIATE"}
GROUPS: Final = 4
AHEAD: Final = 6  # events of a group that were accepted and did not reach everybody
PATIENCE_S: Final = 180.0
DONE: Final = reply(200, b'{"ack":true}', "Content-Type: application/json")
SETTINGS: Final = """
[platform]
enabled = true
secret_key = "{key}"
{database}
"""

_schemas = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class Receiver:
    """The applications of all subscriptions. Each verifies what it gets, has a guard, and fails now and then."""

    def __init__(self, luck: random.Random) -> None:
        self.secrets: dict[str, str] = {}
        self.arrived: dict[tuple[str, str], int] = defaultdict(int)  # (code, group) -> how many of it, without repeats
        self.done: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.wrong: list[str] = []
        self.verdicts: list[Verdict] = []
        self.news = asyncio.Condition()
        self._luck = luck
        self._guard = GroupGuard(MemoryGuardStore())

    async def __call__(self, call: Call) -> None:
        code = call.path.rpartition("/")[2]
        try:
            webhook = verify(call.headers, call.body, self.secrets[code])
        except WebhookError as error:
            self.wrong.append(f"{code}: {error}")
            await call.send(reply(401))
            return
        event = webhook.json()
        group, number = event["messagegroup"], event["data"]
        self._judge_order(code, group, number)
        verdict = self._guard.check(webhook)
        self.verdicts.append(verdict)
        if verdict is Verdict.GAP:
            self.wrong.append(f"{code} {group} {number}: gap, {webhook.group_seq}/{webhook.group_prev}")
        if (verdict is Verdict.UNORDERED) is not (code == "now"):
            self.wrong.append(f"{code} {group} {number}: {verdict}")
        if self._luck.random() < 0.05:
            await call.send(reply(503))
            return
        self._guard.done(webhook)
        self.done[code, group].add(number)
        async with self.news:
            self.news.notify_all()
        await call.send(DONE)

    def _judge_order(self, code: str, group: str, number: int) -> None:
        """What blocks its group comes when all before it is done, what does not when all before it came."""
        before = self.done[code, group]
        if code == "block" and not before >= set(range(1, number)):
            self.wrong.append(f"{code} {group} {number} came, and of those before only {sorted(before)} were done")
        if code == "next" and number > self.arrived[code, group] + 1:
            self.wrong.append(f"{code} {group} {number} came after {self.arrived[code, group]}")
        self.arrived[code, group] = max(number, self.arrived[code, group])

    def have_all(self, group: str, number: int) -> bool:
        return all(self.done[code, group] >= set(range(1, number + 1)) for code in MODES)

    async def until_have_all(self, group: str, number: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.news:
            await self.news.wait_for(lambda: self.have_all(group, number))

    async def until_more(self, how_many: int) -> None:
        """Until so many more webhooks are done."""
        wanted = self._count() + how_many
        async with asyncio.timeout(PATIENCE_S), self.news:
            await self.news.wait_for(lambda: self._count() >= wanted)

    def _count(self) -> int:
        return sum(map(len, self.done.values()))


class Scene:
    """Platforms that come and go, and senders that publish to any of them."""

    def __init__(
        self, folder: Path, server: PostgresServer | None, receiver: Receiver, web: RawServer, seed: int
    ) -> None:
        self.luck = random.Random(seed)
        self.receiver = receiver
        self.accepted: dict[str, int] = defaultdict(int)  # by group: how many of its events
        self.alive: dict[str, RouterProcess] = {}
        self._folder = folder
        self._web = web
        self._names = count(1)
        self._stack = AsyncExitStack()
        self._key = new_secret_key()
        self._database = ""
        if server is not None:
            schema = f"events_{next(_schemas)}"
            self._database = f'database_url = "postgresql://postgres@127.0.0.1:{server.port}/postgres?schema={schema}"'

    async def close(self) -> None:
        await self._stack.aclose()

    async def start_one(self) -> None:
        """On PostgreSQL each has a folder of its own, on SQLite the next one has that of the one before."""
        name = f"platform-{next(self._names)}"
        folder = self._folder / (name if self._database else "shared")
        folder.mkdir(exist_ok=True)
        waits = Waits(timeout_ms=2000, more=SETTINGS.format(key=self._key, database=self._database))
        self.alive[name] = await self._stack.enter_async_context(router_process(folder, waits, command=("platform",)))

    async def kill_one(self) -> None:
        await self.alive.pop(self.luck.choice(sorted(self.alive))).kill()

    async def subscribe(self) -> None:
        (url, *_) = [platform.url for platform in self.alive.values()]
        async with aiohttp.ClientSession() as session:
            for code, mode in MODES.items():
                asked: dict[str, Any] = {"code": code, "mode": mode, "eventTypes": [{"eventTypeCode": "order.*"}]}
                asked |= {"targetUrl": self._web.url(f"/{code}"), "maxRetries": 1000, "retryDelaysSeconds": [0.05]}
                async with session.post(f"{url}/api/subscriptions", json=asked) as made:
                    assert made.status == 201, await made.text()
                    self.receiver.secrets[code] = (await made.json())["secret"]

    async def until_all_know(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_S):
            for platform in self.alive.values():
                known = 0
                while known < len(MODES):
                    async with session.get(f"{platform.url}/api/subscriptions") as answer:
                        known = len((await answer.json())["items"])

    async def send(self, group: str, ended: asyncio.Event) -> None:
        """Events of one group, one after the other: each is sent again, to any platform, until it is accepted."""
        while not ended.is_set():
            number = self.accepted[group] + 1
            event = {"type": "order.created", "source": "shop", "messageGroup": group, "data": number}
            event["deduplicationId"] = f"{group}-{number}"
            while not await self._sent(event):
                await asyncio.sleep(0.05)
            self.accepted[group] = number
            await self.receiver.until_have_all(group, number - AHEAD)

    async def _sent(self, event: dict[str, Any]) -> bool:
        if not self.alive:
            return False
        client = AsyncClient(self.luck.choice(list(self.alive.values())).url, retries=1, timeout_s=5.0, at_once=1)
        try:
            result = await client.publish_event(event)
        except ClientError:
            return False
        finally:
            await client.close()
        assert result.item is not None
        assert result.item["jobs"] == len(MODES), result
        return True


@asynccontextmanager
async def scene_of(folder: Path, server: PostgresServer | None, seed: int) -> AsyncIterator[Scene]:
    receiver = Receiver(random.Random(seed))
    async with raw_server(receiver) as web:
        scene = Scene(folder, server, receiver, web, seed)
        try:
            yield scene
        finally:
            await scene.close()


async def kill_again_and_again(scene: Scene, platforms: int) -> None:
    for _ in range(platforms):
        await scene.start_one()
    await scene.subscribe()
    await scene.until_all_know()
    ended = asyncio.Event()
    senders = [asyncio.create_task(scene.send(f"g{number}", ended)) for number in range(GROUPS)]
    for _ in range(ROUNDS):
        await scene.receiver.until_more(scene.luck.randint(5, 40))
        await scene.kill_one()
        await scene.start_one()
    await scene.receiver.until_more(20)
    ended.set()
    await asyncio.gather(*senders)
    for group, number in scene.accepted.items():
        await scene.receiver.until_have_all(group, number)
    ends = await asyncio.gather(*(platform.terminate() for platform in scene.alive.values()))
    assert [code for code, _ in ends] == [0] * platforms, ends
    assert scene.receiver.wrong == []
    assert Verdict.NEXT in scene.receiver.verdicts


async def test_kill_9_of_platforms_on_one_postgres_loses_no_event_and_keeps_every_order(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with scene_of(tmp_path, server, seed=1) as scene:
        await kill_again_and_again(scene, platforms=3)


async def test_kill_9_of_a_platform_with_its_own_file_loses_no_event_and_keeps_every_order(tmp_path: Path) -> None:
    async with scene_of(tmp_path, None, seed=2) as scene:
        await kill_again_and_again(scene, platforms=1)
