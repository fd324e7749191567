"""Intake: events that were sent become events that are kept, each with its jobs."""

import asyncio
from collections.abc import Sequence
from typing import Final

from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.event import Event, NewEvent, new_event
from flowcatalyst.dispatch.event_counts import EventCounts
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.matcher import Matcher
from flowcatalyst.dispatch.store.platform_contract import EventAccepted, EventStore
from flowcatalyst.dispatch.subscription import Subscription, making_jobs

MAX_JOBS: Final = 2000  # of one transaction, unless one event has more: whoever delivers waits for it
MAX_JOB_BYTES: Final = 8 * 1024 * 1024
TURN_BYTES: Final = 256 * 1024  # of data that are judged or matched; then others on the loop have their turn
ITEM_BYTES: Final = 4 * 1024  # what one event, or one job, counts for besides its data
JOBS_A_TURN: Final = 500  # that are made of an event before others on the loop have their turn


class Turns:
    """Lets others on the loop have their turn now and then while much is read."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    async def took(self, size: int) -> None:
        """So many bytes were worked on."""
        self._taken += size
        if self._taken >= TURN_BYTES:
            self._taken = 0
            await asyncio.sleep(0)


class Intake:
    """Judges events, finds who wants them, and keeps them with the jobs that follow."""

    def __init__(self, store: EventStore, catalog: Catalog, ids: IdSource, clock: Clock) -> None:
        self._store = store
        self._catalog = catalog
        self._ids = ids
        self._clock = clock
        self.counts = EventCounts()

    def event_of(self, asked: NewEvent) -> Event:
        """Raises `InvalidEventError`."""
        return new_event(asked, self._ids.new_id(), self._clock.wall())

    async def accept(self, events: Sequence[Event]) -> list[EventAccepted]:
        """Durable when it returns: each event with all its jobs, or not at all.

        Many are kept in several transactions, in their order. Raises `QueueUnavailableError`; then some of them may be
        kept.
        """
        await self._catalog.fresh()
        accepted: list[EventAccepted] = []
        waiting: list[tuple[Event, list[Job]]] = []
        count, size = 0, 0
        for event in events:
            began_at = self._clock.monotonic()
            wanted = await matched(self._catalog.matcher, event)
            self.counts.matched(self._clock.monotonic() - began_at)
            jobs = await self._jobs_of(event, wanted)
            more = sum(len(job.payload or b"") for job in jobs)
            if waiting and (count + len(jobs) > MAX_JOBS or size + more > MAX_JOB_BYTES):
                accepted += await self._keep(waiting)
                waiting, count, size = [], 0, 0
            waiting.append((event, jobs))
            count, size = count + len(jobs), size + more
            await asyncio.sleep(0)  # thousands may have been asked whether they want it
        if waiting:
            accepted += await self._keep(waiting)
        return accepted

    async def _jobs_of(self, event: Event, wanted: Sequence[Subscription]) -> list[Job]:
        """Meanwhile a subscription may be paused or removed: the store looks again when it keeps its job."""
        jobs: list[Job] = []
        for job in making_jobs(event, wanted, self._ids.new_id, self._clock.wall()):
            jobs.append(job)
            if len(jobs) % JOBS_A_TURN == 0:
                await asyncio.sleep(0)
        return jobs

    async def _keep(self, events: Sequence[tuple[Event, list[Job]]]) -> list[EventAccepted]:
        accepted = await self._store.accept(events)
        self.counts.kept(accepted)
        return accepted


async def matched(matcher: Matcher, event: Event) -> list[Subscription]:
    """Those that want an event, by code."""
    found: list[Subscription] = []
    for one in matcher.matching(event):
        if one is None:
            await asyncio.sleep(0)
        else:
            found.append(one)
    return found
