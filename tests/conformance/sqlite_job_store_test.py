"""The job store on SQLite under the suite of job stores, with a clock that is set by hand."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from tests.conformance.job_bench import JobBench
from tests.conformance.job_store_suite import JobStoreSuite
from tests.support.clocks import SetClock


class SqliteJobBench(JobBench):
    """Each store has connections of its own to the same file, as another process would."""

    delay_s = 10.0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "jobs.db"
        self._clock = SetClock()

    def make(self) -> JobStore:
        return SqliteJobStore(self._file, self._clock, poll_interval_s=0.01)

    def wall(self) -> float:
        return self._clock.wall()

    async def pass_time(self, seconds: float) -> None:
        self._clock.now += seconds

    async def cut(self, store: JobStore) -> None:
        """The real thing, a process that is killed, is for tests/crash; here its leases end."""
        assert isinstance(store, SqliteJobStore)
        await store.queue.store.writer.close()
        await self.lose(store)

    async def lose(self, store: JobStore) -> None:
        await self.pass_time(store.queue.capabilities.visibility_s)


class TestSqliteJobStore(JobStoreSuite):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[JobBench]:
        bench = SqliteJobBench(tmp_path)
        yield bench
        await bench.close()
