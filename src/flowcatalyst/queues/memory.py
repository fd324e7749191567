"""A queue in memory, for tests and simulation, in the two personalities that brokers come in.

`ordered=True` behaves like SQS FIFO: a group with a hidden message is locked, and a message given back comes before
its followers. `ordered=False` behaves like JetStream: a message given back comes again when its delay is over, whatever
its followers did meanwhile.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowcatalyst.clock import Clock
from flowcatalyst.message import Delivery, Settled
from flowcatalyst.queues.contract import Capabilities, Depth, Outgoing, Published, check_outgoing

DEDUPLICATION_S = 300.0

Receipt = tuple[int, int]  # number of the message, number of times it was received


@dataclass(slots=True)
class _Stored:
    number: int
    message: Outgoing
    lane: str
    visible_at: float = 0.0
    receives: int = 0
    failures: int = 0


class MemoryQueue:
    """Holds everything in one ordered dict; simple before fast."""

    def __init__(
        self, name: str, clock: Clock, *, ordered: bool = True, visibility_s: float = 60.0, max_batch: int = 10
    ) -> None:
        self.name = name
        self.advice: Sequence[str] = ()
        self.calls: Mapping[str, int] = {}
        self.capabilities = Capabilities(
            ordered_redelivery=ordered,
            ordered_takeover=ordered,
            locks_groups=ordered,
            delayed_nack=True,
            extends=True,
            max_batch=max_batch,
            visibility_s=visibility_s,
        )
        self._clock = clock
        self._stored: dict[int, _Stored] = {}
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
            stored.visible_at = 0.0
        self._changed.set()

    def fit(self, capacity: int) -> None:
        """It hands out whatever it is asked for."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        for message in messages:
            check_outgoing(message)
        results = [self._append(message) for message in messages]
        self._changed.set()
        return results

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        deadline = self._clock.monotonic() + wait_s
        while True:
            self._changed.clear()
            if batch := self._take(limit):
                return batch
            now = self._clock.monotonic()
            if now >= deadline:
                return []
            await self._wait(min(deadline, self._next_visible(now, deadline)) - now)

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        return [self._settle(delivery.receipt, None) for delivery in deliveries]

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        return [self._give_back(delivery.receipt, delay_s, delivery.failures, unlock) for delivery in deliveries]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        results = [self._settle(delivery.receipt, seconds) for delivery in deliveries]
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Settled.OK:
                delivery.lease_until = self._clock.wall() + seconds
        return results

    async def depth(self) -> Depth:
        now = self._clock.monotonic()
        hidden = sum(stored.visible_at > now for stored in self._stored.values())
        return Depth(waiting=len(self._stored) - hidden, leased=hidden, delayed=0)

    def _append(self, message: Outgoing) -> Published:
        now = self._clock.monotonic()
        key = message.deduplication_id
        if key is not None and (known := self._deduplication.get(key)) is not None and known[0] > now:
            return Published(known[1], duplicate=True)
        self._published += 1
        number = self._published
        lane = message.group if message.group is not None else f"alone-{number}"
        self._stored[number] = _Stored(number, message, lane)
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

    def _lease(self, stored: _Stored, now: float) -> Delivery:
        stored.receives += 1
        stored.visible_at = now + self.capabilities.visibility_s
        return Delivery(
            broker_id=self._broker_id(stored.number),
            receipt=(stored.number, stored.receives),
            body=stored.message.body,
            group=stored.message.group,
            receive_count=stored.receives,
            lease_until=self._clock.wall() + self.capabilities.visibility_s,
            failures=stored.failures,
        )

    def _give_back(self, receipt: Receipt, delay_s: float, failures: int, unlock: bool) -> Settled:
        stored = self._stored.get(receipt[0])
        result = self._settle(receipt, delay_s)
        if stored is not None and result is Settled.OK:
            stored.failures = failures
            stored.lane = f"alone-{stored.number}" if unlock else stored.lane
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
            if not self._stored:  # an emptied dict keeps its table, a cleared one does not
                self._stored.clear()
        else:
            stored.visible_at = self._clock.monotonic() + hide_s
        self._changed.set()
        return Settled.OK

    def _next_visible(self, now: float, default: float) -> float:
        return min((s.visible_at for s in self._stored.values() if s.visible_at > now), default=default)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _broker_id(self, number: int) -> str:
        return f"{self.name}-{number}"
