"""Looks at jobs wait for nobody who changes them: neither for connections of writers nor for what those have locked."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Attempt, DispatchMode
from flowcatalyst.dispatch.job import NewJob, Status, new_job
from flowcatalyst.dispatch.store import postgres_actions
from flowcatalyst.dispatch.store.contract import Acted, Cancel, Filter, JobStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.storage import postgres as storage
from tests.support.postgres import server
from tests.support.postgres_jobs import FAILED, Jobs, jobs

__all__ = ["jobs", "server"]

AT_LAST_S = 30.0  # nothing here takes long; a look that waits for a writer would never end
WRITERS = 8  # connections
NAMES = ("a1", "a2", "a3", "b1", "b2")
BLOCK = DispatchMode.BLOCK_ON_ERROR

LOOKS: dict[str, Callable[[JobStore], Awaitable[object]]] = {
    "page": lambda store: store.page(Filter(), 10),
    "page of a status": lambda store: store.page(Filter(status=Status.QUEUED), 10),
    "page of a group": lambda store: store.page(Filter(group="a"), 10),
    "count": lambda store: store.count(Filter(), 100),
    "figures": lambda store: store.figures(),
    "groups": lambda store: store.groups(blocked=False, limit=10),
    "blocked groups": lambda store: store.groups(blocked=True, limit=10),
    "group": lambda store: store.group("a"),
    "job": lambda store: store.find("a2"),
    "place": lambda store: store.place_of("a2"),
    "attempts": lambda store: store.attempts_of("b1"),
    "history": lambda store: store.history_of("a2"),
}


async def looked(store: JobStore) -> dict[str, object]:
    """What each look shows, which it has to do in time."""
    found = {}
    for what, look in LOOKS.items():
        try:
            async with asyncio.timeout(AT_LAST_S):
                found[what] = await look(store)
        except TimeoutError:
            raise AssertionError(f"a look waits: {what}") from None
    return found


async def fill(store: JobStore) -> None:
    """Two groups, one of them blocked by a job that failed, and one job that was cancelled."""
    wall = SystemClock().wall()
    target = "http://127.0.0.1:9/"
    asked = [NewJob(code="x", target_url=target, message_group=name[0], mode=BLOCK) for name in NAMES]
    await store.create([new_job(job, name, wall) for name, job in zip(NAMES, asked, strict=True)])
    taken = await store.queue.receive(10, 1.0)
    (first,) = [one for one in taken if one.pointer.id == "b1"]
    await store.queue.nack([one for one in taken if one is not first], 0.0)
    first.attempt, first.failures = Attempt(wall, 0.1, FAILED), 1
    await store.queue.nack([first], 1000.0)
    await store.act("a3", Cancel(), "ann")


async def test_looks_wait_for_no_writer_of_a_file(tmp_path: Path) -> None:
    store = SqliteJobStore(tmp_path / "jobs.db", SystemClock())
    await store.open()
    await fill(store)
    expected = await looked(store)
    begun, end = threading.Event(), threading.Event()

    def stay(_: sqlite3.Connection) -> None:
        begun.set()
        end.wait()

    store.queue.store.writer.submit(stay)
    try:
        await asyncio.to_thread(begun.wait)
        assert await looked(store) == expected
    finally:
        end.set()
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM messages")
        assert await looked(store) == expected
        other.execute("ROLLBACK")
    await store.close()


@asynccontextmanager
async def locked(jobs: Jobs) -> AsyncIterator[None]:
    """Somebody has every lane, job and count locked, in a transaction that does not end."""
    connection = await jobs.bench.connection()
    transaction = connection.transaction()
    await transaction.start()
    for table in ("lanes", "job_states", "jobs", "messages", "counts", "owners", "queues"):
        await connection.execute(f"SELECT 1 FROM {table} FOR UPDATE")
    yield
    await transaction.rollback()


async def test_looks_wait_for_no_connection_of_writers_and_for_nothing_that_is_locked(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CALL_LIMIT_S", 3600.0)
    store = await jobs.store()
    await fill(store)
    expected = await looked(store)
    end = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def stay(_: object) -> None:
        begun.release()
        await end.wait()

    async with asyncio.TaskGroup() as tasks, locked(jobs):
        for _ in range(WRITERS):
            tasks.create_task(store.database.pool.run(stay))
        for _ in range(WRITERS):
            await begun.acquire()
        try:
            assert await looked(store) == expected
        finally:
            end.set()


async def test_many_acts_that_do_not_end_delay_no_look(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CALL_LIMIT_S", 3600.0)
    store = await jobs.store()
    await fill(store)
    expected = await looked(store)
    begun, end = asyncio.Semaphore(0), asyncio.Event()

    async def stay(*_: object, **__: object) -> Acted:
        begun.release()
        await end.wait()
        return Acted(0, 0, (), None)

    monkeypatch.setattr(postgres_actions, "act_on_all", stay)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(WRITERS):
            tasks.create_task(store.act_on_all(Filter(group="a"), Cancel(), "ann", 10))
        await begun.acquire()
        try:
            assert await looked(store) == expected
        finally:
            end.set()
