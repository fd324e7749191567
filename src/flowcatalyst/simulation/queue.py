"""SimulatedQueue: the memory queue with every fault a broker and the way to it can have, drawn from a seed."""

import asyncio
import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Demand, Outgoing, Published
from flowcatalyst.queues.memory import MemoryQueue, Receipt
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.simulation.history import Facts, History, Kind, Lost

CALL_TIMEOUT_S = 25.0


@dataclass(slots=True)
class QueueFaults:
    """How likely each fault is, per call or per message. All zero: a perfect queue."""

    receive_raises: float = 0.0
    receive_hangs: float = 0.0  # until the client gives up
    receive_is_lost: float = 0.0  # the queue leased a batch, but the response never came
    shows_twice: float = 0.0  # the same message twice in one batch
    shows_again: float = 0.0  # a leased message once more, long before its lease is over
    redelivers_late: float = 0.0  # later than the nack asked for
    call_raises: float = 0.0  # ack, nack or extend: nothing was done
    call_is_lost: float = 0.0  # ack, nack or extend: it was done, but the response never came
    fails_in_part: float = 0.0  # some messages of a batch are not settled
    receipts_expire: float = 0.0  # a receipt whose lease is over is refused, although nobody else got the message
    latency_s: float = 0.0  # longest way to the queue and back, each

    def heal(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0.0)


@dataclass(slots=True)
class Dice:
    """Draws from the seed; what it drew is counted by name."""

    rng: random.Random
    drawn: dict[str, int] = field(default_factory=dict)

    def hit(self, name: str, chance: float) -> bool:
        if chance <= 0.0 or self.rng.random() >= chance:
            return False
        self.note(name)
        return True

    def note(self, name: str, times: int = 1) -> None:
        if times:
            self.drawn[name] = self.drawn.get(name, 0) + times


