"""Engine: the router as it runs: consumers, pools, settlers and watchers on the queues it is given.

It knows no settings, no files and no sockets, so the same code runs in production and in simulation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningShelf
from flowcatalyst.queues.contract import Loss, Queue
from flowcatalyst.queues.raw import POINTERS, Reader
from flowcatalyst.queues.recalls import RecallableQueue
from flowcatalyst.router import standstill
from flowcatalyst.router.acting import Acts
from flowcatalyst.router.blocked import FailedMessages
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.failure_memory import FailureMemory
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.outages import (
    DEFAULT_OUTAGE_LIMITS,
    ENDPOINT_PERIOD_S,
    GROUP_PERIOD_S,
    SHORTAGE_PERIOD_S,
    EndpointOutages,
    GroupOutages,
    OutageLimits,
    ShortageOutages,
)
from flowcatalyst.router.pauses import Pauses
from flowcatalyst.router.policy import DEFAULT_DELAYS, Delays
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.pool_tools import AttemptLog, Attempts, DeadLetterSink, PoolTools
from flowcatalyst.router.process_share import ProcessShare
from flowcatalyst.router.recaller import Recaller
from flowcatalyst.router.recent import RecentDeliveries
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.skips import Skips
from flowcatalyst.router.standstill import Standstill
from flowcatalyst.router.tracker import InFlightTracker
from flowcatalyst.router.watch import (
    BACKLOG_PERIOD_S,
    BREAKER_PERIOD_S,
    CLEAN_UP_PERIOD_S,
    CONSUMER_PERIOD_S,
    LEAK_PERIOD_S,
    Backlog,
    ConsumerHealth,
    LeakDetector,
    LeaseKeeper,
    Watches,
)

CONSUMER_STOP_S: Final = 25.0
POOL_DRAIN_S: Final = 30.0
SETTLE_S: Final = 10.0
RECONNECT_S: Final = 10.0
WINDOW_PERIOD_S: Final = 30.0
LEASE_PERIOD_S: Final = 15.0  # shorter if a queue has short leases

OnRemoved = Callable[[str, Queue], Awaitable[None]]

log = structlog.get_logger("flowcatalyst.engine")


@dataclass(slots=True, eq=False)
class _RemovedQueue:
    """A queue that was removed and ends what it has."""

    name: str
    queue: Queue
    settler: Settler
    consumer: Consumer
    polling: "list[asyncio.Task[None]]"


class Engine:
    """Everything between the queues and the HTTP clients. Starts once and stops once."""

    def __init__(
        self,
        dead_letters: DeadLetterSink,
        warnings: WarningShelf,
        clock: Clock,
        fence: Fence | None = None,
        outages: OutageLimits = DEFAULT_OUTAGE_LIMITS,
        supervisor: Supervisor | None = None,
        *,
        divided: bool = False,
        pauses: Pauses | None = None,
        skips: Skips | None = None,
    ) -> None:
        """`divided`: other processes use the same pools; what is ours of them is for `share` to say. `pauses` and
        `skips` outlive it."""
        self.tracker = InFlightTracker()
        self.breakers = Breakers()
        self.pauses = pauses if pauses is not None else Pauses()
        self.router = Router(self.tracker, warnings, self._make_pool, self.pauses.pools)
        self.failed = FailedMessages()
        self.skips, self.delivered = skips if skips is not None else Skips(), RecentDeliveries()
        self._standstill = Standstill(clock, warnings)
        self.endpoint_outages = EndpointOutages(
            self.breakers, self.router.all_pools, clock, warnings, outages.endpoint_down_s, self._standstill
        )
        self.group_outages = GroupOutages(
            self.failed,
            self.tracker,
            self.router.all_pools,
            clock,
            warnings,
            outages.group_blocked_s,
            self._standstill,
        )
        self.failures = FailureMemory()
        self.settlers: dict[str, Settler] = {}
        self.consumers: dict[str, Consumer] = {}
        self.stopping = False
        self.stopped_clean = False
        self.unsettled = 0  # at the end: what was neither acked nor nacked for sure
        self._supervisor = supervisor or Supervisor(clock, warnings)
        self.watches = Watches(clock, warnings, self._supervisor)
        self._dead_letters = dead_letters
        self._warnings = warnings
        self._clock = clock
        self._fence = fence or Fence()
        self.share = ProcessShare(self.router, self._fence, clock) if divided else None
        self.queues: dict[str, Queue] = {}
        self.acts = Acts(self.tracker, self.router.all_pools, self.queues, self.failed, self.skips, self.pauses, clock)
        self._connections: dict[str, int] = {}
        self._removed_queues: list[_RemovedQueue] = []
        self._losses: list[Loss] = []  # of queues that were removed
        self._tasks = Tasks()
        self._slots = Tasks()
        self._consuming: dict[str, list[asyncio.Task[None]]] = {}
        self._settling: dict[Settler, asyncio.Task[None]] = {}

    def start(
        self,
        queues: Mapping[str, Queue],
        pools: Mapping[str, PoolLimits],
        mediator: Attempts,
        attempt_log: AttemptLog,
        delays: Delays = DEFAULT_DELAYS,
        connections: Mapping[str, int] | None = None,
        on_removed: OnRemoved | None = None,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        """Poll, deliver and settle from now on. `connections`: pollers per queue, where it is not one.

        `readers` tell how to read the bodies of queues, where they are no pointers.
        `on_removed` gets queues that were removed while running, when nothing of them is left here.
        """
        self._on_removed = on_removed
        self._pool_tools = PoolTools(
            mediator=mediator,
            breakers=self.breakers,
            endpoint_of=endpoint_of,
            origin_of=origin_of,
            dead_letters=self._dead_letters,
            warnings=self._warnings,
            log=attempt_log,
            clock=self._clock,
            spawn=self._slots.spawn,
            delays=delays,
            fence=self._fence,
            blocked=self.failed,
            skips=self.skips,
            pauses=self.pauses,
            delivered=self.delivered,
            failures=self.failures,
            divide=_undivided if self.share is None else self.share.divide,
            several_queues=lambda: len(self.queues) + len(self._removed_queues) > 1,
        )
        self.router.apply(pools)
        self._add_watches()
        for name, queue in queues.items():
            self.add_queue(name, queue, (connections or {}).get(name, 1), (readers or {}).get(name, POINTERS))
        self._standstill.begin()
        self.watches.start(self._tasks)
        log.info("router_started", action="router_started", queues=list(queues), pools=list(pools))

    def _add_watches(self) -> None:
        watches, clock, warnings = self.watches, self._clock, self._warnings
        watches.add("leases", LEASE_PERIOD_S, LeaseKeeper(self.tracker, clock, self.router.release).look)
        self._lease_watch = watches.all[-1]
        watches.add("removed pools and queues", CLEAN_UP_PERIOD_S, self.close_removed_queues)
        watches.add("circuit breakers", BREAKER_PERIOD_S, self._evict_idle_breakers)
        health = ConsumerHealth(self.consumers, self.restart_consumer, clock, warnings)
        watches.add("consumers", CONSUMER_PERIOD_S, health.look)
        leaks = LeakDetector(self.tracker, self.router, self.settlers, warnings)
        watches.add("leaks", LEAK_PERIOD_S, leaks.look)
        watches.add("backlog", BACKLOG_PERIOD_S, Backlog(self.queues, warnings, self.router.all_pools).look)
        watches.add("shortages", SHORTAGE_PERIOD_S, ShortageOutages(warnings).look)
        watches.add("endpoints", ENDPOINT_PERIOD_S, self.endpoint_outages.look)
        watches.add("blocked groups", GROUP_PERIOD_S, self.group_outages.look)
        watches.add("pool windows", WINDOW_PERIOD_S, self._take_window_snapshots)
        watches.add("standstills", standstill.PERIOD_S, self._standstill.look)

    async def _take_window_snapshots(self) -> None:
        now = self._clock.monotonic()
        for number, pool in enumerate(self.router.all_pools(), 1):
            pool.windows.snapshot(now)
            pool.stats.slow_groups.forget_idle(now)
            if number % 100 == 0:
                await asyncio.sleep(0)

    async def _evict_idle_breakers(self) -> None:
        self.breakers.evict_idle(self._clock.monotonic())

    # Changes while running

    def apply_pools(self, pools: Mapping[str, PoolLimits]) -> None:
        """Make the pools those of a new configuration; see `Router.apply`."""
        self.router.apply(pools)
        for queue in self.queues.values():
            queue.fit(self.router.capacity)

    def add_queue(self, name: str, queue: Queue, connections: int = 1, reader: Reader = POINTERS) -> None:
        """Poll one more queue. Only one that keeps groups apart and in order is polled more than once at a time."""
        self.queues[name] = queue
        queue.fit(self.router.capacity)
        parallel = queue.capabilities.locks_groups and queue.capabilities.ordered_redelivery
        self._connections[name] = connections if parallel else 1
        if connections > self._connections[name]:
            text = f"queue {name}: connections = {connections} is ignored and one is used: parallel polls "
            text += "of a queue that does not lock groups and redeliver in order would break the order of its groups"
            self._warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, text, "engine")
        settler = self.settlers[name] = Settler(queue, self.tracker)
        recaller = Recaller(queue, settler, self.router) if isinstance(queue, RecallableQueue) else None
        self.consumers[name] = Consumer(
            queue,
            settler,
            self.router,
            self._dead_letters,
            self._warnings,
            self._clock,
            reader,
            self._standstill,
            recaller,
        )
        if recaller is not None:  # until the engine stops: only the queue of jobs can ask, and that is never removed
            self._supervisor.spawn(self._tasks, f"recall {name}", recaller.run)
        self._settling[settler] = self._supervisor.spawn(self._tasks, f"settle {name}", settler.run)
        self._consuming[name] = []
        self._lease_watch.period_s = min(self._lease_watch.period_s, queue.capabilities.visibility_s / 4)
        self._start_polling(name)

    def remove_queue(self, name: str) -> None:
        """Poll a queue no more. What came from it is worked off, then `close_removed_queues` closes it."""
        consumer = self.consumers.pop(name)
        consumer.stop()
        self._losses += consumer.reports.losses
        consumer.reports.losses = []  # it may be taken back
        settler = self.settlers.pop(name)
        self._removed_queues.append(
            _RemovedQueue(name, self.queues.pop(name), settler, consumer, self._consuming.pop(name))
        )

    def take_back_queue(self, name: str) -> bool:
        """Poll a queue again that was removed and has not left yet. False if there is none.

        Another connection beside the one it has would be shown messages of the same groups: if both are lost, a broker
        may show the later ones first.
        """
        removed = next((removed for removed in reversed(self._removed_queues) if removed.name == name), None)
        if removed is None:
            return False
        self._removed_queues.remove(removed)
        self.queues[name], self.settlers[name] = removed.queue, removed.settler
        self.consumers[name], self._consuming[name] = removed.consumer, removed.polling
        removed.queue.fit(self.router.capacity)
        removed.consumer.resume()
        self._start_polling(name)
        return True

    async def close_removed_queues(self) -> None:
        """Close removed queues of which nothing is left here, and drop removed pools; to be called now and then."""
        self.router.forget_retired()
        busy = {delivery.source for delivery in self.tracker} if self._removed_queues else set()
        for removed in list(self._removed_queues):
            if removed.settler not in busy and removed.settler.is_idle and all(task.done() for task in removed.polling):
                self._removed_queues.remove(removed)
                self._settling.pop(removed.settler).cancel()
                if self._on_removed is not None:
                    await self._on_removed(removed.name, removed.queue)
                log.info("queue_closed", action="queue_closed", queue=removed.name)

    @property
    def losses(self) -> list[Loss]:
        """What its queues lost so far, while nobody here had settled it."""
        return [*self._losses, *(loss for consumer in self.consumers.values() for loss in consumer.reports.losses)]

    def open_queues(self) -> list[tuple[str, Queue]]:
        """By name: those that are polled, and those that were removed but are not closed yet."""
        return [*self.queues.items(), *((removed.name, removed.queue) for removed in self._removed_queues)]

    async def restart_consumer(self, name: str) -> None:
        """Start a new poll loop, over a new connection, in place of one that hangs: mostly it is the connection."""
        consumer = self.consumers[name]
        consumer.restart()
        try:
            async with asyncio.timeout(RECONNECT_S):
                await self.queues[name].reconnect()
        finally:
            if self.consumers.get(name) is consumer and not self.stopping:  # nobody removed it meanwhile
                self._start_polling(name)

    def _start_polling(self, name: str) -> None:
        polling = [task for task in self._consuming[name] if not task.done()]
        run = partial(self.consumers[name].run, self.consumers[name].loop)
        count = self._connections[name]
        self._consuming[name] = polling + [
            self._supervisor.spawn(self._tasks, f"consume {name}", run) for _ in range(count)
        ]

    def _make_pool(self, code: str, limits: PoolLimits) -> Pool:
        return Pool(code, limits, self._pool_tools)

    # Shutdown: consumers, pools, then what is left (docs/reference.md, "Shutdown").

    async def stop(self) -> None:
        """Take nothing more, let attempts in flight end, nack the rest."""
        self.stopping = True
        started = self._clock.monotonic()
        for settler in self._all_settlers():
            settler.nacks_given_up = 0  # an outage of earlier is no part of how this stop goes
        await self._stop_consumers()
        await self._drain_pools()
        await self._requeue_the_rest()
        if self.share is not None:
            self.share.stop()
        await self._slots.cancel()
        await self._tasks.cancel()
        self.endpoint_outages.close()
        self.group_outages.close()
        self.stopped_clean = not self.unsettled
        seconds = round(self._clock.monotonic() - started, 3)
        log.info("router_stopped", action="router_stopped", seconds=seconds, left=self.unsettled)

    async def _stop_consumers(self) -> None:
        for consumer in self.consumers.values():
            consumer.stop()
        lists = [*self._consuming.values(), *(removed.polling for removed in self._removed_queues)]
        if polling := [task for tasks in lists for task in tasks]:
            await asyncio.wait(polling, timeout=CONSUMER_STOP_S)

    async def _drain_pools(self) -> None:
        pools = self.router.all_pools()
        for pool in pools:
            pool.drain()
        try:
            async with asyncio.timeout(POOL_DRAIN_S):
                for pool in pools:
                    await pool.wait_drained()
        except TimeoutError:
            left = [
                f"{pool.code}: {pool.in_flight} attempt{'' if pool.in_flight == 1 else 's'} in flight, "
                f"{pool.buffered} message{'' if pool.buffered == 1 else 's'} waiting"
                for pool in pools
                if pool.in_flight or pool.buffered
            ]
            log.warning("drain_timed_out", action="drain_timed_out", pools=left)
            for pool in pools:
                self._log_cut_attempts(pool)
                pool.cancel()

    def _log_cut_attempts(self, pool: Pool) -> None:
        """Their endpoints may have done what they were asked to, and get the message again."""
        for delivery in self.tracker:
            if delivery.pool == pool.code and pool.has(delivery) and pool.explain(delivery).under_way:
                log.warning(
                    "attempt_cut",
                    action="attempt_cut",
                    message=delivery.pointer.id,
                    group=delivery.group,
                    pool=pool.code,
                    attempt=delivery.tries,
                    verdict="nack",
                    why="the router stopped before it was answered",
                    seconds=round(self._clock.monotonic() - delivery.attempt_at, 3),
                )

    async def _requeue_the_rest(self) -> None:
        """Let pending acks and nacks finish, then nack what the router still owns."""
        if not await self._settled():
            log.warning("settle_timed_out", action="settle_timed_out", left=len(self.tracker))
        for pool in self.router.all_pools():
            pool.forget_waiting()  # or an ack that is confirmed now, or an attempt that ends, nacks its followers again
        for delivery in self.tracker:
            delivery.source.nack(delivery, 0.0)
        await self._settled()
        self.unsettled = sum(max(settler.pending, settler.nacks_given_up) for settler in self._all_settlers())
        if self.unsettled:
            text = f"{self.unsettled} messages could not be acked or nacked; their queue delivers them again"
            self._warnings.add(WarningCode.SHUTDOWN_CLEANUP_ERRORS, Severity.WARN, text, "engine")

    def _all_settlers(self) -> list[Settler]:
        return [*self.settlers.values(), *(removed.settler for removed in self._removed_queues)]

    async def _settled(self) -> bool:
        try:
            async with asyncio.timeout(SETTLE_S):
                for settler in self._all_settlers():
                    await settler.wait_idle()
        except TimeoutError:
            return False
        return True


def _undivided(_code: str, limits: PoolLimits) -> PoolLimits:
    return limits
