"""The job store on SQLite under the suite of job stores, with a clock that is set by hand."""

from collections.abc import AsyncIterator
from pathlib import Path
from sqlite3 import Connection
from typing import Final

import pytest

from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.dispatch.store.platform_contract import PlatformStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from tests.conformance.job_bench import JobBench, take
from tests.conformance.job_store_suite import JobStoreSuite
from tests.conformance.job_walk_suite import JobWalkSuite
from tests.conformance.platform_suite import PlatformSuite
from tests.conformance.remote_suite import RemoteSuite
from tests.support.clocks import SetClock

# What was counted, and what there is.
COUNTS: Final = (
    ("SELECT ifnull(sum(messages), 0) FROM queues", "SELECT count(*) FROM messages"),
    (
        "SELECT name, jobs, blocked_since FROM groups WHERE jobs > 0 OR held_since IS NULL ORDER BY name",
        """SELECT l.name, count(*), (SELECT failed_at FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1)
        FROM lanes AS l JOIN messages AS m ON m.lane = l.id WHERE l.name IS NOT NULL GROUP BY l.id ORDER BY l.name""",
    ),
    (
        "SELECT scheduled, parked, blocked FROM figures",
        """SELECT (SELECT count(*) FROM jobs WHERE entered = 0 AND finished_at IS NULL),
        (SELECT count(*) FROM jobs WHERE finished_at IS NULL AND status = 'ERROR' AND next_attempt_at IS NULL),
        (SELECT count(*) FROM groups WHERE blocked_since IS NOT NULL)""",
    ),
    (
        "SELECT size, groups FROM group_sizes WHERE groups <> 0 ORDER BY size",
        "SELECT size, count(*) FROM groups WHERE jobs > 0 GROUP BY size ORDER BY size",
    ),
    (
        "SELECT m.seq FROM messages AS m ORDER BY m.seq",
        "SELECT (sequence << 41 | number) FROM jobs WHERE finished_at IS NULL AND entered = 1 ORDER BY 1",
    ),
    (
        "SELECT job, count(*) FROM job_metadata GROUP BY job ORDER BY job",
        "SELECT number, count(*) FROM jobs JOIN json_each(metadata) GROUP BY number ORDER BY number",
    ),
    (
        "SELECT number, attempts FROM jobs WHERE attempts > 0 ORDER BY number",
        "SELECT job, count(*) FROM attempts GROUP BY job ORDER BY job",
    ),
    ("SELECT count(*) FROM actions", "SELECT count(*) FROM actions JOIN jobs ON number = job"),
    ("SELECT id FROM lanes ORDER BY id", "SELECT DISTINCT lane FROM messages ORDER BY lane"),
    # Once a walk is over, no lane is ready that begins with a job of a paused subscription.
    (
        "SELECT 0",
        """SELECT count(*) FROM lanes AS l JOIN messages AS m ON m.lane = l.id
        AND m.seq = (SELECT min(seq) FROM messages WHERE lane = l.id) JOIN jobs AS j ON j.number = m.seq & 2199023255551
        JOIN paused_subscriptions AS p ON p.code = j.subscription AND p.paused AND p.walked_to IS NULL
        WHERE l.due IS NULL""",
    ),
    (
        "SELECT 0",
        """SELECT count(*) FROM jobs AS j JOIN group_positions AS p ON p.name = json_quote(j.grp)
        WHERE j.position > p.given""",
    ),
)


def counts_are_right(connection: Connection) -> None:
    for counted, looked in COUNTS:
        assert connection.execute(counted).fetchall() == connection.execute(looked).fetchall(), counted


class SqliteJobBench(JobBench):
    """Each store has connections of its own to the same file, as another process would."""

    delay_s = 10.0

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "jobs.db"
        self._clock = SetClock()

    def make(self) -> PlatformStore:
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

    async def audit(self, store: JobStore) -> None:
        assert isinstance(store, SqliteJobStore)
        await store.queue.store.writer.read(counts_are_right)

    async def lose(self, store: JobStore) -> None:
        await self.pass_time(store.queue.capabilities.visibility_s)


class TestSqliteJobStore(JobStoreSuite, JobWalkSuite, PlatformSuite, RemoteSuite):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[JobBench]:
        bench = SqliteJobBench(tmp_path)
        yield bench
        await bench.close()


async def test_a_file_of_jobs_that_is_removed_under_a_running_process_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowcatalyst.queues.embedded.store.REAP_EVERY_S", 0.0)
    bench = SqliteJobBench(tmp_path)
    store = await bench.store()
    await bench.create(store, "j1", "j2")
    remove_files_in(tmp_path)
    assert len(await take(store)) == 2
    [loss] = store.queue.losses
    assert "was removed while it was open" in loss.text
    assert loss.messages == 2
    await bench.close()


def remove_files_in(folder: Path) -> None:
    for path in folder.glob("jobs.db*"):
        path.unlink()
