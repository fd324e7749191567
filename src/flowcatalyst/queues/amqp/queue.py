"""Queues of ActiveMQ (Classic 6 and Artemis) over AMQP 1.0.

A message that was received stays ours, unsettled, for as long as the connection lives; when it ends, the broker puts
all of them back in their order. So there are no leases, and a message nacked without a delay simply waits here, in
its place, for the next receive: told to release it, the broker would show it behind those that it has sent already.

A group belongs to one receiver as long as that one is connected, so several routers can share a queue. What came over a
connection that is gone may be somebody else's by now: `holds` tells. Classic forgets whom a group belongs to when 1,024
others were used since, unless its `messageGroupMapFactoryType` is `simple`.

One nacked with a delay is sent again as a copy that the broker's scheduler shows later, and then removed. Both are
there for a moment, so a crash leaves two of them, never none. They have one identity, which lets the router see that
they are the same message.
"""

import asyncio
import heapq
import math
import ssl
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Final
from uuid import uuid4

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Capabilities, Delivery, Settled, refuse_nul
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp.connection import DELETED, IDLE_S, AmqpConnection, AmqpError, AmqpLostError, Arrival
from flowcatalyst.queues.amqp.errors import reason
from flowcatalyst.queues.amqp.message import Content, delayed_copy, read, write
from flowcatalyst.queues.amqp.takeover import Takeover
from flowcatalyst.queues.contract import Batching, Demand, Loss, Outgoing, Published, check_outgoing

CONNECT_S: Final = 5.0
CONFIRM_S: Final = 10.0  # how long the broker has to confirm what it was sent or told
CLOSE_S: Final = 2.0
AT_ONCE_S: Final = 0.1  # a broker needs a moment to send what it has
MAX_RESTING: Final = 1000
MAX_TAKEOVER: Final = 20_000
NO_SCHEDULER: Final = (
    "messages that were nacked with a delay come back at once and have to wait in the router: "
    "set schedulerSupport=true at the broker"
)


_RANK: Final = attrgetter("rank")


@dataclass(slots=True, frozen=True)
class AmqpLogin:
    """Who we are to the broker, and whom we trust."""

    user: str | None = None  # None: nobody
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None  # besides the system's authorities


@dataclass(slots=True, eq=False)
class Receipt:
    """One showing of a message. It is good for one settlement, on the connection that brought it."""

    connection: AmqpConnection | None
    arrival: Arrival
    content: Content
    rank: tuple[int, int]  # its place among those that wait
    failures: int
    showings: int = 1  # by this client
    used: bool = False  # nacked
    copied: bool = False  # a delayed copy of it is at the broker
    twin: "Receipt | None" = None  # the same message, as a copy or as its original, that came earlier

    @property
    def gone(self) -> bool:
        return self.arrival.gone


