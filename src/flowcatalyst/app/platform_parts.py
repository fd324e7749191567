"""The part of a process that is the dispatch platform: its store, what it knows, and the tasks that keep it in order."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import structlog

from flowcatalyst.app.job_store import job_store_of, shared_database
from flowcatalyst.app.sealing import sealer_of
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch.catalog import Catalog
from flowcatalyst.dispatch.housekeeping import Housekeeping
from flowcatalyst.dispatch.intake import Intake
from flowcatalyst.dispatch.job_counts import JobCounts
from flowcatalyst.dispatch.job_watch import JobWatch
from flowcatalyst.dispatch.platform import Platform

log = structlog.get_logger("flowcatalyst.platform")


class PlatformParts:
    """All of it is None in a process that dispatches no jobs."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        warnings: WarningLog,
        pools_changed: Callable[[], Awaitable[None]],
    ) -> None:
        self.jobs = store = job_store_of(settings, clock)
        self.shared = shared_database(store)
        self.counts = JobCounts()
        self.watch: JobWatch | None = None
        self.platform: Platform | None = None
        self._clock = clock
        self._retention_days = settings.platform.retention_days
        if store is not None:
            self.watch = JobWatch(store, self.counts, clock, warnings, settings.health.group_blocked_s)
            sealer = sealer_of(settings)
            catalog = Catalog(store, sealer, clock, warnings, pools_changed)
            store.queue.secrets_of = catalog.secrets_of
            self.platform = Platform(store, catalog, Intake(store, catalog, ids, clock), sealer)

    async def open(self, stack: AsyncExitStack) -> None:
        """The store is open from here to the end of the stack; what the catalog has is known, if the store can be
        reached."""
        if self.platform is None:
            return
        await self.platform.store.open()
        stack.push_async_callback(self.platform.store.close)
        try:
            await self.platform.catalog.ready()
        except (QueueUnavailableError, StorageError) as error:  # then it is when it can be
            log.warning("catalog_not_read", action="catalog_not_read", error=str(error))

    def start(self, supervisor: Supervisor, tasks: Tasks) -> None:
        """From now on until the tasks are cancelled."""
        if self.platform is None or self.watch is None:
            return
        supervisor.spawn(tasks, "follow the catalog", self.platform.catalog.follow)
        house = Housekeeping(self.platform.store, self.counts, self.watch, self._clock, self._retention_days)
        house.start(supervisor, tasks)
        supervisor.spawn(tasks, "keep what is paused so", partial(house.keep_pauses, self.platform.catalog))

    def over(self, config: RouterConfig) -> RouterConfig:
        """A configuration with the pools of the catalog: they win over others of their codes."""
        if self.platform is None:
            return config
        pools = {code: kept.document.limits() for code, kept in self.platform.catalog.pools.items()}
        return RouterConfig({**config.pools, **pools}, config.queues)
