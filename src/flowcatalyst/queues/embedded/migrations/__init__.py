"""The versions of a file of embedded queues: its numbered SQL files, and what they need of Python."""

import sqlite3
from collections.abc import Callable
from typing import Final

import msgspec

from flowcatalyst.core.message import pool_code_of
from flowcatalyst.queues.embedded.lanes import encode
from flowcatalyst.storage.migrations import Migrations, Parameters, numbered_steps

LONGEST_DELAY_S: Final = 12 * 3600.0  # what a wall clock that was wrong may have hidden for longer is shown by then
STEPS: Final = numbered_steps(__name__, "")

MakeMigrations = Callable[[Callable[[], float], Callable[[sqlite3.Connection], None]], Migrations]


def embedded_migrations(
    wall: Callable[[], float], check: Callable[[sqlite3.Connection], None], steps: tuple[str, ...] = STEPS
) -> Migrations:
    """`steps` where the file has other tables too; they begin with those of version 2 here."""

    def before_2(connection: sqlite3.Connection) -> Parameters:
        connection.create_function("pool_in", 1, lambda body: encode(pool_code_of(msgspec.json.decode(body))))
        return {"wall": wall(), "latest": wall() + LONGEST_DELAY_S}

    return Migrations(steps, {2: before_2}, check)
