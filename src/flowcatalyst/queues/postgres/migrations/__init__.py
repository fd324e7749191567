"""The versions of the lanes in a PostgreSQL database: their numbered SQL files."""

from typing import Final

from flowcatalyst.storage.migrations import numbered_steps
from flowcatalyst.storage.postgres_migrations import PostgresMigrations

LANES: Final = PostgresMigrations("lanes", numbered_steps(__name__, ""))
