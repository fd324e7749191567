"""Who is served next, and who has to go: what all connections to the API share.

Anybody on the network can connect and send whatever they like before they have shown a key. Two bounds keep that from
reaching the deliveries, which run in the same loop: how many connections there are, and how long one pass of the loop
may work for them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from flowcatalyst.core.clock import Clock

KIB: Final = 1024
TURN_S: Final = 0.004  # parsing in one pass of the loop; then deliveries have theirs
STARTS_PER_TURN: Final = 8  # requests, each about 0.3 ms of work that a pass cannot interrupt
READ_BYTES: Final = 64 * KIB  # at most, of one connection in one pass
MOST_CONNECTIONS: Final = 512
OWN_FILES: Final = 40  # what a router has open before anybody connects: databases, pipes, the log
SHARE_OF_FILES: Final = 4  # API connections take a quarter of the rest
LEAST_CONNECTIONS: Final = 4
SPARE: Final = 16  # of so many connections one more may be open while another one goes

log = structlog.get_logger("flowcatalyst.web")


@dataclass(slots=True, frozen=True)
class ConnectionLimits:
    """What a client may take, before anybody has looked at its credentials."""

    connections: int = MOST_CONNECTIONS
    head_bytes: int = 64 * KIB  # request line and headers
    head_s: float = 10.0  # from the first byte, or from the beginning of the connection
    url_bytes: int = 8 * KIB
    headers: int = 100
    pipelined: int = 8  # requests sent without waiting for an answer
    # A body, and an answer on its way to the client, may take this long, and a second more for each so many bytes.
    transfer_s: float = 10.0
    transfer_bytes_per_s: int = 16 * KIB
    longest_transfer_s: float = 1100.0  # the largest body at the slowest pace
    # After an answer that did not wait for the whole request: closed at once, the client might never see it.
    linger_s: float = 2.0
    linger_bytes: int = 256 * KIB
    look_every_s: float = 1.0  # for who is late


def connections_for(files: int, wanted: int = MOST_CONNECTIONS) -> int:
    """How many connections the API may have where the process may open so many files."""
    return max(LEAST_CONNECTIONS, min(wanted, (files - OWN_FILES) // SHARE_OF_FILES))


class Guest(Protocol):
    """A connection, as the reception sees it."""

    def take_turn(self) -> bool:
        """Parse a piece of what came. True: there is more to parse."""

    def late(self, now: float) -> str:
        """Which limit it has passed, if any; it is told and closed then."""

    def abort(self) -> None: ...


class Reception:
    """All connections to the API. Nothing here suspends."""

    def __init__(self, limits: ConnectionLimits, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.now = clock.monotonic
        # Filled by a read and emptied before the next one, whoever's turn it is.
        self.buffer: Final = memoryview(bytearray(READ_BYTES))
        self._loop = loop
        self._guests: dict[Guest, None] = {}
        self._open = 0  # sockets: also of who is not here yet, or was sent away and is about to go
        self._most_open = limits.connections + max(1, limits.connections // SPARE)
        self._idle: dict[Guest, None] = {}  # without a request and with nothing to parse; for longest comes first
        self._in_line: deque[Guest] = deque()
        self._turns_are_due = False
        self._starts: deque[Callable[[], None]] = deque()
        self._ended: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._guests)

    def __repr__(self) -> str:
        return f"<Reception connections={len(self)} in_line={len(self._in_line)}>"

    @property
    def has_capacity(self) -> bool:
        """Whether one more may come. If there are too many, the one that is idle for longest makes way."""
        has_place = len(self._guests) < self.limits.connections or bool(self._idle)
        return has_place and self._open < self._most_open

    def socket_opened(self) -> None:
        self._open += 1

    def socket_closed(self) -> None:
        self._open -= 1

    def welcome(self, guest: Guest) -> bool:
        if len(self._guests) >= self.limits.connections:
            if not self._idle:
                self.count_end("too many connections")
                return False
            displaced = next(iter(self._idle))
            self.count_end("made way for another")
            self.farewell(displaced)
            displaced.abort()
        self._guests[guest] = self._idle[guest] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.limits.look_every_s, self._look)
        return True

    def farewell(self, guest: Guest) -> None:
        self._guests.pop(guest, None)
        self._idle.pop(guest, None)

    def is_idle(self, guest: Guest) -> None:
        if guest in self._guests:
            self._idle.pop(guest, None)
            self._idle[guest] = None

    def count_end(self, reason: str) -> None:
        self._ended[reason] += 1

    def join_line(self, guest: Guest) -> None:
        """There is something to parse. Nobody is in line twice."""
        self._idle.pop(guest, None)
        self._in_line.append(guest)
        self._give_turns_soon()

    def start_soon(self, start: Callable[[], None]) -> None:
        """A request came: `start` begins its work, which nobody can interrupt until it first waits for something."""
        self._starts.append(start)
        self._give_turns_soon()

    def _give_turns_soon(self) -> None:
        if not self._turns_are_due:
            self._turns_are_due = True
            self._loop.call_soon(self._give_turns)

    def _give_turns(self) -> None:
        end = self.now() + TURN_S
        while self._in_line and len(self._starts) < STARTS_PER_TURN:
            guest = self._in_line.popleft()
            if guest.take_turn():
                self._in_line.append(guest)
            if self.now() >= end:
                break
        for _ in range(min(STARTS_PER_TURN, len(self._starts))):
            self._starts.popleft()()
        self._turns_are_due = False
        if self._in_line or self._starts:
            self._give_turns_soon()  # in the next pass: what others have to do in this one comes first

    def _look(self) -> None:
        """End who is late. One timer serves all connections; none runs without any."""
        self._timer = None
        now = self.now()
        for guest in list(self._guests):
            if reason := guest.late(now):
                self.count_end(reason)
        if self._ended:
            log.warning(
                "api_connections_ended",
                action="api_connections_ended",
                **{reason.replace(" ", "_"): times for reason, times in self._ended.items()},
            )
            self._ended.clear()
        if self._guests:
            self._timer = self._loop.call_later(self.limits.look_every_s, self._look)

    def close(self) -> None:
        """The server has stopped: end what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for guest in list(self._guests):
            guest.abort()
