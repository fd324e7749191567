"""Jobs in a PostgreSQL database: the lanes of its queues, with tables of jobs and attempts beside them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import StorageUnavailableError
from flowcatalyst.dispatch.job import Job, JobState
from flowcatalyst.dispatch.store import postgres_rows, postgres_search
from flowcatalyst.dispatch.store.contract import ActionTaken, AttemptMade, Created, Filter, Page
from flowcatalyst.dispatch.store.postgres_migrations import JOBS
from flowcatalyst.dispatch.store.postgres_queue import PostgresJobQueue
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.queues.postgres.store import PostgresStore, storage_errors_as_queue_errors
from flowcatalyst.storage.postgres import Connection, PostgresPool, PostgresServer

T = TypeVar("T")

PARTS: Final = (LANES, JOBS)
READERS: Final = 4  # connections of those who look: they wait for nobody who writes


class PostgresJobStore:
    """A job store in one schema of a database, which any number of processes may share."""

    def __init__(self, server: PostgresServer, clock: Clock) -> None:
        self._clock = clock
        self.database = PostgresStore(server, clock, migrations=PARTS)
        self._readers = PostgresPool(server, PARTS, READERS, postgres_search.WALKING)
        self.queue = PostgresJobQueue(self.database)

    async def open(self) -> None:
        """Make the tables, if the database can be reached now; else the first call does.

        Raises `StorageError` if its tables cannot be used, as those of a newer version.
        """
        await self.queue.open()
        with suppress(StorageUnavailableError):
            await self.database.pool.run(_nothing)

    async def close(self) -> None:
        await self.queue.close()
        await self._readers.close()

    async def create(self, jobs: Sequence[Job]) -> list[Created]:
        """Durable when it returns. One whose idempotency key is known is not made again."""
        if not jobs:
            return []
        created = await self._change(partial(postgres_rows.create, wall=self._clock.wall(), jobs=jobs))
        self.database.wake(self.queue.queue)
        return created

    # Looking

    async def find(self, job_id: str) -> JobState:
        return await self._read(partial(postgres_rows.find, job_id=job_id))

    async def attempts_of(self, job_id: str) -> list[AttemptMade]:
        return await self._read(partial(postgres_rows.attempts_of, job_id=job_id))

    async def history_of(self, job_id: str) -> list[ActionTaken]:
        return await self._read(partial(postgres_rows.history_of, job_id=job_id))

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page:
        """It ends early where very many jobs do not match; the next one goes on from there."""

        async def look(connection: Connection) -> Page:
            found = await postgres_search.find_numbers(connection, which, limit, cursor)
            states = await postgres_rows.states_of(connection, found.numbers)
            return Page([states[number] for number in found.numbers if number in states], found.before)

        return await self._read(look)

    async def _read(self, job: Callable[[Connection], Awaitable[T]]) -> T:
        with storage_errors_as_queue_errors():
            return await self._readers.run(job)

    async def _change(self, job: Callable[..., Awaitable[T]]) -> T:
        """`job` gets the number of our queue as `queue`."""
        number = await self.database.number_of(self.queue.queue)
        return await self.database.run(partial(job, queue=number))


async def _nothing(connection: Connection) -> None:
    """Connecting is enough: it makes the tables."""
