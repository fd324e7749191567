"""Composition root: builds everything from the settings and opens and closes it in order."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from flowcatalyst.clock import Clock, IdSource, SystemClock
from flowcatalyst.config import HttpSettings, Settings
from flowcatalyst.delivery.egress import EgressGuard
from flowcatalyst.delivery.http1 import Http1Client
from flowcatalyst.delivery.http2 import Http2Client
from flowcatalyst.delivery.mediator import Mediator
from flowcatalyst.engine import Engine
from flowcatalyst.errors import ConfigurationError
from flowcatalyst.observe.logs import AttemptLogger
from flowcatalyst.operations.dead_letters import DeadLetters
from flowcatalyst.operations.warnings import WarningLog
from flowcatalyst.queues.embedded import EmbeddedQueue
from flowcatalyst.queues.embedded_store import EmbeddedStore
from flowcatalyst.web.order_judge import OrderJudge


class App:
    """A whole router in one process: embedded queues in, HTTP out."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = IdSource(self.clock)
        self.warnings = WarningLog(self.clock)
        self.judge = OrderJudge()  # of the built-in receivers
        self.dead_letters = DeadLetters(settings.data_dir / "dead-letters.db", self.clock)
        self.store = EmbeddedStore(settings.data_dir / "queue.db", self.clock)
        self.queues = {
            name: EmbeddedQueue(self.store, name, visibility_s=settings.embedded.visibility_s)
            for name in settings.embedded.queues
        }
        self.engine = Engine(self.dead_letters, self.warnings, self.clock)
        self.tracker = self.engine.tracker
        self.breakers = self.engine.breakers
        self.router = self.engine.router
        self.settlers = self.engine.settlers
        self.consumers = self.engine.consumers

    @property
    def stopping(self) -> bool:
        return self.engine.stopping

    @property
    def stopped_clean(self) -> bool:
        """Whether everything in hand was settled or given back before the stop."""
        return self.engine.stopped_clean

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
        mediator = _build_mediator(self.settings, self.clock)
        pools = {pool.code: pool.limits() for pool in self.settings.pools}
        self.engine.start(self.queues, pools, mediator, AttemptLogger(self.clock), self.settings.retry.delays())
        try:
            yield
        finally:
            await self.engine.stop()
            await mediator.close()


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
