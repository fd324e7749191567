"""A NATS JetStream stream as a queue: a durable pull consumer with explicit acks.

JetStream keeps order when it delivers, not when it delivers again. What that asks of us is in nats_takeover.py (after a
crash or a broken connection) and in `nack` (nacks at a shutdown).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from nats.aio.msg import Msg

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.headers import TRACEPARENT, trace_context
from flowcatalyst.core.message import Capabilities, Delivery, Settled
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.contract import Batching, Demand, Depth, Loss, Outgoing, Published, check_outgoing
from flowcatalyst.queues.nats.format import ACK, ID_HEADER, IN_PROGRESS, NAK, Receipt, delayed_nak, group_of, pending_in
from flowcatalyst.queues.nats.ledger import Ledger
from flowcatalyst.queues.nats.link import NO_RESPONDERS, ApiError, Link, NatsLogin, Request, status_of, where_of
from flowcatalyst.queues.nats.losses import LossWatch
from flowcatalyst.queues.nats.mailbox import Mailbox
from flowcatalyst.queues.nats.publish import StreamGoneError, publish
from flowcatalyst.queues.nats.setup import (
    Consumer,
    SetupMissingError,
    Stream,
    Wishes,
    consumer_state,
    prepare_consumer,
    prepare_stream,
)
from flowcatalyst.queues.nats.takeover import Takeover
from flowcatalyst.queues.recent import Recent

__all__ = ["NatsLogin", "NatsQueue"]

MAX_BATCH: Final = 256
LONG_POLL_S: Final = 5.0  # short: waiting again costs one request, and a stop has to wait for it
LEAST_ACK_PENDING: Final = 1000
REFUSED_PAUSE_S: Final = 0.25
CALM_S: Final = 5.0  # two routers at one consumer must not take their messages from each other all the time
FAILURES_REMEMBERED: Final = 100_000


@dataclass(slots=True)
class _Session:
    """One connection, and what is known of the other end and done there over it."""

    link: Link
    stream: Stream | None = None
    consumer: Consumer | None = None
    takeover: Takeover | None = None  # under way
    took_over: bool = False
    shared: bool = False  # somebody else got messages although nobody else should receive
    calm_until: float = 0.0  # monotonic; no other takeover before


class NatsQueue:
    """One stream and one consumer, both ends of it."""

    def __init__(
        self,
        name: str,
        address: NatsAddress,
        clock: Clock,
        *,
        visibility_s: float,
        login: NatsLogin,
        foreign: bool = False,  # its bodies are no pointers, whatever is in them
    ) -> None:
        self.name = name
        self.setup_warnings: Sequence[str] = ()
        self.calls: Mapping[str, int] = {}  # nothing costs money here
        self.capabilities = Capabilities(
            ordered_redelivery=False,
            locks_groups=False,
            delayed_nack=True,
            extends=True,
            visibility_s=visibility_s,
            long_poll_s=LONG_POLL_S,
        )
        self.batching = Batching(MAX_BATCH)
        self._address = address
        self._clock = clock
        self._login = login
        self._foreign = foreign
        self._wishes = Wishes(visibility_s, LEAST_ACK_PENDING)
        self._where = where_of(address.servers)
        self._closed = False
        self._session: _Session | None = None
        self._connecting = asyncio.Lock()
        self._receiving = asyncio.Lock()
        self._identity = ""  # when the stream was created
        self._is_missing = False  # stream or consumer: what came from them cannot be settled
        self._ack_wait_s = visibility_s
        self._ledger = Ledger()
        self._loss_watch = LossWatch(address.stream, address.consumer)
        self._mailbox = Mailbox(address, clock)
        self._failures: Recent[str, int] = Recent(FAILURES_REMEMBERED)  # by broker id: JetStream has no place for it

    @property
    def losses(self) -> list[Loss]:
        return self._loss_watch.found

    def fit(self, capacity: int) -> None:
        """The consumer has to let so many be in flight; it is changed before the next receive."""
        wanted = max(capacity + 2 * MAX_BATCH, LEAST_ACK_PENDING)
        if wanted != self._wishes.max_ack_pending:
            self._wishes = replace(self._wishes, max_ack_pending=wanted)
            if self._session is not None:
                self._session.consumer = None

    async def open(self) -> None:
        """It connects when it is first used."""
        self._closed = False

    async def close(self) -> None:
        """Requeue what is not settled, in its order."""
        self._closed = True
        async with self._connecting:
            session, self._session = self._session, None
        if session is None:
            return
        await self._mailbox.detach()
        if session.link.alive:
            unsettled = self._ledger.held | self._replies_of_waiting() | self._ledger.nacked
            with suppress(QueueUnavailableError):
                await self._requeue(session.link, unsettled)
        self._ledger.let_go()
        self._mailbox.waiting.clear()
        await session.link.close(politely=session.link.alive)

    async def reconnect(self) -> None:
        """The takeover over the next connection looks after what was on its way."""
        if self._session is not None:
            await self._session.link.close(politely=False)

    # Receiving

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages, oldest first in each group; empty when none came within `wait_s`."""
        assert limit > 0, "ask for at least one message"
        until = asyncio.get_running_loop().time() + wait_s
        async with self._receiving:  # two pulls at a time would interleave a group
            try:
                session = await self._connected()
                ready = await self._is_ready(session, until) and await self._fill_mailbox(session, limit, until)
                return self._hand_out(limit) if ready else []
            except QueueUnavailableError:
                if self._closed:
                    return []
                raise

    async def _is_ready(self, session: _Session, until: float) -> bool:
        """Set up, and everything that others left is in the mailbox. False: not within the time."""
        consumer = await self._set_up(session)
        if session.took_over:
            return True
        if session.takeover is None:
            await self._mailbox.attach(session.link)
            session.takeover = Takeover(
                session.link,
                self._address,
                self._ledger,
                self._mailbox,
                self._clock,
                ack_wait_s=consumer.ack_wait_s,
                longest_pull_s=LONG_POLL_S,
                max_batch=consumer.max_batch or MAX_BATCH,
            )
        with self._refusals_as_queue_errors(session):
            if not await session.takeover.go_on(until):
                return False
        session.takeover, session.took_over = None, True
        return True

    async def _fill_mailbox(self, session: _Session, limit: int, until: float) -> bool:
        """Pull, unless something is there already. False if what came may not be handed out yet."""
        if self._ledger.nacked:
            await self._requeue(session.link, self._ledger.nacked | self._replies_of_waiting())
        if not self._mailbox.waiting:
            wait_s = until - asyncio.get_running_loop().time()
            consumer = await self._set_up(session)  # again: `fit` may have changed what it has to be like
            most, longest_s = consumer.max_batch or MAX_BATCH, consumer.max_expires_s or LONG_POLL_S
            await self._mailbox.pull(min(limit, most), min(wait_s, longest_s))
            if self._mailbox.last_error and not self._mailbox.brought:
                # The stream or the consumer is gone, its leader moves, or the server hangs: looking again tells.
                session.stream = session.consumer = None
                await self._set_up(session)
                await asyncio.sleep(REFUSED_PAUSE_S)
        calm = self._clock.monotonic() < session.calm_until
        if (self._mailbox.restarted or (self._mailbox.missed and not calm)) and not self._closed:
            # Deliveries that are not ours, or another stream: look at everything again before using what came.
            session.shared |= self._mailbox.missed
            session.calm_until = self._clock.monotonic() + CALM_S
            session.stream, session.consumer, session.took_over = None, None, False
            if not await self._is_ready(session, until):
                return False
        # The server lost these acks in a crash, or crossed them with the end of a lease.
        acked = self._ledger.acks_among(self._mailbox.waiting)
        replies = [self._mailbox.waiting.pop(seq).message.reply for seq in acked]
        for reply in replies:
            await session.link.send(reply, ACK)
        return not self._closed

    def _hand_out(self, limit: int) -> list[Delivery]:
        waiting, address = self._mailbox.waiting, self._address
        deliveries: list[Delivery] = []
        for seq in list(islice(waiting, limit)):
            arrived = waiting.pop(seq)
            message, broker_id = arrived.message, self._broker_id(seq)
            headers, pointer = message.headers, b"" if self._foreign else message.data
            self._ledger.came(seq, message.reply)
            delivery = Delivery(
                broker_id,
                Receipt(message.reply, seq),
                message.data,
                group_of(headers, message.subject, pointer, address.group_header, address.group_token),
                arrived.place.delivered,
                arrived.at + self._ack_wait_s,
                self._failures.get(broker_id) or 0,
                headers.get(ID_HEADER, "") if headers else "",
                due_at=arrived.place.stored_at,
            )
            if headers and TRACEPARENT in headers:
                delivery.trace_context = trace_context(headers)
            deliveries.append(delivery)
        if deliveries:
            self._loss_watch.came(arrived.place.delivery, pending_in(arrived.message.reply))
        return deliveries

    def _broker_id(self, seq: int) -> str:
        return f"nats-{self._address.stream}-{self._identity}-{seq}"

    def _replies_of_waiting(self) -> dict[int, str]:
        return {seq: arrived.message.reply for seq, arrived in self._mailbox.waiting.items()}

    # Settling

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""
        results = await self._settle(deliveries, ACK)
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Settled.OK:
                self._ledger.ack(delivery.receipt.seq)
                self._failures.pop(delivery.broker_id)
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`.

        JetStream shows them in the order in which they are nacked. A router that stops nacks in any order, so
        those without a delay are only noted, and nacked in order before the next pull or at the close.
        """
        for delivery in deliveries:
            if delivery.failures:
                self._failures.put(delivery.broker_id, delivery.failures)
        ours = [delivery.receipt for delivery in deliveries if self._is_ours(delivery)]
        if delay_s > 0:
            until = self._clock.monotonic() + delay_s
            for receipt in ours:
                self._ledger.delay(receipt.seq, until)
            return await self._settle(deliveries, delayed_nak(delay_s))
        for receipt in ours:
            self._ledger.requeue(receipt.seq, receipt.reply)
        return [Settled.OK if self._is_ours(delivery) else Settled.GONE for delivery in deliveries]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """Keep messages hidden: JetStream does it for the consumer's ack_wait, whatever is asked for."""
        until = self._clock.monotonic() + self._ack_wait_s
        results = await self._settle(deliveries, IN_PROGRESS)
        for delivery, result in zip(deliveries, results, strict=True):
            if result is Settled.OK:
                delivery.lease_until = until
        return results

    async def _settle(self, deliveries: Sequence[Delivery], what: bytes) -> list[Settled]:
        """Tell JetStream, which confirms each one."""
        ours = [delivery for delivery in deliveries if self._is_ours(delivery)]
        answers: list[Msg | None] = []
        if ours:
            link = (await self._connected()).link
            answers = await link.ask_all([(delivery.receipt.reply, what, None) for delivery in ours])
        results: dict[int, Settled] = {}
        for delivery, answer in zip(ours, answers, strict=True):
            result = Settled.FAILED if answer is None else Settled.OK
            if answer is not None and status_of(answer) == NO_RESPONDERS:  # no such consumer, or it changes its leader
                result = Settled.GONE if self._is_missing else Settled.FAILED
            results[id(delivery)] = result
        return [results.get(id(delivery), Settled.GONE) for delivery in deliveries]

    def _is_ours(self, delivery: Delivery) -> bool:
        """JetStream confirms whatever it is told, so a receipt that it never gave us has to be noticed here."""
        receipt = delivery.receipt
        return (
            isinstance(receipt, Receipt)
            and receipt.seq <= self._ledger.newest
            and delivery.broker_id == self._broker_id(receipt.seq)
        )

    async def _requeue(self, link: Link, replies: dict[int, str]) -> None:
        """In order. If it fails, the takeover over the next connection does it."""
        for seq in replies:
            self._ledger.held.pop(seq, None)
            self._ledger.nacked.pop(seq, None)
            self._mailbox.waiting.pop(seq, None)
        requests: list[Request] = [(reply, NAK, None) for _, reply in sorted(replies.items())]
        if None in await link.ask_all(requests):
            raise link.give_up("nacks were not confirmed")

    # Publishing and looking

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order. They are durable when this returns."""
        for message in messages:
            check_outgoing(message)
        if not messages:
            return []
        session = await self._connected()
        stream = await self._known_stream(session)
        try:
            answers = await publish(session.link, self._address, stream.subject, messages)
        except StreamGoneError:
            session.stream = None
            raise
        return [Published(self._broker_id(answer.seq), duplicate=answer.duplicate) for answer in answers]

    async def hurry(self, delivery: Delivery) -> bool:
        """A delay that the server was told cannot be taken back."""
        return False

    def still_ours(self, delivery: Delivery) -> bool:
        """Only its lease, which the router watches itself, can end."""
        return True

    async def depth(self) -> Depth:
        """By the consumer's counters."""
        session = await self._connected()
        await self._set_up(session)
        stream = await self._known_stream(session)
        with self._refusals_as_queue_errors(session):
            state = await consumer_state(session.link, self._address)
        self._loss_watch.look(state, keeps_acknowledged=stream.keeps_acknowledged)
        delayed = self._ledger.delayed(self._clock.monotonic())
        not_out = len(self._ledger.nacked) + len(self._mailbox.waiting)
        return Depth(state["num_pending"] + not_out, max(state["num_ack_pending"] - delayed - not_out, 0), delayed)

    # The connection

    async def _connected(self) -> _Session:
        """The connection there is, or a new one if it broke."""
        async with self._connecting:
            if self._closed:
                raise QueueUnavailableError(f"queue {self.name} is closed")
            if self._session is None or not self._session.link.alive:
                broken, self._session = self._session, None
                if broken is not None:
                    await broken.link.close(politely=False)
                link = Link(self._where)
                await link.connect(self._address.servers, self._login, self.name)
                self._session = _Session(link)
            return self._session

    async def _set_up(self, session: _Session) -> Consumer:
        """Stream and consumer, looked at once for each connection."""
        stream = await self._known_stream(session)
        if session.consumer is None:
            with self._told_if_missing():
                session.consumer = await prepare_consumer(session.link, self._address, self._wishes)
            self._ack_wait_s = session.consumer.ack_wait_s
            self._loss_watch.look(session.consumer.state, keeps_acknowledged=stream.keeps_acknowledged)
            self.setup_warnings = [*stream.setup_warnings, *session.consumer.setup_warnings]
            if session.shared:
                self.setup_warnings.append(
                    f"another client receives from consumer {self._address.consumer} too, so groups get out of "
                    "order: let one router work and the others stand by (standby.redis_url), or give each a consumer "
                    "of its own"
                )
            self._is_missing = False
        return session.consumer

    async def _known_stream(self, session: _Session) -> Stream:
        """Notices when the stream was made anew: all its numbers mean other messages then."""
        if session.stream is None:
            with self._told_if_missing():
                session.stream = await prepare_stream(session.link, self._address)
            if session.stream.created != self._identity:
                if self._identity:
                    in_hand = len(self._ledger.held) + len(self._mailbox.waiting) + len(self._ledger.nacked)
                    self._loss_watch.stream_was_made_anew(in_hand + self._ledger.delayed(self._clock.monotonic()))
                self._identity = session.stream.created
                self._ledger.clear()
                self._mailbox.waiting.clear()
        return session.stream

    @contextmanager
    def _told_if_missing(self) -> Iterator[None]:
        try:
            yield
        except SetupMissingError:
            self._is_missing = True
            raise

    @contextmanager
    def _refusals_as_queue_errors(self, session: _Session) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            session.stream = session.consumer = None
            raise QueueUnavailableError(f"stream {self._address.stream} at {self._where}: {error}") from None