class SimulatedQueue(MemoryQueue):
    """Tells the history what it was asked and what it did."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        history: History,
        faults: QueueFaults,
        dice: Dice,
        *,
        ordered: bool = True,
        visibility_s: float = 60.0,
        max_batch: int = 10,
        **personality: Any,
    ) -> None:
        super().__init__(name, clock, ordered=ordered, visibility_s=visibility_s, max_batch=max_batch, **personality)
        self.faults = faults
        self._history = history
        self._dice = dice
        self._names: dict[str, str] = {}  # broker id -> name in the history

    @property
    def left(self) -> list[str]:
        """Names of what it still holds."""
        return [self._names[self._broker_id(number)] for number in self._stored]

    def name_of(self, delivery: Delivery | FailedMessage) -> str:
        return self._names[delivery.broker_id]

    def append(self, name: str, message: Outgoing, facts: Facts) -> Published:
        """Publish one message under a name for the history."""
        published = self._append(message)
        self._names[published.broker_id] = name
        self._history.add(Kind.PUBLISHED, name, value=facts)
        self._changed.set()
        return published

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        faults, dice = self.faults, self._dice
        if dice.hit("receive_raises", faults.receive_raises):
            await self._travel()
            raise QueueUnavailableError("the broker refuses connections")
        if dice.hit("receive_hangs", faults.receive_hangs):
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise QueueUnavailableError("the broker did not answer in time")
        if faults.shows_again:
            hidden = [stored for stored in self._stored.values() if stored.visible_at > self._clock.monotonic()]
            if hidden and dice.hit("shows_again", faults.shows_again):
                self._reveal(dice.rng.choice(hidden))
        batch = await super().receive(limit, wait_s, demand)
        if batch and dice.hit("receive_is_lost", faults.receive_is_lost):
            raise QueueUnavailableError("the connection broke while a batch was on its way")
        if batch and dice.hit("shows_twice", faults.shows_twice):
            number = dice.rng.choice(batch).receipt[0]
            batch.append(self._lease(self._stored[number], self._clock.monotonic()))
        for delivery in batch:
            self._history.add(Kind.RECEIVED, self.name_of(delivery), value=delivery.receipt)
        return batch

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        receipts: list[Receipt] = [delivery.receipt for delivery in deliveries]
        names = [self.name_of(delivery) for delivery in deliveries]
        for name, receipt in zip(names, receipts, strict=True):
            self._history.add(Kind.ACK, name, value=receipt)
        results: list[Settled] = []
        try:
            await self._travel_there()
            for receipt, name in zip(receipts, names, strict=True):
                was_there = receipt[0] in self._stored
                result = self._refuse(receipt) or self._settle(receipt, None)
                if was_there and result is Settled.OK:
                    self._history.add(Kind.REMOVED, name)
                results.append(result)
            await self._travel_back()
        except QueueUnavailableError:
            for name in names:
                self._history.add(Kind.ACKED, name)
            raise
        for name, result in zip(names, results, strict=True):
            self._history.add(Kind.ACKED, name, value=result)
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        asked = [(self.name_of(one), one.receipt, one.failures) for one in deliveries]
        for name, receipt, _ in asked:
            self._history.add(Kind.NACK, name, value=(delay_s, receipt))
        await self._travel_there()
        results: list[Settled] = []
        for name, receipt, failures in asked:
            late_s = 0.0
            if self._dice.hit("redelivers_late", self.faults.redelivers_late):
                late_s = self._dice.rng.uniform(0.1, 30.0)
            result = self._refuse(receipt) or self._requeue(receipt, delay_s + late_s, failures, unlock)
            self._history.add(Kind.NACKED, name, value=(delay_s, result))
            results.append(result)
        await self._travel_back()
        return results

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        asked = [copy(delivery) for delivery in deliveries]  # as they are now: a redelivery may change them meanwhile
        await self._travel_there()
        results = [self._refuse(one.receipt) for one in asked]
        sound = [one for one, refusal in zip(asked, results, strict=True) if refusal is None]
        extended = iter(await super().extend(sound, seconds))
        answers = [refusal or next(extended) for refusal in results]
        self._dice.note("lease lost", answers.count(Settled.GONE))
        await self._travel_back()
        for delivery, one, answer in zip(deliveries, asked, answers, strict=True):
            if delivery.receipt != one.receipt:
                continue  # it was shown again meanwhile, and the answer is about what was before
            if answer is Settled.GONE:
                self._history.add(Kind.LOST, self.name_of(one), value=Lost.LEASE)
            elif answer is Settled.OK:
                delivery.lease_until = one.lease_until
        return answers

    async def hurry(self, delivery: Delivery) -> bool:
        await self._travel_there()
        shown = await super().hurry(delivery)
        if shown and delivery.broker_id:
            self._history.add(Kind.HURRIED, self.name_of(delivery))
        await self._travel_back()
        return shown

    def router_left(self) -> None:
        """The router stopped or crashed. Leases run out by themselves."""

    def _refuse(self, receipt: Receipt) -> Settled | None:
        """The faults of one message in a batch."""
        stored = self._stored.get(receipt[0])
        if self._dice.hit("fails_in_part", self.faults.fails_in_part):
            return Settled.FAILED
        if (
            stored is not None
            and stored.visible_at <= self._clock.monotonic()
            and self._dice.hit("receipts_expire", self.faults.receipts_expire)
        ):
            return Settled.GONE
        return None

    async def _travel_there(self) -> None:
        await self._travel()
        if self._dice.hit("call_raises", self.faults.call_raises):
            raise QueueUnavailableError("the broker refuses connections")

    async def _travel_back(self) -> None:
        await self._travel()
        if self._dice.hit("call_is_lost", self.faults.call_is_lost):
            raise QueueUnavailableError("the connection broke before the response came")

    async def _travel(self) -> None:
        await asyncio.sleep(self._dice.rng.uniform(0.0, self.faults.latency_s) if self.faults.latency_s else 0)
