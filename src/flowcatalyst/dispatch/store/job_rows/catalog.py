"""The catalog: few entries, and a number that grows when one of them changes.

Who finds that something cannot be done returns the error: one that is raised here would undo what shares the
transaction.
"""

import sqlite3
from typing import Any, Final

from flowcatalyst.dispatch.store.job_rows.pause import set_paused
from flowcatalyst.dispatch.store.platform_contract import (
    CodeTakenError,
    Entry,
    EntryKind,
    StaleEntryError,
    UnknownEntryError,
)
from flowcatalyst.queues.embedded.lanes import one

_COLUMNS: Final = "kind, code, document, revision, created_at, updated_at"
_REVISION: Final = "SELECT revision FROM catalog_revision"
_ENTRIES: Final = f"SELECT {_COLUMNS} FROM catalog WHERE kind = ? ORDER BY code"
_ENTRY: Final = f"SELECT {_COLUMNS} FROM catalog WHERE kind = ? AND code = ?"


def revision(connection: sqlite3.Connection, now: float) -> int:
    found: int = one(connection, _REVISION)
    return found


def entries(connection: sqlite3.Connection, kind: EntryKind, now: float) -> list[Entry]:
    return [_entry(row) for row in connection.execute(_ENTRIES, (kind,))]


def _entry(row: tuple[Any, ...]) -> Entry:
    kind, code, document, its_revision, created_at, updated_at = row
    return Entry(EntryKind(kind), code, document, its_revision, created_at, updated_at)


def _find(connection: sqlite3.Connection, kind: EntryKind, code: str) -> Entry | None:
    row = connection.execute(_ENTRY, (kind, code)).fetchone()
    return None if row is None else _entry(row)


_NEXT_REVISION: Final = "UPDATE catalog_revision SET revision = revision + 1 RETURNING revision"
_ADD: Final = f"""
    INSERT INTO catalog ({_COLUMNS}) VALUES (:kind, :code, :document, :revision, :wall, :wall)
    RETURNING {_COLUMNS}"""
_CHANGE: Final = f"""
    UPDATE catalog SET document = :document, revision = :revision, updated_at = :wall
    WHERE kind = :kind AND code = :code RETURNING {_COLUMNS}"""
_REMOVE: Final = "DELETE FROM catalog WHERE kind = ? AND code = ?"


def add(
    connection: sqlite3.Connection,
    kind: EntryKind,
    code: str,
    document: str,
    now: float,
    wall: float,
    *,
    paused: bool = False,
) -> Entry | CodeTakenError:
    if _find(connection, kind, code) is not None:
        return CodeTakenError(f"there is a {kind} {code} already")
    values = {"kind": kind, "code": code, "document": document, "wall": wall}
    values["revision"] = one(connection, _NEXT_REVISION)
    if kind is EntryKind.SUBSCRIPTION:  # another one of its code may have been removed while it was paused
        set_paused(connection, code, now, wall, paused=paused)
    return _entry(connection.execute(_ADD, values).fetchone())


def change(
    connection: sqlite3.Connection,
    kind: EntryKind,
    code: str,
    document: str,
    expected: int | None,
    now: float,
    wall: float,
    *,
    quiet: bool,
    paused: bool | None = None,
) -> Entry | UnknownEntryError | StaleEntryError:
    found = _find(connection, kind, code)
    if found is None:
        return _unknown(kind, code)
    if expected is not None and found.revision != expected:
        return StaleEntryError(f"somebody else changed the {kind} {code} meanwhile: look at it again")
    values = {"kind": kind, "code": code, "document": document, "wall": wall}
    values["revision"] = found.revision if quiet else one(connection, _NEXT_REVISION)
    if paused is not None:
        set_paused(connection, code, now, wall, paused=paused)
    return _entry(connection.execute(_CHANGE, values).fetchone())


def remove(
    connection: sqlite3.Connection, kind: EntryKind, code: str, now: float, wall: float
) -> UnknownEntryError | None:
    if connection.execute(_REMOVE, (kind, code)).rowcount == 0:
        return _unknown(kind, code)
    connection.execute(_NEXT_REVISION).fetchone()
    if kind is EntryKind.SUBSCRIPTION:
        set_paused(connection, code, now, wall, paused=True)
    return None


def forget_pause(connection: sqlite3.Connection, subscription: str, now: float, wall: float) -> None:
    if _find(connection, EntryKind.SUBSCRIPTION, subscription) is None:
        set_paused(connection, subscription, now, wall, paused=False)


def _unknown(kind: EntryKind, code: str) -> UnknownEntryError:
    return UnknownEntryError(f"there is no {kind} {code}")
