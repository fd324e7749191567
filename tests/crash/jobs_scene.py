"""What the kill tests of jobs share: a store, processes that come and go on it, jobs made meanwhile, and a witness."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import DispatchMode, MessagePointer, Nack, Result, encode_pointer
from flowcatalyst.dispatch.job import NewJob, Status, new_job
from flowcatalyst.dispatch.store.contract import Filter, JobStore
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.postgres.owners import LAPSE_S
from flowcatalyst.sandbox.order_judge import SeededId
from flowcatalyst.simulation.checker import RECEIVER_RULES
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.storage.postgres import PostgresServer as Database
from tests.servers.postgres import PostgresServer
from tests.support.router_process import RouterProcess, Waits, router_process
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.two_routers import WitnessOfTwo

POOL: Final = "JOBS"
CONCURRENCY: Final = 6
GROUPS: Final = 9
MODES: Final = (DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE)
BATCH: Final = 3  # jobs of each group, made at once
ACKS_TAKE_S: Final = 1.5  # on a busy machine
PATIENCE_S: Final = 180.0
SETTINGS: Final = """
[platform]
enabled = true
{database}

[[pools]]
code = "JOBS"
concurrency = {concurrency}
"""
ONE_PER_GROUP: Final = "one attempt per group"
_schemas = count(1)


class JobWitness(WitnessOfTwo):
    """It also counts how many requests are open at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.most_at_once = 0

    def _arrived(self, message_id: str, writer: asyncio.StreamWriter) -> bool:
        counts = super()._arrived(message_id, writer)
        if counts:
            at_once = sum(exchange.ended_as is None for exchange in self._latest.values())
            self.most_at_once = max(self.most_at_once, at_once)
        return counts

    async def violations(
        self, data_dir: Path, left: Sequence[str] | None = None, rules: Sequence[str] = RECEIVER_RULES
    ) -> list[str]:
        """A receiver sees failures, not verdicts; where a failure lets the others pass it is as good as one.

        What failed there is tried again by whoever takes it, also while a later one of its group is in flight.
        """
        await self.until_disconnected()
        told: list[Event] = []
        passes = {
            event.message
            for event in self.history
            if event.kind is Kind.PUBLISHED and event.value.mode is DispatchMode.NEXT_ON_ERROR
        }
        for event in self.history:
            told.append(event)
            fails = event.kind is Kind.ANSWER and event.value.result is not Result.SUCCESS
            if event.message in passes and (fails or event.kind is Kind.UNKNOWN):
                told.append(replace(event, kind=Kind.VERDICT, value=Nack(0.0)))
        self.history.events[:] = told
        found = await super().violations(data_dir, left, [rule for rule in rules if rule != ONE_PER_GROUP])
        self.history.events[:] = [event for event in told if event.message not in passes]
        return found + await super().violations(data_dir, left, [ONE_PER_GROUP])

    def lost_its_broker(self, name: str, acks_take_s: float) -> None:
        """Others may have repeated already what it had, so its answers are doubted where they were given."""
        since = self.history.events[-1].at - acks_take_s
        senders: dict[str, str] = {}
        told: list[Event] = []
        moved: dict[int, int] = {}
        for number, event in enumerate(self.history):
            moved[number] = len(told)
            told.append(event)
            if event.kind is Kind.ATTEMPT:
                senders[event.message] = event.pool
            elif event.kind is Kind.ANSWER and event.at > since and senders[event.message] == name:
                told.append(replace(event, kind=Kind.UNKNOWN, value=None))
        self.history.events[:] = told
        for writer, exchange in self._latest.items():
            if exchange.ended_as is not None:
                exchange.ended_as = moved[exchange.ended_as]
            elif self._senders[writer] == name:
                self._end(exchange, Kind.UNKNOWN)

    def forget(self, name: str) -> None:
        """A process that is dead sends nothing."""
        del self._routers[name]

    def _whose(self, writer: asyncio.StreamWriter) -> str:
        try:
            return super()._whose(writer)
        except (AssertionError, StopIteration, FileNotFoundError):
            return ""  # killed since: its connection is closed, which is noted as such


