"""What the platform keeps, in PostgreSQL: the lanes of its queues, with tables of jobs and events beside them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

import asyncpg

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError, StorageError, StorageUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.core.waiters import Waiters
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job, JobState
from flowcatalyst.dispatch.store import (
    postgres_actions,
    postgres_catalog,
    postgres_columns,
    postgres_events,
    postgres_groups,
    postgres_rows,
    postgres_search,
)
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
from flowcatalyst.dispatch.store.group_commit import GroupCommit
from flowcatalyst.dispatch.store.platform_contract import (
    Entry,
    EntryKind,
    EventAccepted,
    EventFilter,
    EventKept,
    EventPage,
    Refused,
    Ticket,
)
from flowcatalyst.dispatch.store.postgres_migrations import JOBS
from flowcatalyst.dispatch.store.postgres_queue import PostgresJobQueue
from flowcatalyst.queues.postgres.lanes import Receipt
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.queues.postgres.store import PostgresStore, storage_errors_as_queue_errors
from flowcatalyst.storage.postgres import Connection, PostgresPool, PostgresServer

T = TypeVar("T")

PARTS: Final = (LANES, JOBS)
COUNTED_AT_ONCE: Final = 10_000
LEAD_LIMIT_S: Final = 5.0
KEPT_TOGETHER: Final = 1_000  # jobs and events of several callers in one transaction
BYTES_LIKE_A_JOB: Final = 4096  # of payload: so much makes a transaction as long as another job does
ANSWER_POLL_S: Final = 0.25  # should a notification be lost
CATALOG_POLL_S: Final = 0.5
# Asked again on the same connection it is ours again, which costs nothing: it ends with the connection.
_LEAD: Final = "SELECT pg_try_advisory_lock(1735159649, hashtext('flowcatalyst jobs of ' || $1))"
READERS: Final = 4  # connections of those who look: they wait for nobody who writes
SEARCHERS: Final = 2  # connections of those who look for jobs to act on, and then wait for these


class PostgresJobStore:
    """A store of the platform in one schema of a database, which any number of processes may share."""

    def __init__(self, server: PostgresServer, clock: Clock) -> None:
        self._clock = clock
        self.database = PostgresStore(server, clock, migrations=PARTS)
        self._readers = PostgresPool(server, PARTS, READERS, postgres_search.WALKING)
        self._searchers = PostgresPool(server, PARTS, SEARCHERS, postgres_search.WALKING)
        self.queue = PostgresJobQueue(self.database)
        self._catalog_changes = 0  # that we know of, so that none is lost between a look and the wait after it
        self._catalog_waiters = Waiters()
        self.database.on_notice[postgres_catalog.NOTICE] = self._on_catalog
        self._leader: Connection | None = None  # has the lock, or asks for it
        self._leading = asyncio.Lock()
        self._creating = GroupCommit(self._create, KEPT_TOGETHER)
        self._accepting = GroupCommit(self._accept, KEPT_TOGETHER)

    async def open(self) -> None:
        """Make the tables, if the database can be reached now; else the first call does.

        Raises `StorageError` if its tables cannot be used, as those of a newer version.
        """
        await self.queue.open()
        with suppress(StorageUnavailableError):
            await self.database.pool.run(_nothing)

    async def close(self) -> None:
        await self._creating.close()
        await self._accepting.close()
        self._resign()
        await self.queue.close()
        await self._searchers.close()
        await self._readers.close()

    async def create(self, jobs: Sequence[Job], *, behind: bool = False) -> list[Created]:
        """Durable when it returns. One whose idempotency key is known is not made again."""
        if not jobs:
            return []
        if behind:
            return await self._change(partial(postgres_rows.create_behind, wall=self._clock.wall(), jobs=jobs))
        return await self._creating.keep(jobs, _weight(jobs))

    async def _create(self, jobs: Sequence[Job]) -> list[Created]:
        return await self._change(partial(postgres_rows.create, wall=self._clock.wall(), jobs=jobs))

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

    async def place_of(self, job_id: str) -> Place | None:
        return await self._read(partial(postgres_groups.place_of, job_id=job_id))

    async def count(self, which: Filter, most: int) -> int:
        found, cursor = 0, None
        while found < most:
            part = await self._read(
                partial(
                    postgres_search.find_numbers, which=which, limit=min(most - found, COUNTED_AT_ONCE), before=cursor
                )
            )
            found, cursor = found + len(part.numbers), part.before
            if cursor is None:
                break
        return found

    async def groups(self, *, blocked: bool, limit: int, cursor: str | None = None) -> GroupPage:
        number = await self._number()
        return await self._read(
            partial(postgres_groups.groups, queue=number, limit=limit, cursor=cursor, blocked=blocked)
        )

    async def group(self, name: str) -> GroupState:
        return await self._read(partial(postgres_groups.group, queue=await self._number(), name=name))

    async def figures(self) -> Figures:
        number = await self._number()
        return await self._read(partial(postgres_groups.figures, queue=number, wall=self._clock.wall()))

    # Acting

    async def act(self, job_id: str, action: Action, actor: str) -> JobState:
        act = partial(postgres_actions.act, wall=self._clock.wall(), job_id=job_id, action=action, actor=actor)
        return await self._change(act)

    async def act_on_all(
        self, which: Filter, action: Action, actor: str, limit: int, cursor: int | None = None
    ) -> Acted:
        """On a connection that is set up for looking, since it looks for them."""
        act = partial(postgres_actions.act_on_all, queue=await self._number(), wall=self._clock.wall())
        with storage_errors_as_queue_errors():
            acted = await self._searchers.transaction(
                partial(act, which=which, action=action, actor=actor, limit=limit, cursor=cursor)
            )
        self.database.wake(self.queue.queue)
        return acted

    async def hold(self, group: str, actor: str) -> GroupState:
        return await self._change(partial(postgres_groups.hold, name=group, wall=self._clock.wall(), actor=actor))

    async def release(self, group: str, actor: str) -> GroupState:
        """Who released it is not kept: nothing is left that could show it."""
        return await self._change(partial(postgres_groups.release, name=group))

    async def recall(
        self, jobs: Sequence[str] = (), group: str | None = None, subscription: str | None = None
    ) -> Recall[datetime]:
        asked = await self._change(partial(postgres_actions.recall, jobs=jobs, group=group, subscription=subscription))
        self.queue.recalls.ring()
        return asked

    async def returned(self, recall: Recall[datetime], wait_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            news = self.queue.recalls.news
            if await self.database.run(partial(postgres_actions.is_answered, lanes=recall.lanes)):
                return True
            if (left_s := until - loop.time()) <= 0:
                return False
            await self.queue.recalls.wait(news, min(left_s, ANSWER_POLL_S))

    async def end_recall(self, recall: Recall[datetime]) -> None:
        await self._change(partial(postgres_actions.end_recall, recall=recall))

    # Events

    async def accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        if not events:
            return []
        weight = len(events) + _weight([job for _, jobs in events for job in jobs])
        return await self._accepting.keep(events, weight)

    async def _accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        return await self._change(partial(postgres_events.accept, wall=self._clock.wall(), events=events))

    async def event(self, event_id: str) -> EventKept:
        return await self._read(partial(postgres_events.find, event_id=event_id))

    async def events(self, which: EventFilter, limit: int, cursor: int | None = None) -> EventPage:
        page = partial(postgres_events.page, which=which, limit=limit, cursor=cursor, newest_first=True)
        return await self._read(page)

    async def events_in_order(self, which: EventFilter, limit: int, after: int | None = None) -> EventPage:
        page = partial(postgres_events.page, which=which, limit=limit, cursor=after, newest_first=False)
        return await self._read(page)

    async def drop_events(self, before: float, limit: int) -> int:
        return await self._change(partial(postgres_events.drop, before=before, limit=limit))

    # The catalog

    async def revision(self) -> int:
        return await self._read(postgres_catalog.revision)

    async def entries(self, kind: EntryKind) -> list[Entry]:
        return await self._read(partial(postgres_catalog.entries, kind=kind))

    async def add(self, kind: EntryKind, code: str, document: str, *, paused: bool = False) -> Entry:
        wall, number = self._clock.wall(), await self._number()
        add = partial(postgres_catalog.add, queue=number, kind=kind, code=code, document=document, wall=wall)
        return await self._record(partial(add, paused=paused))

    async def change(
        self,
        kind: EntryKind,
        code: str,
        document: str,
        revision: int | None = None,
        *,
        quiet: bool = False,
        paused: bool | None = None,
    ) -> Entry:
        wall, number = self._clock.wall(), await self._number()
        change = partial(postgres_catalog.change, queue=number, kind=kind, code=code, document=document)
        return await self._record(partial(change, expected=revision, wall=wall, quiet=quiet, paused=paused))

    async def remove(self, kind: EntryKind, code: str) -> None:
        await self._record(partial(postgres_catalog.remove, queue=await self._number(), kind=kind, code=code))

    async def changed(self, since: int, wait_s: float) -> int:
        """A process that receives is told of changes by others; looking now and then is for one that does not."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            changes = self._catalog_changes
            found = await self.revision()
            if found != since or loop.time() >= until:
                return found
            if self._catalog_changes == changes:
                await self._catalog_waiters.wait(min(until, loop.time() + CATALOG_POLL_S))

    async def _record(self, job: Callable[[Connection], Awaitable[T]]) -> T:
        entry = await self.database.run(job)
        self._on_catalog()
        return entry

    def _on_catalog(self) -> None:
        self._catalog_changes += 1
        self._catalog_waiters.wake()

    # Pausing

    async def set_paused(self, subscription: str, *, paused: bool) -> None:
        await self._change(partial(postgres_actions.set_paused, subscription=subscription, paused=paused))

    async def forget_pause(self, subscription: str) -> None:
        await self._change(partial(postgres_catalog.forget_pause, subscription=subscription))

    async def settle_pauses(self, limit: int) -> int:
        return await self._change(partial(postgres_actions.settle_pauses, limit=limit))

    # Jobs for routers on other machines

    def set_elsewhere(self, pools: frozenset[str]) -> None:
        self.queue.elsewhere = frozenset(map(postgres_columns.stored, pools))

    async def take_heads(self, pools: Mapping[str, int], wait_s: float) -> list[Delivery]:
        return await self.queue.take_heads(pools, wait_s)

    def ticket_of(self, delivery: Delivery) -> Ticket:
        receipt: Receipt = delivery.receipt.receipt
        return Ticket(delivery.pointer.id, receipt.lane, receipt.seq, receipt.epoch)

    async def hand_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        return await self.queue.hand_over(deliveries, seconds) if deliveries else []

    async def claim(self, ticket: Ticket) -> Delivery | Refused:
        return await self.queue.claim(ticket)

    # Keeping house

    async def expire(self, limit: int) -> int:
        return await self._change(partial(_expire, wall=self._clock.wall(), limit=limit))

    async def drop_finished(self, before: float, limit: int) -> int:
        return await self._change(partial(_drop_finished, before=before, limit=limit))

    async def lead(self) -> bool:
        """Whether we have the advisory lock of the schema: it is ours while one connection lives."""
        async with self._leading:
            try:
                async with asyncio.timeout(LEAD_LIMIT_S):
                    if self._leader is None:
                        self._leader = await self.database.pool.connect()
                    return bool(await self._leader.fetchval(_LEAD, self.database.pool.server.schema))
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                self._resign()
                raise QueueUnavailableError(str(self.database.pool.translated(error))) from None
            except StorageError as error:
                raise QueueUnavailableError(str(error)) from None
            except BaseException:
                self._resign()
                raise

    def _resign(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.terminate()

    async def _read(self, job: Callable[[Connection], Awaitable[T]]) -> T:
        with storage_errors_as_queue_errors():
            return await self._readers.run(job)

    async def _change(self, job: Callable[..., Awaitable[T]]) -> T:
        """`job` gets the number of our queue as `queue`. Those who wait for jobs look again."""
        changed = await self.database.run(partial(job, queue=await self._number()))
        self.database.wake(self.queue.queue)
        return changed

    async def _number(self) -> int:
        return await self.database.number_of(self.queue.queue)


async def _expire(connection: Connection, queue: int, wall: float, limit: int) -> int:
    ended: int = await connection.fetchval("SELECT expire_jobs($1, $2, $3)", queue, wall, limit)
    return ended


async def _drop_finished(connection: Connection, queue: int, before: float, limit: int) -> int:
    dropped: int = await connection.fetchval("SELECT drop_finished_jobs($1, $2)", before, limit)
    return dropped


async def _nothing(connection: Connection) -> None:
    """Connecting is enough: it makes the tables."""


def _weight(jobs: Sequence[Job]) -> int:
    return len(jobs) + sum(len(job.payload or b"") for job in jobs) // BYTES_LIKE_A_JOB
