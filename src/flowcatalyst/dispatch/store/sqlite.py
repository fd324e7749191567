"""Jobs in a SQLite file: the lanes of an embedded queue, with tables of jobs and attempts beside them."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeVar

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Delivery, MessagePointer, Settled
from flowcatalyst.dispatch.job import Job, JobState, Status, number_at
from flowcatalyst.dispatch.store.contract import (
    Acted,
    Action,
    ActionTaken,
    AttemptMade,
    Created,
    Figures,
    Filter,
    GroupPage,
    GroupState,
    Page,
    Place,
    Recall,
)
from flowcatalyst.dispatch.store.job_rows import act, enter, groups, house, look, recalling, settle, walk
from flowcatalyst.dispatch.store.job_rows.columns import LOCK, QUEUE, jobs_of
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded.migrations import STEPS as LANES
from flowcatalyst.queues.embedded.migrations import embedded_migrations
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore, storage_errors_as_queue_errors
from flowcatalyst.queues.embedded.take import Taken
from flowcatalyst.queues.recalls import Lease, RecalledLeases
from flowcatalyst.storage.migrations import Migrations, numbered_steps

T = TypeVar("T")

EXPIRED_AT_ONCE: Final = 200  # jobs that one look for others ends
RECALL_POLL_S: Final = 0.2  # how soon another process is heard
LOOKS_PAST_EXPIRED: Final = 10  # how often one look goes on after it met nothing but jobs whose time is over

_JOBS: Final = numbered_steps("flowcatalyst.dispatch.store.migrations", "")
# In the order in which they were released: a later version of the lanes comes after what is here now.
STEPS: Final = (*LANES[:3], *_JOBS[:3])


def job_migrations(wall: Callable[[], float], check: Callable[[sqlite3.Connection], None]) -> Migrations:
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
        self._file = make_file(path, clock, delays=LOCK, migrations=job_migrations)
        self.queue = SqliteJobQueue(self._file, poll_interval_s=poll_interval_s)

    async def open(self) -> None:
        await self.queue.open()

    async def close(self) -> None:
        await self.queue.close()

    async def create(self, jobs: Sequence[Job]) -> list[Created]:
        return await self._change(partial(enter.create, jobs=tuple(jobs))) if jobs else []

    # Looking

    async def find(self, job_id: str) -> JobState:
        return await self._read(partial(look.find, job_id=job_id))

    async def attempts_of(self, job_id: str) -> list[AttemptMade]:
        return await self._read(partial(look.attempts_of, job_id=job_id))

    async def history_of(self, job_id: str) -> list[ActionTaken]:
        return await self._read(partial(look.history_of, job_id=job_id))

    async def place_of(self, job_id: str) -> Place | None:
        return await self._read(partial(look.place_of, job_id=job_id))

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page:
        return await self._read(partial(walk.page, which=which, limit=limit, cursor=cursor))

    async def count(self, which: Filter, most: int) -> int:
        """In parts, so that other reads come between them."""
        found, cursor = await self._read(partial(walk.count, which=which, most=most, cursor=None))
        while cursor is not None and found < most:
            more, cursor = await self._read(partial(walk.count, which=which, most=most - found, cursor=cursor))
            found += more
        return found

    async def groups(self, *, blocked: bool, limit: int, cursor: str | None = None) -> GroupPage:
        return await self._read(partial(groups.groups, blocked=blocked, limit=limit, cursor=cursor))

    async def group(self, name: str) -> GroupState:
        return await self._read(partial(groups.group, name=name))

    async def figures(self) -> Figures:
        return await self._read(partial(look.figures, wall=self._clock.wall()))

    # Acting

    async def act(self, job_id: str, action: Action, actor: str) -> JobState:
        found = await self._change(partial(act.act, job_id=job_id, action=action, actor=actor))
        if isinstance(found, Exception):
            raise found
        return found

    async def act_on_all(
        self, which: Filter, action: Action, actor: str, limit: int, cursor: int | None = None
    ) -> Acted:
        return await self._change(
            partial(act.act_on_all, which=which, action=action, actor=actor, limit=limit, cursor=cursor)
        )

    async def hold(self, group: str, actor: str) -> GroupState:
        return await self._change(partial(groups.hold, name=group, actor=actor))

    async def release(self, group: str, actor: str) -> GroupState:
        """Who released it is not kept: nothing is left that could show it."""
        return await self._change(partial(groups.release, name=group))

    async def recall(self, jobs: Sequence[str] = (), group: str | None = None) -> Recall[float]:
        asked = await self._change(partial(recalling.ask, jobs=tuple(jobs), group=group))
        self.queue.recalls.ring()
        return asked

    async def returned(self, recall: Recall[float], wait_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            news = self.queue.recalls.news
            if await self._read(partial(recalling.is_answered, lanes=recall.lanes)):
                return True
            if (left_s := until - loop.time()) <= 0:
                return False
            await self.queue.recalls.wait(news, min(left_s, RECALL_POLL_S))

    async def end_recall(self, recall: Recall[float]) -> None:
        await self._change(partial(recalling.end, recall=recall))

    # Keeping house

    async def expire(self, limit: int) -> int:
        return await self._change(partial(house.expire, limit=limit))

    async def drop_finished(self, before: float, limit: int) -> int:
        drop = partial(house.drop_finished, before=before, limit=limit)
        with storage_errors_as_queue_errors():
            return await self._file.writer.run(drop)

    async def lead(self) -> bool:
        """Any process may: each call is a small transaction under the one write lock, and repeating it does nothing."""
        return True

    async def _read(self, job: Callable[..., T]) -> T:
        with storage_errors_as_queue_errors():
            return await self._file.writer.read(partial(_as_of_one_moment, partial(job, now=self._file.now())))

    async def _change(self, job: Callable[..., T]) -> T:
        return await self.queue.change(partial(job, now=self._file.now(), wall=self._clock.wall()))


def _as_of_one_moment(job: Callable[[Connection], T], connection: Connection) -> T:
    """All statements of a read see the same jobs, also if some come or go meanwhile."""
    connection.execute("BEGIN")
    try:
        return job(connection)
    finally:
        connection.execute("COMMIT")


@dataclass(slots=True, frozen=True)
class TakenJobs(Taken):
    """What one look gave, with the jobs that the messages stand for."""

    jobs: Mapping[int, JobState] = field(default_factory=dict)


class SqliteJobQueue(EmbeddedQueue):
    """The jobs of a file as a queue. What is acked is completed; with each settlement goes its attempt."""

    def __init__(self, store: EmbeddedStore, *, poll_interval_s: float = 0.1, long_poll_s: float = 1.0) -> None:
        super().__init__(store, QUEUE, poll_interval_s=poll_interval_s, long_poll_s=long_poll_s)
        self.recalls = RecalledLeases()

    async def change(self, job: Callable[[Connection], T]) -> T:
        """Change the jobs, and let those look again who wait for some."""
        return await self._run(partial(self._store_if_found, job))

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(settle.ack, deliveries=tuple(deliveries), now=now, wall=wall)
        return await self._run(job) if deliveries else []

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(settle.nack, deliveries=tuple(deliveries), now=now, wall=wall, delay_s=delay_s)
        return await self._run(partial(job, unlock=unlock)) if deliveries else []

    async def recalled(self, wait_s: float) -> Sequence[Lease]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            news = self.recalls.news
            with storage_errors_as_queue_errors():
                leases = await self.store.writer.read(partial(recalling.recalled, owner=self.store.owner))
            self.recalls.note(leases, loop.time())
            if leases or (left_s := until - loop.time()) <= 0:
                return leases
            await self.recalls.wait(news, min(left_s, RECALL_POLL_S))

    def is_recalled(self, delivery: Delivery) -> bool:
        return self.recalls.have(delivery.receipt.lane, delivery.receipt.epoch)

    async def returned(self, leases: Sequence[Lease]) -> None:
        await self._run(partial(recalling.answer, leases=leases))
        self.recalls.ring()

    def _lease(self, take: Callable[[Connection], Taken], connection: Connection) -> Taken:
        """Jobs whose time is over are ended instead of being handed out."""
        now, wall = self.store.now(), self._clock.wall()
        house.expire(connection, EXPIRED_AT_ONCE, now, wall)
        changes_at = [enter.enter_what_is_due(connection, now, wall), house.next_expiry(connection, wall)]
        for _ in range(LOOKS_PAST_EXPIRED):
            taken = take(connection)
            jobs = jobs_of(connection, [int(message.body) for message in taken.messages], now)
            over = [one for one in taken.messages if house.is_over(jobs[int(one.body)].job.expires_at, wall)]
            if not over:
                break
            lanes_and_messages.ack(connection, QUEUE, [message.receipt for message in over], now, LOCK)
            settle.end(connection, [message.seq for message in over], Status.EXPIRED, now, wall)
            taken = replace(taken, messages=[message for message in taken.messages if message not in over])
            if taken.messages:
                break
        else:
            changes_at.append(wall)  # there are more of them
        dues = [now + at - wall for at in changes_at if at is not None]
        next_due = min(dues if taken.next_due is None else [*dues, taken.next_due], default=None)
        return TakenJobs(taken.messages, next_due, taken.data_version, taken.codes_seen_to, jobs)

    def _deliveries(self, taken: Taken, lease_until: float) -> list[Delivery]:
        assert isinstance(taken, TakenJobs)
        deliveries = []
        for message in taken.messages:
            delivery = self._delivery(message, lease_until)
            state = taken.jobs[number_at(message.seq)]
            job, delivery.terms, delivery.earlier = state.job, state.job.terms, state.attempts
            delivery.due_at, delivery.expires_at = job.due_at, job.expires_at or 0.0
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
