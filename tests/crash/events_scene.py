"""What the kill tests of events share: platforms that come and go, senders, and applications behind subscriptions."""

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import aiohttp

from flowcatalyst.client import AsyncClient, ClientError
from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.receiver import GroupGuard, MemoryGuardStore, Verdict, WebhookError, verify
from tests.support.http_servers import Call, RawServer, reply
from tests.support.router_process import RouterProcess, Waits, router_process

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
        if verdict is Verdict.GAP or (verdict is Verdict.REGRESSION and code == "block"):
            self.wrong.append(f"{code} {group} {number}: {verdict}, {webhook.group_seq}/{webhook.group_prev}")
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
        self,
        folder: Path,
        database_url: str | None,
        receiver: Receiver,
        web: RawServer,
        seed: int,
        more: str = "",
        key: str | None = None,
    ) -> None:
        """`more` settings of each platform, to which `key` gives access."""
        self.luck = random.Random(seed)
        self.receiver = receiver
        self.accepted: dict[str, int] = defaultdict(int)  # by group: how many of its events
        self.alive: dict[str, RouterProcess] = {}
        self.folder = folder
        self.stack = AsyncExitStack()
        self._web = web
        self._names = count(1)
        self._key = key
        self._has_database = database_url is not None
        database = "" if database_url is None else f'database_url = "{database_url}"'
        self._waits = Waits(timeout_ms=2000, more=SETTINGS.format(key=new_secret_key(), database=database) + more)

    async def close(self) -> None:
        await self.stack.aclose()

    async def start_one(self) -> None:
        """On PostgreSQL each has a folder of its own, on SQLite the next one has that of the one before."""
        name = f"platform-{next(self._names)}"
        folder = self.folder / (name if self._has_database else "shared")
        folder.mkdir(exist_ok=True)
        self.alive[name] = await self.stack.enter_async_context(
            router_process(folder, self._waits, command=("platform",))
        )

    async def kill_one(self) -> None:
        await self.alive.pop(self.luck.choice(sorted(self.alive))).kill()

    async def ask(self, method: str, url: str, body: Any = None) -> Any:
        headers = {} if self._key is None else {"X-API-Key": self._key}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, url, json=body) as answer,
        ):
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def make(self, path: str, body: dict[str, Any]) -> Any:
        """By any of the platforms."""
        return await self.ask("POST", f"{next(iter(self.alive.values())).url}{path}", body)

    async def subscribe(self, **more: Any) -> None:
        for code, mode in MODES.items():
            asked: dict[str, Any] = {"code": code, "mode": mode, "eventTypes": [{"eventTypeCode": "order.*"}]}
            asked |= {"targetUrl": self._web.url(f"/{code}"), "maxRetries": 1000, "retryDelaysSeconds": [0.05]}
            self.receiver.secrets[code] = (await self.make("/api/subscriptions", asked | more))["secret"]

    async def until_all_know(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for platform in self.alive.values():
                while len((await self.ask("GET", f"{platform.url}/api/subscriptions"))["items"]) < len(MODES):
                    pass

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
        url = self.luck.choice(list(self.alive.values())).url
        client = AsyncClient(url, api_key=self._key, retries=1, timeout_s=5.0, at_once=1)
        try:
            result = await client.publish_event(event)
        except ClientError:
            return False
        finally:
            await client.close()
        assert result.item is not None
        assert result.item["jobs"] == len(MODES), result
        return True

    async def kill_meanwhile(self, rounds: int) -> None:
        """While senders send: so many times somebody dies, and starts again."""
        ended = asyncio.Event()
        senders = [asyncio.create_task(self.send(f"g{number}", ended)) for number in range(GROUPS)]
        for number in range(rounds):
            await self.receiver.until_more(self.luck.randint(5, 40))
            await self.replace_somebody(number)
        await self.receiver.until_more(20)
        ended.set()
        await asyncio.gather(*senders)
        for group, number in self.accepted.items():
            await self.receiver.until_have_all(group, number)

    async def replace_somebody(self, number: int) -> None:
        """By one that is started after his death."""
        await self.kill_one()
        await self.start_one()

    async def end(self) -> None:
        """Everybody leaves in order, and the receiver has nothing to complain of."""
        processes = self.processes()
        ends = await asyncio.gather(*(one.terminate() for one in processes))
        assert [code for code, _ in ends] == [0] * len(processes), ends
        assert self.receiver.wrong == []
        assert Verdict.NEXT in self.receiver.verdicts

    def processes(self) -> list[RouterProcess]:
        return list(self.alive.values())
