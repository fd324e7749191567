"""Consumer: the one poll loop for all queues."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.errors import FlowCatalystError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.message import MAX_NAME_CHARS, Delivery, Outcome, Severity, check_name, parse_pointer
from flowcatalyst.observe.logs import debug_is_on
from flowcatalyst.operations.warnings import WarningCode, WarningSink
from flowcatalyst.queues.contract import Loss, Queue
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.policy import DEFAULT_DELAY_S
from flowcatalyst.routing.router import Router

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
# A queue that cannot be asked per pool may have something for the others behind what the pools it fed last have no room
# for. Look so often; what comes along meanwhile is parked.
LOOK_AHEAD_S: Final = 0.25
CLOCK_GRAIN_S: Final = 0.001  # what is left of a wait may be too little to wait for
# A poll that ends at once with nothing, again and again, must not keep the processor busy.
EARLY_S: Final = 0.5
EARLY_PAUSE_S: Final = 0.25
UNREADABLE_PERIOD_S: Final = 60.0  # between two warnings about messages that cannot be read

log = structlog.get_logger("flowcatalyst.consumer")


class DeadLetterSink(Protocol):
    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None: ...


class Consumer:
    """Polls one queue while a pool asks for messages, and routes what comes."""

    def __init__(
        self,
        queue: Queue,
        settler: Settler,
        router: Router,
        dead_letters: DeadLetterSink,
        warnings: WarningSink,
        clock: Clock,
    ) -> None:
        self.last_poll_at: float | None = None  # monotonic; of successful polls only
        self.trouble = ""  # why the newest poll failed; empty when it did not
        self.restarts = 0
        self.losses: list[Loss] = []  # of its queue, so far
        self.waits_for_room = False  # the pools ask for nothing, so it does not poll
        self.loop = 0  # number of the poll loop that counts
        self._polls_since = clock.monotonic()  # when it began, or began again, to poll
        self._queue = queue
        self._settler = settler
        self._router = router
        self._dead_letters = dead_letters
        self._warnings = warnings
        self._clock = clock
        self._fed: set[str] = set()  # codes of the pools that took the last batch
        self._stop_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pause_s = 0.0
        self._trouble_since = 0.0  # monotonic
        self._unreadable = 0  # since the last warning about them
        self._unreadable_why = ""  # of the newest
        self._unreadable_told_at = -UNREADABLE_PERIOD_S  # monotonic
        self._advised: Sequence[str] = ()  # what was passed on since the queue recovered
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
        """For how long no poll succeeded although it should have."""
        return 0.0 if self.waits_for_room else now - max(self._polls_since, self.last_poll_at or 0.0)

    async def run(self, loop: int | None = None) -> None:
        """Poll until stopped, or until the poll loop of this number was replaced; of the newest if it is not said."""
        mine = self.loop if loop is None else loop
        while self._goes_on(mine):
            await self._wait_for_room()
            if not self._goes_on(mine):
                break
            try:
                await self._poll_once(mine)
            except Exception as error:  # one that nobody thought of must not leave the queue unread for ever
                text = f"queue {self._queue.name}: a poll failed unexpectedly: {error!r}"
                self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
                log.error("poll_crashed", action="poll_crashed", queue=self._queue.name, exc_info=error)
                await self._has_failed(repr(error))

    def _goes_on(self, loop: int) -> bool:
        return loop == self.loop and not self._stop_asked.done()

    # When to poll

    async def _wait_for_room(self) -> None:
        """Until a pool asks for messages that this queue may have."""
        capabilities, began = self._queue.capabilities, self._clock.monotonic()
        look_ahead_s = min(LOOK_AHEAD_S, LOOK_AHEAD_S / 10 * capabilities.max_batch)
        while not self._stop_asked.done():
            fed = self._fed if self._fed and not capabilities.selects_pools else None
            left_s = began + look_ahead_s - self._clock.monotonic()
            if self._is_blocked_by_a_full_pool():
                await self._until_room_grows(None)
            elif self._router.has_room(fed) or (left_s < CLOCK_GRAIN_S and self._router.has_room()):
                if not capabilities.selects_pools:  # one that does asks for itself
                    self._router.room()
                return
            else:
                self._router.room()  # in vain: so they tell when there is some
                await self._until_room_grows(left_s if self._router.has_room() else None)

    def _is_blocked_by_a_full_pool(self) -> bool:
        """What cannot be nacked without losing its order cannot be received while its pool holds all it may."""
        capabilities = self._queue.capabilities
        if capabilities.selects_pools or capabilities.ordered_redelivery:
            return False
        full = next((pool for pool in self._router.all_pools() if pool.is_full and pool.code in self._fed), None)
        if full is None:
            return False
        text = f"pool {full.code} is full, with {full.size} messages"
        text += f": queue {self._queue.name} is not polled until there is room"
        self._warnings.add(WarningCode.QUEUE_FULL, Severity.WARN, text, "consumer")
        full.admission.note(0)  # whatever others may be told
        return True

    async def _until_room_grows(self, seconds: float | None) -> None:
        """Until room grew, the time is over, or somebody asked to stop."""
        grew: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        forget = self._router.on_growth(lambda: None if grew.done() else grew.set_result(None))
        self.waits_for_room = True
        if self._debugs:
            log.debug("waits_for_room", action="waits_for_room", queue=self._queue.name, at_most_s=seconds)
        try:
            await asyncio.wait([self._stop_asked, grew], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forget()
            self.waits_for_room = False
            self._polls_since = self._clock.monotonic()

    # A poll

    async def _poll_once(self, loop: int) -> None:
        capabilities, began = self._queue.capabilities, self._clock.monotonic()
        try:
            batch = await self._queue.receive(capabilities.max_batch, capabilities.long_poll_s, self._router)
        except QueueUnavailableError as error:
            text = f"queue {self._queue.name} cannot be read: {error}"
            self._warnings.add(WarningCode.QUEUE_UNAVAILABLE, Severity.ERROR, text, "consumer")
            log.warning("poll_failed", action="poll_failed", queue=self._queue.name, error=str(error))
            self._tell_of_losses()
            await self._has_failed(str(error))
            return
        self._has_succeeded()
        if self._debugs:
            took_s = round(self._clock.monotonic() - began, 6)
            log.debug("polled", action="polled", queue=self._queue.name, messages=len(batch), seconds=took_s)
        # Where a message that is nacked would come after its followers, the queue serves one receive after the other:
        # what a loop that was replaced still gets comes before what the new one will get.
        if self._stop_asked.done() or (loop != self.loop and capabilities.ordered_redelivery):
            self._nack_unrouted(batch)
            return
        if unreadable := self._route(batch):
            await asyncio.gather(*(self._dead_letter(delivery, reason) for delivery, reason in unreadable))
            self._unreadable += len(unreadable)
            self._unreadable_why = unreadable[-1][1]
        self._tell_of_unreadable()
        if 0 < len(batch) < capabilities.max_batch:
            await self._pause(capabilities.partial_pause_s)
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
                delivery.pointer = parse_pointer(delivery.body)
                if delivery.group is not None and len(delivery.group) > MAX_NAME_CHARS:
                    check_name("its group at the broker", delivery.group)
            except InvalidMessageError as error:
                unreadable.append((delivery, str(error)))
            else:
                readable.append(delivery)
        if readable:
            self._router.route(readable)
            one_of_each = {delivery.pointer.pool_code: delivery for delivery in readable}.values()
            self._fed = {self._router.pool_of(delivery).code for delivery in one_of_each}
        return unreadable

    def _news_of(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """A batch without those whose ack is under way. Of a message that is shown twice only the newer receipt is of
        use; first come, first routed."""
        newest = {delivery.broker_id or delivery: delivery for delivery in batch}.values()
        for delivery in newest:
            delivery.source = self._settler
        return [delivery for delivery in newest if not self._settler.ends_already(delivery)]

    def _nack_unrouted(self, batch: Sequence[Delivery]) -> None:
        """A batch that came too late: only what is new to us goes back."""
        for delivery in self._router.adopt_owned(self._news_of(batch)):
            self._settler.nack(delivery, 0.0)

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

    # How polls go

    async def _has_failed(self, why: str) -> None:
        """Remember why, and pause for longer each time."""
        if not self.trouble:
            self._trouble_since = self._clock.monotonic()
        self.trouble = why
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        await self._pause(self._pause_s)

    def _tell_of_unreadable(self) -> None:
        """At once, then once in a while: a sender with a bug has thousands of them."""
        now = self._clock.monotonic()
        if not self._unreadable or now - self._unreadable_told_at < UNREADABLE_PERIOD_S:
            return
        count = "a message" if self._unreadable == 1 else f"{self._unreadable} messages"
        text = f"queue {self._queue.name}: {count} could not be read and went to the dead letters; the newest: "
        self._warnings.add(WarningCode.MESSAGES_UNREADABLE, Severity.WARN, f"{text}{self._unreadable_why}", "consumer")
        self._unreadable, self._unreadable_told_at = 0, now

    def _tell_of_losses(self) -> None:
        while losses := self._queue.losses:
            loss = losses.pop(0)
            in_hand = self._settler.in_hand
            had = f"; {in_hand} of its messages were in hand here" if in_hand else ""
            text = f"queue {self._queue.name}: {loss.text}{had}"
            self.losses.append(Loss(text, loss.messages))
            self._warnings.add(WarningCode.MESSAGES_LOST, Severity.ERROR, text, "consumer")
            log.error("messages_lost", action="messages_lost", queue=self._queue.name, loss=text, in_hand=in_hand)

    def _has_succeeded(self) -> None:
        self._tell_of_losses()
        self._pause_s = 0.0
        self.last_poll_at = self._clock.monotonic()
        name = self._queue.name
        if self.trouble:
            self.trouble, self._advised = "", ()
            after_s = round(self.last_poll_at - self._trouble_since, 1)
            text = f"queue {name} can be read again"
            self._warnings.add(WarningCode.QUEUE_RECOVERED, Severity.WARN, text, "consumer")
            log.warning("queue_recovered", action="queue_recovered", queue=name, after_s=after_s)
        if self._queue.advice != self._advised:
            news = [text for text in self._queue.advice if text not in self._advised]
            self._advised = self._queue.advice
            for text in news:
                self._warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, f"queue {name}: {text}", "consumer")

    async def _pause(self, seconds: float) -> None:
        """Pause, or less if asked to stop."""
        if seconds > 0:
            await asyncio.wait([self._stop_asked], timeout=seconds)