class ActiveMqQueue:
    """One queue, both ends of it, over one connection that is made when it is needed."""

    def __init__(self, name: str, address: AmqpAddress, clock: Clock, *, login: AmqpLogin) -> None:
        self.name = name
        self.calls: Mapping[str, int] = {}  # nothing costs money here
        self.losses: list[Loss] = []
        self.capabilities = Capabilities(
            ordered_redelivery=False,
            locks_groups=True,
            delayed_nack=True,
            extends=False,
            visibility_s=math.inf,
            deduplicates=False,
            long_poll_s=5.0,
        )
        self.batching = Batching(max_batch=100)
        self._address = address
        self._clock = clock
        self._login = login
        self._tls: ssl.SSLContext | None = None
        self._host = 0  # index of the host to try first
        self._idle_s = IDLE_S
        self._connecting = asyncio.Lock()
        self._closed = False
        self._connection: AmqpConnection | None = None
        self._setup_warnings: dict[str, None] = {}
        # Of what this connection brought:
        self._open: dict[str, Receipt] = {}  # by identity: the newest receipt of each message that is ours
        self._waiting: list[Receipt] = []  # to be shown with the next receives, in this order
        self._has_news = False  # something began to wait since the last look
        self._takeover = Takeover()
        self._resting: list[tuple[float, int, Receipt]] = []  # to be shown later: (monotonic time, arrival number, ...)

    @property
    def setup_warnings(self) -> Sequence[str]:
        return list(self._setup_warnings)

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """End the connection: the broker then puts everything back that is not settled, in its order."""
        self._closed = True
        async with self._connecting:
            connection, self._connection = self._connection, None
            self._forget()
        if connection is not None:
            await connection.close(CLOSE_S)

    async def reconnect(self) -> None:
        """The broker puts back what came over the present connection; `holds` denies it from now on."""
        if self._connection is not None:
            self._connection.abort()

    def fit(self, capacity: int) -> None:
        """The broker never has leave to send more than the next receive may bring."""

    async def hurry(self, delivery: Delivery) -> bool:
        """What the broker was told to send later cannot be taken back."""
        return False

    def still_ours(self, delivery: Delivery) -> bool:
        """Until its connection ends, or is silent for so long that the broker may take us for dead."""
        connection = self._connection
        return connection is not None and delivery.receipt.connection is connection and connection.is_alive

    async def depth(self) -> None:
        """AMQP does not tell."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order. They are durable when this returns; if it fails, the first ones may be, too."""
        for message in messages:
            check_outgoing(message)
            refuse_nul("group", message.group)  # Proton would end it there, and two groups would become one
        if not messages:
            return []
        ids = [uuid4().hex for _ in messages]
        wall = self._clock.wall()
        encoded = (write(one.body, one.group, message_id, wall) for one, message_id in zip(messages, ids, strict=True))
        try:
            connection = await self._sending()
            await connection.send(encoded, CONFIRM_S)
        except AmqpError as error:
            raise self._unavailable(error) from None
        return [Published(self._broker_id(message_id)) for message_id in ids]

    # Receiving

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages; empty when none came within `wait_s`.

        The broker has leave to send `limit` messages, so some may come after the end: they wait for the next receive.
        """
        assert limit > 0, "ask for at least one message"
        loop = asyncio.get_running_loop()
        limit = min(limit, self.batching.max_batch)
        try:
            connection = await self._receiving()
            give_up_at = loop.time() + max(wait_s, AT_ONCE_S)
            while True:
                self._sort_in(connection)
                wanted = max(limit - len(self._waiting), self._takeover.credit(loop.time()))
                connection.grant(wanted - connection.credit)
                if (batch := self._take(limit, loop.time())) or (left := give_up_at - loop.time()) <= 0:
                    return batch
                pause_s = min(left, self._takeover.left_s(loop.time()))
                if self._resting:
                    pause_s = min(pause_s, max(self._resting[0][0] - self._clock.monotonic(), 0.01))
                await connection.wait_until(lambda: bool(connection.inbox or self._has_news), pause_s)
        except AmqpError as error:
            raise self._unavailable(error) from None

    def _sort_in(self, connection: AmqpConnection) -> None:
        """Take over what has come: it waits here in its place, or rests if it came too early."""
        now, wall, time = self._clock.monotonic(), self._clock.wall(), asyncio.get_running_loop().time()
        while connection.inbox:
            arrival = connection.inbox.popleft()
            content = read(arrival.raw)
            # What was shown more often was there earlier: see activemq_takeover.py.
            rank = (-content.deliveries if connection.mixes_redeliveries else 0, arrival.number)
            receipt = Receipt(connection, arrival, content, rank, content.failures)
            known = self._open.get(content.identity)
            if known is not None and (content.is_copy or known.content.is_copy):
                receipt.twin = known  # otherwise it is another message that looks the same
            self._open[content.identity] = receipt
            if connection.mixes_redeliveries:
                self._takeover.note(content.deliveries > 0, time)
            rest_s = min(content.not_before - wall, content.delay_s)  # our clocks may differ, or step
            if rest_s > 0 and self._rests(receipt, now + rest_s):
                if rest_s > content.delay_s / 2:  # and not because of clocks that differ a little
                    self._setup_warnings[NO_SCHEDULER] = None
            else:
                self._wait(receipt)
        while self._resting and self._resting[0][0] <= now:
            self._wait(heapq.heappop(self._resting)[2])

    def _wait(self, receipt: Receipt) -> None:
        if not self._waiting or receipt.rank >= self._waiting[-1].rank:
            self._waiting.append(receipt)
        else:
            insort(self._waiting, receipt, key=_RANK)
        self._has_news = True

    def _take(self, limit: int, time: float) -> list[Delivery]:
        if self._takeover.is_under_way(time) and len(self._waiting) < MAX_TAKEOVER:
            self._has_news = False
            return []
        self._waiting = [receipt for receipt in self._waiting if not receipt.gone]  # with a twin that was acked
        batch = [
            Delivery(
                self._broker_id(receipt.content.identity),
                receipt,
                receipt.content.body,
                receipt.content.group,
                receipt.content.deliveries + receipt.showings,
                failures=receipt.failures,
                message_id=receipt.content.identity,
                trace_context=receipt.content.trace_context,
                due_at=receipt.content.made_at,
            )
            for receipt in self._waiting[:limit]
        ]
        del self._waiting[:limit]
        self._has_news = bool(self._waiting)
        return batch

    # Settling

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. OK means that the broker said so."""
        receipts: list[Receipt] = [delivery.receipt for delivery in deliveries]
        await self._remove([receipt for receipt in receipts if self._is_ours(receipt)])
        return [self._result(receipt) for receipt in receipts]

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`. Nothing here locks a group against its own receiver."""
        receipts: list[Receipt] = [delivery.receipt for delivery in deliveries]
        ours = [receipt for receipt in receipts if self._is_ours(receipt)]
        for delivery in deliveries:
            delivery.receipt.failures = delivery.failures
        if delay_s > 0:
            await self._show_later(ours, delay_s)
        else:
            for receipt in ours:
                self._wait(self._used_up(receipt))
            if self._connection is not None:
                self._connection.wake()
        return [Settled.OK if receipt in ours and receipt.used else self._result(receipt) for receipt in receipts]

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """There are no leases: what is ours stays ours while the connection lives."""
        return [Settled.OK if self._is_ours(delivery.receipt) else Settled.GONE for delivery in deliveries]

    def _is_ours(self, receipt: Receipt) -> bool:
        connection = self._connection
        return (
            connection is not None
            and receipt.connection is connection
            and connection.lost is None
            and not receipt.used
            and not receipt.gone
        )

    def _result(self, receipt: Receipt) -> Settled:
        if receipt.gone:
            return Settled.OK
        return Settled.FAILED if self._is_ours(receipt) else Settled.GONE

    async def _remove(self, receipts: Sequence[Receipt]) -> None:
        """Remove what the broker confirms in time."""
        connection = self._connection
        if not receipts or connection is None:
            return
        arrivals: list[Arrival] = []
        for receipt in receipts:
            one: Receipt | None = receipt
            while one is not None:
                arrivals.append(one.arrival)
                one = one.twin
        try:
            await connection.accept(arrivals, CONFIRM_S)
        except AmqpLostError:
            return  # what was not confirmed comes again
        finally:
            for receipt in receipts:
                if receipt.gone and self._open.get(receipt.content.identity) is receipt:
                    del self._open[receipt.content.identity]

    async def _show_later(self, receipts: Sequence[Receipt], delay_s: float) -> None:
        """Send copies that the broker shows later, then remove the originals. Without copies they wait here."""
        connection, not_before = self._connection, self._clock.wall() + delay_s
        uncopied = [receipt for receipt in receipts if not receipt.copied]
        try:
            if uncopied and connection is not None:
                copies = [
                    delayed_copy(
                        one.arrival.raw, one.content, failures=one.failures, delay_s=delay_s, not_before=not_before
                    )
                    for one in uncopied
                ]
                await connection.open_sender(self._address.queue, CONNECT_S)
                await connection.send(copies, CONFIRM_S)
                for receipt in uncopied:
                    receipt.copied = True
        except AmqpLostError:
            return  # they come again
        except AmqpError as error:
            self._setup_warnings[f"messages nacked with a delay have to wait in the router: {error.text}"] = None
            for receipt in receipts:
                again = self._used_up(receipt)
                if not self._rests(again, self._clock.monotonic() + delay_s):
                    self._wait(again)
        else:
            await self._remove(receipts)

    def _used_up(self, receipt: Receipt) -> Receipt:
        """A receipt for the next showing; this one is void from now on."""
        again = replace(receipt, showings=receipt.showings + 1)
        receipt.used = True
        self._open[receipt.content.identity] = again
        return again

    def _rests(self, receipt: Receipt, until: float) -> bool:
        """Keep the message here, unsettled, until a monotonic time. False if too many rest already."""
        if len(self._resting) >= MAX_RESTING:
            return False
        heapq.heappush(self._resting, (until, receipt.arrival.number, receipt))
        return True

    # Connecting

    async def _receiving(self) -> AmqpConnection:
        async with self._connecting:
            connection = await self._connect()
            await connection.open_receiver(self._address.queue, CONNECT_S)
            return connection

    async def _sending(self) -> AmqpConnection:
        async with self._connecting:
            connection = await self._connect()
            await connection.open_sender(self._address.queue, CONNECT_S)
            return connection

    async def _connect(self) -> AmqpConnection:
        """The connection there is, or a new one. What an older one brought is no longer ours: it comes again."""
        if self._closed:
            raise QueueUnavailableError("the queue is closed")
        if self._connection is None or self._connection.lost is not None:
            lost = None if self._connection is None else self._connection.lost
            if lost is not None and lost.condition == DELETED:
                # AMQP does not tell how long a queue is: only what came over the connection is known.
                text = f"queue {self._address.queue} was deleted at the broker; "
                text += "how many messages it held is not known"
                self.losses.append(Loss(text, len(self._open) or None))
            self._forget()
            self._connection = await self._dial()
        return self._connection

    async def _dial(self) -> AmqpConnection:
        """Try each host once, beginning with the one that was fine last."""
        problems: list[str] = []
        hosts, user = self._address.hosts, self._login.user
        limit_s = max(CONNECT_S / len(hosts), 1.5)
        for _ in hosts:
            host, port = hosts[self._host]
            try:
                connection = await self._dial_one(host, port, limit_s)
                if connection.patience_s < self._idle_s / 2:  # too short for what we asked of it: ask for more
                    self._idle_s = connection.patience_s
                    await connection.close(CLOSE_S)
                    connection = await self._dial_one(host, port, limit_s)
                return connection
            except (AmqpError, OSError) as error:
                problems.append(f"{host}:{port}: {reason(error, self._address.queue, user=user)}")
            except UnicodeError:
                problems.append(f"{host}:{port}: this is not a valid host name")
            self._host = (self._host + 1) % len(hosts)
        raise QueueUnavailableError(f"no connection to {', '.join(problems)}")

    async def _dial_one(self, host: str, port: int, limit_s: float) -> AmqpConnection:
        return await AmqpConnection.connect(
            host,
            port,
            user=self._login.user,
            password=self._login.password,
            tls=self._trust(),
            limit_s=limit_s,
            clock=self._clock,
            idle_s=self._idle_s,
        )

    def _trust(self) -> ssl.SSLContext | None:
        if self._address.tls and self._tls is None:
            tls = ssl.create_default_context()
            if self._login.ca_file is not None:
                try:
                    tls.load_verify_locations(self._login.ca_file)
                except OSError as error:
                    problem = f"activemq.ca_file {self._login.ca_file} holds no certificates: {error.strerror}"
                    raise QueueUnavailableError(problem) from None
            self._tls = tls
        return self._tls

    def _forget(self) -> None:
        self._open.clear()
        self._waiting.clear()
        self._takeover = Takeover()
        self._resting.clear()

    def _unavailable(self, error: AmqpError) -> QueueUnavailableError:
        host, port = self._address.hosts[self._host]
        why = reason(error, self._address.queue, user=self._login.user)
        return QueueUnavailableError(f"queue {self._address.queue} at {host}:{port}: {why}")

    def _broker_id(self, identity: str) -> str:
        return f"amqp-{self.name}-{identity}"
