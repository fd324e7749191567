"""The embedded queue: a SQLite file that behaves like SQS FIFO.

Messages are durable when `publish` returns. A group with a hidden message (leased or delayed) is shown to nobody, so
its order survives failures, crashes and several processes on one file.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from sqlite3 import Connection
from typing import Any, Final, TypeVar

from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.message import Capabilities, Delivery, Settled
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
from flowcatalyst.queues.embedded import inspect
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.queues.embedded import take as embedded_take
from flowcatalyst.queues.embedded.lanes import Receipt
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.embedded.take import Leased, Taken
from flowcatalyst.queues.front import GroupInHandError
from flowcatalyst.queues.inspection import SEARCHED, StoredGroup, StoredHead, StoredMessage

__all__ = ["EmbeddedQueue", "EmbeddedStore"]

# An ack costs an index walk and a share of an fsync; under load a few milliseconds of patience make that share small.
SETTLE_LINGER_S: Final = 0.02
CLOCK_GRAIN_S: Final = 0.001  # what is due in less may not be due yet by another clock: no reason to look at once

BROKER_ID: Final = "embedded"  # what its messages are called, with the id of the store and their number

T = TypeVar("T")


class EmbeddedQueue:
    """One named queue of a store, both ends of it."""

    _is_dated = True  # tells how old the oldest message is
    _hurries = True

    def __init__(
        self,
        store: EmbeddedStore,
        name: str,
        *,
        visibility_s: float = 60.0,
        poll_interval_s: float = 0.1,
        max_batch: int = 512,
        long_poll_s: float = 1.0,  # short: waiting again is free here, and a stop has to wait for it
        pool: str | None = None,  # that all of its messages are for, whatever they say; None: each names its own
    ) -> None:
        self.name = name
        self.pool = pool
        self.store = store
        self.setup_warnings: Sequence[str] = ()
        self.calls: Mapping[str, int] = {}
        self.losses: list[Loss] = []
        self._noted = ""  # the text of one that may be withdrawn
        self.capabilities = Capabilities(
            ordered_redelivery=True,
            locks_groups=True,
            delayed_nack=True,
            extends=True,
            selects_pools=True,
            hurries=self._hurries,
            visibility_s=visibility_s,
            long_poll_s=long_poll_s,
        )
        self.batching = Batching(max_batch, settle_linger_s=SETTLE_LINGER_S)
        self._poll_interval_s = poll_interval_s
        self._clock = store.clock
        self._elsewhere: frozenset[str] = frozenset()  # pools, in JSON, whose messages others hand out
        self._codes_after = ""  # where the next look at the pools that messages name begins
        self._changes = 0  # counts wake-ups, so that none is lost between a look and the wait after it
        self._sleepers: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        await self.store.open()
        self.store.queues.add(self)

    async def close(self) -> None:
        """Give back what is leased from this queue."""
        if self not in self.store.queues:
            return
        self.store.queues.discard(self)
        self.wake()
        if not self.store.queues:
            await self.store.close()
        elif all(other.name != self.name for other in self.store.queues):
            await self._run(
                partial(
                    embedded_jobs.release,
                    owners=[self.store.owner],
                    now=self.store.now(),
                    queue=self.name,
                    delays=self.store.delays,
                )
            )

    async def reconnect(self) -> None:
        """There is a file and no connection."""

    def note_loss(self, what: str, messages: int) -> None:
        text = f"{what}; it held {messages} messages, which are delivered until the router stops and are gone then"
        self.losses.append(Loss(text, messages))
        self._noted = text

    def withdraw_loss(self) -> None:
        if self._noted:
            self.losses.append(Loss(self._noted, 0, withdrawn=True))
            self._noted = ""

    def wake(self) -> None:
        """Make those who wait in `receive` look again."""
        self._changes += 1
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def fit(self, capacity: int) -> None:
        """It hands out whatever it is asked for."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order, all or none. They are durable when this returns."""
        if not messages:
            return []
        for message in messages:
            check_outgoing(message)
        accept = partial(embedded_jobs.publish, queue=self.name, messages=tuple(messages), pool=self.pool)
        accept = partial(accept, now=self.store.now(), wall=self._clock.wall())
        return self._published(await self._run(partial(self._store_if_found, accept)))

    async def publish_in_front(self, message: Outgoing) -> Published:
        """Put a message before all that its group holds. It is durable when this returns."""
        check_outgoing(message)
        accept = partial(embedded_jobs.publish_in_front, queue=self.name, message=message, pool=self.pool)
        accept = partial(accept, now=self.store.now(), wall=self._clock.wall())
        if (accepted := await self._run(partial(self._store_if_found, accept))) is None:
            raise GroupInHandError(message.group)
        return self._published(accepted)[0]

    def _published(self, accepted: embedded_jobs.Accepted) -> list[Published]:
        return [
            Published(f"{BROKER_ID}-{self.store.id}-{seq}", duplicate=position in accepted.duplicates)
            for position, seq in enumerate(accepted.seqs)
        ]

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages, as many for each pool as it has free capacity for; empty when none came in time."""
        assert limit > 0, "ask for at least one message"
        end_notice = demand.on_growth(self.wake) if demand is not None else _nothing
        try:
            return await self._receive(partial(self._take, min(limit, self.batching.max_batch), demand), wait_s)
        finally:
            end_notice()

    async def _receive(self, take: Callable[[], Awaitable[tuple[Taken, float]]], wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        while True:
            changes = self._changes
            taken, lease_until = await take()
            if not taken.messages and self.store.moved:
                raise QueueUnavailableError(self.store.moved)
            if taken.messages or loop.time() >= give_up_at:
                return self._deliveries(taken, lease_until)
            await self._wait_for_change(changes, taken, give_up_at)

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""
        receipts = [delivery.receipt for delivery in deliveries]
        if not receipts:
            return []
        ready: set[int] = set()  # lanes, perhaps: while a lease goes on there is nothing new to look for
        job = partial(embedded_jobs.ack, queue=self.name, receipts=receipts, now=self.store.now(), refreshed=ready)
        with storage_errors_as_queue_errors():
            done = self.store.writer.submit(job)
            done.add_done_callback(lambda done: self._after_commit(done) if ready else None)
            return await asyncio.shield(done)

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`. With `unlock` they stop holding their group back meanwhile."""
        failures = [(delivery.receipt, delivery.failures) for delivery in deliveries]
        job = partial(embedded_jobs.nack, queue=self.name, failures=failures, now=self.store.now(), delay_s=delay_s)
        return await self._run(partial(job, unlock=unlock)) if failures else []

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """Keep messages hidden for `seconds` from now and set their `lease_until`."""
        if not deliveries:
            return []
        receipts = [delivery.receipt for delivery in deliveries]
        lease_until, until = self._clock.monotonic() + seconds, self.store.now() + seconds
        results = await self._run(partial(embedded_jobs.extend, receipts=receipts, owner=self.store.owner, until=until))
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Settled.OK:
                delivery.lease_until = lease_until
        return results

    async def hurry(self, delivery: Delivery) -> bool:
        """Show a message that was nacked with a delay, and what was nacked with it, at once."""
        seq = self._seq_of(delivery.broker_id)
        return await self._run(
            partial(embedded_jobs.hurry, queue=self.name, group=delivery.group, seq=seq, now=self.store.now())
        )

    def still_ours(self, delivery: Delivery) -> bool:
        """Only its lease, which the router watches itself, can end."""
        return True

    async def depth(self) -> Depth:
        """How many messages the queue holds. They are counted as they come and go: it costs the same for a million."""
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(partial(self._depth, now=self.store.now()))

    def _depth(self, connection: Connection, now: float) -> Depth:
        """In the reader's thread."""
        depth = embedded_jobs.depth(connection, self.name, now)
        if not self._is_dated:
            return depth
        return replace(depth, oldest_at=inspect.oldest_at(connection, self.name))

    async def waiting_for(self, pool: str, most: int) -> int:
        """How many messages could be received now for this pool, as far as their groups begin with it, up to `most`."""
        if self.pool is not None:
            return min((await self.depth()).waiting, most) if pool == self.pool else 0
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(
                partial(embedded_jobs.waiting_for, queue=self.name, pool=pool, most=most)
            )

    # Looks (the `InspectableQueue`)

    async def find(self, name: str) -> StoredMessage | None:
        """A message by its broker id or its application id, looked for in slices: it may take a second or two."""
        seq, place, after = self._seq_of(name), None, inspect.BEGIN
        for _ in range(SEARCHED // inspect.SLICE):
            look = partial(inspect.search, queue=self.name, name=name, seq=seq, after=after)
            with storage_errors_as_queue_errors():
                place, next_after = await self.store.writer.read(look)
            if place is not None or next_after is None:
                break
            after = next_after
        if place is None:
            return None
        look_at = partial(
            inspect.message, queue=self.name, place=place, now=self.store.now(), broker_id=self._broker_id
        )
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(look_at)

    async def look_at(self, groups: Sequence[str]) -> dict[str, StoredGroup]:
        look = partial(inspect.groups, queue=self.name, names=groups, now=self.store.now(), broker_id=self._broker_id)
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(look)

    async def heads(self, groups: Sequence[str]) -> dict[str, StoredHead]:
        look = partial(inspect.heads, queue=self.name, names=groups, broker_id=self._broker_id)
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(look)

    async def delayed_groups(self, most: int) -> list[StoredGroup]:
        look = partial(
            inspect.delayed_groups, queue=self.name, most=most, now=self.store.now(), broker_id=self._broker_id
        )
        with storage_errors_as_queue_errors():
            return await self.store.writer.read(look)

    async def _take(self, limit: int, demand: Demand | None) -> tuple[Taken, float]:
        """What can be had now, and the monotonic time when its leases end."""
        visibility_s = self.capabilities.visibility_s
        take = partial(embedded_take.take, queue=self.name, limit=limit, visibility_s=visibility_s)
        with storage_errors_as_queue_errors():
            await self.store.reap_now_and_then()
            free_capacity = demand.free_capacity() if demand is not None else None
            if free_capacity is not None and self.pool is not None:
                free_capacity = FreeCapacity({}, free_capacity.of(self.pool))  # of all, whoever published them
            lease_until = self._clock.monotonic() + visibility_s
            job = partial(
                take,
                owner=self.store.owner,
                now=self.store.now(),
                free_capacity=free_capacity,
                codes_after=self._codes_after,
                delays=self.store.delays,
                elsewhere=self._elsewhere,
            )
            taken = await self._leased(partial(self._lease, job))
            self._codes_after = taken.codes_seen_to
            return taken, lease_until

    async def _leased(self, job: Callable[[Connection], Taken]) -> Taken:
        leasing = self.store.writer.submit(job)
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            leasing.add_done_callback(self._requeue)  # the lease is, or will be, committed all the same
            raise

    def _lease(self, take: Callable[[Connection], Taken], connection: Connection) -> Taken:
        """In the writer's thread, as one transaction."""
        return take(connection)

    def _requeue(self, leasing: asyncio.Future[Taken]) -> None:
        if leasing.cancelled() or leasing.exception() or not leasing.result().messages:
            return
        failures = [(message.receipt, message.failures) for message in leasing.result().messages]
        with suppress(StorageError):  # closed meanwhile: closing gave everything back
            now = self.store.now()
            nack = partial(embedded_jobs.nack, queue=self.name, failures=failures, now=now, delay_s=0.0)
            self._submit(partial(nack, delays=self.store.delays))

    async def _wait_for_change(self, changes: int, taken: Taken, give_up_at: float) -> None:
        """Return when the queue may have messages again, or at `give_up_at`."""
        loop = asyncio.get_running_loop()
        if taken.next_due is not None:
            give_up_at = min(give_up_at, loop.time() + max(taken.next_due - self.store.now(), CLOCK_GRAIN_S))
        while self._changes == changes and (left := give_up_at - loop.time()) > 0:
            await self._sleep(min(left, self._poll_interval_s))
            with storage_errors_as_queue_errors():
                await self.store.reap_now_and_then()
                if await self.store.writer.read_in_turn(embedded_jobs.data_version) != taken.data_version:
                    return

    async def _sleep(self, seconds: float) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.add(sleeper)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await sleeper
        finally:
            self._sleepers.discard(sleeper)

    async def _run(self, job: Callable[[Connection], T]) -> T:
        with storage_errors_as_queue_errors():
            return await asyncio.shield(self._submit(job))

    def _submit(self, job: Callable[[Connection], T]) -> asyncio.Future[T]:
        done = self.store.writer.submit(job)
        done.add_done_callback(self._after_commit)  # not after the await: a cancelled caller's job commits too
        return done

    def _after_commit(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.store.wake(self.name)

    def _store_if_found(self, job: Callable[[Connection], T], connection: Connection) -> T:
        """What goes into a file that nobody finds again is not durable."""
        if moved := self.store.where_it_went():
            raise StorageError(moved)
        return job(connection)

    def _broker_id(self, seq: int) -> str:
        return f"{BROKER_ID}-{self.store.id}-{seq}"

    def _seq_of(self, broker_id: str) -> int | None:
        """None: it is not of this file."""
        seq = broker_id.removeprefix(f"{BROKER_ID}-{self.store.id}-")
        return int(seq) if seq.removeprefix("-").isdecimal() else None

    def _deliveries(self, taken: Taken, lease_until: float) -> list[Delivery]:
        return [self._delivery(message, lease_until) for message in taken.messages]

    def _delivery(self, message: Leased, lease_until: float) -> Delivery:
        _, seq, lane, epoch, receives, failures, _, published_at, group, body = message
        broker_id, receipt = f"{BROKER_ID}-{self.store.id}-{seq}", Receipt(seq, lane, epoch)
        return Delivery(broker_id, receipt, body, group, receives, lease_until, failures, due_at=published_at)


def _nothing() -> None:
    """Nobody was asked for notices."""


@contextmanager
def storage_errors_as_queue_errors() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise QueueUnavailableError(str(error)) from None
