"""SQLite files of every version that there was: brought up to date when they are opened, wholly or not at all."""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flowcatalyst.control import audit, dead_letters, pause_store
from flowcatalyst.control.audit import AuditFilter, AuditLog
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.control.pause_store import PauseStore
from flowcatalyst.core.errors import StorageError, StorageUnavailableError
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.queues.embedded.migrations import embedded_migrations
from flowcatalyst.router.pauses import Pause, PauseKind, Pauses
from flowcatalyst.router.skips import Skips
from flowcatalyst.storage import sqlite
from flowcatalyst.storage.migrations import Migrations, numbered_steps
from flowcatalyst.storage.sqlite import SqliteWriter
from tests.support.clocks import SetClock

DATA = Path(__file__).parent / "data"
KINDS = {
    "embedded": embedded_migrations(lambda: 1_000_000.0, lambda _: None),
    "dead_letters": dead_letters.MIGRATIONS,
    "audit": audit.MIGRATIONS,
    "pauses": pause_store.MIGRATIONS,
}
VERSIONS = [(kind, version) for kind, steps in KINDS.items() for version in range(1, steps.newest + 1)]
NOTES = Migrations(("CREATE TABLE notes (text TEXT);", "ALTER TABLE notes ADD COLUMN pages INTEGER;"))


