"""Composition root: builds everything, owns all tasks and the order of shutdown."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import structlog

from flowcatalyst.clock import Clock, IdSource, SystemClock
from flowcatalyst.config import HttpSettings, Settings
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1 import Http1Client
from flowcatalyst.delivery.http2 import Http2Client
from flowcatalyst.delivery.mediator import Mediator, endpoint_of
from flowcatalyst.errors import ConfigurationError
from flowcatalyst.message import Severity
from flowcatalyst.observe.logs import AttemptLogger
from flowcatalyst.operations.dead_letters import DeadLetters
from flowcatalyst.operations.warnings import WarningCode, WarningLog
from flowcatalyst.operations.watch import LeaseKeeper, evict_idle_breakers
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.queues.embedded import EmbeddedQueue
from flowcatalyst.queues.embedded_store import EmbeddedStore
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.breaker import Breakers
from flowcatalyst.routing.limits import PoolLimits
from flowcatalyst.routing.pool import Pool, PoolTools
from flowcatalyst.routing.router import Router
from flowcatalyst.routing.tracker import InFlightTracker
from flowcatalyst.tasks import Tasks
from flowcatalyst.web.order_judge import OrderJudge

CONSUMER_STOP_S: Final = 25.0
POOL_DRAIN_S: Final = 30.0
SETTLE_S: Final = 10.0

log = structlog.get_logger("flowcatalyst.app")


class App:
    """A whole router in one process: embedded queues in, HTTP out."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = IdSource(self.clock)
        self.tracker = InFlightTracker()
        self.breakers = Breakers()
        self.warnings = WarningLog(self.clock)
        self.judge = OrderJudge()  # of the built-in receivers
        self.dead_letters = DeadLetters(settings.data_dir / "dead-letters.db", self.clock)
        self.store = EmbeddedStore(settings.data_dir / "queue.db", self.clock)
        self.queues = {
            name: EmbeddedQueue(self.store, name, visibility_s=settings.embedded.visibility_s)
            for name in settings.embedded.queues
        }
        self.router = Router(self.tracker, self.warnings, self._make_pool)
        self.settlers: dict[str, Settler] = {}
        self.consumers: dict[str, Consumer] = {}
        self.stopping = False
        self.stopped_clean = False
        self._tasks = Tasks()
        self._slots = Tasks()
        self._consuming: list[asyncio.Task[None]] = []

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
            await self.dead_letters.open()
            stack.push_async_callback(self.dead_letters.close)
            for queue in self.queues.values():
                await queue.open()
                stack.push_async_callback(queue.close)
            yield

    @asynccontextmanager
    async def routing(self) -> AsyncIterator[None]:
        """Poll, deliver and settle from here to the end of the block, then drain."""
        self._start()
        try:
            yield
        finally:
            await self._stop()

    def _start(self) -> None:
        self._mediator = _build_mediator(self.settings, self.clock)
        self._pool_tools = PoolTools(
            mediator=self._mediator,
            breakers=self.breakers,
            endpoint_of=endpoint_of,
            dead_letters=self.dead_letters,
            warnings=self.warnings,
            log=AttemptLogger(self.clock),
            clock=self.clock,
            spawn=self._slots.spawn,
            delays=self.settings.retry.delays(),
        )
        for pool in self.settings.pools:
            self.router.add_pool(pool.code, pool.limits())
        for name, queue in self.queues.items():
            settler = self.settlers[name] = Settler(queue, self.tracker)
            consumer = self.consumers[name] = Consumer(
                queue, settler, self.router, self.dead_letters, self.warnings, self.clock
            )
            self._tasks.spawn(settler.run(), f"settle {name}")
            self._consuming.append(self._tasks.spawn(consumer.run(), f"consume {name}"))
        period_s = self.settings.embedded.visibility_s / 4
        self._tasks.spawn(LeaseKeeper(self.tracker, self.clock, period_s, self.router.disown).run(), "keep leases")
        self._tasks.spawn(evict_idle_breakers(self.breakers, self.clock), "evict breakers")
        log.info("router_started", action="router_started", queues=list(self.queues), pools=list(self.router.pools))

    def _make_pool(self, code: str, limits: PoolLimits) -> Pool:
        return Pool(code, limits, self._pool_tools)

    # Shutdown, in the order of 002: consumers, pools, then what is left.

    async def _stop(self) -> None:
        self.stopping = True
        started = self.clock.monotonic()
        await self._stop_consumers()
        await self._drain_pools()
        await self._give_back_the_rest()
        await self._slots.cancel()
        await self._tasks.cancel()
        await self._mediator.close()
        self.stopped_clean = not len(self.tracker)
        seconds = round(self.clock.monotonic() - started, 3)
        log.info("router_stopped", action="router_stopped", seconds=seconds, left=len(self.tracker))

    async def _stop_consumers(self) -> None:
        for consumer in self.consumers.values():
            consumer.stop()
        if self._consuming:
            await asyncio.wait(self._consuming, timeout=CONSUMER_STOP_S)

    async def _drain_pools(self) -> None:
        pools = list(self.router.pools.values())
        for pool in pools:
            pool.drain()
        try:
            async with asyncio.timeout(POOL_DRAIN_S):
                for pool in pools:
                    await pool.wait_drained()
        except TimeoutError:
            log.warning("drain_timed_out", action="drain_timed_out", pools=[repr(pool) for pool in pools])
            for pool in pools:
                pool.cancel()

    async def _give_back_the_rest(self) -> None:
        """Let pending acks and nacks finish, then give back what the router still owns."""
        if not await self._settled():
            log.warning("settle_timed_out", action="settle_timed_out", left=len(self.tracker))
        for delivery in self.tracker:
            delivery.source.nack(delivery, 0.0)
        await self._settled()
        if left := len(self.tracker):
            text = f"{left} messages could not be given back; their leases will run out"
            self.warnings.add(WarningCode.SHUTDOWN_CLEANUP_ERRORS, Severity.WARN, text, "app")

    async def _settled(self) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                for settler in self.settlers.values():
                    await settler.wait_idle()
        except TimeoutError:
            return False
        return True


def _build_mediator(settings: Settings, clock: Clock) -> Mediator:
    http = settings.mediator.http
    guard = EgressGuard(allow_private=settings.egress.allow_private, allowed_networks=settings.egress.allowed_networks)
    http1 = Http1Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        max_connections_per_origin=http.max_connections_per_origin,
        ssl_context=_ssl_context(http),
        clock=clock,
    )
    if http.version == "HTTP_1_1":
        return Mediator(http1, http1, clock)
    http2 = Http2Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        root_certificates_pem=None if http.ca_file is None else http.ca_file.read_bytes(),
        clock=clock,
    )
    return Mediator(http1, http2, clock)


def _ssl_context(http: HttpSettings) -> ssl.SSLContext | None:
    """None: the client makes the default one when it first needs it, which takes a while."""
    if http.ca_file is None:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_verify_locations(http.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"mediator.http.ca_file {http.ca_file} cannot be used: {error}") from None
    return context
