"""Where JetStream puts what was pulled, in the order it came, until the router takes it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.waiters import Waiters
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats.format import Place, parse_reply
from flowcatalyst.queues.nats.link import API, Link, status_of

ANSWER_GRACE_S: Final = 2.0  # a pull that got no end by then hangs
LINGER_S: Final = 0.2  # for the rest of a batch, where the consumer lets no more be in flight at once
LEAST_WAIT_S: Final = 0.05
_HEARTBEAT: Final = "100"
_ENDS: Final = ("404", "408")  # nothing there, or no more within the time asked for


@dataclass(slots=True)
class Arrived:
    message: Msg
    place: Place
    at: float  # monotonic


class Mailbox:
    """One pull is under way at a time. One that somebody gave up waiting for still brings its messages here."""

    def __init__(self, address: NatsAddress, clock: Clock) -> None:
        self.waiting: dict[int, Arrived] = {}  # by sequence in the stream, in the order they came
        self.brought: list[int] = []  # what the newest pull brought, by sequence in the stream
        self.next_delivery = 1
        self.missed = False  # some deliveries went somewhere else
        self.restarted = False  # the numbers of deliveries began anew: perhaps the stream is another one
        self.last_error = ""  # why the newest pull came to nothing
        self._subject = f"{API}CONSUMER.MSG.NEXT.{address.stream}.{address.consumer}"
        self._clock = clock
        self._link: Link | None = None
        self._inbox = ""
        self._listening: Subscription | None = None
        self._pull = 0  # running number
        self._left = 0  # how many the pull under way may still bring
        self._ends_at = 0.0  # when it has to have ended (loop time)
        self._sleepers = Waiters()

    async def attach(self, link: Link) -> None:
        """Use another connection: nothing comes over the one before."""
        if link is self._link and self._listening is not None:
            return
        self._left, self._link = 0, link
        link.when_it_breaks(self.wake)
        self._inbox, self._listening = await link.subscribe(self._on_message)

    async def detach(self) -> None:
        """Ask for nothing more: what JetStream shows again from now on must not come to us."""
        self._left, listening, self._listening = 0, self._listening, None
        if listening is not None:
            with suppress(Error, OSError):
                await listening.unsubscribe()
        self.wake()

    @property
    def is_pulling(self) -> bool:
        return self._left > 0

    async def pull(self, limit: int, wait_s: float, linger_s: float = LINGER_S) -> None:
        """Until messages came, or the time is over; `last_error` tells if it was refused or not answered.

        A pull that nobody waited for to its end is waited for first. Raises `QueueUnavailableError` if the connection
        breaks.
        """
        assert self._link is not None, "attach it first"
        link, loop = self._link, asyncio.get_running_loop()
        until = loop.time() + max(wait_s, LEAST_WAIT_S)
        self.brought = []
        if not self.is_pulling:
            # One shot: it ends with the first messages there are, and at the latest after that time.
            asked_s = until - loop.time()
            self._pull += 1
            self._left, self.last_error = limit, ""
            self._ends_at = loop.time() + asked_s + ANSWER_GRACE_S
            request = b'{"batch":%d,"expires":%d,"no_wait":true}' % (limit, int(asked_s * 1e9))
            await link.send(self._subject, request, f"{self._inbox}.{self._pull}")
        give_up_at = min(until + ANSWER_GRACE_S, self._ends_at)
        while self.is_pulling and link.alive and (left_s := give_up_at - loop.time()) > 0:
            woken = await self._sleepers.wait(loop.time() + (min(left_s, linger_s) if self.brought else left_s))
            if not woken and self.brought:
                break  # it brought something and then nothing more for a while
        if self.is_pulling and not self.brought:
            if not link.alive:
                raise link.broken()
            if loop.time() >= self._ends_at:
                self._left, self.last_error = 0, "a pull was not answered"
        ended_empty = not self.is_pulling and not self.brought
        if ended_empty and not self.last_error and until - loop.time() > LEAST_WAIT_S:
            self.last_error = "a pull ended before its time"  # whoever asks again at once would do so all the time

    async def _on_message(self, message: Msg) -> None:
        place = parse_reply(message.reply)
        if place is None:
            status = status_of(message)
            if status is None or status == _HEARTBEAT or not message.subject.endswith(f".{self._pull}"):
                return
            if status not in _ENDS:
                self.last_error = f"{status} {(message.headers or {}).get('Description', '')}".strip()
            self._left = 0
            self.wake()
            return
        if place.delivery > self.next_delivery:
            self.missed = True
        elif place.delivery < self.next_delivery:
            self.restarted = True
        self.next_delivery = place.delivery + 1
        self.waiting[place.seq] = Arrived(message, place, self._clock.monotonic())  # instead of an earlier copy
        self.brought.append(place.seq)
        self._left = max(self._left - 1, 0)  # one may come late, after its pull was given up
        self.wake()

    def sort(self) -> None:
        self.waiting = dict(sorted(self.waiting.items()))

    def wake(self) -> None:
        self._sleepers.wake()
