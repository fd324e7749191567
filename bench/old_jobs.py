"""Finished jobs by the million: some are delivered for real, then their rows are copied within the database."""

import os
import sqlite3
from pathlib import Path
from typing import Final

import asyncpg

DELIVERED: Final = 10_000  # for real; the others are copies of these
COPIES_AT_ONCE: Final = 10  # of each, in one transaction
_SQLITE: Final = {"jobs": ("number", "id"), "attempts": ("job", None)}
_POSTGRES: Final = {"jobs": ("number", "id"), "job_states": ("number", None), "job_attempts": ("job", None)}


async def copy_finished(folder: Path, count: int) -> None:
    """Have as many finished jobs as `count`. Copies have numbers below those that are there."""
    rounds = range(1, count // DELIVERED, COPIES_AT_ONCE)
    if url := os.environ.get("FLOWCATALYST_PLATFORM__DATABASE_URL"):
        connection = await asyncpg.connect(url, server_settings={"search_path": "flowcatalyst"}, command_timeout=3600)
        span = 1 + await connection.fetchval("SELECT max(number) FROM jobs")
        for first in rounds:
            last = min(first + COPIES_AT_ONCE, count // DELIVERED) - 1
            async with connection.transaction():
                for table, (number, name) in _POSTGRES.items():
                    found = await connection.fetch(
                        "SELECT column_name FROM information_schema.columns WHERE table_name = $1 AND table_schema = "
                        "'flowcatalyst' ORDER BY ordinal_position",
                        table,
                    )
                    copies = f"generate_series({first}, {last}) AS c(n)"
                    await connection.execute(_copy(table, [row[0] for row in found], number, name, span, copies))
        await connection.execute("VACUUM ANALYZE")
        await connection.close()
        return
    with sqlite3.connect(folder / "jobs.db", isolation_level=None) as file:
        (span,) = file.execute("SELECT max(number) + 1 FROM jobs").fetchone()
        for first in rounds:
            last = min(first + COPIES_AT_ONCE, count // DELIVERED) - 1
            file.execute("BEGIN IMMEDIATE")
            for table, (number, name) in _SQLITE.items():
                columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
                copies = "(" + " UNION ALL ".join(f"SELECT {n} AS n" for n in range(first, last + 1)) + ") AS c"
                file.execute(_copy(table, columns, number, name, span, copies))
            file.execute("COMMIT")


def _copy(table: str, columns: list[str], number: str, name: str | None, span: int, copies: str) -> str:
    def value(column: str) -> str:
        if column == number:
            return f"o.{column} - c.n * {span}"
        return f"o.{column} || '-' || c.n" if column == name else f"o.{column}"

    values = ", ".join(map(value, columns))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} AS o, {copies} WHERE o.{number} > 0"
    )
