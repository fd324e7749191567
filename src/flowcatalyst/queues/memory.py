"""A queue in memory, for tests and simulation, in the personalities that queues come in.

`ordered=True` behaves like SQS FIFO: a group with a hidden message is locked, and a nacked message comes before
its followers. `ordered=False` behaves like JetStream: a nacked message comes again when its delay is over, whatever
its followers did meanwhile. `selects_pools=True` behaves like the embedded queue: it is asked per pool, and groups take
turns.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Capabilities, Delivery, Settled, pool_code_of
from flowcatalyst.queues.contract import (
    Batching,
    Demand,
    Depth,
    FreeCapacity,
    Loss,
    Outgoing,
    Published,
    check_outgoing,
)
from flowcatalyst.queues.memory_lanes import Lanes

SHORTEST_WAIT_S: Final = 1e-6  # a loop whose clock stands still would never get to the end of a shorter one

DEDUPLICATION_S = 300.0

Receipt = tuple[int, int]  # number of the message, number of times it was received


@dataclass(slots=True)
class _Stored:
    number: int
    message: Outgoing
    lane: str
    pool: str
    published_at: float  # wall time
    visible_at: float = 0.0
    receives: int = 0
    failures: int = 0
    nacked: bool = False


class MemoryQueue:
    """Holds everything in one ordered dict; simple before fast."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        ordered: bool = True,
        selects_pools: bool = False,
        visibility_s: float = 60.0,
        max_batch: int = 10,
    ) -> None:
        assert ordered or not selects_pools, "there is no queue that selects pools and does not keep order"
        self.name = name
        self.setup_warnings: Sequence[str] = ()
        self.calls: Mapping[str, int] = {}
        self.losses: list[Loss] = []
        self.capabilities = Capabilities(
            ordered_redelivery=ordered,
            ordered_takeover=ordered,
            locks_groups=ordered,
            selects_pools=selects_pools,
            delayed_nack=True,
            extends=True,
            hurries=ordered,
            visibility_s=visibility_s,
        )
        self.batching = Batching(max_batch)
        self._clock = clock
        self._stored: dict[int, _Stored] = {}
        self._lanes_by_pool = Lanes() if selects_pools else None
        self._deduplication: dict[str, tuple[float, str]] = {}
        self._published = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._stored)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Show again what was received and not settled, as a broker does when its consumer goes away."""
        for stored in self._stored.values():
            self._reveal(stored)
        self._changed.set()

    async def reconnect(self) -> None:
        """There is no connection."""

    def fit(self, capacity: int) -> None:
        """It hands out whatever it is asked for."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        for message in messages:
            check_outgoing(message)
        results = [self._append(message) for message in messages]
        self._changed.set()
        return results

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        deadline = self._clock.monotonic() + wait_s
        selects = self._lanes_by_pool is not None
        end_notice = demand.on_growth(self._changed.set) if demand is not None and selects else None
        try:
            while True:
                self._changed.clear()
                free_capacity = demand.free_capacity() if demand is not None else None
                if batch := self._select(limit, free_capacity) if selects else self._take(limit):
                    return batch
                now = self._clock.monotonic()
                if now >= deadline:
                    return []
                wait_until = min(deadline, self._next_visible(now, deadline))
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(SHORTEST_WAIT_S, wait_until - now)):
                        await self._changed.wait()
        finally:
            if end_notice is not None:
                end_notice()

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        return [self._settle(delivery.receipt, None) for delivery in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        return [self._requeue(delivery.receipt, delay_s, delivery.failures, unlock) for delivery in deliveries]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        results = [self._settle(delivery.receipt, seconds) for delivery in deliveries]
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Settled.OK:
                delivery.lease_until = self._clock.monotonic() + seconds
        return results

    async def hurry(self, delivery: Delivery) -> bool:
        now = self._clock.monotonic()
        if not self.capabilities.hurries:
            return False
        if not delivery.broker_id:  # all that its group waits for
            nacked = (one for one in self._stored.values() if one.nacked and one.message.group == delivery.group)
            asked = next((one for one in nacked if one.visible_at > now), None)
        else:
            asked = next(
                (one for one in self._stored.values() if self._broker_id(one.number) == delivery.broker_id), None
            )
        if asked is None or not asked.nacked or asked.visible_at <= now:
            return False
        for stored in self._stored.values():
            if stored.lane == asked.lane and stored.nacked:
                self._reveal(stored)
        self._changed.set()
        return True

    def still_ours(self, delivery: Delivery) -> bool:
        """Only its lease, which the router watches itself, can end."""
        return True

    async def depth(self) -> Depth:
        now = self._clock.monotonic()
        hidden = sum(stored.visible_at > now for stored in self._stored.values())
        oldest_at = min((stored.published_at for stored in self._stored.values()), default=None)
        return Depth(len(self._stored) - hidden, hidden, 0, oldest_at)

    async def waiting_for(self, pool: str, most: int) -> int:
        now = self._clock.monotonic()
        return min(most, sum(stored.visible_at <= now and stored.pool == pool for stored in self._stored.values()))

    def _append(self, message: Outgoing) -> Published:
        now = self._clock.monotonic()
        key = message.deduplication_id
        if key is not None and (known := self._deduplication.get(key)) is not None and known[0] > now:
            return Published(known[1], duplicate=True)
        self._published += 1
        number = self._published
        lane = message.group if message.group is not None else f"alone-{number}"
        self._stored[number] = stored = _Stored(number, message, lane, pool_code_of(message.body), self._clock.wall())
        if self._lanes_by_pool is not None:
            self._lanes_by_pool.enter(stored)
        broker_id = self._broker_id(number)
        if key is not None:
            self._deduplication[key] = (now + DEDUPLICATION_S, broker_id)
        return Published(broker_id)

    def _take(self, limit: int) -> list[Delivery]:
        now = self._clock.monotonic()
        locked = {stored.lane for stored in self._stored.values() if stored.visible_at > now}
        batch: list[Delivery] = []
        for stored in self._stored.values():
            if len(batch) == limit:
                break
            if stored.visible_at <= now and not (self.capabilities.locks_groups and stored.lane in locked):
                batch.append(self._lease(stored, now))
        return batch

    def _select(self, limit: int, free_capacity: FreeCapacity | None) -> list[Delivery]:
        now = self._clock.monotonic()
        assert self._lanes_by_pool is not None
        self._lanes_by_pool.show_due(now)
        chosen = self._lanes_by_pool.choose(min(limit, self.batching.max_batch), free_capacity)
        return [self._lease(self._stored[message.number], now) for message in chosen]

    def _lease(self, stored: _Stored, now: float) -> Delivery:
        stored.receives += 1
        stored.nacked = False
        self._hide_until(stored, now + self.capabilities.visibility_s)
        return Delivery(
            broker_id=self._broker_id(stored.number),
            receipt=(stored.number, stored.receives),
            body=stored.message.body,
            group=stored.message.group,
            receive_count=stored.receives,
            lease_until=now + self.capabilities.visibility_s,
            failures=stored.failures,
            due_at=stored.published_at,
        )

    def _requeue(self, receipt: Receipt, delay_s: float, failures: int, unlock: bool) -> Settled:
        stored = self._stored.get(receipt[0])
        result = self._settle(receipt, delay_s)
        if stored is not None and result is Settled.OK:
            stored.failures, stored.nacked = failures, True
            if unlock:
                if self._lanes_by_pool is not None:
                    self._lanes_by_pool.leave(stored)
                stored.lane = f"alone-{stored.number}"
                if self._lanes_by_pool is not None:
                    self._lanes_by_pool.enter(stored)
                    self._lanes_by_pool.hide(stored)
        return result

    def _settle(self, receipt: Receipt, hide_s: float | None) -> Settled:
        number, receives = receipt
        stored = self._stored.get(number)
        if stored is None:
            return Settled.OK if hide_s is None else Settled.GONE
        if stored.receives != receives:
            return Settled.GONE
        if hide_s is None:
            del self._stored[number]
            if self._lanes_by_pool is not None:
                self._lanes_by_pool.leave(stored)
            if not self._stored:  # an emptied dict keeps its table, a cleared one does not
                self._stored.clear()
        else:
            self._hide_until(stored, self._clock.monotonic() + hide_s)
        self._changed.set()
        return Settled.OK

    def _hide_until(self, stored: _Stored, visible_at: float) -> None:
        stored.visible_at = visible_at
        if self._lanes_by_pool is not None:
            self._lanes_by_pool.hide(stored)
            self._lanes_by_pool.show_due(self._clock.monotonic())  # nacked without a delay: it is ready now

    def _reveal(self, stored: _Stored) -> None:
        stored.visible_at = 0.0
        if self._lanes_by_pool is not None:
            self._lanes_by_pool.show(stored)

    def _next_visible(self, now: float, default: float) -> float:
        if self._lanes_by_pool is not None:
            return self._lanes_by_pool.next_due(default)
        return min((s.visible_at for s in self._stored.values() if s.visible_at > now), default=default)

    def _broker_id(self, number: int) -> str:
        return f"{self.name}-{number}"
