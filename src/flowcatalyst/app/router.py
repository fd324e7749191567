"""Composition root: builds everything from the settings and opens and closes it in order."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import cached_property
from socket import gethostname
from typing import TYPE_CHECKING, Final

from flowcatalyst.app.clients import build_clients, ssl_context_of
from flowcatalyst.app.data_folder import cannot_be_created, emptied_files, problem_with_folder
from flowcatalyst.app.job_store import take_part
from flowcatalyst.app.platform_parts import PlatformParts
from flowcatalyst.app.tracing import RELEASED_PERIOD_S, traced, tracing_of
from flowcatalyst.control.audit import Actor, AuditAction, AuditLog
from flowcatalyst.control.config_source import sources_from
from flowcatalyst.control.config_sync import ConfigSync
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.control.depths import Depths
from flowcatalyst.control.group_figures import GroupWatch
from flowcatalyst.control.notify import Notifier, log_warning
from flowcatalyst.control.pause_store import PauseStore
from flowcatalyst.control.retention import Retention
from flowcatalyst.control.router_config import RouterConfig, changes_in_words, difference
from flowcatalyst.control.settings import Settings
from flowcatalyst.control.shared_file import PERIOD_S as SHARED_FILE_PERIOD_S
from flowcatalyst.control.shared_file import SharedFile
from flowcatalyst.control.standby import Standby
from flowcatalyst.control.storage_outages import StorageOutages
from flowcatalyst.core.clock import Clock, IdSource, SystemClock
from flowcatalyst.core.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.core.logs import AttemptLogger
from flowcatalyst.core.message import Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.dispatch.job_counts import CountedAttempts
from flowcatalyst.dispatch.processing import Processing
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.http.resolver import SystemResolver
from flowcatalyst.queues.contract import BrokerQueue, Loss, Queue
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.raw import reader_of
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.outages import DEAD_LETTER_PERIOD_S, DeadLetterOutages, OutageLimits
from flowcatalyst.router.pauses import Pauses
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.skips import Skips
from flowcatalyst.router.tracker import InFlightTracker
from flowcatalyst.sandbox.receivers import Sandbox
from flowcatalyst.storage.sqlite import SqliteWriter

if TYPE_CHECKING:
    from flowcatalyst.http.tracing import Tracing

NOTIFY_AT_STOP_S: Final = 3.0
JOBS: Final = "dispatch jobs"  # no queue of a configuration is called so


class App:
    """A whole router in one process: its files, its configuration, and the engine while it is the one at work."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = IdSource(self.clock)
        self.identity = f"{gethostname()}-{os.getpid()}-{self.ids.new_id()}"  # new at each start
        self.warnings = WarningLog(self.clock, record=log_warning)
        self.supervisor = Supervisor(self.clock, self.warnings)
        self.depths, self.group_watch = Depths(self.clock), GroupWatch(lambda: self.engine, self.clock)
        self.sandbox = Sandbox(self.ids)
        self.audit = AuditLog(settings.data_dir / "audit.db", self.clock, self.warnings)
        self.dead_letters = DeadLetters(settings.data_dir / "dead-letters.db", self.clock)
        self.pauses = Pauses()
        self.skips = Skips()
        self.pause_store = PauseStore(settings.data_dir / "pauses.db", self.pauses, self.skips)
        self.store = EmbeddedStore(settings.data_dir / "queue.db", self.clock)
        self._parts = parts = PlatformParts(settings, self.clock, self.ids, self.warnings, self._apply_pools)
        self.jobs, self.platform, self._shared = parts.jobs, parts.platform, parts.shared
        self.job_counts, self.job_watch = parts.counts, parts.watch
        self.processing: Processing | None = None
        self.config = self._without_catalog = config_of(settings)
        self.removed_queues: dict[str, QueueConfig] = {}  # as they were; one that comes back may not have left yet
        self.factory = QueueFactory(self.store, settings, self.clock)
        self.factory.add_publishers(self.config.queues.values())
        self.fence = Fence()
        self.dead_letter_outages = DeadLetterOutages(
            self.dead_letters.count_newer, self.warnings, settings.health.dead_letters_s
        )
        self.storage_outages = StorageOutages(self._files, self.clock, self.warnings)
        self.shared_file = SharedFile(self.store, self.warnings, lambda: self.standby is not None)
        self._tracing: Tracing | None = None  # while it routes, if it is on
        self.engine = self._new_engine()  # of the present primary session; of the latest one if there will be no other
        self.stopped_clean = True  # everything in hand was settled or nacked at the end of the latest one
        self.unsettled = 0  # what was not, if not
        self.losses: list[Loss] = []  # at the brokers, in all primary sessions that are over
        self.sync: ConfigSync | None = None
        self.standby: Standby | None = None
        self.started = False
        self.stopping = False
        self.at_work = False  # polls its queues: not while it is a standby
        self._changing = asyncio.Lock()  # a primary session begins, or a configuration is applied
        self._configured = asyncio.Event()

    # What others look at; it belongs to the engine of the present primary session.

    @property
    def queues(self) -> dict[str, BrokerQueue]:
        """The queues one can publish to, by name."""
        return self.factory.publishers

    def queues_to_show(self) -> dict[str, Queue]:
        """Those that are polled, by the name they have in the configuration, and the others of the embedded store."""
        shown: dict[str, Queue] = dict(self.engine.queues) if self.at_work else {}
        for name, queue in self.queues.items():
            if isinstance(queue, EmbeddedQueue) and queue not in shown.values():
                shown.setdefault(name, queue)
        return shown

    @cached_property
    def egress(self) -> EgressGuard:
        """Which targets may be called. To be asked once it is known where the built-in receivers are."""
        egress = self.settings.egress
        resolver = SystemResolver(self.clock)
        return EgressGuard(egress.allow_private, egress.allowed_networks, resolver, self.sandbox.address)

    @property
    def pools_without_catalog(self) -> Mapping[str, PoolLimits]:
        return self._without_catalog.pools

    @property
    def tracker(self) -> InFlightTracker:
        return self.engine.tracker

    @property
    def breakers(self) -> Breakers:
        return self.engine.breakers

    @property
    def router(self) -> Router:
        return self.engine.router

    @property
    def settlers(self) -> dict[str, Settler]:
        return self.engine.settlers

    @property
    def consumers(self) -> dict[str, Consumer]:
        return self.engine.consumers

    def prepare_data_dir(self) -> None:
        """Make the data folder, or raise `ConfigurationError` if it cannot be made or written."""
        folder = self.settings.data_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = problem_with_folder(folder) or cannot_be_created(error.strerror or str(error))
            raise ConfigurationError(f"data folder {folder} {why}") from None
        if problem := problem_with_folder(folder):
            raise ConfigurationError(f"data folder {folder} {problem}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the storage and route from here to the end of the block, then shut down in order, losing nothing."""
        async with self.storage_open(), self.routing():
            yield

    @asynccontextmanager
    async def storage_open(self) -> AsyncIterator[None]:
        """The files are open from here to the end of the block; whoever needs them ends before that."""
        self.prepare_data_dir()
        for name, text in emptied_files(self.settings.data_dir).items():
            self.warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, text, name)
        async with AsyncExitStack() as stack:
            await self.audit.open()
            stack.push_async_callback(self.audit.close)
            await self.pause_store.open()
            stack.push_async_callback(self.pause_store.close)
            await self.dead_letters.open()
            stack.push_async_callback(self.dead_letters.close)
            await self.store.open()
            stack.push_async_callback(self.store.close)
            await self._parts.open(stack)
            stack.push_async_callback(self.factory.close_publishers)
            await self.factory.open_publishers()
            stack.push_async_callback(self.depths.close)
            stack.push_async_callback(self.group_watch.close)
            tasks = Tasks()
            self.supervisor.spawn(tasks, "watch storage", self.storage_outages.run)
            stack.push_async_callback(tasks.cancel)
            yield

    def _files(self) -> dict[SqliteWriter, str]:
        """Our own, and what it means that one of them cannot be written."""
        return {
            self.store.writer: "publishing is answered with 503 and attempts may repeat, since acks cannot be written",
            self.dead_letters.writer: "messages that cannot be delivered stay in their queues",
            self.audit.writer: "changes by the API are in the log only",
            self.pause_store.writer: "a restart forgets what is paused, held, resumed or skipped meanwhile",
        }

    @asynccontextmanager
    async def routing(self) -> AsyncIterator[None]:
        """Be a router from here to the end of the block: primary at once, or when the standby lock says so; never if it
        is not enabled."""
        tasks = Tasks()
        async with AsyncExitStack() as stack:
            self._clients = build_clients(self.settings, self.clock, self.egress)
            stack.push_async_callback(self._clients.close)
            tracing = tracing_of(self.settings.tracing, self.clock, self.identity, lambda: self.config.queues)
            self._tracing = await stack.enter_async_context(tracing)
            told = self.settings.notifications
            if told.webhook_url is not None:
                client = self._clients.http if told.webhook_url.startswith("http:") else self._clients.https
                notifier = Notifier(told, client, self.clock, self.warnings, self.identity)
                self.supervisor.spawn(tasks, "notify", notifier.run)
                stack.push_async_callback(notifier.flush, NOTIFY_AT_STOP_S)
            stack.push_async_callback(tasks.cancel)  # before the flush
            retention = Retention(self.dead_letters, self.settings.dead_letters, self.warnings, self.audit)
            self.supervisor.spawn(tasks, "retention", retention.run)
            self._parts.start(self.supervisor, tasks)
            if self.settings.enabled:
                await self._start_sync(tasks)
            async with (
                self._whenever_primary() if self.settings.enabled else nullcontext(),
                self._parts.serving_routers(self, self._clients, self._tracing) as self.processing,
            ):
                self.started = True
                try:
                    yield
                finally:
                    self.stopping = True

    async def _start_sync(self, tasks: Tasks) -> None:
        """Learn pools and queues from elsewhere, if so configured.

        A router on its own needs them now, and raises `ConfigSyncFailedError` if it does not get them. One that shares
        the work with others waits for them as long as it takes.
        """
        settings = self.settings.sync
        if settings.config_url is None:
            self._configured.set()
            return
        self.sync = ConfigSync(
            settings,
            sources_from(settings.config_url, ssl_context_of(self.settings.mediator.http)),
            self.clock,
            self.warnings,
            self.apply,
            lambda: self.router.pools,
            self._note_config,
            self._usable,
        )
        if self.settings.standby.redis_url is None:
            await self.sync.first_sync()
        self.supervisor.spawn(tasks, "sync configuration", self._follow_configuration)

    async def _follow_configuration(self) -> None:
        assert self.sync is not None, "made before it is followed"
        if self.sync.in_force is None:
            await self.sync.first_sync_at_last()
        self._configured.set()
        await self.sync.run()

    def _note_config(self, before: RouterConfig | None, now: RouterConfig) -> None:
        sources = "" if self.sync is None else ", ".join(source.label for source in self.sync.sources)
        what = f"configuration of {sources}"
        self.audit.record(Actor("config sync"), AuditAction.CONFIG_CHANGE, what, changes_in_words(before, now))

    @asynccontextmanager
    async def _whenever_primary(self) -> AsyncIterator[None]:
        if self.settings.standby.redis_url is None:
            async with self._at_work_now():
                yield
            return
        self.standby = Standby(
            self.settings.standby, self.clock, self.identity, self.warnings, self.fence, supervisor=self.supervisor
        )
        waiting = Tasks().spawn(self._stand_by(self.standby), "standby")
        try:
            yield
        finally:
            self.standby.stop()
            self._configured.set()  # it waits for that no longer
            await waiting

    async def _stand_by(self, standby: Standby) -> None:
        """Without a configuration it could not work, and would only keep the lock from one that can."""
        await self._configured.wait()
        await standby.run(self._primary_session)

    @asynccontextmanager
    async def _primary_session(self) -> AsyncIterator[None]:
        try:
            async with self._at_work_now():
                yield
        finally:
            self.engine = self._new_engine()  # a standby has no consumers and no pools

    @asynccontextmanager
    async def _at_work_now(self) -> AsyncIterator[None]:
        """One primary session: poll, deliver and settle from here to the end of the block, then drain."""
        async with self._changing:
            await self.pause_store.refresh()
            self.engine = engine = self._new_engine()
            polled = {name: config for name, config in self.config.queues.items() if config.polled}
            opened = {name: await self.factory.open(config) for name, config in polled.items()}
            engine.start(
                opened if self.jobs is None else {**opened, JOBS: self.jobs.queue},
                self.config.pools,
                *traced(
                    self._tracing,
                    Mediator(self._clients.http, self._clients.https, self.clock),
                    CountedAttempts(AttemptLogger(self.clock), self.job_counts, self.clock),
                ),
                self.settings.retry.delays(),
                {name: config.connections for name, config in polled.items()},
                self.factory.close,
                {name: reader_of(config.raw) for name, config in polled.items()},
            )
            self.at_work, self.stopped_clean = True, False
            registered = take_part(self._shared, engine, JOBS, self.supervisor, self.warnings)
        try:
            yield
        finally:
            async with self._changing:
                self.at_work = False
            await engine.stop()
            await registered.cancel()
            if self._shared is not None:
                await self._shared.leave()
            self.stopped_clean, self.unsettled = engine.stopped_clean, engine.unsettled
            self.losses += engine.losses
            for name, queue in engine.open_queues():
                if self.jobs is None or queue is not self.jobs.queue:  # one may still add to those
                    await self.factory.close(name, queue)

    def _new_engine(self) -> Engine:
        health = self.settings.health
        limits = OutageLimits(health.endpoint_down_s, health.group_blocked_s)
        divided = self._shared is not None
        engine = Engine(
            self.dead_letters,
            self.warnings,
            self.clock,
            self.fence,
            limits,
            self.supervisor,
            divided=divided,
            pauses=self.pauses,
            skips=self.skips,
        )
        engine.watches.add("dead letters", DEAD_LETTER_PERIOD_S, self.dead_letter_outages.look)
        engine.watches.add("queue file", SHARED_FILE_PERIOD_S, self.shared_file.look)
        if self._tracing is not None:
            engine.watches.add("traces", RELEASED_PERIOD_S, self._tracing.end_released)
        return engine

    async def apply(self, config: RouterConfig) -> None:
        """Put a configuration in force: at once if at work, else at the next primary session.

        Raises `ConfigurationError` if a queue cannot be opened now; it is tried again with the next configuration.
        """
        async with self._changing:
            self._without_catalog = config
            before, self.config = self.config, self._parts.over(config)
            await self.factory.drop_publishers(self.config.queues)
            self.factory.add_publishers(self.config.queues.values())
            await self.factory.open_publishers()
            if self.at_work:
                queues = self.config.queues
                self.engine.apply_pools(self.config.pools)
                changes = difference(before.queues, queues)
                for name in (*changes.removed, *changes.changed):
                    if name in self.engine.consumers:
                        self.engine.remove_queue(name)
                        self.removed_queues[name] = before.queues[name]
                problems = [await self._add_queue(queues[name]) for name in (*changes.added, *changes.changed)]
                if failed := [problem for problem in problems if problem]:
                    consumers = self.engine.consumers
                    polled = {name: one for name, one in queues.items() if name in consumers or not one.polled}
                    self._without_catalog = RouterConfig(config.pools, polled)
                    self.config = RouterConfig(self.config.pools, polled)
                    raise ConfigurationError("; ".join(failed))

    async def _apply_pools(self) -> None:
        """Put the pools of the catalog in force. One that did not change stays as somebody may have set it by hand."""
        async with self._changing:
            before, self.config = self.config, self._parts.over(self._without_catalog)
            if self.at_work:
                pools = dict(self.config.pools)
                for code, pool in self.router.pools.items():
                    if code in pools and pools[code] == before.pools.get(code):
                        pools[code] = pool.configured
                self.engine.apply_pools(pools)

    def _usable(self, config: RouterConfig) -> tuple[RouterConfig, list[str]]:
        """The configuration without the queues that nobody can make, and a sentence about each of those. One that was
        known before stays as it was."""
        queues, problems = dict(config.queues), []
        for name, queue in config.queues.items():
            if problem := self.factory.problem_with(queue):
                known = self.config.queues.get(name)
                problems.append(problem if known is None else f"{problem}; the previous one stays in force")
                del queues[name]
                if known is not None:
                    queues[name] = known
        return RouterConfig(config.pools, queues), problems

    async def _add_queue(self, config: QueueConfig) -> str:
        """Poll one more queue; what is wrong with it, or nothing."""
        if not config.polled:
            return ""
        if self.removed_queues.pop(config.name, None) == config and self.engine.take_back_queue(config.name):
            return ""
        try:
            queue = await self.factory.open(config)
        except FlowCatalystError as error:
            return f"queue {config.name} cannot be opened: {error}"
        self.engine.add_queue(config.name, queue, config.connections, reader_of(config.raw))
        return ""


def config_of(settings: Settings) -> RouterConfig:
    """Pools and queues as the settings have them; none if they come from elsewhere."""
    if settings.sync.config_url is not None:
        return RouterConfig()
    pools = {pool.code: pool.limits() for pool in settings.pools}
    queues = {name: QueueConfig(name, f"embedded:{name}") for name in settings.embedded.queues}
    for queue in settings.queues:
        queues[queue.name] = queue.config()
    return RouterConfig(pools, queues)