def saved(path: Path, kind: str, version: int) -> Path:
    """A file as the code of that version left it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript((DATA / f"{kind}_version_{version}.sql").read_text())
    return path


def notes_of_version_1(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"{NOTES.steps[0]} INSERT INTO notes VALUES ('old'); PRAGMA user_version=1;")
    return path


async def open_and_close(path: Path, migrations: Migrations) -> None:
    writer = SqliteWriter(path, migrations)
    await writer.open()
    await writer.close()


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), str(version_of(connection))]


def version_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


@pytest.mark.parametrize(("kind", "version"), VERSIONS)
async def test_a_file_of_any_version_gets_the_tables_of_a_new_one(tmp_path: Path, kind: str, version: int) -> None:
    path = saved(tmp_path / "old.db", kind, version)
    await open_and_close(path, KINDS[kind])
    await open_and_close(tmp_path / "new.db", KINDS[kind])
    assert tables(path) == tables(tmp_path / "new.db")
    with closing(sqlite3.connect(path)) as connection:
        assert version_of(connection) == KINDS[kind].newest
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kept.db"
    await open_and_close(path, KINDS[kind])
    newest = KINDS[kind].newest
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={newest + 4}")
    before = path.read_bytes()
    said = (
        f"{path} was made by a newer version of FlowCatalyst (schema version {newest + 4}, this one knows up to "
        f"{newest}): start that version again, or restore the copy from before its upgrade"
    )
    with pytest.raises(StorageError) as caught:
        await open_and_close(path, KINDS[kind])
    assert str(caught.value) == said
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", range(1, dead_letters.MIGRATIONS.newest + 1))
async def test_old_dead_letters_are_all_there_and_counted(tmp_path: Path, version: int) -> None:
    letters = DeadLetters(saved(tmp_path / "dead-letters.db", "dead_letters", version), SetClock())
    await letters.open()
    assert [(one.number, one.message_id) for one in await letters.page()] == [(1, "m1"), (3, "m3"), (4, "m1"), (5, "")]
    assert await letters.count() == 4
    assert await letters.numbers_of(["m1", "m2", "m3"]) == {"m1": 4, "m3": 3}
    assert await letters.purge(3)
    assert await letters.count() == 3
    await letters.close()


async def test_an_old_audit_trail_goes_on(tmp_path: Path) -> None:
    clock = SetClock()
    trail = AuditLog(saved(tmp_path / "audit.db", "audit", 1), clock, WarningLog(clock))
    await trail.open()
    trail.record(audit.Actor("ann"), audit.AuditAction.POOL_CHANGE, "pool A")
    events = await trail.page(10, AuditFilter())
    assert [(one.number, one.action) for one in events] == [
        (4, "pool_change"),
        (3, "dead_letter_delete"),
        (2, "publish"),
        (1, "pool_change"),
    ]
    assert (events[2].count, events[2].requests) == (12, 2)
    await trail.close()


@pytest.mark.parametrize("version", range(1, pause_store.MIGRATIONS.newest + 1))
async def test_what_people_stopped_and_gave_up_before_is_still_so(tmp_path: Path, version: int) -> None:
    pauses, skips = Pauses(), Skips()
    store = PauseStore(saved(tmp_path / "pauses.db", "pauses", version), pauses, skips)
    await store.open()
    assert list(pauses) == [
        (PauseKind.POOL, "A", Pause("ann", 1_000_000.0)),
        (PauseKind.ENDPOINT, "http://a.test/hook", Pause("bob", 1_000_005.0)),
        (PauseKind.GROUP, "g", Pause("ann", 1_000_010.0)),
    ]
    assert skips.find("17") == ("skipped by ann" if version > 1 else "")
    await store.close()


async def test_an_older_process_that_has_the_dead_letters_open_works_on_and_is_counted(tmp_path: Path) -> None:
    path = saved(tmp_path / "dead-letters.db", "dead_letters", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        assert older.execute("SELECT count(*) FROM dead_letters").fetchone() == (4,)
        letters = DeadLetters(path, SetClock())
        await letters.open()
        columns = "message_id, queue, group_id, body, reason, status, excerpt, failures, recorded_at"
        older.execute(
            f"INSERT INTO dead_letters ({columns}) VALUES ('m9', 'q', NULL, '{{}}', 'HTTP 404', 404, '', 1, 5)"
        )
        assert await letters.count() == 5
        older.execute("DELETE FROM dead_letters")
        assert await letters.count() == 0
        await letters.close()


async def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = notes_of_version_1(tmp_path / "notes.db")
    before = content(path)
    broken = Migrations((*NOTES.steps, "CREATE TABLE more (x);\nINSERT INTO elsewhere VALUES (1);"))
    with pytest.raises(StorageError, match=r"notes\.db could not be used: no such table: elsewhere"):
        await open_and_close(path, broken)
    assert content(path) == before
    await open_and_close(path, NOTES)
    assert content(path)[-1] == "2"


async def test_two_that_open_an_old_file_at_once_change_it_once(tmp_path: Path) -> None:
    path = notes_of_version_1(tmp_path / "notes.db")
    writers = [SqliteWriter(path, NOTES) for _ in range(8)]
    await asyncio.gather(*(writer.open() for writer in writers))
    await asyncio.gather(*(writer.close() for writer in writers))
    assert content(path)[-1] == "2"


async def test_a_migration_waits_for_another_process_that_writes(tmp_path: Path) -> None:
    path = notes_of_version_1(tmp_path / "notes.db")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO notes VALUES ('meanwhile')")
        opening = asyncio.ensure_future(open_and_close(path, NOTES))
        await asyncio.sleep(0.05)
        other.execute("COMMIT")
        await opening
        assert other.execute("SELECT text, pages FROM notes").fetchall() == [("old", None), ("meanwhile", None)]


async def test_a_file_that_stays_locked_is_named_and_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    path = notes_of_version_1(tmp_path / "notes.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailableError, match=r"notes\.db is locked by another process"):
            await open_and_close(path, NOTES)
        assert version_of(other) == 1


@pytest.fixture
def folder_of_somebody_without_rights() -> Iterator[Path]:
    """Root may write everywhere: it gives its rights up for the test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_that_cannot_be_written_is_named_and_not_changed(
    folder_of_somebody_without_rights: Path, kind: str
) -> None:
    path = folder_of_somebody_without_rights / "kept.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DATA / f"{kind}_version_1.sql").read_text())
    path.chmod(0o444)
    before = path.read_bytes()
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match=r"kept\.db cannot be written: check the permissions"):
            await open_and_close(path, KINDS[kind])
    finally:
        os.seteuid(user)
    assert path.read_bytes() == before


def test_steps_are_numbered_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "numbered_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "0001_one.sql").write_text("SELECT 1;")
    (package / "0003_three.sql").write_text("SELECT 3;")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(AssertionError, match="should be migration 0002"):
        numbered_steps("numbered_package", "")
