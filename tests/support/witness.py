"""Witness: a receiver that writes down what it saw as a history, so that the checker can judge a router that is killed.

A receiver knows when a request came and when it answered. It does not know by itself whether somebody still waited for
the answer: the router may have given up, or be dead. The kernel knows, so the witness asks it:

- A request whose sender has closed the connection before we read it does not count. When it was sent is not known.
- A request that hangs is over when the router closes its connection. The loop may report that close after a request
  that was sent later on another connection. The kernel had it first, so at each arrival we ask it what is closed.
- An answer was read if the router closes in order later, or uses the connection again. A connection that is closed
  while something unread lies in it, or that is written to after its close, is reset: the answer becomes "unknown".
"""

import asyncio
import json
import socket
import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import parse_pointer
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.simulation.checker import RECEIVER_RULES, check
from flowcatalyst.simulation.history import Event, Facts, History, Kind
from flowcatalyst.simulation.rules.common import Promises
from tests.support.faulty_receiver import Answer, FaultyReceiver

ESTABLISHED: Final = 1  # states of Linux' struct tcp_info
CLOSE_WAIT: Final = 8
MANY: Final = 10_000


@dataclass(slots=True, eq=False)
class Exchange:
    """One request, and where the history tells how it ended."""

    message: str
    ended_as: int | None = None  # number of the event; None: it hangs


class Witness(FaultyReceiver):
    """A faulty receiver with a history. Tell it what happens to the router; ask it for `violations` in the end."""

    def __init__(self, fault_rate: float = 0.0, seed: int = 1) -> None:
        super().__init__(fault_rate, seed)
        self.history = History(SystemClock().wall)  # wall time, as the dead letters have it
        self._latest: dict[asyncio.StreamWriter, Exchange] = {}  # of each connection

    def published(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            pointer = parse_pointer(message.body)
            facts = Facts(message.group, pointer.dispatch_mode, pointer.high_priority, target=pointer.mediation_target)
            self.history.add(Kind.PUBLISHED, pointer.id, value=facts)

    def router_started(self) -> None:
        self.history.add(Kind.STARTED)

    async def router_gone(self) -> None:
        """It was killed, or stands still for longer than its leases, which is the same to those who are left.

        What it has in flight is unknown from now on, whatever becomes of it.
        """
        await self.catch_up()
        for exchange in self._latest.values():
            if exchange.ended_as is None:
                self._end(exchange, Kind.UNKNOWN)
        self.history.add(Kind.CRASHED)

    async def router_stopped(self) -> None:
        await self.catch_up()
        self.history.add(Kind.STOPPED, value={})

    async def violations(
        self, data_dir: Path, left: Sequence[str] | None = None, rules: Sequence[str] = RECEIVER_RULES
    ) -> list[str]:
        """What the checker finds, with the lives of the messages concerned. Ask when all routers have ended.

        `left` is what is still in the queue; by default that is the embedded one in the data folder.
        """
        await self.until_disconnected()
        events = list(self.history)
        for letter in await _dead_letters(data_dir / "dead-letters.db"):
            place = bisect_right(events, letter.at, key=lambda event: event.at)
            events.insert(place, letter)
        still_there = messages_left(data_dir / "queue.db") if left is None else list(left)
        events.append(Event(events[-1].at, Kind.ENDED, value=still_there))
        found = check(events, Promises(ordered_redelivery=True), rules)
        return [f"{rule}: {violation}\n{_life(events, violation.message)}" for rule, violation in found]

    def _arrived(self, message_id: str, writer: asyncio.StreamWriter) -> bool:
        self._latest.pop(writer, None)  # its answer was read, or the connection would not be used again
        if _tcp_state(writer) != ESTABLISHED:
            return False
        for other, exchange in self._latest.items():
            if exchange.ended_as is None and _tcp_state(other) != ESTABLISHED:
                self._end(exchange, Kind.UNKNOWN)
        self._latest[writer] = Exchange(message_id)
        self.history.add(Kind.ATTEMPT, message_id)
        return super()._arrived(message_id, writer)

    def _answering(self, message_id: str, writer: asyncio.StreamWriter, answer: Answer) -> None:
        super()._answering(message_id, writer, answer)
        exchange = self._latest[writer]
        if exchange.ended_as is None:
            event = self._end(exchange, Kind.ANSWER)
            outcome = interpret(answer.status, answer.retry_after, answer.body, event.at)
            self.history.events[-1] = replace(event, value=outcome)

    def _cutting_off(self, writer: asyncio.StreamWriter) -> None:
        exchange = self._latest[writer]
        if exchange.ended_as is None:
            self._end(exchange, Kind.UNKNOWN)

    async def _disconnected(self, writer: asyncio.StreamWriter, was_reset: bool) -> None:
        exchange = self._latest.pop(writer, None)
        if exchange is None:
            return
        if exchange.ended_as is None:
            self._end(exchange, Kind.UNKNOWN)
        elif was_reset or not await _closed_in_order(writer):
            answer = self.history.events[exchange.ended_as]
            self.history.events[exchange.ended_as] = replace(answer, kind=Kind.UNKNOWN, value=None)

    def _end(self, exchange: Exchange, how: Kind) -> Event:
        exchange.ended_as = len(self.history)
        self.history.add(how, exchange.message)
        return self.history.events[-1]


def _tcp_info(writer: asyncio.StreamWriter) -> bytes:
    """The beginning of struct tcp_info; zeros if the socket is closed on our side too."""
    try:
        info: bytes = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    except OSError:
        return bytes(28)
    return info


def _tcp_state(writer: asyncio.StreamWriter) -> int:
    return _tcp_info(writer)[0]


async def _closed_in_order(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side had all that we wrote when it closed. Call it when the end of its data was read."""
    while (info := _tcp_info(writer))[0] == CLOSE_WAIT:
        unacknowledged = int.from_bytes(info[24:28], "little")
        if not unacknowledged:
            return True
        await asyncio.sleep(0)  # the answer is on its way: it will be acknowledged or refused
    return False


async def _dead_letters(path: Path) -> list[Event]:
    letters = DeadLetters(path, SystemClock())
    await letters.open()
    try:
        found = await letters.page(limit=MANY)
    finally:
        await letters.close()
    return [Event(letter.recorded_at, Kind.DEAD_LETTERED, letter.message_id, value=letter.reason) for letter in found]


def messages_left(path: Path) -> list[str]:
    """The ids of all messages in a queue file, leased and delayed ones included."""
    with closing(sqlite3.connect(path)) as connection:
        bodies = [json.loads(body) for (body,) in connection.execute("SELECT body FROM messages ORDER BY seq")]
    return [parse_pointer(body).id for body in bodies]


def _life(events: Sequence[Event], message: str) -> str:
    lives = (Kind.STARTED, Kind.STOPPED, Kind.CRASHED)
    told = (event for event in events if event.message == message or event.kind in lives)
    return "\n".join(f"    {event.at:.3f} {event.kind} {event.message}" for event in told)
