"""From an empty file, or one of any older version, to the newest tables: numbered SQL files, forward only.

`0003_what.sql` leads from version 2 to 3, and `PRAGMA user_version` says where a file stands. Whatever a file lacks
happens in one transaction under the write lock: a crash in between leaves the file as it was. A step that was released
is never edited again: what is wrong with it is mended by the next one.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from flowcatalyst.core.errors import StorageError

Parameters = Mapping[str, float | str]


@dataclass(slots=True, frozen=True)
class Migrations:
    """The steps of one kind of file: the first creates its tables."""

    steps: tuple[str, ...]
    # By the version a step leads to: runs just before its SQL, for what SQL cannot do, and gives it its parameters.
    hooks: Mapping[int, Callable[[sqlite3.Connection], Parameters]] = field(default_factory=dict)
    # Runs under the lock before a file that has tables is changed; raises `StorageError` if it must be left alone.
    check: Callable[[sqlite3.Connection], None] | None = None

    @property
    def newest(self) -> int:
        return len(self.steps)

    def refuse_unusable(self, connection: sqlite3.Connection, path: Path) -> None:
        """Raise `StorageError` for a file that is not ours, or of a newer version. Only reads."""
        # Tables before version: another process may create both in between, and a version without its tables cannot
        # be seen then.
        tables = one_number(connection, "SELECT count(*) FROM sqlite_schema")
        found = one_number(connection, "PRAGMA user_version")
        if found > self.newest:
            raise StorageError(
                f"{path} was made by a newer version of FlowCatalyst (schema version {found}, this one knows up to "
                f"{self.newest}): start that version again, or restore the copy from before its upgrade"
            )
        if found == 0 and tables:
            raise StorageError(f"{path} was not made by FlowCatalyst: name another file")

    def apply(self, connection: sqlite3.Connection) -> None:
        """Run the steps that the file lacks, all or none."""
        if one_number(connection, "PRAGMA user_version") == self.newest:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = one_number(connection, "PRAGMA user_version")  # another process may have been faster
            if 0 < found < self.newest and self.check is not None:
                self.check(connection)
            for version in range(found + 1, self.newest + 1):
                hook = self.hooks.get(version)
                run_script(connection, self.steps[version - 1], {} if hook is None else hook(connection))
                connection.execute(f"PRAGMA user_version={version}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def numbered_steps(package: str, folder: str) -> tuple[str, ...]:
    """The SQL files of a folder inside a package, in order: 0001_what.sql, 0002_..., none missing."""
    found = sorted((one for one in files(package).joinpath(folder).iterdir() if one.name.endswith(".sql")), key=str)
    for number, one in enumerate(found, 1):
        assert one.name.startswith(f"{number:04}_"), f"{one} should be migration {number:04}"
    assert found, f"{package} has no migrations in {folder}"
    return tuple(one.read_text() for one in found)


def run_script(connection: sqlite3.Connection, script: str, parameters: Parameters) -> None:
    """Unlike `executescript` it leaves the transaction open. A line ends one statement at most."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement, parameters)
            statement = ""
    connection.execute(statement)


def one_number(connection: sqlite3.Connection, query: str) -> int:
    number: int = connection.execute(query).fetchone()[0]
    return number
