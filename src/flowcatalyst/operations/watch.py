"""Watchers: small loops that look after the router while it runs."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.message import Delivery, Settled
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.breaker import Breakers
from flowcatalyst.routing.router import Router
from flowcatalyst.routing.tracker import InFlightTracker

BREAKER_EVICTION_PERIOD_S: Final = 60.0
RETIRED_POOLS_PERIOD_S: Final = 10.0

log = structlog.get_logger("flowcatalyst.watch")


class LeaseKeeper:
    """Extends the leases of messages the router still works on, before their queue shows them to somebody else."""

    def __init__(
        self, tracker: InFlightTracker, clock: Clock, period_s: float, on_lost: Callable[[Delivery], None]
    ) -> None:
        self._on_lost = on_lost  # the queue gave the message to somebody else
        self._tracker = tracker
        self._clock = clock
        self._period_s = period_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                await self.extend_once()
            except Exception as error:  # a keeper that died would let every lease run out
                log.error("lease_keeper_failed", action="lease_keeper_failed", exc_info=error)

    async def extend_once(self) -> None:
        for settler, due in self._due().items():
            receipts = [delivery.receipt for delivery in due]
            results = await settler.extend(due, settler.capabilities.visibility_s)
            for delivery, receipt, result in zip(due, receipts, results, strict=True):
                if result is Settled.GONE and delivery.receipt == receipt:
                    self._on_lost(delivery)

    def _due(self) -> dict[Settler, list[Delivery]]:
        """Those with less than half of their lease left, by source."""
        now = self._clock.wall()
        due: dict[Settler, list[Delivery]] = defaultdict(list)
        for delivery in self._tracker:
            source = delivery.source
            if not isinstance(source, Settler) or not source.capabilities.extends:
                continue
            if delivery.lease_until - now < source.capabilities.visibility_s / 2:
                due[source].append(delivery)
        return due


async def forget_retired_pools(router: Router) -> None:
    """Drop pools that were removed from the configuration and have ended."""
    while True:
        await asyncio.sleep(RETIRED_POOLS_PERIOD_S)
        router.forget_retired()


async def evict_idle_breakers(breakers: Breakers, clock: Clock) -> None:
    """Forget breakers nobody used for an hour."""
    while True:
        await asyncio.sleep(BREAKER_EVICTION_PERIOD_S)
        breakers.evict_idle(clock.monotonic())
