"""The HTTP/1.1 connections to one origin: how many, who gets one next, and when they end."""

import asyncio
import select
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError
from flowcatalyst.http.http1.connection import Connection

NEVER: Final = float("inf")
# Of two answers to one request, 1 ms apart, the second would be taken for the answer to the next one. Such a server is
# found out only while nothing else was asked: so no connection is used again until the origin was quiet for a rest
# after its first answer, and after that every so many exchanges one connection rests.
REST_EVERY: Final = 256
TIMER_GRAIN_S: Final = 0.001  # a timer of uvloop may fire this much early

# The place a request is given in a pool: an open connection, or None for the right to open one.
Place = Connection | None


@dataclass(slots=True, frozen=True)
class PoolLimits:
    """What every pool of a client keeps to."""

    max_connections: int
    max_body_bytes: int
    idle_s: float  # longest that a connection is kept without a request
    rest_s: float  # see REST_EVERY


class OriginPool:
    """The connections to one origin and the requests that wait for one. Nothing here suspends but `turn`.

    A request first takes a place, then uses or opens a connection in it. While anybody waits, all places are taken
    and nothing is idle: a place that becomes free goes straight to the one who waits longest.

    `reuses` says whether connections are kept. They are no longer once the server said something that answers no
    request, which `on_unasked` is told.
    """

    def __init__(
        self,
        label: str,
        limits: PoolLimits,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        reuses: bool,
        on_unasked: Callable[[], None],
        on_unused: Callable[[], None],
    ) -> None:
        self.label = label
        self.connections: set[Connection] = set()  # every open socket, so that closing the client leaves none
        self._limits = limits
        self._now = clock.monotonic
        self._loop = loop
        self._reuses = reuses
        self._on_unasked = on_unasked
        self._on_unused = on_unused
        self._idle: list[Connection] = []
        self._resting: list[Connection] = []  # idle, but not to be used yet; the first one is ready first
        self._exchanges = 0
        self._proves_itself_until: float | None = None  # monotonic
        self._proven = limits.rest_s <= 0
        self._outbox: list[Connection] = []  # have a request to write
        self._active = 0
        self._waiting: OrderedDict[asyncio.Future[Place], None] = OrderedDict()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._next_deadline = NEVER
        self.all_closed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"{self.label} idle={self._unused()} active={self._active} waiting={len(self._waiting)}"

    def _unused(self) -> int:
        return len(self._idle) + len(self._resting)

    def take_idle(self) -> Connection | None:
        """The connection used last, if one is idle and fresh. Taking it takes a place."""
        now = self._now()
        if self._resting:
            self._end_rests(now)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now < connection.idle_until:
                self._active += 1
                return connection
            connection.discard()
        return None

    async def turn(self) -> Place:
        """Take a place; when all are taken, wait in line for one."""
        if self._resting and self._active + self._unused() >= self._limits.max_connections:
            self._resting.pop(0).discard()  # somebody needs its place
        if self._active + self._unused() < self._limits.max_connections:
            assert not self._waiting, "a request was about to overtake those who wait"
            self._active += 1
            return None
        waiter: asyncio.Future[Place] = self._loop.create_future()
        self._waiting[waiter] = None
        try:
            return await waiter
        except asyncio.CancelledError:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(waiter.result())  # the place came in the same moment: the next in line gets it
            raise

    def release(self, place: Place) -> None:
        """End the use of a place and hand it on, with its connection if that can carry another request."""
        connection = place if place is not None and place.usable else None
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._active -= 1
        assert self._active >= 0, "a place was released twice"
        if connection is not None:
            if connection.keep_alive_s > 0:
                self._begin_idling(connection, self._now())
                self._idle.append(connection)
                return
            connection.discard()
        self._report_if_unused()

    def watch(self, deadline: float) -> None:
        """Make sure that requests are looked at when this deadline (in loop time) passes.

        One timer watches all of them: to make and cancel one for each request takes about 1.5 us on uvloop.
        """
        if deadline < self._next_deadline:
            if self._deadline_timer is not None:
                self._deadline_timer.cancel()
            self._next_deadline = deadline
            self._deadline_timer = self._loop.call_at(deadline, self._end_overdue)

    def _end_overdue(self) -> None:
        self._deadline_timer = None
        self._next_deadline = NEVER
        now = self._loop.time() + TIMER_GRAIN_S
        for connection in tuple(self.connections):
            if connection.deadline <= now:
                connection.expire()
        self.watch(min((connection.deadline for connection in self.connections), default=NEVER))

    def new_connection(self) -> Connection:
        return Connection(self, self.label, self._loop, self._limits.max_body_bytes, self._limits.idle_s)

    def close(self) -> None:
        """Fail everybody who waits and close every connection."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(ConnectError("the HTTP client was closed"))
        self._waiting.clear()
        self._idle.clear()
        self._resting.clear()
        self._stop_timers()
        if self.connections:
            self.all_closed = self._loop.create_future()
        for connection in tuple(self.connections):
            connection.fail(ConnectionBrokenError(f"{self.label}: the HTTP client was closed during a request"))

    # -- what connections report (ConnectionOwner) -----------------------------------------------------------------

    def send_soon(self, connection: Connection) -> None:
        if not self._outbox:
            self._loop.call_soon(self._send_all)
        self._outbox.append(connection)

    def _send_all(self) -> None:
        outbox, self._outbox = self._outbox, []
        # What came since the loop last looked is still unread. The kernel is asked once for all of them: each call lets
        # other threads in.
        if len(outbox) == 1:
            outbox[0].send(outbox[0].has_unread())
            return
        sockets = select.poll()
        for connection in outbox:
            sockets.register(connection.fileno, select.POLLIN)
        unread = {fileno for fileno, _ in sockets.poll(0)}
        for connection in outbox:
            connection.send(connection.fileno in unread)

    def exchange_ended(self, connection: Connection) -> None:
        self._exchanges += 1
        if self._proven and self._reuses and self._exchanges % REST_EVERY:  # as nearly always
            self.release(connection)
            return
        now = self._now()
        if self._proves_itself_until is None:
            self._proves_itself_until = now + self._limits.rest_s
        self._proven = now >= self._proves_itself_until
        rests = self._limits.rest_s > 0 and (not self._proven or self._exchanges % REST_EVERY == 0)
        if not self._reuses or (rests and self._waiting):
            connection.discard()
        elif rests and connection.usable and connection.keep_alive_s > 0:
            self._active -= 1
            self._begin_idling(connection, now)
            self._resting.append(connection)
            return
        self.release(connection)

    def idle_connection_ended(self, connection: Connection) -> None:
        # In neither list when it was just handed to a request that has not resumed yet; that request will see it.
        for unused in (self._idle, self._resting):
            if connection in unused:
                unused.remove(connection)
                self._report_if_unused()

    def sent_unasked(self) -> None:
        self._reuses = False
        self._on_unasked()
        for connection in (*self._idle, *self._resting):
            connection.discard()
        self._idle.clear()
        self._resting.clear()
        # Whoever reported this may have been idle: only the next pass can tell whether anything is left.
        self._loop.call_soon(self._report_if_unused)

    def connection_opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def connection_closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.all_closed is not None and not self.connections and not self.all_closed.done():
            self.all_closed.set_result(None)

    # -- idle connections ------------------------------------------------------------------------------------------

    def _end_rests(self, now: float) -> None:
        while self._resting and self._resting[0].idle_since + self._limits.rest_s <= now:
            self._idle.append(self._resting.pop(0))

    def _begin_idling(self, connection: Connection, now: float) -> None:
        connection.idle_since = now
        connection.idle_until = now + connection.keep_alive_s
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._limits.idle_s, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle too long. One timer serves all idle connections; none runs without any."""
        self._sweep_timer = None
        now = self._now()
        self._end_rests(now)
        expired = [connection for connection in self._idle if connection.idle_until <= now]
        self._idle = [connection for connection in self._idle if connection.idle_until > now]
        for connection in expired:
            connection.discard()
        if kept := [*self._idle, *self._resting]:
            next_s = max(min(connection.idle_until for connection in kept) - now, TIMER_GRAIN_S)
            self._sweep_timer = self._loop.call_later(next_s, self._sweep)
        self._report_if_unused()

    def _stop_timers(self) -> None:
        for timer in (self._sweep_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._sweep_timer = self._deadline_timer = None
        self._next_deadline = NEVER

    def _report_if_unused(self) -> None:
        if not self._active and not self._unused():
            self._stop_timers()
            self._on_unused()
