"""Settler: ends deliveries towards one queue, in batches, and never forgets an ack.

A message that is acked stays in the tracker until its queue confirmed the end. So a redelivery that comes while the ack
is under way is recognised, its newer receipt is adopted, and a repeated ack uses that one.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Attempt, Delivery, Settled, Told
from flowcatalyst.core.receipts import adopt_receipt, content_mark, was_changed
from flowcatalyst.queues.contract import Queue
from flowcatalyst.router.tracker import InFlightTracker

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
MAX_REMEMBERED_DELETES: Final = 100_000
MAX_NACK_TRIES: Final = 3  # after that the lease runs out, which requeues the message as well

_OK: Final = Settled.OK  # each ack asks, and an enum takes its time to find a member

log = structlog.get_logger("flowcatalyst.settle")


@dataclass(slots=True, frozen=True)
class _LostAck:
    """What was delivered although its queue takes no ack for it now."""

    attempt: Attempt | None  # that delivered it
    mark: int  # as what: it may be edited before it is shown again
    position: int  # as its request told it


class Settler:
    """One per queue. `ack` and `nack` return at once; `run` does the work."""

    def __init__(self, queue: Queue, tracker: InFlightTracker) -> None:
        self.name = queue.name
        self.capabilities, self.batching = queue.capabilities, queue.batching
        self.still_ours = queue.still_ours  # asked before each attempt
        self._queue = queue
        self._tracker = tracker
        self._acks: list[Delivery] = []
        self._nacks: dict[tuple[float, bool], list[Delivery]] = defaultdict(list)
        self._nack_tries: dict[Delivery, int] = {}
        self._remembered: OrderedDict[str, _LostAck] = OrderedDict()
        self._unowned: dict[str, Delivery] = {}  # acks under way of messages that the tracker does not have
        self._on_acked: dict[Delivery, Callable[[], None]] = {}
        self._on_nacked: dict[Delivery, Callable[[], None]] = {}
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()  # a group waits for an ack
        self._idle = asyncio.Event()
        self._idle.set()
        self._pause_s = 0.0
        self._flushing = 0
        self.nacks_given_up = 0  # the queue did not take them back; it shows them again when it notices

    def __repr__(self) -> str:
        nacks = sum(len(batch) for batch in self._nacks.values())
        return f"<Settler {self.name} acks={len(self._acks)} nacks={nacks} remembered={len(self._remembered)}>"

    def ack(self, delivery: Delivery, done: Callable[[], None] | None = None) -> None:
        """Remove the message from its queue, sooner or later; `done` is called when the queue confirmed it."""
        self._acks.append(delivery)
        if done is not None:
            self._on_acked[delivery] = done
            self._hurry.set()
        if self._tracker.owned(delivery.broker_id) is not delivery:
            self._unowned[delivery.broker_id] = delivery
        if len(self._acks) == 1:
            self._start_work()

    def nack(self, delivery: Delivery, delay_s: float, *, unlock: bool = False, told: Told = None) -> None:
        """Requeue the message. With `unlock` it does not hold its group back while it waits.

        It is no longer ours from now on: the queue may show it again before it told us that it took it back. `told`
        is called when it did, or when nobody tries to tell it any more: its delay may begin late.
        """
        self._tracker.remove(delivery)
        if told is not None:
            self._on_nacked[delivery] = told
        self._nacks[delay_s, unlock].append(delivery)
        self._start_work()

    def news_among(self, batch: Collection[Delivery]) -> list[Delivery]:
        """A batch without redeliveries of messages whose ack is under way or was lost."""
        if not self._unowned and not self._remembered:  # as nearly always
            return list(batch)
        return [delivery for delivery in batch if not self.ends_already(delivery)]

    def ends_already(self, delivery: Delivery) -> bool:
        """Whether this is a redelivery of a message whose ack is under way or was lost: ack it with its new receipt."""
        ending = self._unowned.get(delivery.broker_id)
        if ending is not None and not was_changed(ending, delivery):
            adopt_receipt(ending, delivery)
            return True
        remembered = self._remembered.get(delivery.broker_id)
        if remembered is None or remembered.mark != content_mark(delivery):
            return False
        delivery.attempt, delivery.position = remembered.attempt, remembered.position
        self.ack(delivery)
        return True

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        return await _ask(self._queue.extend(deliveries, seconds), len(deliveries))

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._work.wait()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            elif (
                self.batching.settle_linger_s
                and not self._on_acked  # or a group waits for it
                and len(self._acks) < min(self.batching.settle_batch, len(self._tracker))  # more can come
            ):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.batching.settle_linger_s):
                        await self._hurry.wait()
            self._hurry.clear()
            await self.settle()

    @property
    def pending(self) -> int:
        """Acks under way."""
        return len(self._acks) + self._flushing

    @property
    def in_hand(self) -> int:
        """Messages of its queue that the router owns."""
        return sum(1 for delivery in self._tracker if delivery.source is self)

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    async def wait_idle(self) -> None:
        """Until everything handed in so far is settled."""
        await self._idle.wait()

    def _start_work(self) -> None:
        self._work.set()
        self._idle.clear()

    async def settle(self) -> None:
        """Settle everything that is waiting now; what fails waits for the next round."""
        self._work.clear()
        acks, self._acks = self._acks, []
        nacks, self._nacks = self._nacks, defaultdict(list)
        self._flushing = len(acks)
        all_done = await self._flush_acks(acks) if acks else True
        self._flushing = 0
        for (delay_s, unlock), batch in nacks.items():
            results = await _ask(self._queue.nack(batch, delay_s, unlock=unlock), len(batch))
            all_done &= Settled.FAILED not in results
            for delivery, result in zip(batch, results, strict=True):
                tries = self._nack_tries.get(delivery, 0) + 1
                if result is Settled.FAILED and tries < MAX_NACK_TRIES:
                    self._nack_tries[delivery] = tries
                    self._nacks[delay_s, unlock].append(delivery)
                else:
                    self._nack_tries.pop(delivery, None)
                    self.nacks_given_up += result is Settled.FAILED
                    self._call(self._on_nacked.pop(delivery, None))
        if all_done:
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        if self._acks or self._nacks:
            self._work.set()
        else:
            self._idle.set()

    async def _flush_acks(self, batch: list[Delivery]) -> bool:
        receipts = [delivery.receipt for delivery in batch]
        results = await _ask(self._queue.ack(batch), len(batch))
        for delivery, receipt, result in zip(batch, receipts, results, strict=True):
            if result is _OK:
                if self._remembered:
                    self._remembered.pop(delivery.broker_id, None)
            elif result is Settled.FAILED or delivery.receipt != receipt:
                # Stale, but a redelivery brought a newer receipt while the queue was asked: try with that.
                self._acks.append(delivery)
                continue
            else:
                log.info("delete_remembered", action="delete_remembered", queue=self.name, broker_id=delivery.broker_id)
                lost = _LostAck(delivery.attempt, content_mark(delivery), delivery.position)
                self._remembered[delivery.broker_id] = lost
                if len(self._remembered) > MAX_REMEMBERED_DELETES:
                    self._remembered.popitem(last=False)
            self._tracker.remove(delivery)
            if self._unowned:
                self._unowned.pop(delivery.broker_id, None)
            if self._on_acked:
                self._call(self._on_acked.pop(delivery, None))
        return Settled.FAILED not in results

    def _call(self, done: Callable[[], None] | None) -> None:
        if done is not None:
            try:
                done()
            except Exception as error:  # those behind it must not be forgotten because of a bug
                log.error("settle_crashed", action="settle_crashed", messages=1, exc_info=error)


async def _ask(call: Awaitable[list[Settled]], count: int) -> list[Settled]:
    """The queue's answer; a queue that cannot be reached settled nothing."""
    try:
        answers = await call
        if len(answers) == count:
            return answers
        log.error("settle_crashed", action="settle_crashed", messages=count, answers=len(answers))
    except QueueUnavailableError as error:
        log.warning("settle_failed", action="settle_failed", error=str(error), messages=count)
    except Exception as error:  # an ack must not be forgotten because of a bug
        log.error("settle_crashed", action="settle_crashed", messages=count, exc_info=error)
    return [Settled.FAILED] * count
