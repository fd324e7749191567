"""PostgreSQL as a queue: a few tables that behave like SQS FIFO.

Messages are durable when `publish` returns. A group with a hidden message (leased or delayed) is shown to nobody, so
its order survives failures, crashes and several routers at work on one queue. What a router has leased is its own for
as long as it lives: it renews one row every second or so, whatever it holds, and there is nothing to extend.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Attempt, Capabilities, Delivery, Settled
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.contract import (
    Batching,
    Demand,
    Depth,
    Loss,
    Outgoing,
    Published,
    check_outgoing,
)
from flowcatalyst.queues.front import GroupInHandError
from flowcatalyst.queues.inspection import StoredGroup, StoredHead, StoredMessage
from flowcatalyst.queues.postgres import inspect, lanes, owners
from flowcatalyst.queues.postgres.lanes import Ready, Receipt, Taken, entry_of
from flowcatalyst.queues.postgres.owners import Session
from flowcatalyst.queues.postgres.publishing import check_storable, parts
from flowcatalyst.queues.postgres.store import PostgresStore
from flowcatalyst.queues.sharing import MAX_CODES, share_out
from flowcatalyst.storage.postgres import Connection

__all__ = ["PostgresQueue", "PostgresStore"]

MAX_BATCH: Final = 512
LONG_POLL_S: Final = 1.0  # short: waiting again costs one statement, and a stop has to wait for it
POLL_INTERVAL_S: Final = 1.0  # should a notification be lost
CONTENDED_PAUSE_S: Final = 0.02  # what is ready is locked by somebody else; doubled each time
SETTLE_LINGER_S: Final = 0.02  # an ack costs a share of a commit; under load a little patience makes that share small


# Leases something in the name of an owner and its claim: of a connection, the number of the queue, and these.
Lease: TypeAlias = Callable[[Connection, int, int, int], Awaitable[Sequence[Taken]]]


class Held(NamedTuple):
    """A receipt, and the session in which it is ours."""

    receipt: Receipt
    session: Session


class OwedNack(NamedTuple):
    """Messages that were given back while the database could not be reached."""

    held: list[Held]
    failures: list[int]
    attempts: list[Attempt | None]  # for a queue that keeps them
    asked_at: float  # wall time
    delay_s: float
    due_at: float  # monotonic: their delay is over
    unlock: bool
    positions: Sequence[int] = ()  # the same


class PostgresQueue:
    """One named queue of a store, both ends of it."""

    _is_dated = True  # tells how old the oldest message is
    _hurries = True

    def __init__(self, store: PostgresStore, name: str, label: str | None = None) -> None:
        self.name = label or name  # what operators see
        self.queue = name  # what it is called in the database
        self.store = store
        self.calls: Mapping[str, int] = {}
        self.losses: list[Loss] = []
        self.capabilities = Capabilities(
            ordered_redelivery=True,
            locks_groups=True,
            delayed_nack=True,
            extends=False,
            selects_pools=True,
            hurries=self._hurries,
            visibility_s=math.inf,
            long_poll_s=LONG_POLL_S,
        )
        self.batching = Batching(MAX_BATCH, settle_linger_s=SETTLE_LINGER_S)
        self._clock: Clock = store.clock
        self._monotonic = store.clock.monotonic
        self._tasks = Tasks()
        self._receives = False
        self._closed = False
        self.elsewhere: frozenset[str] = frozenset()  # pools whose messages are not for `receive`
        self._codes_after: str | None = None  # where the next look at the pools that messages name begins
        self._changes = 0  # counts wake-ups, so that none is lost between a look and the wait after it
        self._sleepers: set[asyncio.Future[None]] = set()
        self._owed: list[OwedNack] = []  # that could not be sent: no lease ends by itself here

    @property
    def setup_warnings(self) -> Sequence[str]:
        return self.store.setup_warnings

    async def open(self) -> None:
        """It connects when it is first used."""
        self._closed = False
        self.store.queues.add(self)

    async def close(self) -> None:
        """Give back what is leased from this queue."""
        self._closed = True
        if self not in self.store.queues:
            return
        self.store.queues.discard(self)
        self.wake()
        await self._tasks.cancel()
        with suppress(QueueUnavailableError):  # else they are free with all the others, without their delay
            await self._pay_nacks()
        self._owed.clear()
        if not self.store.queues:
            await self.store.close()
        elif self._receives and (session := self.store.session) is not None:
            with suppress(QueueUnavailableError):  # free when the store closes, then
                number = await self.store.number_of(self.queue)
                await self.store.run(partial(owners.release, owner=session.owner, queue=number))
        self._receives = False

    async def reconnect(self) -> None:
        await self.store.reconnect()

    def wake(self) -> None:
        """Make those who wait in `receive` look again."""
        self._changes += 1
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def note_loss(self, what: str, held: int | None) -> None:
        """Once: `held` messages were seen last. What was published since then nobody knows."""
        seen = "" if held is None else f": it held {held} messages when last seen"
        self.losses.append(Loss(f"{what}{seen}", held or None))

    def fit(self, capacity: int) -> None:
        """It hands out whatever it is asked for."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order. They are durable when this returns."""
        for message in messages:
            check_outgoing(message)
            check_storable(message)
        published: list[Published] = []
        for part in parts([entry_of(message) for message in messages]):
            number = await self.store.number_of(self.queue)
            places = await self.store.run(partial(lanes.publish, queue=number, entries=part))
            published += [Published(self._broker_id(seq), duplicate=duplicate) for seq, duplicate in places]
        if published:
            self.store.wake(self.queue)
        return published

    async def publish_in_front(self, message: Outgoing) -> Published:
        """Put a message before all that its group holds. It is durable when this returns."""
        if message.group is None:
            [published] = await self.publish([message])
            return published
        check_outgoing(message)
        check_storable(message)
        number = await self.store.number_of(self.queue)
        placed = await self.store.run(partial(lanes.publish_in_front, queue=number, entry=entry_of(message)))
        if placed is None:
            raise GroupInHandError(message.group)
        self.store.wake(self.queue)
        seq, duplicate = placed
        return Published(self._broker_id(seq), duplicate=duplicate)

    # Receiving

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages, as many for each pool as it has free capacity for; empty when none came in time."""
        assert limit > 0, "ask for at least one message"
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        end_notice = demand.on_growth(self.wake) if demand is not None else _nothing
        self._receives = True
        contended_pause_s = CONTENDED_PAUSE_S
        try:
            while True:
                if self._closed:
                    return []
                changes = self._changes
                session = await self.store.owner()
                await self._pay_nacks()
                ready = await self._look(demand)
                free_capacity = demand.free_capacity() if demand is not None else None
                here = [code for code in ready.pools if code not in self.elsewhere]
                wanted = share_out(min(limit, self.batching.max_batch), here, free_capacity)
                taken = await self._take(session, partial(self._leased, wanted=wanted)) if wanted else []
                left_s = give_up_at - loop.time()
                if taken or left_s <= 0 or self._closed:
                    return taken
                if wanted:
                    await self._sleep(changes, min(contended_pause_s, left_s))
                    contended_pause_s = min(2 * contended_pause_s, POLL_INTERVAL_S)
                elif not self.store.is_announced:
                    await self.store.announce()
                else:
                    pause_s = (
                        POLL_INTERVAL_S if ready.due_in_s is None else min(POLL_INTERVAL_S, ready.due_in_s + 0.001)
                    )
                    await self._sleep(changes, min(left_s, pause_s))
        except QueueUnavailableError:
            if self._closed:
                return []
            raise
        finally:
            end_notice()

    async def _look(self, demand: Demand | None) -> Ready:
        """For which pools there is something. Not all are seen at once where messages name very many."""
        number = await self.store.number_of(self.queue)
        after = self._codes_after
        found = await self.store.run(partial(self._ready, number=number, after=after))
        if after is not None and len(found.pools) < MAX_CODES:  # from the beginning again
            self._codes_after = None
            return await self._look(demand)
        self._codes_after = found.last if len(found.pools) == MAX_CODES else None
        if self._codes_after is not None and demand is not None:
            free = demand.free_capacity().pools
            with_capacity = [code for code in free if free[code] > 0 and code not in found.pools]
            return Ready([*with_capacity, *found.pools], found.last, found.due_in_s)
        return found

    async def _take(self, session: Session, lease: Lease) -> list[Delivery]:
        """What can be had now. If the caller is cancelled, what was leased all the same is given back."""
        leasing: asyncio.Future[Sequence[Taken]] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._lease(session, lease, leasing), "take from postgres")
        try:
            taken = await asyncio.shield(leasing)
        except asyncio.CancelledError:
            leasing.add_done_callback(partial(self._requeue_cancelled, session))
            raise
        return self._deliveries(taken, session)

    async def _lease(self, session: Session, lease: Lease, leasing: "asyncio.Future[Sequence[Taken]]") -> None:
        claim = session.new_claim()

        async def take(connection: Connection) -> Sequence[Taken]:
            try:
                return await lease(connection, number, session.owner, claim)
            except asyncpg.PostgresError as error:
                if error.sqlstate not in (lanes.OWNER_GONE, lanes.CLAIM_VOID):
                    raise
                session.ended |= error.sqlstate == lanes.OWNER_GONE
                return []

        try:
            number = await self.store.number_of(self.queue)
            leasing.set_result([] if session.ended else await self.store.run(take))
        except QueueUnavailableError as error:
            session.doubtful.add(claim)  # the answer was lost: it may have leased something
            leasing.set_exception(error)
        except BaseException:
            session.doubtful.add(claim)
            leasing.set_exception(QueueUnavailableError(f"queue {self.name} was closed"))
            raise

    def _requeue_cancelled(self, session: Session, leasing: "asyncio.Future[Sequence[Taken]]") -> None:
        if not leasing.cancelled() and leasing.exception() is None and (taken := leasing.result()):
            held = [Held(one.receipt, session) for one in taken]
            failures = [one.failures for one in taken]
            self._owed.append(OwedNack(held, failures, [None] * len(held), self._clock.wall(), 0.0, 0.0, unlock=False))
            self.wake()

    async def _sleep(self, changes: int, seconds: float) -> None:
        """Until the queue may have changed, or for so long."""
        if self._changes != changes:
            return
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.add(sleeper)
        try:
            with self.store.sleeping(), suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await sleeper
        finally:
            self._sleepers.discard(sleeper)

    # Settling

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""
        if not deliveries:
            return []
        results = await self.store.run(partial(self._acked, deliveries=deliveries))
        self.store.wake(self.queue)
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`. With `unlock` they stop holding their group back meanwhile."""
        if not deliveries:
            return []
        held = [delivery.receipt for delivery in deliveries]
        due_at = self._monotonic() + delay_s if delay_s > 0 else 0.0
        failures, attempts = [one.failures for one in deliveries], [one.attempt for one in deliveries]
        positions = [one.position for one in deliveries]
        nack = OwedNack(held, failures, attempts, self._clock.wall(), delay_s, due_at, unlock, positions)
        try:
            results = await self._nack(nack)
        except QueueUnavailableError:
            self._owed.append(nack)
            results = []
        # What failed is made good before the next look, should we still own it then.
        return [
            Settled.GONE if result is Settled.GONE else Settled.OK for result in results or [Settled.OK] * len(held)
        ]

    async def _nack(self, nack: OwedNack) -> list[Settled]:
        delay_s = max(nack.due_at - self._monotonic(), 0.0)
        results = await self.store.run(partial(self._nacked, nack=nack, delay_s=delay_s))
        busy = [place for place, result in enumerate(results) if result is Settled.FAILED]
        if busy:
            held, failures = [nack.held[place] for place in busy], [nack.failures[place] for place in busy]
            attempts = [nack.attempts[place] for place in busy]
            positions = [nack.positions[place] for place in busy] if nack.positions else ()
            left = nack._replace(held=held, failures=failures, attempts=attempts, positions=positions)
            self._owed.append(left)
        self.store.wake(self.queue)
        return results

    async def _pay_nacks(self) -> None:
        """What is of a session that has ended is free anyway."""
        owed, self._owed = self._owed, []
        while owed:
            try:
                if any(not one.session.ended for one in owed[0].held):
                    await self._nack(owed[0])
                del owed[0]
            except BaseException:
                self._owed = owed + self._owed
                raise

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """There is nothing to do: what is ours stays so while our session lives."""
        return [Settled.OK if self.still_ours(delivery) else Settled.GONE for delivery in deliveries]

    async def hurry(self, delivery: Delivery) -> bool:
        """Show a message that was nacked with a delay, and what was nacked with it, at once."""
        seq = self._seq_of(delivery.broker_id)
        found = await self.store.run(partial(lanes.hurry, queue=self.queue, group=delivery.group, seq=seq))
        self.store.wake(self.queue)
        return found

    # Looks (the `InspectableQueue`)

    async def find(self, name: str) -> StoredMessage | None:
        """A message by its broker id or its application id."""
        if "\0" in name:
            return None
        seq = self._seq_of(name)
        place = None if seq is None else await self.store.run(partial(inspect.place, queue=self.queue, seq=seq))
        if place is None:
            async with self.store.searching:
                place = await inspect.search(self.store.run, self.queue, name)
        if place is None:
            return None
        return await self.store.run(partial(inspect.message, queue=self.queue, place=place, broker_id=self._broker_id))

    async def look_at(self, groups: Sequence[str]) -> dict[str, StoredGroup]:
        names = [name for name in groups if "\0" not in name]
        look = partial(inspect.groups, queue=self.queue, names=names, broker_id=self._broker_id)
        return await self.store.run(look)

    async def heads(self, groups: Sequence[str]) -> dict[str, StoredHead]:
        names = [name for name in groups if "\0" not in name]
        look = partial(inspect.heads, queue=self.queue, names=names, broker_id=self._broker_id)
        return await self.store.run(look)

    async def delayed_groups(self, most: int) -> list[StoredGroup]:
        look = partial(inspect.delayed_groups, queue=self.queue, most=most, broker_id=self._broker_id)
        return await self.store.run(look)

    def still_ours(self, delivery: Delivery) -> bool:
        """Until our session ends, or may have ended without our knowledge: we were paused, or are cut off."""
        session: Session = delivery.receipt.session
        return session.is_alive(self._monotonic())

    # Looking

    async def depth(self) -> Depth:
        """How many messages the queue holds. It costs the same for a million, and makes no tables."""
        try:
            return await self.store.run(partial(lanes.depth, queue=self.queue, dated=self._is_dated), migrates=False)
        except QueueUnavailableError:
            if self.store.pool.has_tables is False:
                return Depth(0, 0, 0)
            raise

    async def waiting_for(self, pool: str, most: int) -> int:
        """How many messages could be received now for this pool, as far as their groups begin with it, up to `most`."""
        number = await self.store.number_of(self.queue)
        return await self.store.run(partial(lanes.waiting_for, queue=number, pool=pool, most=most))

    # What a queue of jobs does in ways of its own, as statements

    async def _ready(self, connection: Connection, number: int, after: str | None) -> Ready:
        return await lanes.look(connection, number, after, MAX_CODES)

    async def _leased(
        self, connection: Connection, number: int, owner: int, claim: int, wanted: dict[str, int]
    ) -> Sequence[Taken]:
        return await lanes.take(connection, number, owner, claim, wanted)

    def _deliveries(self, taken: Sequence[Any], session: Session) -> list[Delivery]:
        return [
            Delivery(
                self._broker_id(one.seq),
                Held(one.receipt, session),
                one.body,
                one.group,
                one.receives,
                0.0,
                one.failures,
                due_at=one.published_at,
            )
            for one in taken
        ]

    async def _acked(self, connection: Connection, deliveries: Sequence[Delivery]) -> list[Settled]:
        return await lanes.ack(connection, [delivery.receipt.receipt for delivery in deliveries])

    async def _nacked(self, connection: Connection, nack: OwedNack, delay_s: float) -> list[Settled]:
        receipts = [one.receipt for one in nack.held]
        return await lanes.nack(connection, receipts, nack.failures, delay_s, unlock=nack.unlock)

    def _broker_id(self, seq: int) -> str:
        return f"postgres-{self.store.id}-{seq}"

    def _seq_of(self, broker_id: str) -> int | None:
        """None: it is not of this database."""
        seq = broker_id.removeprefix(self._broker_id(0)[:-1])
        return int(seq) if seq.removeprefix("-").isdecimal() else None


def _nothing() -> None:
    """Nobody was asked for notices."""
