"""SqliteWriter: what it promises about commits, neighbours, cancellation and unusable files."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from flowcatalyst.core.errors import InvalidMessageError, StorageError, StorageUnavailableError
from flowcatalyst.storage.migrations import Migrations
from flowcatalyst.storage.sqlite import SqliteWriter

SCHEMA = "CREATE TABLE notes (text TEXT UNIQUE)"
NOTES = Migrations((SCHEMA,))


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[SqliteWriter]:
    writer = SqliteWriter(tmp_path / "notes.db", NOTES)
    await writer.open()
    yield writer
    await writer.close()


def note(connection: sqlite3.Connection, text: str) -> str:
    connection.execute("INSERT INTO notes VALUES (?)", (text,))
    return text


def texts(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY rowid")]


def file_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Gate:
    """A job that keeps the thread busy until it is opened, so that others gather behind it."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.open.wait()


def test_a_closed_loop_is_tolerated_by_the_thread(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "notes.db", NOTES)
    gate = Gate()

    async def leave_a_job_behind() -> None:
        await writer.open()
        writer.submit(gate)
        writer.submit(lambda connection: note(connection, "late"))
        writer._requests.put(None)

    asyncio.run(leave_a_job_behind())
    gate.open.set()
    assert writer._thread is not None
    writer._thread.join()
    with sqlite3.connect(tmp_path / "notes.db") as connection:
        assert texts(connection) == ["late"]
    connection.close()


async def test_every_commit_reaches_the_disk(writer: SqliteWriter) -> None:
    def pragmas(connection: sqlite3.Connection) -> list[object]:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    assert await writer.read_in_turn(pragmas) == ["wal", 2]  # 2 is FULL


async def test_waiting_jobs_share_one_commit(writer: SqliteWriter) -> None:
    gate = Gate()
    writer.submit(gate, writes=False)
    jobs = [writer.submit(partial(note, text=str(n))) for n in range(50)]
    before = writer.commits
    gate.open.set()
    assert await asyncio.gather(*jobs) == [str(n) for n in range(50)]
    assert writer.commits - before <= 2


async def test_a_failing_job_does_not_fail_its_neighbours(writer: SqliteWriter) -> None:
    def refuse(connection: sqlite3.Connection) -> str:
        note(connection, "half done")
        raise InvalidMessageError("refused")

    gate = Gate()
    writer.submit(gate, writes=False)
    good = writer.submit(lambda connection: note(connection, "good"))
    bad = writer.submit(refuse)
    twice = writer.submit(lambda connection: note(connection, "good"))
    fine = writer.submit(lambda connection: note(connection, "fine"))
    gate.open.set()
    results = await asyncio.gather(good, bad, twice, fine, return_exceptions=True)
    assert [type(result) for result in results] == [str, InvalidMessageError, StorageError, str]
    assert await writer.read(texts) == ["good", "fine"]


