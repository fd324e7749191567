"""The PostgreSQL job store under the conformance suite, with a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.queues.postgres import owners
from flowcatalyst.storage.postgres import PostgresServer as Server
from tests.conformance.job_bench import JobBench
from tests.conformance.job_store_suite import JobStoreSuite
from tests.servers.postgres import PostgresServer, postgres_server

numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class PostgresJobBench(JobBench):
    """Each store has connections of its own, as another process would. Each test has a schema of its own."""

    delay_s = 0.4

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._clock = SystemClock()
        self._place = Server((("127.0.0.1", server.port),), "postgres", "postgres", schema=f"jobs_{next(numbers)}")

    def make(self) -> JobStore:
        return PostgresJobStore(self._place, self._clock)

    def wall(self) -> float:
        return self._clock.wall()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def cut(self, store: JobStore) -> None:
        assert isinstance(store, PostgresJobStore)
        session = store.database.session
        await store.queue._tasks.cancel()
        await store.database._tasks.cancel()
        await store.database.reconnect()
        if session is not None:
            await self._end(session.owner)

    async def lose(self, store: JobStore) -> None:
        assert isinstance(store, PostgresJobStore)
        assert store.database.session is not None
        await self._end(store.database.session.owner)

    async def _end(self, owner: int) -> None:
        """As its fellows do when they take it for dead."""
        other = PostgresJobStore(self._place, self._clock)
        await other.open()
        await other.database.run(lambda connection: owners.forget(connection, [owner]))
        await other.close()


class TestPostgresJobs(JobStoreSuite):
    @pytest.fixture
    async def bench(self, server: PostgresServer) -> AsyncIterator[JobBench]:
        bench = PostgresJobBench(server)
        yield bench
        await bench.close()
