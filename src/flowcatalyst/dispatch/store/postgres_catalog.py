"""The catalog in a PostgreSQL database. Its functions lock one row, so that changes follow each other."""

from collections.abc import Sequence
from typing import Any, Final

from flowcatalyst.dispatch.store.platform_contract import (
    CodeTakenError,
    Entry,
    EntryKind,
    StaleEntryError,
    UnknownEntryError,
)
from flowcatalyst.dispatch.store.postgres_columns import restored, stored
from flowcatalyst.storage.postgres import Connection

NOTICE: Final = "catalog"  # that it changed
_COLUMNS: Final = "kind, code, document, revision, created_at, updated_at"


def _entry(row: Sequence[Any]) -> Entry:
    kind, code, document, revision, created_at, updated_at = row
    return Entry(EntryKind(kind), restored(code), restored(document), revision, created_at, updated_at)


async def revision(connection: Connection) -> int:
    found: int = await connection.fetchval("SELECT revision FROM catalog_revision")
    return found


async def entries(connection: Connection, kind: EntryKind) -> list[Entry]:
    rows = await connection.fetch(f"SELECT {_COLUMNS} FROM catalog WHERE kind = $1 ORDER BY kind, code", kind)
    return [_entry(row) for row in rows]


_SET_PAUSED: Final = "SELECT set_paused($1, $2, $3)"


async def add(
    connection: Connection, queue: int, kind: EntryKind, code: str, document: str, wall: float, *, paused: bool
) -> Entry:
    """Another subscription of its code may have been removed while it was paused: that is over."""
    async with connection.transaction():
        if kind is EntryKind.SUBSCRIPTION:
            await connection.execute(_SET_PAUSED, queue, stored(code), paused)
        statement = f"SELECT {_COLUMNS} FROM add_entry($1, $2, $3, $4)"
        row = await connection.fetchrow(statement, kind, stored(code), stored(document), wall)
        if row is None:
            raise CodeTakenError(f"there is a {kind} {code} already")
    return _entry(row)


async def change(
    connection: Connection,
    queue: int,
    kind: EntryKind,
    code: str,
    document: str,
    expected: int | None,
    wall: float,
    *,
    quiet: bool,
    paused: bool | None,
) -> Entry:
    if paused is None:
        return await _change(connection, kind, code, document, expected, wall, quiet=quiet)
    async with connection.transaction():  # which an error ends as well
        await connection.execute(_SET_PAUSED, queue, stored(code), paused)
        return await _change(connection, kind, code, document, expected, wall, quiet=quiet)


async def _change(
    connection: Connection,
    kind: EntryKind,
    code: str,
    document: str,
    expected: int | None,
    wall: float,
    *,
    quiet: bool,
) -> Entry:
    is_changed, *row = await connection.fetchrow(
        "SELECT is_changed, (entry).* FROM change_entry($1, $2, $3, $4, $5, $6)",
        kind,
        stored(code),
        stored(document),
        expected,
        quiet,
        wall,
    )
    if row[0] is None:
        raise UnknownEntryError(f"there is no {kind} {code}")
    entry = _entry(row)
    if not is_changed:
        raise StaleEntryError(f"the {kind} {code} was changed meanwhile: it has revision {entry.revision} now")
    return entry


async def remove(connection: Connection, queue: int, kind: EntryKind, code: str) -> None:
    async with connection.transaction():
        if kind is EntryKind.SUBSCRIPTION:
            await connection.execute(_SET_PAUSED, queue, stored(code), True)
        if not await connection.fetchval("SELECT remove_entry($1, $2)", kind, stored(code)):
            raise UnknownEntryError(f"there is no {kind} {code}")


async def forget_pause(connection: Connection, queue: int, subscription: str) -> None:
    async with connection.transaction():
        await connection.execute("SELECT lock_subscriptions(true)")  # nobody adds it meanwhile
        kept = "SELECT 1 FROM catalog WHERE kind = $1 AND code = $2"
        if await connection.fetchval(kept, EntryKind.SUBSCRIPTION, stored(subscription)) is None:
            await connection.execute(_SET_PAUSED, queue, stored(subscription), False)
