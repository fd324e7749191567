"""A platform in a SQLite file: the lanes of an embedded queue, with tables of jobs, events and the rest beside them."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeVar

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.core.waiters import Waiters
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job, JobState
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
from flowcatalyst.dispatch.store.job_rows import (
    act,
    catalog,
    enter,
    groups,
    house,
    look,
    pause,
    recalling,
    walk,
)
from flowcatalyst.dispatch.store.job_rows import events as event_rows
from flowcatalyst.dispatch.store.job_rows.columns import LOCK
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
from flowcatalyst.dispatch.store.sqlite_queue import RECALL_POLL_S, SqliteJobQueue
from flowcatalyst.queues.embedded.lanes import Receipt
from flowcatalyst.queues.embedded.migrations import STEPS as LANES
from flowcatalyst.queues.embedded.migrations import embedded_migrations
from flowcatalyst.queues.embedded.queue import EmbeddedStore, storage_errors_as_queue_errors
from flowcatalyst.storage.migrations import Migrations, numbered_steps

T = TypeVar("T")

__all__ = ["STEPS", "SqliteJobQueue", "SqliteJobStore"]

CATALOG_POLL_S: Final = 0.25  # how soon a change of another process is seen

_JOBS: Final = numbered_steps("flowcatalyst.dispatch.store.migrations", "")
# In the order in which they were released: a later version of the lanes comes after what is here now.
STEPS: Final = (*LANES[:3], *_JOBS[:5])


def job_migrations(wall: Callable[[], float], check: Callable[[sqlite3.Connection], None]) -> Migrations:
    return embedded_migrations(wall, check, STEPS)


class SqliteJobStore:
    """A platform store in one file, which any number of processes of a machine may share."""

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
        self._catalog_changes = Waiters()

    async def open(self) -> None:
        await self.queue.open()

    async def close(self) -> None:
        await self.queue.close()

    async def create(self, jobs: Sequence[Job], *, behind: bool = False) -> list[Created]:
        if not jobs:
            return []
        if not behind:
            return await self._change(partial(enter.create, jobs=tuple(jobs)))
        created = await self._change(partial(enter.create_behind, jobs=tuple(jobs)))
        if isinstance(created, Exception):
            raise created
        return created

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

    async def recall(
        self, jobs: Sequence[str] = (), group: str | None = None, subscription: str | None = None
    ) -> Recall[float]:
        ask = partial(recalling.ask, jobs=tuple(jobs), group=group, subscription=subscription)
        asked = await self._change(ask)
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

    # Jobs for routers on other machines

    def set_elsewhere(self, pools: frozenset[str]) -> None:
        self.queue.set_elsewhere(pools)

    async def take_heads(self, pools: Mapping[str, int], wait_s: float) -> list[Delivery]:
        return await self.queue.take_heads(pools, wait_s)

    def ticket_of(self, delivery: Delivery) -> Ticket:
        receipt: Receipt = delivery.receipt
        return Ticket(delivery.pointer.id, receipt.lane, receipt.seq, receipt.epoch)

    async def hand_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        return await self.queue.hand_over(deliveries, seconds) if deliveries else []

    async def claim(self, ticket: Ticket) -> Delivery | Refused:
        return await self.queue.claim(ticket)

    # Keeping house

    async def expire(self, limit: int) -> int:
        return await self._change(partial(house.expire, limit=limit))

    async def drop_finished(self, before: float, limit: int) -> int:
        return await self._drop(partial(house.drop_finished, before=before, limit=limit))

    async def lead(self) -> bool:
        """Any process may: each call is a small transaction under the one write lock, and repeating it does nothing."""
        return True

    # Events

    async def accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        return await self._change(partial(event_rows.accept, events=tuple(events))) if events else []

    async def event(self, event_id: str) -> EventKept:
        return await self._read(partial(event_rows.event, event_id=event_id))

    async def events(self, which: EventFilter, limit: int, cursor: int | None = None) -> EventPage:
        return await self._read(partial(event_rows.page, which=which, limit=limit, cursor=cursor))

    async def events_in_order(self, which: EventFilter, limit: int, after: int | None = None) -> EventPage:
        return await self._read(partial(event_rows.page, which=which, limit=limit, cursor=after, oldest_first=True))

    async def drop_events(self, before: float, limit: int) -> int:
        return await self._drop(partial(event_rows.drop, before=before, limit=limit))

    # The catalog

    async def revision(self) -> int:
        return await self._read(catalog.revision)

    async def entries(self, kind: EntryKind) -> list[Entry]:
        return await self._read(partial(catalog.entries, kind=kind))

    async def add(self, kind: EntryKind, code: str, document: str, *, paused: bool = False) -> Entry:
        add = partial(catalog.add, kind=kind, code=code, document=document, paused=paused)
        return await self._change_catalog(add)

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
        change = partial(catalog.change, kind=kind, code=code, document=document, expected=revision)
        return await self._change_catalog(partial(change, quiet=quiet, paused=paused))

    async def remove(self, kind: EntryKind, code: str) -> None:
        await self._change_catalog(partial(catalog.remove, kind=kind, code=code))

    async def changed(self, since: int, wait_s: float) -> int:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while (found := await self.revision()) == since and loop.time() < until:
            await self._catalog_changes.wait(min(until, loop.time() + CATALOG_POLL_S))
        return found

    # Pauses

    async def set_paused(self, subscription: str, *, paused: bool) -> None:
        await self._change(partial(pause.set_paused, subscription=subscription, paused=paused))

    async def forget_pause(self, subscription: str) -> None:
        await self._change(partial(catalog.forget_pause, subscription=subscription))

    async def settle_pauses(self, limit: int) -> int:
        return await self._change(partial(pause.settle, limit=limit))

    async def _change_catalog(self, job: Callable[..., T | FlowCatalystError]) -> T:
        found = await self._change(job)
        if isinstance(found, FlowCatalystError):
            raise found
        self._catalog_changes.wake()
        return found

    async def _drop(self, job: Callable[[Connection], int]) -> int:
        """Nobody who waits for jobs needs to look."""
        with storage_errors_as_queue_errors():
            return await self._file.writer.run(job)

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
