"""Composition root: builds everything from the settings and opens and closes it in order."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from socket import gethostname
from typing import Final

from flowcatalyst.clock import Clock, IdSource, SystemClock
from flowcatalyst.config import HttpSettings, Settings
from flowcatalyst.delivery.contract import HttpClient
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1 import Http1Client
from flowcatalyst.delivery.mediator import Mediator
from flowcatalyst.delivery.resolver import SystemResolver
from flowcatalyst.delivery.tls import client_context
from flowcatalyst.engine import Engine
from flowcatalyst.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.message import Severity
from flowcatalyst.observe.depths import Depths
from flowcatalyst.observe.logs import AttemptLogger
from flowcatalyst.operations.audit import Actor, AuditAction, AuditLog
from flowcatalyst.operations.config_source import sources_from
from flowcatalyst.operations.config_sync import ConfigSync
from flowcatalyst.operations.dead_letters import DeadLetters
from flowcatalyst.operations.notify import Notifier
from flowcatalyst.operations.outages import DEAD_LETTER_PERIOD_S, DeadLetterOutages, OutageLimits
from flowcatalyst.operations.router_config import QueueConfig, RouterConfig, changes_in_words, difference
from flowcatalyst.operations.standby import Standby
from flowcatalyst.operations.supervisor import Supervisor
from flowcatalyst.operations.warnings import WarningCode, WarningLog
from flowcatalyst.queue_factory import QueueFactory
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.queues.contract import BrokerQueue, Loss, Queue
from flowcatalyst.queues.embedded import EmbeddedQueue
from flowcatalyst.queues.embedded_store import EmbeddedStore
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.breaker import Breakers
from flowcatalyst.routing.fence import Fence
from flowcatalyst.routing.router import Router
from flowcatalyst.routing.tracker import InFlightTracker
from flowcatalyst.tasks import Tasks
from flowcatalyst.web.order_judge import OrderJudge

NOTIFY_AT_STOP_S: Final = 3.0


class App:
    """A whole router in one process: its files, its configuration, and the engine while it is the one at work."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = IdSource(self.clock)
        self.identity = f"{gethostname()}-{os.getpid()}-{self.ids.new_id()}"  # new at each start
        self.warnings = WarningLog(self.clock)
        self.supervisor = Supervisor(self.clock, self.warnings)
        self.depths = Depths(self.clock)
        self.judge = OrderJudge()  # of the built-in receivers
        self.audit = AuditLog(settings.data_dir / "audit.db", self.clock, self.warnings)
        self.receivers_at: tuple[str, int] | None = None  # address and port of these, as this router reaches them
        self.dead_letters = DeadLetters(settings.data_dir / "dead-letters.db", self.clock)
        self.store = EmbeddedStore(settings.data_dir / "queue.db", self.clock)
        self.config = config_of(settings)
        self.removed_queues: dict[str, QueueConfig] = {}  # as they were; one that comes back may not have left yet
        self.factory = QueueFactory(self.store, settings, self.clock)
        self.factory.add_publishers(self.config.queues.values())
        self.fence = Fence()
        self.dead_letter_outages = DeadLetterOutages(
            self.dead_letters.count_newer, self.warnings, settings.health.dead_letters_s
        )
        self.engine = self._new_engine()  # of the present term of work; of the latest one if there will be no other
        self.stopped_clean = True  # everything in hand was settled or given back at the end of the latest term
        self.unsettled = 0  # what was not, if not
        self.losses: list[Loss] = []  # at the brokers, in all terms that are over
        self.sync: ConfigSync | None = None
        self.standby: Standby | None = None
        self.started = False
        self.stopping = False
        self.at_work = False  # polls its queues: not while it is a standby
        self._changing = asyncio.Lock()  # a term begins, or a configuration is applied
        self._configured = asyncio.Event()

    # What others look at; it belongs to the engine of the present term.

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
            raise ConfigurationError(
                f"data folder {folder} cannot be made ({error.strerror}): choose another"
            ) from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"data folder {folder} cannot be written: change its permissions or choose another"
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the storage and route from here to the end of the block, then shut down in order, losing nothing."""
        async with self.storage_open(), self.routing():
            yield

    @asynccontextmanager
    async def storage_open(self) -> AsyncIterator[None]:
        """The files are open from here to the end of the block; whoever needs them ends before that."""
        self.prepare_data_dir()
        async with AsyncExitStack() as stack:
            await self.audit.open()
            stack.push_async_callback(self.audit.close)
            await self.dead_letters.open()
            stack.push_async_callback(self.dead_letters.close)
            await self.store.open()
            stack.push_async_callback(self.store.close)
            stack.push_async_callback(self.factory.close_publishers)
            await self.factory.open_publishers()
            stack.push_async_callback(self.depths.close)
            yield

    @asynccontextmanager
    async def routing(self) -> AsyncIterator[None]:
        """Be a router from here to the end of the block: primary at once, or when the standby lock says so; never if it
        is not enabled."""
        tasks = Tasks()
        async with AsyncExitStack() as stack:
            self._clients = _build_clients(self.settings, self.clock, self.receivers_at)
            stack.push_async_callback(self._clients.close)
            notifier = self._start_notifier(tasks)
            if notifier is not None:
                stack.push_async_callback(notifier.flush, NOTIFY_AT_STOP_S)
            stack.push_async_callback(tasks.cancel)  # before the flush
            if self.settings.enabled:
                await self._start_sync(tasks)
            async with self._whenever_primary() if self.settings.enabled else nullcontext():
                self.started = True
                try:
                    yield
                finally:
                    self.stopping = True

    def _start_notifier(self, tasks: Tasks) -> Notifier | None:
        settings = self.settings.notifications
        if settings.webhook_url is None:
            return None
        client = self._clients.http if settings.webhook_url.startswith("http:") else self._clients.https
        notifier = Notifier(settings, client, self.clock, self.warnings, self.identity)
        self.supervisor.spawn(tasks, "notify", notifier.run)
        return notifier

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
            sources_from(settings.config_url, _ssl_context(self.settings.mediator.http)),
            self.clock,
            self.warnings,
            self.apply,
            lambda: self.router.pools,
            self._note_config,
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
        await standby.run(self._one_term_of_many)

    @asynccontextmanager
    async def _one_term_of_many(self) -> AsyncIterator[None]:
        try:
            async with self._at_work_now():
                yield
        finally:
            self.engine = self._new_engine()  # a standby has no consumers and no pools

    @asynccontextmanager
    async def _at_work_now(self) -> AsyncIterator[None]:
        """One term of work: poll, deliver and settle from here to the end of the block, then drain."""
        async with self._changing:
            self.engine = engine = self._new_engine()
            opened = {name: await self.factory.open(config) for name, config in self.config.queues.items()}
            engine.start(
                opened,
                self.config.pools,
                Mediator(self._clients.http, self._clients.https, self.clock),
                AttemptLogger(self.clock),
                self.settings.retry.delays(),
                {name: config.connections for name, config in self.config.queues.items()},
                self.factory.close,
            )
            self.at_work, self.stopped_clean = True, False
        try:
            yield
        finally:
            async with self._changing:
                self.at_work = False
            await engine.stop()
            self.stopped_clean, self.unsettled = engine.stopped_clean, engine.unsettled
            self.losses += engine.losses
            for name, queue in engine.open_queues():
                await self.factory.close(name, queue)

    def _new_engine(self) -> Engine:
        health = self.settings.health
        limits = OutageLimits(health.endpoint_down_s, health.group_blocked_s)
        engine = Engine(self.dead_letters, self.warnings, self.clock, self.fence, limits, self.supervisor)
        engine.watches.add("dead letters", DEAD_LETTER_PERIOD_S, self.dead_letter_outages.look)
        return engine

    async def apply(self, config: RouterConfig) -> None:
        """Put a configuration in force: at once if at work, else at the next term.

        A queue that nobody can make is left out, or stays as it was, with a warning. Raises `ConfigurationError` if
        others cannot be opened now; they are tried again with the next configuration.
        """
        async with self._changing:
            before, self.config = self.config, self._usable(config)
            await self.factory.drop_publishers(self.config.queues)
            self.factory.add_publishers(self.config.queues.values())
            await self.factory.open_publishers()
            if self.at_work:
                await self._change_engine(before)

    def _usable(self, config: RouterConfig) -> RouterConfig:
        """The configuration without the queues that nobody can make. One that was known before stays as it was."""
        queues = dict(config.queues)
        for name, queue in config.queues.items():
            if problem := self.factory.problem_with(queue):
                known = self.config.queues.get(name)
                text = problem if known is None else f"{problem}; it stays as it was"
                self.warnings.add(WarningCode.CONFIG_REJECTED, Severity.WARN, text, "app")
                del queues[name]
                if known is not None:
                    queues[name] = known
        return RouterConfig(config.pools, queues)

    async def _change_engine(self, before: RouterConfig) -> None:
        """Make what the engine has what is configured now."""
        queues = self.config.queues
        self.engine.apply_pools(self.config.pools)
        changes = difference(before.queues, queues)
        for name in (*changes.removed, *changes.changed):
            if name in self.engine.consumers:
                self.engine.remove_queue(name)
                self.removed_queues[name] = before.queues[name]
        problems = [await self._add_queue(queues[name]) for name in (*changes.added, *changes.changed)]
        if failed := [problem for problem in problems if problem]:
            polled = {name: queue for name, queue in queues.items() if name in self.engine.consumers}
            self.config = RouterConfig(self.config.pools, polled)
            raise ConfigurationError("; ".join(failed))

    async def _add_queue(self, config: QueueConfig) -> str:
        """Poll one more queue; what is wrong with it, or nothing."""
        if self.removed_queues.pop(config.name, None) == config and self.engine.take_back_queue(config.name):
            return ""
        try:
            queue = await self.factory.open(config)
        except FlowCatalystError as error:
            return f"queue {config.name} cannot be opened: {error}"
        self.engine.add_queue(config.name, queue, config.connections)
        return ""


def config_of(settings: Settings) -> RouterConfig:
    """Pools and queues as the settings have them; none if they come from elsewhere."""
    if settings.sync.config_url is not None:
        return RouterConfig()
    pools = {pool.code: pool.limits() for pool in settings.pools}
    queues = {name: QueueConfig(name, f"embedded:{name}") for name in settings.embedded.queues}
    for queue in settings.queues:
        queues[queue.name] = QueueConfig(queue.name, queue.uri, queue.connections, queue.visibility_s)
    return RouterConfig(pools, queues)


@dataclass(slots=True, frozen=True)
class _Clients:
    """The HTTP clients of a process."""

    http: HttpClient
    https: HttpClient

    async def close(self) -> None:
        await self.http.close()
        if self.https is not self.http:
            await self.https.close()


def _build_clients(settings: Settings, clock: Clock, receivers_at: tuple[str, int] | None) -> _Clients:
    http = settings.mediator.http
    egress = settings.egress
    guard = EgressGuard(egress.allow_private, egress.allowed_networks, SystemResolver(clock), receivers_at)
    http1 = Http1Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        max_connections_per_origin=http.max_connections_per_origin,
        ssl_context=_ssl_context(http),
        clock=clock,
    )
    if http.version == "HTTP_1_1":
        return _Clients(http1, http1)
    try:
        from flowcatalyst.delivery.http2 import Http2Client  # an extra: few targets want it
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyreqwest"):
            raise
        raise ConfigurationError(
            "mediator.http.version HTTP_2 needs the package pyreqwest: pip install 'flowcatalyst[http2]'"
        ) from None
    http2 = Http2Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        root_certificates_pem=None if http.ca_file is None else http.ca_file.read_bytes(),
        clock=clock,
    )
    return _Clients(http1, http2)


def _ssl_context(http: HttpSettings) -> ssl.SSLContext | None:
    """None: the client makes the default one when it first needs it, which takes a while."""
    if http.ca_file is None:
        return None
    try:
        return client_context(http.ca_file)
    except OSError as error:
        raise ConfigurationError(f"mediator.http.ca_file {http.ca_file} cannot be used: {error}") from None
