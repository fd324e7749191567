"""kill -9 in the middle of a migration: the file is as it was before, and the next start brings it up to date."""

import asyncio
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import closing
from pathlib import Path

import pytest

from flowcatalyst.queues.embedded.migrations import STEPS
from flowcatalyst.storage import sqlite as sqlite_file
from tests.support.clocks import SetClock
from tests.support.embedded import opened, take

MESSAGES = 20_000  # more than SQLite keeps in memory: some of what is not committed is in the log when it dies


class Hanging(sqlite3.Connection):
    """Tells when it has run the statement that begins like this, and does nothing more."""

    after = ""

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        cursor = super().execute(sql, *parameters)  # type: ignore[arg-type]
        if sql.lstrip().startswith(self.after):
            print("there", flush=True)
            sys.stdin.read()
        return cursor


async def hang_after(path: Path, statement: str) -> None:
    """What the process does that is going to be killed."""
    Hanging.after = statement
    # So that what it has done is in its file and not in memory only.
    sqlite_file.CACHE_KIB = 1024  # type: ignore[misc]
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, factory=Hanging, **options)  # type: ignore[assignment]
    async with opened(path, SetClock()):
        raise AssertionError("it should hang before it is open")


def file_of_version_1(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(f"BEGIN; {STEPS[0]} PRAGMA user_version=1; COMMIT")
        connection.execute("BEGIN")
        numbers = f"WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT {MESSAGES}) SELECT"
        lanes = f"{numbers} value, 'orders', '\"g' || value || '\"', '\"g' || value || '\"', value FROM n"
        connection.execute(f"INSERT INTO lanes (id, queue, name, grp, head) {lanes}")
        body = '\'"{\\"id\\":\\"\' || value || \'\\",\\"poolCode\\":\\"A\\"}' + "x" * 200 + "\"'"
        connection.execute(
            f"INSERT INTO messages (lane, seq, published_at, body) {numbers} value, value, 1000000.0, {body} FROM n"
        )
        connection.execute(f"UPDATE store SET last_seq = {MESSAGES}")
        connection.execute("COMMIT")


def version_and_tables(path: Path) -> tuple[int, list[tuple[str, str]]]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return version, sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE messages", "INSERT INTO messages", "DROP TABLE messages_1", "PRAGMA user_version=2"]
)
async def test_a_process_killed_in_a_migration_leaves_the_file_as_it_was(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "queue.db"
    file_of_version_1(path)
    before = version_and_tables(path)
    code = f"import asyncio, pathlib; from {__name__} import hang_after; "
    code += f"asyncio.run(hang_after(pathlib.Path({str(path)!r}), {statement!r}))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"there\n"
    finally:
        process.kill()
        await process.communicate()
    if statement != "ALTER TABLE messages":
        assert path.with_name("queue.db-wal").stat().st_size > 1_000_000  # it died with work half done
    assert version_and_tables(path) == before
    async with opened(path, SetClock()) as queue:
        assert (await queue.depth()).waiting == MESSAGES
        first, second = await take(queue, 2)
        assert (first.group, second.group) == ("g1", "g2")
