"""Watchers: each looks after one thing now and then while the router runs.

A watcher is a function that looks once. `Watches` calls it, notes when it last did, and tells when one fails or hangs.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Protocol, runtime_checkable

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, plain
from flowcatalyst.core.message import Delivery, Settled, Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter, WarningShelf, WarningSink
from flowcatalyst.queues.contract import Queue
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.limits import MIN_CAPACITY
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import InFlightTracker

LEAST_EXTEND_S: Final = 1.0
CLEAN_UP_PERIOD_S: Final = 1.0
LEAK_PERIOD_S: Final = 30.0
CONSUMER_PERIOD_S: Final = 60.0
BREAKER_PERIOD_S: Final = 60.0
BACKLOG_PERIOD_S: Final = 60.0
SILENT_CONSUMER_S: Final = 60.0
LONG_BACKLOG: Final = 1000
SHORT_BACKLOG: Final = 100
GROWING_LOOKS: Final = 3
DEPTH_LIMIT_S: Final = 5.0  # a broker that does not tell by then is asked again next time
LOOK_LIMIT_S: Final = 30.0  # a look that takes longer is given up: a broker hangs

Look = Callable[[], Awaitable[None]]

log = structlog.get_logger("flowcatalyst.watch")


@dataclass(slots=True)
class Watch:
    """One watcher: what it does, how often, and when it did it last."""

    name: str
    period_s: float
    look: Look
    looked_at: float  # monotonic; of looks that came to their end, and of its start
    last_error: str = ""


class Watches:
    """All watchers of a router."""

    def __init__(self, clock: Clock, warnings: WarningSink, supervisor: Supervisor | None = None) -> None:
        self.all: list[Watch] = []
        self._clock = clock
        self._warnings = warnings
        self._supervisor = supervisor or Supervisor(clock, warnings)

    def add(self, name: str, period_s: float, look: Look) -> None:
        self.all.append(Watch(name, period_s, look, self._clock.monotonic()))

    def start(self, tasks: Tasks) -> None:
        """Look from now on."""
        for watch in self.all:
            self._supervisor.spawn(tasks, f"watch {watch.name}", partial(self._run, watch))

    def late(self) -> list[str]:
        """Names of those that should have looked long ago."""
        now = self._clock.monotonic()
        return [watch.name for watch in self.all if now - watch.looked_at > 3 * watch.period_s + LOOK_LIMIT_S]

    async def _run(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(watch.period_s)
            await self.look_once(watch)

    async def look_once(self, watch: Watch) -> None:
        """A look that fails or hangs must not be the last one."""
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                await watch.look()
        except TimeoutError:
            self._warn(watch, f"did not finish within {LOOK_LIMIT_S:g} s")
        except Exception as error:
            self._warn(watch, f"failed: {plain(error)}")
            log.error("watch_failed", action="watch_failed", watch=watch.name, exc_info=error)
        else:
            watch.last_error = ""
            watch.looked_at = self._clock.monotonic()

    def _warn(self, watch: Watch, what: str) -> None:
        watch.last_error = what
        text = f"the watcher of {watch.name} {what}"
        self._warnings.add(WarningCode.WATCHER_DIED, Severity.ERROR, text, "watch")


class LeaseKeeper:
    """Extends the leases of messages the router still works on, before their queue shows them to somebody else."""

    def __init__(self, tracker: InFlightTracker, clock: Clock, on_lost: Callable[[Delivery], None]) -> None:
        self._on_lost = on_lost  # the queue gave the message to somebody else
        self._tracker = tracker
        self._clock = clock

    async def look(self) -> None:
        """All queues at once, and none for long: one whose broker hangs must not cost the others their leases.

        Where there is nothing to extend, what went with its connection is let go, though it may wait for long here.
        """
        for delivery in list(self._tracker):
            source = delivery.source
            if not source.capabilities.extends and not source.still_ours(delivery):
                self._on_lost(delivery)
        leased = {delivery.source.capabilities.visibility_s for delivery in self._tracker}
        limit_s = max(min(leased, default=0.0) / 8, LEAST_EXTEND_S)
        await asyncio.gather(*(self._extend(settler, due, limit_s) for settler, due in self._due().items()))

    async def _extend(self, settler: Settler, due: list[Delivery], limit_s: float) -> None:
        receipts = [delivery.receipt for delivery in due]
        try:
            async with asyncio.timeout(limit_s):
                results = await settler.extend(due, settler.capabilities.visibility_s)
        except TimeoutError:
            log.warning("leases_not_extended", action="leases_not_extended", queue=settler.name, messages=len(due))
            return
        for delivery, receipt, result in zip(due, receipts, results, strict=True):
            if result is Settled.GONE and delivery.receipt == receipt:
                self._on_lost(delivery)

    def _due(self) -> dict[Settler, list[Delivery]]:
        """Those with less than half of their lease left, by source."""
        now = self._clock.monotonic()
        due: dict[Settler, list[Delivery]] = defaultdict(list)
        for delivery in self._tracker:
            source = delivery.source
            if not isinstance(source, Settler) or not source.capabilities.extends:
                continue
            if delivery.lease_until - now < source.capabilities.visibility_s / 2:
                due[source].append(delivery)
        return due


class ConsumerHealth:
    """Restarts the poll loop of a queue that had no successful poll for a minute, over a new connection."""

    def __init__(
        self,
        consumers: Mapping[str, Consumer],
        restart: Callable[[str], Awaitable[None]],
        clock: Clock,
        warnings: WarningSink,
    ) -> None:
        self._consumers = consumers
        self._restart = restart
        self._clock = clock
        self._warnings = warnings

    async def look(self) -> None:
        now = self._clock.monotonic()
        for name, consumer in list(self._consumers.items()):
            if consumer.silent_s(now) >= SILENT_CONSUMER_S:
                text = f"queue {name} was not polled for {SILENT_CONSUMER_S:g} s: its consumer is restarted"
                self._warnings.add(WarningCode.CONSUMER_RESTART, Severity.WARN, text, "watch")
                last_error = consumer.reports.last_error
                log.warning("consumer_restarted", action="consumer_restarted", queue=name, last_error=last_error)
                try:
                    await self._restart(name)
                except Exception as error:
                    text = f"the consumer of queue {name} cannot be restarted: {plain(error)}"
                    self._warnings.add(WarningCode.CONSUMER_RESTART_FAILED, Severity.CRITICAL, text, "watch")
                    log.error("restart_failed", action="restart_failed", queue=name, exc_info=error)


class LeakDetector:
    """Warns when the router owns more messages than its pools and settlers can have."""

    def __init__(
        self,
        tracker: InFlightTracker,
        router: Router,
        settlers: Mapping[str, Settler],
        warnings: WarningSink,
    ) -> None:
        self._tracker = tracker
        self._router = router
        self._settlers = settlers
        self._warnings = warnings

    async def look(self) -> None:
        in_pools = sum(max(pool.limits.effective_capacity, pool.size) for pool in self._router.all_pools())
        settling = sum(settler.pending for settler in self._settlers.values())
        owned, expected = len(self._tracker), max(in_pools, MIN_CAPACITY) + settling
        if owned > expected:
            log.warning("pipeline_leak", action="pipeline_leak", owned=owned, expected=expected)
            text = "the router owns more messages than its pools and settlers hold: some have leaked"
            self._warnings.add(WarningCode.PIPELINE_MAP_LEAK, Severity.WARN, text, "watch")


@runtime_checkable
class PoolQueue(Protocol):
    """A queue that can tell what waits in it for a pool; one that `selects_pools`."""

    async def waiting_for(self, pool: str, most: int) -> int:
        """How many messages that name this pool could be received now; no more than `most` are counted."""


class Backlog:
    """Warns when a queue is long, or has grown for three looks in a row, and when more waits for a pool in a queue that
    is asked per pool than the pool may hold. Of another queue the pool would have taken all of it, and be full."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        warnings: WarningShelf,
        pools: Callable[[], Iterable[Pool]] = tuple,
    ) -> None:
        self._queues = queues
        self._warnings = warnings
        self._pools = pools
        self._seen: dict[str, deque[int]] = {}
        self._over_at: dict[str, int] = {}  # queues that were told of, and how many messages are no backlog there

    async def look(self) -> None:
        self._seen = {name: seen for name, seen in self._seen.items() if name in self._queues}
        for name in self._over_at.keys() - self._queues.keys():
            del self._over_at[name]
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.QUEUE_BACKLOG, source=f"queue {name}"))
        all_answered = True
        held = {pool.code: pool.size for pool in self._pools()}  # or waiting for it, as far as a queue can tell
        for name, queue in list(self._queues.items()):
            try:
                async with asyncio.timeout(DEPTH_LIMIT_S):
                    depth = await queue.depth()
                    if depth is not None:
                        self._judge(name, depth.waiting)
                        if isinstance(queue, PoolQueue) and queue.capabilities.selects_pools:
                            await self._judge_pools(name, queue, depth.waiting, held)
            except (FlowCatalystError, TimeoutError) as error:
                log.info("depth_unknown", action="depth_unknown", queue=name, error=str(error))
                all_answered = False
        if all_answered:
            self._end_of_full_pools(held)

    def _judge(self, name: str, waiting: int) -> None:
        seen = self._seen.setdefault(name, deque(maxlen=GROWING_LOOKS + 1))
        seen.append(waiting)
        if waiting > LONG_BACKLOG:
            self._over_at.setdefault(name, LONG_BACKLOG // 2)
            self._warn(name, f"more than {LONG_BACKLOG} messages wait in queue {name}")
        grows = len(seen) > GROWING_LOOKS and all(later > earlier for earlier, later in pairwise(seen))
        if grows and waiting > SHORT_BACKLOG:
            self._over_at.setdefault(name, max(seen[0], SHORT_BACKLOG))
            self._warn(name, f"queue {name} has grown for {GROWING_LOOKS} minutes in a row")
        elif waiting <= self._over_at.get(name, -1):
            del self._over_at[name]
            self._warnings.end(WarningCode.QUEUE_BACKLOG, f"the backlog of queue {name} is over", f"queue {name}")

    def _warn(self, name: str, text: str) -> None:
        self._warnings.add(WarningCode.QUEUE_BACKLOG, Severity.WARN, text, f"queue {name}")

    async def _judge_pools(self, name: str, queue: PoolQueue, waiting: int, held: dict[str, int]) -> None:
        for pool in list(self._pools()):
            most = pool.limits.most
            if pool.size + waiting < most // 2:
                continue
            waiting_for_it = await queue.waiting_for(pool.code, most + 1)
            held[pool.code] = held.get(pool.code, pool.size) + waiting_for_it  # it may have been made meanwhile
            if held[pool.code] > most:
                text = f"pool {pool.code} is full: it may hold {most} messages, and more are in it or wait for it in "
                text += f"queue {name}"
                self._warnings.add(WarningCode.QUEUE_FULL, Severity.WARN, text, "watch")

    def _end_of_full_pools(self, held: Mapping[str, int]) -> None:
        """Acknowledge what was told of pools that hold half of what they may, or less, or that are gone."""
        told = self._warnings.recent(WarningFilter(code=WarningCode.QUEUE_FULL, acknowledged=False))
        full = [pool.code for pool in self._pools() if held.get(pool.code, 0) > pool.limits.most // 2]
        for one in told:
            if not any(one.message.startswith(f"pool {code} is full") for code in full):
                self._warnings.acknowledge_all(WarningFilter(code=one.code, source=one.source, text=one.message))
