"""Listings, counts and pages: they wait for no writer, hold none up, and cost what they show, not what there is."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowcatalyst.control import audit as audit_module
from flowcatalyst.control.audit import Actor, AuditAction, AuditFilter, AuditLog
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.storage.sqlite import SqliteWriter
from tests.support.clocks import SetClock
from tests.support.embedded import grouped

AT_LAST_S = 30.0  # nothing here takes long; a read that waits for the writer would never end
ANN = Actor("ann", "admin", "10.0.0.1", None)


class Files:
    """All that a router keeps, open."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock()
        self.letters = DeadLetters(folder / "dead-letters.db", self.clock)
        self.audit = AuditLog(folder / "audit.db", self.clock, WarningLog(self.clock))
        self.queue = EmbeddedQueue(EmbeddedStore(folder / "queue.db", self.clock), "orders")

    @property
    def writers(self) -> list[SqliteWriter]:
        return [self.letters.writer, self.audit.writer, self.queue.store.writer]


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    files = Files(tmp_path)
    for one in (files.letters, files.audit, files.queue):
        await one.open()
    await add_letters(files.letters, 3)
    files.audit.record(ANN, AuditAction.POOL_CHANGE, "pool A")
    await files.audit.page(1, AuditFilter())
    await files.queue.publish(grouped("a1", "b1"))
    yield files
    for one in (files.letters, files.audit, files.queue):
        await one.close()


async def add_letters(letters: DeadLetters, count: int, body: str = "{}") -> None:
    def insert(connection: sqlite3.Connection) -> None:
        connection.execute(
            f"""WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT {count})
            INSERT INTO dead_letters (message_id, queue, body, reason, excerpt, failures, recorded_at)
            SELECT '{count}-' || value, 'q', ?, 'HTTP 404', '', 1, 999000 FROM n""",
            (body,),
        )

    await letters.writer.run(insert)


READS: dict[str, Callable[[Files], Awaitable[object]]] = {
    "count of dead letters": lambda files: files.letters.count(),
    "new dead letters": lambda files: files.letters.count_newer(3600),
    "page of dead letters": lambda files: files.letters.page(2),
    "a dead letter": lambda files: files.letters.get(1),
    "dead letters of messages": lambda files: files.letters.numbers_of(["3-1", "m7"]),
    "whether more dead letters follow": lambda files: files.letters.has_after(2),
    "page of the audit trail": lambda files: files.audit.page(10, AuditFilter()),
    "depth": lambda files: files.queue.depth(),
}


@contextmanager
def busy(writers: list[SqliteWriter]) -> Iterator[None]:
    """They are in the middle of a transaction that does not end."""
    begun, end = threading.Semaphore(0), threading.Event()

    def stay(_: sqlite3.Connection) -> None:
        begun.release()
        end.wait()

    for writer in writers:
        writer.submit(stay)
    for _ in writers:
        begun.acquire()
    try:
        yield
    finally:
        end.set()


@pytest.mark.parametrize("what", READS)
async def test_a_writer_that_is_stuck_delays_no_read(files: Files, what: str) -> None:
    expected = await READS[what](files)
    with busy(files.writers):
        async with asyncio.timeout(AT_LAST_S):
            assert await READS[what](files) == expected


async def test_the_audit_trail_shows_what_was_done_just_now(files: Files) -> None:
    for number in range(20):
        files.audit.record(ANN, AuditAction.POOL_CHANGE, f"pool {number}")
        [newest] = await files.audit.page(1, AuditFilter())
        assert newest.object == f"pool {number}"


async def test_the_audit_trail_shows_what_is_stored_while_the_disk_takes_nothing(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "OWN_WRITES_S", 0.01)
    with busy([files.audit.writer]):
        files.audit.record(ANN, AuditAction.POOL_CHANGE, "pool B")
        async with asyncio.timeout(AT_LAST_S):
            events = await files.audit.page(10, AuditFilter())
    assert [one.object for one in events] == ["pool A"]
    await files.audit.writer.run(lambda _: None)  # behind what was recorded
    assert len(await files.audit.page(10, AuditFilter())) == 2


async def steps(letters: DeadLetters, read: Callable[[], Awaitable[object]]) -> int:
    """Virtual machine instructions of a read: the work done, whatever the machine is busy with."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    await letters.writer.read(lambda connection: connection.set_progress_handler(tick, 1))
    await read()
    await letters.writer.read(lambda connection: connection.set_progress_handler(None, 1))
    return count


@pytest.mark.parametrize("what", [what for what in READS if "dead letter" in what])
async def test_cost_of_a_look_at_dead_letters_does_not_grow_with_their_number(files: Files, what: str) -> None:
    letters = files.letters
    await add_letters(letters, 200)
    few = await steps(letters, lambda: READS[what](files))
    await add_letters(letters, 20_000)
    assert await steps(letters, lambda: READS[what](files)) <= few * 1.1


async def test_no_body_is_read_to_count(files: Files) -> None:
    await add_letters(files.letters, 150, "x" * 100_000)

    def plans(connection: sqlite3.Connection) -> list[str]:
        seen: list[str] = []
        connection.set_trace_callback(seen.append)
        return seen

    asked = await files.letters.writer.read(plans)
    assert (await files.letters.count(), await files.letters.count_newer(3600)) == (153, 100)
    queries = [query for query in asked if query.startswith("SELECT")]
    assert len(queries) == 2

    def explain(connection: sqlite3.Connection) -> str:
        return " ".join(row[3] for query in queries for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))

    plan = await files.letters.writer.read(explain)
    assert "COVERING INDEX dead_letters_by_time" in plan
    assert "SCAN totals" in plan
    assert "SCAN dead_letters" not in plan
