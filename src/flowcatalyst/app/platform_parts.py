"""The dispatch platform as a part of a process: its store, what it knows, and the tasks that keep it in order."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog

from flowcatalyst.app.clients import Clients
from flowcatalyst.app.job_store import job_store_of, shared_database
from flowcatalyst.app.sealing import keys_of
from flowcatalyst.app.tracing import traced
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.logs import AttemptLogger
from flowcatalyst.core.message import Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.dispatch.api_keys import ApiKeys
from flowcatalyst.dispatch.catalog import SOURCE, Catalog
from flowcatalyst.dispatch.housekeeping import Housekeeping
from flowcatalyst.dispatch.intake import Intake
from flowcatalyst.dispatch.job_counts import CountedAttempts, JobCounts
from flowcatalyst.dispatch.job_watch import JobWatch
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.processing import Processing
from flowcatalyst.dispatch.remote import RemotePool, RemotePublisher
from flowcatalyst.dispatch.resealing import Resealing
from flowcatalyst.dispatch.sealing import Sealer
from flowcatalyst.dispatch.tokens import Tokens
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS
from flowcatalyst.router.pool_tools import PoolTools

if TYPE_CHECKING:
    from flowcatalyst.http.tracing import Tracing

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
        self._apply_pools = pools_changed
        self._clock = clock
        self._warnings = warnings
        self._retention_days = settings.platform.retention_days
        if store is not None:
            self.watch = JobWatch(store, self.counts, clock, warnings, settings.health.group_blocked_s)
            secret_keys = keys_of(settings, lambda: self.platform is not None and self.platform.catalog.has_secrets())
            sealer, self.tokens = Sealer(secret_keys), Tokens(secret_keys)
            catalog = Catalog(store, sealer, clock, warnings, self._pools_changed)
            store.queue.secrets_of = catalog.secrets_of
            intake, keys = Intake(store, catalog, ids, clock), ApiKeys(store, ids, clock)
            self.platform = Platform(store, catalog, intake, sealer, keys)

    async def open(self, stack: AsyncExitStack) -> None:
        """The store is open from here to the end of the stack; what the catalog has is known, if the store can be
        reached."""
        if self.platform is None:
            return
        await self.platform.store.open()
        stack.push_async_callback(self.platform.store.close)
        try:
            await self.platform.catalog.ready()
            await self.platform.api_keys.ready()
        except (QueueUnavailableError, StorageError) as error:  # then it is when it can be
            log.warning("catalog_not_read", action="catalog_not_read", error=str(error))
        if problem := self.platform.catalog.problem_with_keys():  # all else works: what has to be signed waits
            text = f"webhooks of some subscriptions cannot be signed: {problem}"
            log.error("secrets_not_opened", action="secrets_not_opened", problem=text)
            self._warnings.add(WarningCode.CONFIGURATION, Severity.ERROR, text, SOURCE)

    def start(self, supervisor: Supervisor, tasks: Tasks) -> None:
        """From now on until the tasks are cancelled."""
        if self.platform is None or self.watch is None:
            return
        supervisor.spawn(tasks, "follow the catalog", self.platform.catalog.follow)
        supervisor.spawn(tasks, "follow the API keys", self.platform.api_keys.follow)
        supervisor.spawn(tasks, "note uses of API keys", self.platform.api_keys.note_uses)
        store, catalog, sealer = self.platform.store, self.platform.catalog, self.platform.sealer
        resealing = Resealing(store, catalog, sealer)
        house = Housekeeping(store, self.counts, self.watch, self._clock, self._retention_days, resealing)
        house.start(supervisor, tasks)

    def remote_pools(self) -> dict[str, RemotePool]:
        """Those whose jobs are for routers elsewhere."""
        if self.platform is None:
            return {}
        pools = {code: kept.document for code, kept in self.platform.catalog.pools.items()}
        return {
            code: RemotePool(pool.queue, pool.limits().effective_capacity)
            for code, pool in pools.items()
            if pool.queue is not None
        }

    @asynccontextmanager
    async def serving_routers(
        self, app: RouterView, clients: Clients, tracing: "Tracing | None"
    ) -> AsyncIterator[Processing | None]:
        """Publish jobs for routers elsewhere, and make the attempts that they call back for, from here to the end of
        the block."""
        if self.platform is None:
            yield None
            return
        settings, store, tasks = app.settings.platform, self.platform.store, Tasks()
        attempts, attempt_log = traced(
            tracing,
            Mediator(clients.http, clients.https, self._clock),
            CountedAttempts(AttemptLogger(self._clock), self.counts, self._clock),
        )
        tools = PoolTools(
            mediator=attempts,
            breakers=app.breakers,
            endpoint_of=endpoint_of,
            origin_of=origin_of,
            dead_letters=app.dead_letters,
            warnings=app.warnings,
            log=attempt_log,
            clock=self._clock,
            spawn=tasks.spawn,
            delays=app.settings.retry.delays(),
        )
        processing = Processing(
            store,
            self.tokens,
            tools,
            lambda code: app.config.pools.get(code, DEFAULT_POOL_LIMITS),
            lambda: app.breakers,
            lambda: app.at_work,
        )
        publisher = RemotePublisher(
            store,
            self.remote_pools,
            app.queues,
            self.tokens,
            settings.public_url,
            settings.queued_limit_s,
            self._clock,
            app.warnings,
        )
        app.supervisor.spawn(tasks, "publish jobs", partial(publisher.run, app.supervisor))
        app.supervisor.spawn(tasks, "answer recalls", processing.answer_recalls)
        try:
            yield processing
        finally:
            await processing.close()
            await tasks.cancel()

    async def _pools_changed(self) -> None:
        if self.platform is not None:
            self.platform.store.set_elsewhere(frozenset(self.remote_pools()))
        await self._apply_pools()

    def over(self, config: RouterConfig) -> RouterConfig:
        """A configuration with the pools of the catalog: they win over others of their codes."""
        if self.platform is None:
            return config
        pools = {code: kept.document.limits() for code, kept in self.platform.catalog.pools.items()}
        return RouterConfig({**config.pools, **pools}, config.queues)
