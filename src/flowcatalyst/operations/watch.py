"""Watchers: each looks after one thing now and then while the router runs.

A watcher is a function that looks once. `Watches` calls it, notes when it last did, and tells when one fails or hangs.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.message import Delivery, Settled, Severity
from flowcatalyst.operations.supervisor import Supervisor
from flowcatalyst.operations.warnings import WarningCode, WarningSink
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.limits import MIN_CAPACITY
from flowcatalyst.routing.router import Router
from flowcatalyst.routing.tracker import InFlightTracker
from flowcatalyst.tasks import Tasks

LEAST_EXTEND_S: Final = 1.0
CLEAN_UP_PERIOD_S: Final = 1.0
LEAK_PERIOD_S: Final = 30.0
CONSUMER_PERIOD_S: Final = 60.0
BREAKER_PERIOD_S: Final = 60.0
BACKLOG_PERIOD_S: Final = 60.0
SILENT_CONSUMER_S: Final = 60.0
LONG_BACKLOG: Final = 1000
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
    trouble: str = ""


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
            self._warn(watch, f"did not come to an end within {LOOK_LIMIT_S:g} s")
        except Exception as error:
            self._warn(watch, f"failed: {error!r}")
            log.error("watch_failed", action="watch_failed", watch=watch.name, exc_info=error)
        else:
            watch.trouble = ""
            watch.looked_at = self._clock.monotonic()

    def _warn(self, watch: Watch, what: str) -> None:
        watch.trouble = what
        text = f"the watcher of {watch.name} {what}"
        self._warnings.add(WarningCode.WATCHER_DIED, Severity.ERROR, text, "watch")


class LeaseKeeper:
    """Extends the leases of messages the router still works on, before their queue shows them to somebody else."""

    def __init__(self, tracker: InFlightTracker, clock: Clock, on_lost: Callable[[Delivery], None]) -> None:
        self._on_lost = on_lost  # the queue gave the message to somebody else
        self._tracker = tracker
        self._clock = clock

    async def look(self) -> None:
        """All queues at once, and none for long: one whose broker hangs must not cost the others their leases."""
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
                await self._restart_one(name, consumer.trouble)

    async def _restart_one(self, name: str, trouble: str) -> None:
        text = f"queue {name} was not polled for {SILENT_CONSUMER_S:g} s: its consumer is restarted"
        self._warnings.add(WarningCode.CONSUMER_RESTART, Severity.WARN, text, "watch")
        log.warning("consumer_restarted", action="consumer_restarted", queue=name, trouble=trouble)
        try:
            await self._restart(name)
        except Exception as error:
            text = f"the consumer of queue {name} cannot be restarted: {error!r}"
            self._warnings.add(WarningCode.CONSUMER_RESTART_FAILED, Severity.CRITICAL, text, "watch")


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
        owned, expected = len(self._tracker), self._expected()
        if owned > expected:
            log.warning("pipeline_leak", action="pipeline_leak", owned=owned, expected=expected)
            text = "more messages are owned than pools and settlers can have: some were forgotten"
            self._warnings.add(WarningCode.PIPELINE_MAP_LEAK, Severity.WARN, text, "watch")

    def _expected(self) -> int:
        in_pools = sum(max(pool.limits.effective_capacity, pool.size) for pool in self._router.all_pools())
        settling = sum(settler.pending for settler in self._settlers.values())
        return max(in_pools, MIN_CAPACITY) + settling


class Backlog:
    """Warns when a queue is long, or has grown for three looks in a row."""

    def __init__(self, queues: Mapping[str, Queue], warnings: WarningSink) -> None:
        self._queues = queues
        self._warnings = warnings
        self._seen: dict[str, deque[int]] = {}

    async def look(self) -> None:
        self._seen = {name: seen for name, seen in self._seen.items() if name in self._queues}
        for name, queue in list(self._queues.items()):
            try:
                async with asyncio.timeout(DEPTH_LIMIT_S):
                    depth = await queue.depth()
            except (FlowCatalystError, TimeoutError) as error:
                log.info("depth_unknown", action="depth_unknown", queue=name, error=str(error))
            else:
                if depth is not None:
                    self._judge(name, depth.waiting)

    def _judge(self, name: str, waiting: int) -> None:
        seen = self._seen.setdefault(name, deque(maxlen=GROWING_LOOKS + 1))
        seen.append(waiting)
        if waiting > LONG_BACKLOG:
            self._warn(f"more than {LONG_BACKLOG} messages wait in queue {name}")
        if len(seen) > GROWING_LOOKS and all(later > earlier for earlier, later in pairwise(seen)):
            self._warn(f"queue {name} has grown for {GROWING_LOOKS} minutes in a row")

    def _warn(self, text: str) -> None:
        self._warnings.add(WarningCode.QUEUE_BACKLOG, Severity.WARN, text, "watch")
