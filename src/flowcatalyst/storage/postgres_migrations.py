"""From an empty database, or tables of any older version, to the newest tables: numbered SQL files, forward only.

All tables are in a schema of their own. Its table `versions` says where each part of it stands: parts have steps of
their own and need not know each other. Whatever a part lacks happens in one transaction under an advisory lock, so
that of several processes that start at once one migrates and the others wait; a crash in between leaves the tables as
they were. A step that was released is never edited again: what is wrong with it is mended by the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from flowcatalyst.core.errors import StorageError

_LOCK: Final = 0x464C4F57  # of all schemas together: nobody migrates often
_MIGRATION_LIMIT_MS: Final = 600_000
_HAS_VERSIONS: Final = "SELECT to_regclass(quote_ident($1) || '.versions') IS NOT NULL"
_COUNT_TABLES: Final = """
    SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')"""
_HAS_SCHEMA: Final = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)"
_VERSIONS: Final = "SELECT part, version FROM versions"
_CREATE_VERSIONS: Final = "CREATE TABLE versions (part text PRIMARY KEY, version integer NOT NULL)"
_SET_VERSION: Final = """
    INSERT INTO versions (part, version) VALUES ($1, $2) ON CONFLICT (part) DO UPDATE SET version = excluded.version"""


@dataclass(slots=True, frozen=True)
class PostgresMigrations:
    """The steps of one part of a schema: the first creates its tables."""

    part: str
    steps: tuple[str, ...]


async def migrate(connection: asyncpg.Connection, schema: str, parts: Sequence[PostgresMigrations], where: str) -> None:
    """Run the steps that each part lacks. The search path of the connection is the schema. Raises `StorageError`."""
    found = await _versions(connection, schema, where)
    _refuse_newer(found, parts, f"the schema {schema} of {where}")
    if all(found.get(part.part) == len(part.steps) for part in parts):
        return
    async with connection.transaction():
        await connection.execute(f"SET LOCAL statement_timeout = {_MIGRATION_LIMIT_MS}")
        await connection.execute(f"SET LOCAL lock_timeout = {_MIGRATION_LIMIT_MS}")
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = await _versions(connection, schema, where)  # another process may have been faster
        if not await connection.fetchval(_HAS_SCHEMA, schema):
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        if not await connection.fetchval(_HAS_VERSIONS, schema):
            await connection.execute(_CREATE_VERSIONS)
        for part in parts:
            for version in range(found.get(part.part, 0) + 1, len(part.steps) + 1):
                await connection.execute(part.steps[version - 1])
                await connection.execute(_SET_VERSION, part.part, version)


async def _versions(connection: asyncpg.Connection, schema: str, where: str) -> dict[str, int]:
    # Tables before versions: another process may create both in between, and one cannot be seen without the other.
    tables = await connection.fetchval(_COUNT_TABLES, schema)
    if await connection.fetchval(_HAS_VERSIONS, schema):
        return dict(await connection.fetch(_VERSIONS))
    if tables:
        raise StorageError(f"the schema {schema} of {where} was not made by FlowCatalyst: name another one")
    return {}


def _refuse_newer(found: dict[str, int], parts: Sequence[PostgresMigrations], where: str) -> None:
    for part in parts:
        if found.get(part.part, 0) > len(part.steps):
            raise StorageError(
                f"{where} was made by a newer version of FlowCatalyst (schema version {found[part.part]}, this one "
                f"knows up to {len(part.steps)}): start that version again, or restore the copy from before its upgrade"
            )
