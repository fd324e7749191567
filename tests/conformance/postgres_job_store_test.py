"""The PostgreSQL job store under the conformance suite, with a real server."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Final

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.queues.postgres import owners
from flowcatalyst.storage.postgres import Connection
from flowcatalyst.storage.postgres import PostgresServer as Server
from tests.conformance.job_bench import JobBench
from tests.conformance.job_store_suite import JobStoreSuite
from tests.conformance.job_walk_suite import JobWalkSuite
from tests.conformance.platform_suite import PlatformSuite
from tests.conformance.remote_suite import RemoteSuite
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.clocks import SetClock
from tests.support.postgres import assert_consistent

numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class WallClock(SetClock):
    """Only its wall time is set: whether a process lives is judged by the other."""

    def monotonic(self) -> float:
        return SystemClock().monotonic()


SET_CLOCK: Final = """
    CREATE TABLE test_clock (now timestamptz NOT NULL);
    INSERT INTO test_clock VALUES ('epoch');
    CREATE OR REPLACE FUNCTION server_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT now FROM test_clock'"""
# What was counted, and what there is.
COUNTS: Final = (
    (
        """SELECT sum(scheduled)::bigint, sum(parked)::bigint, sum(groups)::bigint, sum(blocked)::bigint,
        ARRAY(SELECT sum(s.one)::bigint FROM counts CROSS JOIN unnest(sizes) WITH ORDINALITY AS s (one, n)
          GROUP BY s.n ORDER BY s.n) FROM counts""",
        """SELECT (SELECT count(*) FROM job_states WHERE finished_at IS NULL AND lane IS NULL),
        (SELECT count(*) FROM job_states WHERE finished_at IS NULL AND status = 'ERROR' AND next_attempt_at IS NULL),
        count(*), count(blocked_at), ARRAY[
          count(*) FILTER (WHERE messages <= 1), count(*) FILTER (WHERE messages <= 10),
          count(*) FILTER (WHERE messages <= 100), count(*) FILTER (WHERE messages <= 1000),
          count(*) FILTER (WHERE messages <= 10000), count(*) FILTER (WHERE messages <= 100000)]
        FROM lanes WHERE name IS NOT NULL""",
    ),
    (
        "SELECT lane, seq FROM messages ORDER BY seq",
        "SELECT lane, place FROM job_states WHERE finished_at IS NULL AND lane IS NOT NULL ORDER BY place",
    ),
)


class PostgresJobBench(JobBench):
    """Each store has connections of its own, as another process would. Each test has a schema of its own."""

    delay_s = 10.0

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._clock = WallClock()
        self._place = Server((("127.0.0.1", server.port),), "postgres", "postgres", schema=f"jobs_{next(numbers)}")
        self._own = PostgresJobStore(self._place, self._clock)

    def make(self) -> JobStore:
        return PostgresJobStore(self._place, self._clock)

    def wall(self) -> float:
        return self._clock.wall()

    async def start(self) -> None:
        """Put the server's clock into our hands."""
        await self._own.database.run(lambda connection: connection.execute(SET_CLOCK))
        await self.pass_time(0.0)

    async def pass_time(self, seconds: float) -> None:
        self._clock.now += seconds
        set_clock = "UPDATE test_clock SET now = to_timestamp($1)"
        await self._own.database.run(lambda connection: connection.execute(set_clock, self._clock.now))

    async def cut(self, store: JobStore) -> None:
        assert isinstance(store, PostgresJobStore)
        session = store.database.session
        await store.queue._tasks.cancel()
        await store.database._tasks.cancel()
        await store.database.reconnect()
        await store._readers.close()
        await store._searchers.close()
        if session is not None:
            await self._end(session.owner)

    async def lose(self, store: JobStore) -> None:
        assert isinstance(store, PostgresJobStore)
        assert store.database.session is not None
        await self._end(store.database.session.owner)

    async def _end(self, owner: int) -> None:
        """As its fellows do when they take it for dead."""
        await self._own.database.run(lambda connection: owners.forget(connection, [owner]))

    async def audit(self, store: JobStore) -> None:
        await self._own.database.run(self._audit)

    async def _audit(self, connection: Connection) -> None:
        await assert_consistent(connection)
        for counted, looked in COUNTS:
            assert await connection.fetch(counted) == await connection.fetch(looked), counted

    async def close(self) -> None:
        await super().close()
        await self._own.database.close()


class TestPostgresJobStore(JobStoreSuite, JobWalkSuite, PlatformSuite, RemoteSuite):
    @pytest.fixture
    async def bench(self, server: PostgresServer) -> AsyncIterator[JobBench]:
        bench = PostgresJobBench(server)
        await bench.start()
        yield bench
        await bench.close()