async def test_a_job_commits_although_its_awaiter_was_cancelled(writer: SqliteWriter) -> None:
    gate = Gate()
    writer.submit(gate, writes=False)
    task = asyncio.get_running_loop().create_task(writer.run(lambda connection: note(connection, "kept")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open.set()
    assert await writer.read_in_turn(texts) == ["kept"]


async def test_closing_finishes_pending_jobs_and_may_be_repeated(writer: SqliteWriter) -> None:
    gate = Gate()
    writer.submit(gate)
    pending = writer.submit(lambda connection: note(connection, "pending"))
    gate.open.set()
    await asyncio.gather(writer.close(), writer.close())
    await writer.close()
    assert await pending == "pending"
    with pytest.raises(StorageUnavailableError, match="is closed"):
        await writer.run(texts)


async def test_a_read_does_not_wait_for_a_write_and_sees_what_is_committed(writer: SqliteWriter) -> None:
    await writer.run(partial(note, text="before"))
    gate = Gate()
    writing = writer.submit(gate)
    later = writer.submit(partial(note, text="later"))
    assert await writer.read(texts) == ["before"]
    gate.open.set()
    await asyncio.gather(writing, later)
    assert await writer.read(texts) == ["before", "later"]


async def test_a_write_does_not_wait_for_a_read(writer: SqliteWriter) -> None:
    gate = Gate()
    reading = asyncio.get_running_loop().create_task(writer.read(gate))
    await asyncio.sleep(0)
    assert await writer.run(partial(note, text="meanwhile")) == "meanwhile"
    gate.open.set()
    await reading


async def test_a_read_cannot_write_and_its_failure_is_its_own(writer: SqliteWriter) -> None:
    with pytest.raises(StorageError, match=r"notes\.db"):
        await writer.read(partial(note, text="no"))
    assert await writer.read(texts) == []


async def test_closing_waits_for_reads_and_leaves_only_the_database(writer: SqliteWriter) -> None:
    gate = Gate()
    await writer.run(partial(note, text="kept"))
    reading = asyncio.get_running_loop().create_task(writer.read(gate))
    pending = asyncio.get_running_loop().create_task(writer.read(texts))
    await asyncio.sleep(0)
    gate.open.set()
    await writer.close()
    await reading
    assert await pending == ["kept"]
    assert file_names(writer.path.parent) == ["notes.db"]
    with pytest.raises(StorageUnavailableError, match="is closed"):
        await writer.read(texts)


async def test_a_writer_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    await SqliteWriter(tmp_path / "notes.db", NOTES).close()


async def test_a_locked_file_is_unavailable_for_the_whole_batch_at_once(writer: SqliteWriter, tmp_path: Path) -> None:
    await writer.read_in_turn(lambda connection: connection.execute("PRAGMA busy_timeout=1").fetchone())
    other = sqlite3.connect(tmp_path / "notes.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    jobs = [writer.run(partial(note, text=str(n))) for n in range(3)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailableError] * 3
    assert "notes.db is locked" in str(results[0])
    other.execute("ROLLBACK")
    other.close()
    assert await writer.run(lambda connection: note(connection, "now")) == "now"


async def test_a_full_disk_is_named_and_undone(writer: SqliteWriter) -> None:
    pages = await writer.read_in_turn(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await writer.read_in_turn(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())
    with pytest.raises(StorageUnavailableError, match=r"notes\.db cannot grow because the disk is full"):
        await writer.run(lambda connection: note(connection, "x" * 100_000))
    assert await writer.run(lambda connection: note(connection, "small")) == "small"


def broken_schema_page(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    connection.execute(SCHEMA)
    connection.close()
    content = bytearray(path.read_bytes())
    content[100:110] = b"\xff" * 10
    return bytes(content)


@pytest.mark.parametrize("kind", ["text", "short text", "damaged", "foreign"])
async def test_a_file_that_cannot_be_used_is_named_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes.db"
    damaged = broken_schema_page(path)
    foreign = path.read_bytes()
    contents = {"text": b"no database " * 1000, "short text": b"oops", "damaged": damaged, "foreign": foreign}
    path.write_bytes(contents[kind])
    with pytest.raises(StorageError, match=r"notes\.db (is not a SQLite|is damaged|was not made)") as caught:
        await SqliteWriter(path, NOTES).open()
    assert caught.value.__cause__ is None
    assert path.read_bytes() == contents[kind]
    assert file_names(tmp_path) == ["notes.db"]


async def test_a_missing_folder_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/notes\.db cannot be opened: the folder .*nowhere does not exist"):
        await SqliteWriter(tmp_path / "nowhere" / "notes.db", NOTES).open()
    assert file_names(tmp_path) == []


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    folder.mkdir()
    folder.chmod(0o500)
    if os.geteuid() == 0:
        folder = Path("/proc/self")  # root may write anywhere but here
    with pytest.raises(StorageError, match=r"notes\.db cannot be opened: check that its folder"):
        await SqliteWriter(folder / "notes.db", NOTES).open()
