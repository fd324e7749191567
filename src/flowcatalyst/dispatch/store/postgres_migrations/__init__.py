"""The versions of the jobs in a PostgreSQL database, beside the lanes of its queues: numbered SQL files."""

from typing import Final

from flowcatalyst.storage.migrations import numbered_steps
from flowcatalyst.storage.postgres_migrations import PostgresMigrations

JOBS: Final = PostgresMigrations("jobs", numbered_steps(__name__, ""))
