"""One AMQP 1.0 connection on asyncio. The only file that knows Proton's engine and the wire.

Proton runs without its own I/O: bytes go in, bytes come out, and after each input we look at what changed. It could
also report events, several for each message, but one of them costs as much as to decode a message.
"""

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast
from uuid import uuid4

from proton import Connection, Delivery, Endpoint, Link, ProtonException, Receiver, Sender, Terminus, Transport, symbol

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.waiters import Waiters
from flowcatalyst.queues.amqp.fence import DiskFence

# A peer that says nothing for so long is dead; both sides send empty frames to show they are not. Proton asks the peer
# for one after half this time at the latest.
IDLE_S: Final = 10.0
TICK_S: Final = 1.0
MIN_TICK_S: Final = 0.05
FLUSH_BYTES: Final = 65_536
DELETED: Final = "amqp:resource-deleted"
UNAUTHORIZED: Final = "amqp:unauthorized-access"


class AmqpError(Exception):
    """What the broker, or the way to it, objects to. `condition` is AMQP's name for it, empty where it has none."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = " ".join(text.split())


class AmqpLostError(AmqpError):
    """The connection is over."""


class AmqpRefusedError(AmqpError):
    """The broker refuses a link or a message; the connection is fine."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A message as it came over the wire. The broker keeps it for us until it is accepted or the connection ends."""

    number: int  # in order of arrival, from 1
    delivery: Delivery
    raw: bytes
    gone: bool = False  # the broker has removed it


