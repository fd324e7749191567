"""Takeover: what a consumer's earlier reader had comes first.

JetStream hides what it delivered until it is acknowledged or `ack_wait` ends, and delivers what comes after it
meanwhile. So a router that follows a crashed one would get the later messages of a group before the earlier. The same
happens to one router whose connection breaks: what was on the wire is hidden too, and nobody has it.

A takeover therefore runs before the first pull over a connection:

1. Wait until no pull of anybody else is open, so that nothing more is delivered elsewhere.
2. Everything that is hidden lies between the consumer's ack floor and the last message delivered. Give all of that
   back, except what this client has itself. JetStream ignores a nack of what is not hidden.
3. Pull. JetStream shows what was nacked before anything new: the first new message, or none, tells that all came.
4. Sort by sequence: some leases may have ended before, in any order.

Deliveries of a consumer are numbered without a gap. A gap later on means that somebody else got some: the takeover is
repeated before anything behind the gap is handed out.
"""

import asyncio
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats.format import ACK, NAK, made_up_reply
from flowcatalyst.queues.nats.ledger import Ledger
from flowcatalyst.queues.nats.link import Link
from flowcatalyst.queues.nats.mailbox import Mailbox
from flowcatalyst.queues.nats.setup import consumer_state

LARGEST_SPAN: Final = 100_000
CHUNK: Final = 1000
COLLECT_BATCH: Final = 500
COLLECT_WAIT_S: Final = 0.25
COLLECT_LINGER_S: Final = 2.0
LOOK_S: Final = 0.1
PAST_ACK_WAIT_S: Final = 1.0  # JetStream looks for ended leases now and then


class Takeover:
    """One takeover over one connection. `go_on` may be called until it is done."""

    def __init__(
        self,
        link: Link,
        address: NatsAddress,
        ledger: Ledger,
        mailbox: Mailbox,
        clock: Clock,
        *,
        ack_wait_s: float,
        longest_pull_s: float,
        max_batch: int = COLLECT_BATCH,
    ) -> None:
        self._link = link
        self._address = address
        self._ledger = ledger
        self._mailbox = mailbox
        self._clock = clock
        self._batch = min(max_batch, COLLECT_BATCH)
        began = clock.monotonic()
        self._others_end_at = began + longest_pull_s + LOOK_S
        self._leases_end_at = began + ack_wait_s + PAST_ACK_WAIT_S
        self._last: int | None = None  # sequence of the last message that was delivered to anybody
        self._hidden = 0  # how many may have to come, at most
        self._delayed = 0  # how many of ours wait for a delay
        self._patient = False  # wait until all leases have ended instead of nacking

    async def go_on(self, until: float) -> bool:
        """Whether all that was hidden is in the mailbox now, sorted. Ends soon after `until` (loop time)."""
        if self._last is None and not await self._claim(until):
            return False
        if self._patient:
            left = self._leases_end_at - self._clock.monotonic()
            if left > 0:
                await asyncio.sleep(min(left, max(until - asyncio.get_running_loop().time(), LOOK_S)))
            if self._clock.monotonic() < self._leases_end_at:
                return False
        await self._collect()
        if not self._patient:
            state = await consumer_state(self._link, self._address)
            if state["num_ack_pending"] > len(self._ledger.held) + self._delayed + len(self._mailbox.waiting):
                self._patient = True  # some did not come
                return False
        self._mailbox.sort()
        return True

    async def _claim(self, until: float) -> bool:
        """When nobody else pulls any more, nack all that is hidden and not ours. False: not yet."""
        state = await consumer_state(self._link, self._address)
        while (state.get("num_waiting") or self._mailbox.is_pulling) and self._clock.monotonic() < self._others_end_at:
            if asyncio.get_running_loop().time() >= until:
                return False
            await asyncio.sleep(LOOK_S)
            state = await consumer_state(self._link, self._address)
        self._last = state["delivered"]["stream_seq"]
        self._mailbox.next_delivery = state["delivered"]["consumer_seq"] + 1
        self._mailbox.missed = self._mailbox.restarted = False
        hidden = range(state["ack_floor"]["stream_seq"] + 1, state["delivered"]["stream_seq"] + 1)
        self._ledger.nacked.clear()
        if not state["num_ack_pending"]:
            return True
        self._hidden = state["num_ack_pending"]
        if len(hidden) > LARGEST_SPAN:
            self._patient = True
            return True
        self._delayed = self._ledger.delayed(self._clock.monotonic())
        delivery = state["delivered"]["consumer_seq"]
        await self._tell(self._ledger.acks_among(hidden), delivery, ACK)
        not_ours = self._ledger.foreign(hidden, self._clock.monotonic())
        not_here = [seq for seq in not_ours if seq not in self._mailbox.waiting]
        self._hidden = min(self._hidden, len(not_here))
        await self._tell(not_here, delivery, NAK)
        return True

    async def _tell(self, sequences: list[int], delivery: int, what: bytes) -> None:
        """JetStream works through what it is told in order, so the answer to the last stands for all."""
        stream, consumer = self._address.stream, self._address.consumer
        subjects = [made_up_reply(stream, consumer, seq, delivery) for seq in sequences]
        for start in range(0, len(subjects), CHUNK):
            *rest, last = subjects[start : start + CHUNK]
            for subject in rest:
                await self._link.send(subject, what)
            if await self._link.ask_all([(last, what, None)]) == [None]:
                raise self._link.give_up("it does not answer")

    async def _collect(self) -> None:
        assert self._last is not None, "claim first"
        left = self._hidden
        while left > 0:
            batch = min(left, self._batch)
            await self._mailbox.pull(batch, COLLECT_WAIT_S, linger_s=COLLECT_LINGER_S)
            brought = self._mailbox.brought
            if self._mailbox.is_pulling or len(brought) < batch or max(brought) > self._last:
                return
            left -= batch
