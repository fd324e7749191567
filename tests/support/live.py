"""`flowcatalyst router` as real processes, with the config server they ask and the witness they deliver to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.sandbox.order_judge import SeededId
from tests.support.http_servers import RawServer, always, raw_server, reply
from tests.support.patience import PATIENCE_S
from tests.support.router_process import IMPATIENT, RouterProcess, Waits, router_process
from tests.support.witness import Witness, messages_left


class ConfigServer:
    """A server of router configurations. What it says can be changed at any time."""

    def __init__(self, server: RawServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url("/config")

    def say(self, pools: Mapping[str, object], queues: Sequence[object]) -> None:
        self.server.script = always(reply(200, document(pools, queues)))


def document(pools: Mapping[str, object], queues: Sequence[object]) -> bytes:
    """A pool is its concurrency or all of its fields but the code; a queue is its name or all of its fields."""
    fields = {code: pool if isinstance(pool, Mapping) else {"concurrency": pool} for code, pool in pools.items()}
    return json.dumps(
        {
            "processingPools": [{"code": code, **pool} for code, pool in fields.items()],
            "queues": [
                {"queueName": queue, "queueUri": f"embedded:{queue}"} if isinstance(queue, str) else queue
                for queue in queues
            ],
        }
    ).encode()


class Api:
    """The API of a router process."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def status(self, method: str, path: str, body: object = None) -> int:
        async with self._session.request(method, self._url + path, json=body) as answer:
            return answer.status

    async def get(self, path: str) -> Any:
        async with self._session.get(self._url + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def post(self, path: str, body: object = None) -> Any:
        async with self._session.post(self._url + path, json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def reload(self) -> dict[str, Any]:
        """What the report says: only what is not empty."""
        report = await self.post("/config/reload")
        return {name: value for name, value in report.items() if value}

    async def until(self, path: str, condition: Callable[[Any], bool]) -> Any:
        """The first answer for which the condition holds."""
        answer = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition(answer := await self.get(path)):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{path} still says {answer}") from None
        return answer

    async def pools(self) -> dict[str, dict[str, Any]]:
        """The pools at work, by code."""
        return {pool["code"]: pool for pool in await self.get("/monitoring/pool-stats")}

    async def polled(self) -> set[str]:
        """Names of the queues that are polled."""
        return {consumer["queue"] for consumer in await self.get("/monitoring/consumer-health")}


class Live:
    """One data folder, its witness and its config server. Routers come and go on it."""

    def __init__(self, folder: Path, witness: Witness, config: ConfigServer, session: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.witness = witness
        self.config = config
        self.data_dir = folder / "data"
        self.published: set[str] = set()
        self.session = session
        self._store = EmbeddedStore(self.data_dir / "queue.db", SystemClock())
        self._queues: dict[str, EmbeddedQueue] = {}

    @asynccontextmanager
    async def router(
        self, waits: Waits = IMPATIENT, *options: object, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[RouterProcess]:
        command = ("router", "--config-url", self.config.url, *options)
        async with router_process(self.folder, waits, command=command, env=env) as router:
            self.witness.router_started()
            yield router

    def api(self, router: RouterProcess) -> Api:
        return Api(self.session, router.url)

    async def publish(self, outgoing: Sequence[Outgoing], queue: str = "orders") -> None:
        """From this process, into the file that the router processes work on."""
        if queue not in self._queues:
            self._queues[queue] = EmbeddedQueue(self._store, queue)
            await self._queues[queue].open()
        self.witness.published(outgoing)
        self.published |= {json.loads(message.body)["id"] for message in outgoing}
        await self._queues[queue].publish(outgoing)

    async def until_delivered(self) -> None:
        """Until everything that was published was answered for good at least once."""
        await self.witness.until_acked(len(self.published))

    def left(self) -> list[str]:
        return messages_left(self.data_dir / "queue.db")

    async def stop(self, router: RouterProcess) -> None:
        """A clean stop ends no life in the history: what comes after it is judged as if there had been none."""
        code, rest = await router.terminate()
        assert (code, "Nothing was lost" in rest) == (0, True), (code, rest, router.log.read_text())

    async def kill(self, router: RouterProcess) -> None:
        await router.kill()
        await self.witness.router_gone()

    async def assert_every_promise_was_kept(self) -> None:
        """To be called when all routers have ended."""
        violations = await self.witness.violations(self.data_dir)
        assert violations == [], "\n".join(violations)
        assert self.left() == []
        assert self.witness.acked.keys() == self.published

    async def close(self) -> None:
        for queue in self._queues.values():
            await queue.close()


@asynccontextmanager
async def live(
    folder: Path,
    witness: Witness | None = None,
) -> AsyncIterator[Live]:
    (folder / "data").mkdir()
    witness = witness or Witness()
    async with witness.running(), raw_server() as server, aiohttp.ClientSession() as session:
        scene = Live(folder, witness, ConfigServer(server), session)
        try:
            yield scene
        finally:
            await scene.close()


def message(url: str, group: str, position: int, pool: str = "") -> Outgoing:
    pointer = MessagePointer(
        id=str(SeededId("run", group, position)), mediation_target=f"{url}/{group}", pool_code=pool
    )
    return Outgoing(encode_pointer(pointer).decode(), group)


def messages(url: str, groups: Sequence[str], positions: range, pool: str = "") -> list[Outgoing]:
    return [message(url, group, position, pool) for position in positions for group in groups]