class JobsScene:
    """Jobs are made and processes killed through it, so that the witness hears of it."""

    def __init__(self, folder: Path, witness: JobWitness, server: PostgresServer | None, seed: int) -> None:
        self.folder = folder
        self.witness = witness
        self.server = server
        self.luck = random.Random(seed)
        self.made = 0
        self._schema = f"jobs_{next(_schemas)}"
        self._names = count(1)
        self._positions = count(1)
        self._data = folder / "shared"
        self.store = self._open_store()

    def _open_store(self) -> JobStore:
        if self.server is None:
            data = self._data / "data"
            data.mkdir(parents=True, exist_ok=True)
            return SqliteJobStore(data / "jobs.db", SystemClock())
        hosts = (("127.0.0.1", self.server.port),)
        return PostgresJobStore(Database(hosts, "postgres", "postgres", schema=self._schema), SystemClock())

    @asynccontextmanager
    async def process(self, proxy: TcpProxy | None = None) -> AsyncIterator[tuple[str, RouterProcess]]:
        """One more router on the store; on SQLite all of them share one data folder."""
        name = f"router-{next(self._names)}"
        folder, database = self._data, ""
        if self.server is not None:
            folder = self.folder / name
            port = self.server.port if proxy is None else proxy.port
            database = f'database_url = "postgresql://postgres@127.0.0.1:{port}/postgres?schema={self._schema}"'
        folder.mkdir(exist_ok=True)
        waits = Waits(timeout_ms=2000, more=SETTINGS.format(database=database, concurrency=CONCURRENCY))
        async with router_process(folder, waits) as router:
            self.witness.watch(name, router)
            yield name, router

    async def make_jobs(self) -> None:
        """Some jobs of each group, in order. They are accepted when this returns; it is repeated until they are."""
        wall = SystemClock().wall()
        jobs, outgoing = [], []
        for position in [next(self._positions) for _ in range(BATCH)]:
            for number in range(GROUPS):
                group, mode = f"g{number}", MODES[number % len(MODES)]
                name = str(SeededId("run", group, position))
                asked: dict[str, Any] = {"target_url": f"{self.witness.url}/{group}", "code": "test", "mode": mode}
                asked |= {"message_group": group, "dispatch_pool_code": POOL, "idempotency_key": name}
                asked |= {"payload": msgspec.Raw(msgspec.json.encode({"messageId": name}))}
                asked |= {"max_retries": 1000, "retry_delays_seconds": [0.05]}
                jobs.append(new_job(NewJob(**asked), name, wall))
                pointer = MessagePointer(id=name, mediation_target=asked["target_url"], dispatch_mode=mode)
                outgoing.append(Outgoing(encode_pointer(pointer).decode(), group))
        self.witness.published(outgoing)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.store.create(jobs)
                    break
                except FlowCatalystError:  # whether it was made is not known: the keys keep it from being made twice
                    await asyncio.sleep(0.1)
        self.made += len(jobs)

    async def until_some_arrived(self) -> None:
        await self.witness.until_arrived(self.witness.arrivals + self.luck.randint(1, BATCH * GROUPS), PATIENCE_S)

    # What happens to processes

    async def kill(self, name: str, router: RouterProcess) -> None:
        await router.kill()
        await self.excuse(name)
        self.witness.forget(name)

    async def sleep_through_its_lapse(self, name: str, router: RouterProcess) -> None:
        await router.pause(while_it_waits=True)
        await self.excuse(name)
        await asyncio.sleep(LAPSE_S + 3.0)
        router.resume()

    async def cut_off(self, name: str, router: RouterProcess, proxy: TcpProxy) -> None:
        """For longer than its session lasts."""
        lapses = router.log.read_text().count("owner_lapsed")
        proxy.cut()
        async with asyncio.timeout(PATIENCE_S):
            while router.log.read_text().count("owner_lapsed") == lapses:
                await asyncio.sleep(0.05)
        await self.excuse(name, LAPSE_S + ACKS_TAKE_S)
        await asyncio.sleep(2.0)
        await proxy.mend()

    async def restart_database(self, names: list[str]) -> None:
        """Immediate: nobody is told, and what was not confirmed is gone."""
        assert self.server is not None
        began = asyncio.get_running_loop().time()
        self.server._process.send_signal(signal.SIGQUIT)
        await asyncio.to_thread(self.server._process.wait)
        await asyncio.to_thread(self.server.start)
        for name in names:
            await self.excuse(name, asyncio.get_running_loop().time() - began + ACKS_TAKE_S)

    async def excuse(self, name: str, acks_take_s: float = ACKS_TAKE_S) -> None:
        """What this process has in flight, or had an answer for a moment ago, may come again."""
        await self.witness.catch_up()
        self.witness.lost_its_broker(name, acks_take_s)

    # The end

    async def until_all_is_delivered(self) -> None:
        self.witness.fault_rate = 0.0
        async with asyncio.timeout(PATIENCE_S):
            while await self._completed() < self.made:
                await asyncio.sleep(0.1)

    async def _completed(self) -> int:
        try:
            return await self.store.count(Filter(status=Status.COMPLETED), self.made + 1)
        except FlowCatalystError:
            return 0

    async def assert_every_promise_was_kept(self) -> None:
        """When all processes have ended."""
        await self.witness.router_stopped()
        assert await self._completed() == self.made
        assert len(self.witness.acked) == self.made
        violations = await self.witness.violations(self.folder, [])
        assert violations == [], f"{len(violations)} violations, the first:\n" + "\n".join(violations[:5])


@asynccontextmanager
async def jobs_scene(
    folder: Path, server: PostgresServer | None, seed: int, fault_rate: float = 0.2
) -> AsyncIterator[JobsScene]:
    """Without a server the jobs are in a SQLite file."""
    witness = JobWitness(seed)
    witness.fault_rate = fault_rate
    async with witness.running():
        scene = JobsScene(folder, witness, server, seed)
        await scene.store.open()
        try:
            yield scene
        finally:
            await scene.store.close()


@asynccontextmanager
async def way_to(server: PostgresServer | None) -> AsyncIterator[TcpProxy | None]:
    if server is None:
        yield None
        return
    async with tcp_proxy(server.port) as proxy:
        yield proxy
