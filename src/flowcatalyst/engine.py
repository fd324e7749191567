"""Engine: the router as it runs: consumers, pools, settlers and watchers on the queues it is given.

It knows no settings, no files and no sockets, so the same code runs in production and in simulation.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.delivery.mediator import endpoint_of
from flowcatalyst.message import Severity
from flowcatalyst.operations.warnings import WarningCode, WarningSink
from flowcatalyst.operations.watch import LeaseKeeper, evict_idle_breakers, forget_retired_pools
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.breaker import Breakers
from flowcatalyst.routing.limits import PoolLimits
from flowcatalyst.routing.policy import DEFAULT_DELAYS, Delays
from flowcatalyst.routing.pool import Pool
from flowcatalyst.routing.pool_tools import AttemptLog, Attempts, DeadLetterSink, PoolTools
from flowcatalyst.routing.router import Router
from flowcatalyst.routing.tracker import InFlightTracker
from flowcatalyst.tasks import Tasks

CONSUMER_STOP_S: Final = 25.0
POOL_DRAIN_S: Final = 30.0
SETTLE_S: Final = 10.0

log = structlog.get_logger("flowcatalyst.engine")


class Engine:
    """Everything between the queues and the HTTP clients. Starts once and stops once."""

    def __init__(self, dead_letters: DeadLetterSink, warnings: WarningSink, clock: Clock) -> None:
        self.tracker = InFlightTracker()
        self.breakers = Breakers()
        self.router = Router(self.tracker, warnings, self._make_pool)
        self.settlers: dict[str, Settler] = {}
        self.consumers: dict[str, Consumer] = {}
        self.stopping = False
        self.stopped_clean = False
        self._dead_letters = dead_letters
        self._warnings = warnings
        self._clock = clock
        self._tasks = Tasks()
        self._slots = Tasks()
        self._consuming: list[asyncio.Task[None]] = []

    def start(
        self,
        queues: Mapping[str, Queue],
        pools: Mapping[str, PoolLimits],
        mediator: Attempts,
        attempt_log: AttemptLog,
        delays: Delays = DEFAULT_DELAYS,
    ) -> None:
        """Poll, deliver and settle from now on."""
        self._pool_tools = PoolTools(
            mediator=mediator,
            breakers=self.breakers,
            endpoint_of=endpoint_of,
            dead_letters=self._dead_letters,
            warnings=self._warnings,
            log=attempt_log,
            clock=self._clock,
            spawn=self._slots.spawn,
            delays=delays,
        )
        self.router.apply(pools)
        for name, queue in queues.items():
            self._consume(name, queue)
        period_s = min(queue.capabilities.visibility_s for queue in queues.values()) / 4
        self._tasks.spawn(LeaseKeeper(self.tracker, self._clock, period_s, self.router.disown).run(), "keep leases")
        self._tasks.spawn(forget_retired_pools(self.router), "forget retired pools")
        self._tasks.spawn(evict_idle_breakers(self.breakers, self._clock), "evict breakers")
        log.info("router_started", action="router_started", queues=list(queues), pools=list(pools))

    def _consume(self, name: str, queue: Queue) -> None:
        settler = self.settlers[name] = Settler(queue, self.tracker)
        consumer = self.consumers[name] = Consumer(
            queue, settler, self.router, self._dead_letters, self._warnings, self._clock
        )
        self._tasks.spawn(settler.run(), f"settle {name}")
        self._consuming.append(self._tasks.spawn(consumer.run(), f"consume {name}"))

    def _make_pool(self, code: str, limits: PoolLimits) -> Pool:
        return Pool(code, limits, self._pool_tools)

    # Shutdown, in the order of 002: consumers, pools, then what is left.

    async def stop(self) -> None:
        """Take nothing more, let attempts in flight end, give back the rest."""
        self.stopping = True
        started = self._clock.monotonic()
        await self._stop_consumers()
        await self._drain_pools()
        await self._give_back_the_rest()
        await self._slots.cancel()
        await self._tasks.cancel()
        self.stopped_clean = not len(self.tracker)
        seconds = round(self._clock.monotonic() - started, 3)
        log.info("router_stopped", action="router_stopped", seconds=seconds, left=len(self.tracker))

    async def _stop_consumers(self) -> None:
        for consumer in self.consumers.values():
            consumer.stop()
        if self._consuming:
            await asyncio.wait(self._consuming, timeout=CONSUMER_STOP_S)

    async def _drain_pools(self) -> None:
        pools = self.router.all_pools()
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
            self._warnings.add(WarningCode.SHUTDOWN_CLEANUP_ERRORS, Severity.WARN, text, "engine")

    async def _settled(self) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                for settler in self.settlers.values():
                    await settler.wait_idle()
        except TimeoutError:
            return False
        return True
