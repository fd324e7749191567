"""Bugs towards the queues: polls, acks, nacks, and the end of a router."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import UNREADABLE, Delivery
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.contract import FreeCapacity
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()


# Acks and nacks


@BUGS.add("what is given back stays owned until the queue confirms it")
def _() -> None:
    @instead_of(Settler, "nack")
    def nack(original: Any, self: Any, delivery: Delivery, *args: Any, **options: Any) -> None:
        original(self, delivery, *args, **options)
        if delivery.pointer:
            self._tracker.track(delivery)

    @instead_of(Settler, "settle")
    async def settle(original: Any, self: Any) -> None:
        told = [delivery for batch in self._nacks.values() for delivery in batch]
        await original(self)
        for delivery in told:
            self._tracker.remove(delivery)


@BUGS.add("the ack of a copy is not recognised while it is under way")
def _() -> None:
    @instead_of(Settler, "ack")
    def ack(original: Any, self: Any, delivery: Delivery, *args: Any) -> None:
        original(self, delivery, *args)
        self._unowned.pop(delivery.broker_id, None)


@BUGS.add("a message is released when its ack is asked for")
def _() -> None:
    @instead_of(Settler, "ack")
    def ack(original: Any, self: Any, delivery: Delivery, *args: Any) -> None:
        original(self, delivery, *args)
        self._tracker.remove(delivery)


@BUGS.add("an ack that failed is not repeated")
def _() -> None:
    @instead_of(Settler, "_flush_acks")
    async def flush_acks(original: Any, self: Any, batch: list[Delivery]) -> bool:
        done = await original(self, batch)
        self._acks = [delivery for delivery in self._acks if delivery not in batch]
        return bool(done)


@BUGS.add("acks that failed in part are repeated as a whole")
def _() -> None:
    @instead_of(Settler, "_flush_acks")
    async def flush_acks(original: Any, self: Any, batch: list[Delivery]) -> bool:
        done = await original(self, batch)
        if any(delivery in batch for delivery in self._acks):
            self._acks = [*batch, *(delivery for delivery in self._acks if delivery not in batch)]
        return bool(done)


@BUGS.add("failed acks wait for the next message to be settled")
def _() -> None:
    @instead_of(Settler, "settle")
    async def settle(original: Any, self: Any) -> None:
        await original(self)
        self._work.clear()


@BUGS.add("a lost ack is not remembered")
def _() -> None:
    @instead_of(Settler, "_flush_acks")
    async def flush_acks(original: Any, self: Any, batch: list[Delivery]) -> bool:
        done = await original(self, batch)
        self._remembered.clear()
        return bool(done)


# Polls


@BUGS.add(
    "what cannot be read waits for room in the default pool",
    test="tests/integration/admission_test.py::"
    "test_what_cannot_be_read_waits_for_no_pool_and_holds_up_no_group_of_another",
)
def _() -> None:
    @instead_of(Router, "free_capacity")
    def free_capacity(original: Any, self: Any) -> Any:
        found = original(self)
        return FreeCapacity({code: some for code, some in found.pools.items() if code != UNREADABLE}, found.others)


@BUGS.add("a batch is routed a moment after it was checked")
def _() -> None:
    @instead_of(Router, "route")
    def route(original: Any, self: Any, batch: Sequence[Delivery]) -> None:
        asyncio.get_running_loop().call_later(0.05, original, self, batch)


@BUGS.add("an unreadable message is acked before it is recorded")
def _() -> None:
    @instead_of(Consumer, "_dead_letter")
    async def dead_letter(original: Any, self: Any, delivery: Delivery, reason: str) -> None:
        self._settler.ack(delivery)
        recorded = False
        while not recorded:
            try:
                await self._dead_letters.record(delivery, reason, None)
                recorded = True
            except FlowCatalystError:
                await asyncio.sleep(0.1)


@BUGS.add("an unreadable message is acked and forgotten")
def _() -> None:
    @instead_of(Consumer, "_dead_letter")
    async def dead_letter(original: Any, self: Any, delivery: Delivery, reason: str) -> None:
        self._settler.ack(delivery)


@BUGS.add("a queue is not polled while the pools it fed have no room")
def _() -> None:
    @instead_of(Consumer, "_until_capacity_grows")
    async def until_room_grows(original: Any, self: Any, seconds: float | None) -> bool:
        return bool(await original(self, None))


@BUGS.add("a queue is not polled while a pool that it fed has more than its capacity")
def _() -> None:
    @instead_of(Consumer, "_is_blocked_by_a_full_pool")
    def is_blocked(original: Any, self: Any) -> bool:
        over = [pool for pool in self._router.all_pools() if pool.parked and pool.code in self._fed]
        return any(not pool.asked_capacity() for pool in over)


@BUGS.add("a queue is not polled while a batch of its messages is not done")
def _() -> None:
    @instead_of(Consumer, "_poll_once")
    async def poll_once(original: Any, self: Any, *args: Any) -> None:
        await original(self, *args)
        while len(self._router.tracker) >= self._queue.batching.max_batch and not self._stop_asked.done():
            await self._pause(1.0)


@BUGS.add("a poll that failed ends the polling")
def _() -> None:
    @instead_of(Consumer, "_has_failed")
    async def has_failed(original: Any, self: Any, why: str) -> None:
        await asyncio.wait([self._stop_asked])


@BUGS.add("a consumer that waits is not told that a pool has room")
def _() -> None:
    @instead_of(Router, "_capacity_grew")
    def room_grew(original: Any, self: Any) -> None:
        return None


# The end of a router


@BUGS.add("a stop drains the pools before the polling ends")
def _() -> None:
    stop_consumers, drain_pools = Engine._stop_consumers, Engine._drain_pools

    @instead_of(Engine, "_stop_consumers")
    async def first(original: Any, self: Any) -> None:
        await drain_pools(self)

    @instead_of(Engine, "_drain_pools")
    async def second(original: Any, self: Any) -> None:
        await stop_consumers(self)


@BUGS.add("a stop leaves the watchers running")
def _() -> None:
    @instead_of(Tasks, "cancel")
    async def cancel(original: Any, self: Any) -> None:
        return None
