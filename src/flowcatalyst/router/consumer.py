"""Consumer: polls one queue. The same for all kinds of queue."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError, QueueUnavailableError, plain
from flowcatalyst.core.logs import debug_is_on
from flowcatalyst.core.message import MAX_NAME_CHARS, Delivery, Severity, check_name
from flowcatalyst.core.warnings import WarningBook, WarningCode
from flowcatalyst.http.interpret import DEFAULT_DELAY_S
from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.raw import POINTERS, Reader
from flowcatalyst.router.pool_tools import DeadLetterSink
from flowcatalyst.router.queue_reports import QueueReports
from flowcatalyst.router.recaller import Recaller
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.standstill import Standstill

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
# A queue that cannot be asked per pool may have something for the others behind what the pools it fed last have no room
# for. Look so often; what comes along meanwhile is parked.
LOOK_AHEAD_S: Final = 0.25
CLOCK_GRAIN_S: Final = 0.001  # what is left of a wait may be too little to wait for
# A poll that ends at once with nothing, again and again, must not keep the processor busy.
EARLY_S: Final = 0.5
EARLY_PAUSE_S: Final = 0.25

log = structlog.get_logger("flowcatalyst.consumer")


class Consumer:
    """Polls one queue while a pool asks for messages, and routes what comes."""

    def __init__(
        self,
        queue: Queue,
        settler: Settler,
        router: Router,
        dead_letters: DeadLetterSink,
        warnings: WarningBook,
        clock: Clock,
        reader: Reader = POINTERS,
        standstill: Standstill | None = None,
        recaller: Recaller | None = None,
    ) -> None:
        self.reports = QueueReports(queue, settler, warnings, clock)
        self.restarts = 0
        self.waits_for_capacity = False  # the pools ask for nothing, so it does not poll
        self.loop = 0  # number of the poll loop that counts
        self._polls_since = clock.monotonic()  # when it began, or began again, to poll
        self._queue = queue
        self._settler = settler
        self._router = router
        self._dead_letters = dead_letters
        self._warnings = warnings
        self._clock = clock
        self._read = reader
        self._standstill = standstill or Standstill(clock, warnings)
        self._recaller = recaller
        self._fed: set[str] = set()  # codes of the pools that took the last batch
        self._stop_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pause_s = 0.0
        self._debugs = debug_is_on()

    def __repr__(self) -> str:
        return f"<Consumer {self._queue.name} stopping={self._stop_asked.done()}>"

    def stop(self) -> None:
        """Ask nothing more of the queue. A poll under way ends by itself and what it brings is nacked."""
        if not self._stop_asked.done():
            self._stop_asked.set_result(None)

    def resume(self) -> None:
        """After `stop`. The caller runs a new poll loop."""
        self._stop_asked = asyncio.get_running_loop().create_future()
        self.loop += 1
        self._polls_since = self._clock.monotonic()

    def restart(self) -> None:
        """Give up the poll loop that runs: it hangs. It ends by itself and nacks what its poll still brings.

        The caller runs a new one.
        """
        self.restarts += 1
        self.loop += 1
        self._polls_since = self._clock.monotonic()

    def silent_s(self, now: float) -> float:
        """For how long no poll succeeded although it should have: not while the whole process stood still."""
        if self.waits_for_capacity:
            return 0.0
        return min(now - max(self._polls_since, self.reports.last_poll_at or 0.0), self._standstill.awake_s())

    async def run(self, loop: int | None = None) -> None:
        """Poll until stopped, or until the poll loop of this number was replaced; of the newest if it is not said."""
        mine = self.loop if loop is None else loop
        while self._goes_on(mine):
            await self._wait_for_capacity()
            if not self._goes_on(mine):
                break
            try:
                await self._poll_once(mine)
            except Exception as error:  # one that nobody thought of must not leave the queue unread for ever
                text = f"queue {self._queue.name}: a poll failed unexpectedly and is repeated: {plain(error)}"
                self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
                log.error("poll_crashed", action="poll_crashed", queue=self._queue.name, exc_info=error)
                await self._has_failed(plain(error))

    def _goes_on(self, loop: int) -> bool:
        return loop == self.loop and not self._stop_asked.done()

    # When to poll

    async def _wait_for_capacity(self) -> None:
        """Until a pool asks for messages that this queue may have."""
        capabilities, began = self._queue.capabilities, self._clock.monotonic()
        look_ahead_s = min(LOOK_AHEAD_S, LOOK_AHEAD_S / 10 * self._queue.batching.max_batch)
        while not self._stop_asked.done():
            fed = self._fed if self._fed and not capabilities.selects_pools else None
            left_s = began + look_ahead_s - self._clock.monotonic()
            if self._is_blocked_by_a_full_pool():
                await self._until_capacity_grows(None)
            elif self._router.has_capacity(fed) or (left_s < CLOCK_GRAIN_S and self._router.has_capacity()):
                if not capabilities.selects_pools:  # one that does asks for itself
                    self._router.free_capacity()
                return
            else:
                self._router.free_capacity()  # in vain: so they tell when there is some
                await self._until_capacity_grows(left_s if self._router.has_capacity() else None)

    def _is_blocked_by_a_full_pool(self) -> bool:
        """What cannot be nacked without losing its order cannot be received while its pool holds all it may."""
        capabilities = self._queue.capabilities
        if capabilities.selects_pools or capabilities.ordered_redelivery:
            return False
        full = next((pool for pool in self._router.all_pools() if pool.is_full and pool.code in self._fed), None)
        if full is None:
            return False
        text = f"pool {full.code} is full, with {full.size} messages"
        text += f": queue {self._queue.name} is not polled until it has free capacity"
        self._warnings.add(WarningCode.QUEUE_FULL, Severity.WARN, text, "consumer")
        full.admission.note(0)  # whatever others may be told
        return True

    async def _until_capacity_grows(self, seconds: float | None) -> None:
        """Until free capacity grew, the time is over, or somebody asked to stop."""
        grew: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        forget = self._router.on_growth(lambda: None if grew.done() else grew.set_result(None))
        self.waits_for_capacity = True
        if self._debugs:
            log.debug("waits_for_capacity", action="waits_for_capacity", queue=self._queue.name, at_most_s=seconds)
        try:
            await asyncio.wait([self._stop_asked, grew], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forget()
            self.waits_for_capacity = False
            self._polls_since = self._clock.monotonic()

    # A poll

    async def _poll_once(self, loop: int) -> None:
        capabilities, batching, began = self._queue.capabilities, self._queue.batching, self._clock.monotonic()
        try:
            batch = await self._queue.receive(batching.max_batch, capabilities.long_poll_s, self._router)
        except QueueUnavailableError as error:
            text = f"queue {self._queue.name} cannot be read: {error}"
            self._warnings.add(WarningCode.QUEUE_UNAVAILABLE, Severity.ERROR, text, f"queue {self._queue.name}")
            log.warning("poll_failed", action="poll_failed", queue=self._queue.name, error=str(error))
            await self._has_failed(str(error))
            return
        self._pause_s = 0.0
        self.reports.succeeded()
        if self._debugs:
            took_s = round(self._clock.monotonic() - began, 6)
            log.debug("polled", action="polled", queue=self._queue.name, messages=len(batch), seconds=took_s)
        # Where a message that is nacked would come after its followers, the queue serves one receive after the other:
        # what a loop that was replaced still gets comes before what the new one will get.
        if self._stop_asked.done() or (loop != self.loop and capabilities.ordered_redelivery):
            for delivery in self._router.adopt_owned(self._news_of(batch)):
                self._settler.nack(delivery, 0.0)  # only what is new to us
            return
        if unreadable := self._route(batch):
            await asyncio.gather(*(self._dead_letter(delivery, reason) for delivery, reason in unreadable))
        self.reports.unreadable([reason for _, reason in unreadable])
        if 0 < len(batch) < batching.max_batch:
            await self._pause(batching.partial_pause_s)
        elif not batch and self._clock.monotonic() - began < min(EARLY_S, capabilities.long_poll_s / 2):
            await self._pause(EARLY_PAUSE_S)

    def _route(self, batch: Sequence[Delivery]) -> list[tuple[Delivery, str]]:
        """Route what can be read, in one step: what we know of a message, its receipt for one, may not change before.

        Returns what cannot be read, with the reason.
        """
        readable: list[Delivery] = []
        unreadable: list[tuple[Delivery, str]] = []
        for delivery in self._news_of(batch):
            try:
                delivery.pointer = delivery.pointer or self._read(delivery)  # its queue may know it
                if delivery.group is not None and len(delivery.group) > MAX_NAME_CHARS:
                    check_name("its group at the broker", delivery.group)
            except InvalidMessageError as error:
                unreadable.append((delivery, str(error)))
            else:
                readable.append(delivery)
        if readable:
            self._router.route(readable)
            if self._recaller is not None:
                self._recaller.return_late(readable)
            one_of_each = {delivery.pointer.pool_code: delivery for delivery in readable}.values()
            self._fed = {self._router.pool_of(delivery).code for delivery in one_of_each}
        return unreadable

    def _news_of(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """A batch without those whose ack is under way. Of a message that is shown twice only the newer receipt is of
        use; first come, first routed."""
        newest = {delivery.broker_id or delivery: delivery for delivery in batch}.values()
        for delivery in newest:
            delivery.source = self._settler
        return self._settler.news_among(newest)

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Record a dead letter, then ack. A message that cannot be recorded stays in its queue."""
        try:
            await self._dead_letters.record(delivery, reason, None)
        except FlowCatalystError as error:
            text = f"dead letter not recorded: {error}"
            self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
            self._settler.nack(delivery, DEFAULT_DELAY_S)
        else:
            log.warning("message_unreadable", action="message_unreadable", queue=self._queue.name, reason=reason)
            self._settler.ack(delivery)

    async def _has_failed(self, why: str) -> None:
        """Report why, and pause for longer each time."""
        self.reports.failed(why)
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        await self._pause(self._pause_s)

    async def _pause(self, seconds: float) -> None:
        """Pause, or less if asked to stop."""
        if seconds > 0:
            await asyncio.wait([self._stop_asked], timeout=seconds)