class AmqpConnection(asyncio.Protocol):
    """A connection with at most one link to receive from a queue and one to send to it. Made by `connect`.

    The broker gives what it sent us to others when it hears nothing of us for its idle timeout. We have to know before
    that happens, also in a process that was paused and has not read anything yet. So `is_alive` judges by the time
    since we last heard of the broker, and allows half of what the broker does: Proton sends a frame at the latest
    after that half, so it is the least that was left of the broker's time when we heard of it.
    """

    def __init__(self, host: str, user: str | None, password: str | None, clock: Clock, idle_s: float) -> None:
        self.inbox: deque[Arrival] = deque()  # has come and was not taken yet
        self.credit = 0  # messages that the broker may send us unasked
        self.lost: AmqpLostError | None = None
        self.mixes_redeliveries = False  # the broker is ActiveMQ Classic: see activemq_takeover.py
        self.patience_s = idle_s  # how long the broker may be silent
        self._now = clock.monotonic  # not the loop's time: uvloop's stands still during an iteration
        self._heard_at = self._now()
        self._arrived = 0
        self._waiters = Waiters()
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._write_paused = False
        self._tags = 0
        self._receiver: Receiver | None = None
        self._sender: Sender | None = None
        self._refusal = AmqpRefusedError("", "nothing was opened to send on")
        self._connection, self._transport = Connection(), Transport()
        self._connection.container = f"flowcatalyst-{uuid4().hex}"  # brokers allow each name once
        self._connection.hostname = host
        self._transport.idle_timeout = idle_s
        sasl = self._transport.sasl()
        sasl.allow_insecure_mechs = True  # TLS, if any, is asyncio's: Proton cannot know about it
        if user:
            self._connection.user, self._connection.password = user, password or ""
        sasl.allowed_mechs("PLAIN" if user else "ANONYMOUS")
        self._connection.open()
        self._session = self._connection.session()
        self._session.open()
        self._transport.bind(self._connection)
        self._down = asyncio.Event()  # the socket is closed
        self._ticker: asyncio.TimerHandle | None = None
        self._fence: DiskFence | None = None  # only where acceptances are not answered

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        user: str | None,
        password: str | None,
        tls: ssl.SSLContext | None,
        limit_s: float,
        clock: Clock,
        idle_s: float = IDLE_S,
    ) -> "AmqpConnection":
        """A connection that the broker has opened. Raises `AmqpError`, `OSError` or `TimeoutError`."""
        self = cls(host, user, password, clock, idle_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._loop.create_connection(lambda: self, host, port, ssl=tls)
                await self.wait_until(lambda: bool(self._connection.state & Endpoint.REMOTE_ACTIVE), math.inf)
        except BaseException:
            self.abort()
            raise
        if remote_idle := self._transport.remote_idle_timeout:
            self.patience_s = min(idle_s, remote_idle / 2)
        product = str((self._connection.remote_properties or {}).get(symbol("product"), "")).lower()
        self.mixes_redeliveries = product == "activemq"
        if "artemis" in product:
            self._fence = DiskFence(self._session, self)
        return self

    @property
    def is_alive(self) -> bool:
        """Whether the broker keeps for us what it sent, as far as we know."""
        return self.lost is None and self._now() - self._heard_at <= self.patience_s

    # Receiving

    async def open_receiver(self, queue: str, limit_s: float) -> None:
        if self._receiver is None:
            receiver = self._session.receiver(f"in-{uuid4().hex}")
            _name(receiver.source, queue)
            receiver.snd_settle_mode = Link.SND_UNSETTLED
            receiver.rcv_settle_mode = Link.RCV_FIRST
            await self._attach(receiver, receiver.source, lambda: receiver.remote_source, limit_s)
            self._receiver = receiver

    def grant(self, count: int) -> None:
        """Let the broker send so many messages more."""
        assert self._receiver is not None, "open it first"
        if count > 0 and self.lost is None:
            self.credit += count
            self._receiver.flow(count)
            self.flush()

    async def accept(self, arrivals: Sequence[Arrival], limit_s: float) -> None:
        """Tell the broker that these are done, and wait until it has removed them, but not for ever.

        ActiveMQ Classic settles a message after its store removed it: until then it stays unsettled here, too. Artemis
        says nothing: there a fence behind the acceptance tells. Each one's `gone` says what became of it. To accept
        again only waits again.
        """
        for arrival in arrivals:
            if arrival.delivery.local_state != Delivery.ACCEPTED:
                arrival.delivery.update(Delivery.ACCEPTED)
                if self._fence is not None:
                    arrival.delivery.settle()
        self.flush()
        if self._fence is not None:
            if await self._fence.passed(limit_s):
                for arrival in arrivals:
                    arrival.gone = True
            return
        waiting = deque(arrivals)

        def all_gone() -> bool:
            while waiting and (waiting[0].gone or waiting[0].delivery.settled):
                arrival = waiting.popleft()
                arrival.gone = True
                arrival.delivery.settle()
            return not waiting

        await self.wait_until(all_gone, limit_s)

    # Sending

    async def open_sender(self, queue: str, limit_s: float) -> None:
        if self._sender is None:
            sender = self._session.sender(f"out-{uuid4().hex}")
            _name(sender.target, queue)
            sender.snd_settle_mode = Link.SND_UNSETTLED
            await self._attach(sender, sender.target, lambda: sender.remote_target, limit_s)
            self._sender = sender

    async def send(self, messages: Iterable[bytes], limit_s: float) -> None:
        """Send in order; return when the broker has all of them. Each step of progress has `limit_s`.

        Raises `AmqpRefusedError` when it refuses one or does not answer; some may have been taken then.
        """
        sent: deque[Delivery] = deque()
        unflushed = 0
        for raw in messages:
            if not self._may_send():
                self.flush()
                if not await self.wait_until(self._may_send, limit_s):
                    why = "the broker accepts no messages at the moment: its memory or disk may be full"
                    raise AmqpRefusedError("", why)
            assert self._sender is not None, "open it first"
            self._tags += 1
            sent.append(self._sender.delivery(str(self._tags)))
            self._sender.stream(raw)
            self._sender.advance()
            unflushed += len(raw)
            if unflushed > FLUSH_BYTES:
                self.flush()
                unflushed = 0
                await asyncio.sleep(0)
        self.flush()
        while sent:
            if not await self.wait_until(lambda: _is_decided(sent[0]) or not self._sends(), limit_s):
                raise AmqpRefusedError("", "the broker did not confirm a message in time")
            while sent and _is_decided(sent[0]):
                delivery = sent.popleft()
                outcome, condition = delivery.remote_state, delivery.remote.condition
                delivery.settle()
                if outcome != Delivery.ACCEPTED:
                    name, text = (condition.name or "", condition.description or "") if condition else ("", "")
                    raise AmqpRefusedError(name, f"the broker refused a message: {text or name or outcome}")

    def _may_send(self) -> bool:
        return self._sends() and self._sender is not None and self._sender.credit > 0 and not self._write_paused

    def _sends(self) -> bool:
        """Always true: a link that the broker closed is an error."""
        if self._sender is None:
            raise self._refusal
        return True

    # Ending

    async def close(self, limit_s: float) -> None:
        """Part in peace if the broker answers in time. It then puts back what was not accepted, in its order."""
        if self.lost is None:
            self._connection.close()
            self.flush()
            with suppress(AmqpLostError):
                await self.wait_until(lambda: bool(self._connection.state & Endpoint.REMOTE_CLOSED), limit_s)
        self.abort()
        if self._socket is not None:
            await self._down.wait()

    def abort(self) -> None:
        """Close the socket without a word."""
        self._lose("", "the connection was closed")

    def wake(self) -> None:
        """Let those who wait look again."""
        self._waiters.wake()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's are not subclasses of it
        if self.lost is not None:  # given up while it was made
            self._socket.abort()
            return
        self._heard_at = self._now()
        self._tick()

    def data_received(self, data: bytes) -> None:
        now = self._now()  # once: the process may be paused at any line
        if self._is_over(now):
            return
        self._heard_at = now
        try:
            start = 0
            while start < len(data):
                free_capacity = self._transport.capacity()
                if free_capacity <= 0:
                    break  # it wants no more: `_look` finds out why
                self._transport.push(data[start : start + free_capacity])
                start += free_capacity
            self._look()
            self.flush()
        except ProtonException as error:
            self._lose("", f"the peer violates AMQP 1.0: {error}")
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("", f"the connection broke: {exc}" if exc else "the broker closed the connection")
        self._down.set()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.wake()

    async def wait_until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Whether it was reached in time. Raises `AmqpLostError` if it no longer can be."""
        give_up_at = self._loop.time() + seconds
        while not reached():
            if self.lost is not None:
                raise AmqpLostError(self.lost.condition, self.lost.text)
            if self._loop.time() >= give_up_at:
                return False
            await self._waiters.wait(give_up_at)
        return True

    def _look(self) -> None:
        """After input: take in what came, and notice what the broker closed."""
        if self._receiver is not None:
            receiver = self._receiver
            while (delivery := receiver.current) is not None and delivery.readable and not delivery.partial:
                raw = bytes(receiver.recv(delivery.pending) or b"")
                receiver.advance()
                self.credit -= 1
                if delivery.aborted:
                    delivery.settle()
                    continue
                self._arrived += 1
                self.inbox.append(Arrival(self._arrived, delivery, raw))
            if self._receiver.state & Endpoint.REMOTE_CLOSED:
                self._lose(*_said(self._receiver, "the broker closed the link"))
                return
        if self._sender is not None and self._sender.state & Endpoint.REMOTE_CLOSED:
            self._refusal = AmqpRefusedError(*_said(self._sender, "the broker closed the link to send on"))
            self._sender.close()
            self._sender = None
        if (condition := self._transport.condition) is not None:
            self._lose(condition.name or "", condition.description or "")
        elif (self._connection.state | self._session.state) & Endpoint.REMOTE_CLOSED:
            where = self._connection if self._connection.state & Endpoint.REMOTE_CLOSED else self._session
            if where.state & Endpoint.LOCAL_ACTIVE:
                self._lose(*_said(where, "the broker closed the connection"))

    def flush(self) -> None:
        if self._socket is None or self.lost is not None:
            return
        while (size := self._transport.pending()) > 0:
            self._socket.write(self._transport.peek(size) or b"")
            self._transport.pop(size)

    def _tick(self) -> None:
        """Send a sign of life if it is due; notice that the peer gave none."""
        now = self._now()
        if self._is_over(now):
            return
        due_at = self._transport.tick(now)
        self._look()
        self.flush()
        self.wake()
        pause_s = min(TICK_S, max(due_at - now, MIN_TICK_S)) if due_at else TICK_S
        self._ticker = self._loop.call_later(pause_s, self._tick)

    def _is_over(self, now: float) -> bool:
        """What comes after too long a silence does not bring a connection back: the end may be the next to come."""
        if self.lost is None and now - self._heard_at > self.patience_s:
            self._lose("", "it does not answer any more")
        return self.lost is not None

    async def _attach(
        self, link: Receiver | Sender, wanted: Terminus, answer: Callable[[], Terminus], limit_s: float
    ) -> None:
        link.open()
        self.flush()

        def answered() -> bool:
            # A refusal is an answer without an address, with the reason in a second frame.
            return bool(link.state & Endpoint.REMOTE_CLOSED) or answer().address is not None

        try:
            if not await self.wait_until(answered, limit_s):
                self._lose("", "the broker does not answer")
                await self.wait_until(answered, 0.0)
        except asyncio.CancelledError:
            self._detach(link)
            raise
        if link.state & Endpoint.REMOTE_CLOSED:
            self._detach(link)
            raise AmqpRefusedError(*_said(link, f"the broker refuses the queue {wanted.address}"))

    def _detach(self, link: Receiver | Sender) -> None:
        link.close()
        self.flush()

    def _lose(self, condition: str, text: str) -> None:
        """The connection is over, whoever ended it; only the first reason counts."""
        if self.lost is None:
            self.lost = AmqpLostError(condition, text)
            self.inbox.clear()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._socket is not None:
            self._socket.abort()
        self.wake()


def _is_decided(delivery: Delivery) -> bool:
    return bool(delivery.settled) or delivery.remote_state not in (0, Delivery.RECEIVED)


def _name(terminus: Terminus, queue: str) -> None:
    terminus.address = queue
    terminus.capabilities.put_object(symbol("queue"))  # Artemis would take it for a topic otherwise


def _said(endpoint: Endpoint, otherwise: str) -> tuple[str, str]:
    condition = endpoint.remote_condition
    return (condition.name or "", condition.description or otherwise) if condition else ("", otherwise)
