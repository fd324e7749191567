"""Jobs in a SQLite file: the lanes of an embedded queue, with tables of jobs and attempts beside them."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeVar

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Delivery, DispatchMode, MessagePointer, Settled
from flowcatalyst.dispatch.job import Job, JobState
from flowcatalyst.dispatch.store import job_rows
from flowcatalyst.dispatch.store.contract import AttemptMade, Created, Filter, Page
from flowcatalyst.queues.embedded.lanes import Delays
from flowcatalyst.queues.embedded.migrations import STEPS as LANES
from flowcatalyst.queues.embedded.migrations import embedded_migrations
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.queues.embedded.take import Taken
from flowcatalyst.storage.migrations import Migrations, numbered_steps

T = TypeVar("T")

_JOBS: Final = numbered_steps("flowcatalyst.dispatch.store.migrations", "")
# In the order in which they were released: a later version of the lanes comes after what is here now.
STEPS: Final = (*LANES[:3], *_JOBS[:1])


def _migrations(wall: Callable[[], float], check: Callable[[sqlite3.Connection], None]) -> Migrations:
    return embedded_migrations(wall, check, STEPS)


class SqliteJobStore:
    """A job store in one file, which any number of processes of a machine may share."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        poll_interval_s: float = 0.1,
        make_file: Callable[..., EmbeddedStore] = EmbeddedStore,
    ) -> None:
        self._clock = clock
        self._file = make_file(path, clock, delays=Delays.FIRST, migrations=_migrations)
        self.queue = SqliteJobQueue(self._file, poll_interval_s=poll_interval_s)

    async def open(self) -> None:
        await self.queue.open()

    async def close(self) -> None:
        await self.queue.close()

    async def create(self, jobs: Sequence[Job]) -> list[Created]:
        """Durable when it returns. One whose idempotency key is known is not made again."""
        return await self._change(partial(job_rows.create, jobs=tuple(jobs)))

    async def find(self, job_id: str) -> JobState:
        return await self._file.writer.read(partial(job_rows.find, job_id=job_id))

    async def attempts_of(self, job_id: str) -> list[AttemptMade]:
        return await self._file.writer.read(partial(job_rows.attempts_of, job_id=job_id))

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page:
        return await self._file.writer.read(partial(job_rows.page, which=which, limit=limit, cursor=cursor))

    async def retry(self, job_id: str, actor: str) -> JobState:
        return await self._change(partial(job_rows.retry, job_id=job_id, actor=actor))

    async def cancel(self, job_id: str, actor: str) -> JobState:
        return await self._change(partial(job_rows.cancel, job_id=job_id, actor=actor))

    async def change_mode(self, job_id: str, mode: DispatchMode, actor: str) -> JobState:
        return await self._change(partial(job_rows.change_mode, job_id=job_id, mode=mode, actor=actor))

    async def _change(self, job: Callable[..., T]) -> T:
        return await self.queue.change(partial(job, now=self._file.now(), wall=self._clock.wall()))


@dataclass(slots=True, frozen=True)
class TakenJobs(Taken):
    """What one look gave, with the jobs that the messages stand for."""

    jobs: Mapping[int, JobState] = field(default_factory=dict)


class SqliteJobQueue(EmbeddedQueue):
    """The jobs of a file as a queue. What is acked is completed; with each settlement goes its attempt."""

    def __init__(self, store: EmbeddedStore, *, poll_interval_s: float = 0.1) -> None:
        super().__init__(store, job_rows.QUEUE, poll_interval_s=poll_interval_s)

    async def change(self, job: Callable[[Connection], T]) -> T:
        """Change the jobs, and let those look again who wait for some."""
        return await self._run(partial(self._store_if_found, job))

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(job_rows.ack, deliveries=tuple(deliveries), now=now, wall=wall)
        return await self._run(job) if deliveries else []

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(job_rows.nack, deliveries=tuple(deliveries), now=now, wall=wall, delay_s=delay_s)
        return await self._run(partial(job, unlock=unlock)) if deliveries else []

    def _lease(self, take: Callable[[Connection], Taken], connection: Connection) -> Taken:
        now, wall = self.store.now(), self._clock.wall()
        next_at = job_rows.enter_what_is_due(connection, now, wall)
        taken = take(connection)
        if next_at is not None:
            due = now + next_at - wall
            taken = replace(taken, next_due=due if taken.next_due is None else min(taken.next_due, due))
        jobs = job_rows.jobs_of(connection, [int(message.body) for message in taken.messages])
        return TakenJobs(taken.messages, taken.next_due, taken.data_version, taken.codes_seen_to, jobs)

    def _deliveries(self, taken: Taken, lease_until: float) -> list[Delivery]:
        assert isinstance(taken, TakenJobs)
        deliveries = []
        for message in taken.messages:
            delivery = self._delivery(message, lease_until)
            state = taken.jobs[int(message.body)]
            job, delivery.terms, delivery.earlier = state.job, state.job.terms, state.attempts
            if job.payload is not None:
                delivery.body, delivery.is_raw = job.payload, True
            delivery.pointer = MessagePointer(
                id=job.id,
                mediation_target=job.target,
                pool_code=job.pool,
                message_group_id=job.group,
                dispatch_mode=job.mode,
                content_type=job.content_type,
                headers=dict(job.headers) or None,
            )
            deliveries.append(delivery)
        return deliveries
