"""Where JetStream puts what was pulled, in the order it came, until the router takes it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from flowcatalyst.clock import Clock
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats_format import Place, parse_reply
from flowcatalyst.queues.nats_link import API, Link, status_of

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
        self.trouble = ""  # why the newest pull came to nothing
        self._subject = f"{API}CONSUMER.MSG.NEXT.{address.stream}.{address.consumer}"
        self._clock = clock
        self._link: Link | None = None
        self._inbox = ""
        self._listening: Subscription | None = None
        self._pull = 0  # running number
        self._left = 0  # how many the pull under way may still bring
        self._ends_at = 0.0  # when it has to have ended (loop time)
        self._sleeper: asyncio.Future[None] | None = None

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
        """Until messages came, or the time is over; `trouble` tells if it was refused or not answered.

        A pull that nobody waited for to its end is waited for first. Raises `QueueUnavailableError` if the connection
        breaks.
        """
        assert self._link is not None, "attach it first"
        link, loop = self._link, asyncio.get_running_loop()
        until = loop.time() + max(wait_s, LEAST_WAIT_S)
        self.brought = []
        if not self.is_pulling:
            await self._ask(link, limit, until - loop.time())
        await self._wait_for_end(link, until, linger_s)
        ended_empty = not self.is_pulling and not self.brought
        if ended_empty and not self.trouble and until - loop.time() > LEAST_WAIT_S:
            self.trouble = "a pull ended before its time"  # whoever asks again at once would do so all the time

    async def _ask(self, link: Link, limit: int, wait_s: float) -> None:
        """One shot: it ends with the first messages there are, and at the latest after `wait_s`."""
        self._pull += 1
        self._left, self.trouble = limit, ""
        self._ends_at = asyncio.get_running_loop().time() + wait_s + ANSWER_GRACE_S
        request = b'{"batch":%d,"expires":%d,"no_wait":true}' % (limit, int(wait_s * 1e9))
        await link.send(self._subject, request, f"{self._inbox}.{self._pull}")

    async def _wait_for_end(self, link: Link, until: float, linger_s: float) -> None:
        """Of the pull under way; less if it brought something and then nothing more for a while."""
        loop = asyncio.get_running_loop()
        give_up_at = min(until + ANSWER_GRACE_S, self._ends_at)
        while self.is_pulling and link.alive and (left_s := give_up_at - loop.time()) > 0:
            if not await self._sleep(min(left_s, linger_s) if self.brought else left_s) and self.brought:
                return
        if self.is_pulling and not self.brought:
            if not link.alive:
                raise link.broken()
            if loop.time() >= self._ends_at:
                self._left, self.trouble = 0, "a pull was not answered"

    async def _on_message(self, message: Msg) -> None:
        place = parse_reply(message.reply)
        if place is None:
            self._on_status(message)
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

    def _on_status(self, message: Msg) -> None:
        status = status_of(message)
        if status is None or status == _HEARTBEAT or not message.subject.endswith(f".{self._pull}"):
            return
        if status not in _ENDS:
            self.trouble = f"{status} {(message.headers or {}).get('Description', '')}".strip()
        self._left = 0
        self.wake()

    def sort(self) -> None:
        self.waiting = dict(sorted(self.waiting.items()))

    def wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _sleep(self, seconds: float) -> bool:
        """Until something happens: true, or false if nothing did."""
        self._sleeper = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._sleeper], timeout=seconds)
        return bool(done)
