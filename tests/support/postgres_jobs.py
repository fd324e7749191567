"""Stores of jobs and events in a real PostgreSQL, as several processes have them."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Delivery, DispatchMode, ErrorKind, Outcome, Result
from flowcatalyst.dispatch.job import Job, NewJob, new_job
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench

PATIENCE_S = 60.0
DELIVERED = Outcome(Result.SUCCESS, status=200)
FAILED = Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, status=500, detail="it broke")


class Jobs:
    """A schema of its own, and stores on it as processes have them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.clock = SystemClock()
        self._stores: list[PostgresJobStore] = []

    async def store(self, **changes: Any) -> PostgresJobStore:
        store = PostgresJobStore(self.bench.database(**changes), self.clock)
        await store.open()
        self._stores.append(store)
        return store

    def job(self, name: str, group: str | None, mode: DispatchMode = DispatchMode.BLOCK_ON_ERROR, **more: Any) -> Job:
        asked = NewJob(code="test", target_url="http://127.0.0.1:9/", message_group=group, mode=mode, **more)
        return new_job(asked, name, self.clock.wall())

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Process]:
        command = (sys.executable, "-m", "tests.support.job_worker", str(self.bench.server.port), self.bench.schema)
        worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        try:
            yield worker
        finally:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.bench.close()


@pytest.fixture
async def jobs(server: PostgresServer) -> AsyncIterator[Jobs]:
    jobs = Jobs(Bench(server))
    yield jobs
    await jobs.close()


async def take(store: PostgresJobStore, count: int) -> list[Delivery]:
    """As many jobs, which have to come in time."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await store.queue.receive(count - len(taken), 1.0)
    return taken
