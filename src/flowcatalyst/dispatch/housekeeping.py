"""Housekeeping: jobs expire when their time is over, finished ones and events are dropped when they are old enough,
pauses that a process left half done are gone on with, and secrets are sealed again after a change of the key.

Of all processes on one store the one that leads does it, in small parts: whoever delivers meanwhile waits for one of
them at most.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.dispatch.job_counts import JobCounts
from flowcatalyst.dispatch.job_watch import JobWatch
from flowcatalyst.dispatch.pausing import settle
from flowcatalyst.dispatch.resealing import Resealing
from flowcatalyst.dispatch.store.platform_contract import PlatformStore

EXPIRE_PERIOD_S: Final = 1.0
DROP_PERIOD_S: Final = 60.0
WATCH_PERIOD_S: Final = 5.0
PAUSE_PERIOD_S: Final = 1.0
RESEAL_PERIOD_S: Final = 60.0
EXPIRE_BATCH: Final = 500
DROP_BATCH: Final = 500
SHARE: Final = 0.2  # of the time that dropping may take from the store, while there is much to drop
LEAST_PAUSE_S: Final = 0.02
DAY_S: Final = 86_400.0

log = structlog.get_logger("flowcatalyst.housekeeping")


class Housekeeping:
    """Keeps one store in order as long as its process runs."""

    def __init__(
        self,
        store: PlatformStore,
        counts: JobCounts,
        watch: JobWatch,
        clock: Clock,
        retention_days: float,
        resealing: Resealing | None = None,
    ) -> None:
        """`retention_days` of 0: nothing is dropped. Without `resealing` there are no secrets."""
        self._store = store
        self._counts = counts
        self._watch = watch
        self._clock = clock
        self._retention_s = retention_days * DAY_S
        self._resealing = resealing

    def start(self, supervisor: Supervisor, tasks: Tasks) -> None:
        """From now on until the tasks are cancelled."""
        resealing = [] if self._resealing is None else [("reseal secrets", RESEAL_PERIOD_S, self._resealing.look)]
        for name, period_s, look in (
            *resealing,
            ("expire jobs", EXPIRE_PERIOD_S, self.expire),
            ("drop finished jobs", DROP_PERIOD_S, self.drop_finished),
            ("drop events", DROP_PERIOD_S, self.drop_events),
            ("settle pauses", PAUSE_PERIOD_S, self.settle_pauses),
            ("watch jobs", WATCH_PERIOD_S, self._watch.look),
        ):
            outage = OutageLog(self._clock, log, "housekeeping_failed", "housekeeping_recovered", task=name)
            supervisor.spawn(tasks, name, partial(_repeat, outage, period_s, look))

    async def expire(self) -> None:
        """End jobs that waited for too long."""
        if not await self._store.lead():
            return
        while (expired := await self._store.expire(EXPIRE_BATCH)) > 0:
            self._counts.expired += expired
            log.info("jobs_expired", action="jobs_expired", count=expired)
            if expired < EXPIRE_BATCH:
                break
            await asyncio.sleep(LEAST_PAUSE_S)

    async def drop_finished(self) -> None:
        """Forget what was finished for longer than it is kept."""
        if not self._retention_s or not await self._store.lead():
            return
        dropped = await self._drop(self._store.drop_finished)
        self._counts.dropped += dropped
        if dropped:
            log.info("jobs_dropped", action="jobs_dropped", count=dropped)

    async def drop_events(self) -> None:
        """Forget events that came longer ago than they are kept; their jobs are dropped for themselves."""
        if not self._retention_s or not await self._store.lead():
            return
        if dropped := await self._drop(self._store.drop_events):
            log.info("events_dropped", action="events_dropped", count=dropped)

    async def settle_pauses(self) -> None:
        """Go on where whoever paused or resumed a subscription did not come to the end."""
        if await self._store.lead():
            await settle(self._store)

    async def _drop(self, drop: Callable[[float, int], Awaitable[int]]) -> int:
        """In parts, with pauses between them."""
        dropped, before = 0, self._clock.wall() - self._retention_s
        while True:
            began_at = self._clock.monotonic()
            some = await drop(before, DROP_BATCH)
            dropped += some
            if some < DROP_BATCH:
                return dropped
            took_s = self._clock.monotonic() - began_at
            await asyncio.sleep(max(LEAST_PAUSE_S, took_s * (1 - SHARE) / SHARE))


async def _repeat(outage: OutageLog, period_s: float, look: Callable[[], Awaitable[None]]) -> None:
    """A store that is away is told of by whoever polls it."""
    while True:
        try:
            await look()
            outage.succeeded()
        except (QueueUnavailableError, StorageError) as error:
            outage.failed(error)
        await asyncio.sleep(period_s)
