"""Consumer: the one poll loop for all queues."""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.errors import FlowCatalystError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.message import Delivery, Outcome, Severity, parse_pointer
from flowcatalyst.operations.warnings import WarningCode, WarningSink
from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.settle import Settler
from flowcatalyst.routing.policy import DEFAULT_DELAY_S
from flowcatalyst.routing.pool import Pool
from flowcatalyst.routing.room_shares import HEEDED_S, Claim
from flowcatalyst.routing.router import Router

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
# A queue may feed several pools. While those it fed last are full, look this often whether it has something for others.
FULL_POOL_PATIENCE_S: Final = 1.0
# Where polls cost money, wait so long for room for a whole batch, and look so often.
WHOLE_BATCH_PATIENCE_S: Final = 1.0
WHOLE_BATCH_LOOK_S: Final = 0.02
OTHER_POLLS_LOOK_S: Final = 0.05  # claims of other polls lapse by themselves
# A poll that ends at once with nothing, again and again, must not keep the processor busy.
EARLY_S: Final = 0.5
EARLY_PAUSE_S: Final = 0.25

log = structlog.get_logger("flowcatalyst.consumer")


class DeadLetterSink(Protocol):
    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None: ...


class Consumer:
    """Polls one queue and routes what comes, no faster than the pools take it."""

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
        self.waits_for_room = False  # the pools are full, so it does not poll
        self._polls_since = clock.monotonic()  # when it began, or began again, to poll
        self._queue = queue
        self._settler = settler
        self._router = router
        self._shares = router.shares
        self._dead_letters = dead_letters
        self._warnings = warnings
        self._clock = clock
        self._fed: set[str] = set()  # codes of the pools that took the last batch
        self._kept: dict[str, deque[Delivery]] = {}  # by pool code
        self._kept_for: dict[str, Pool] = {}  # whose room each of these waits for
        self._stop_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pause_s = 0.0
        self._brought = math.inf  # by the latest poll; infinite: all that was asked for, or nothing is known yet
        self._trouble_since = 0.0  # monotonic
        self._advised: Sequence[str] = ()  # what was passed on since the queue recovered

    def __repr__(self) -> str:
        return f"<Consumer {self._queue.name} kept={len(self._kept)} stopping={self._stop_asked.done()}>"

    @property
    def kept_count(self) -> int:
        """Messages that wait here for room in a pool."""
        return sum(map(len, self._kept.values()))

    def stop(self) -> None:
        """Ask nothing more of the queue. A poll under way ends by itself and what it brings is given back."""
        if not self._stop_asked.done():
            self._stop_asked.set_result(None)

    def restart(self) -> None:
        """Give up the poll loop that runs: it hangs. It ends by itself and gives back what its poll still brings.

        The caller runs a new one. What waits for room here stays, in order.
        """
        self.restarts += 1
        self._shares.forget(self)  # what hangs keeps no room
        self._polls_since = self._clock.monotonic()

    def silent_s(self, now: float) -> float:
        """For how long no poll succeeded although it should have."""
        return 0.0 if self.waits_for_room else now - max(self._polls_since, self.last_poll_at or 0.0)

    async def run(self) -> None:
        """Poll until stopped or restarted."""
        mine = self.restarts
        while self._goes_on(mine):
            claim = await self._wait_for_room()
            try:
                if self._goes_on(mine):
                    await self._poll_safely(claim, mine)
            finally:
                self._shares.release(claim)
        if self._stop_asked.done():
            self._shares.forget(self)
            self._give_back(delivery for kept in self._kept.values() for delivery in kept)
            self._kept.clear()

    def _goes_on(self, loop: int) -> bool:
        return loop == self.restarts and not self._stop_asked.done()

    async def _poll_safely(self, claim: Claim, loop: int) -> None:
        """A poll that fails in a way nobody thought of must not leave the queue unread for ever."""
        try:
            await self._poll_once(claim, loop)
        except Exception as error:
            self._shares.release(claim)
            text = f"queue {self._queue.name}: a poll failed unexpectedly: {error!r}"
            self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
            self._is_in_trouble(repr(error))
            log.error("poll_crashed", action="poll_crashed", queue=self._queue.name, exc_info=error)
            await self._pause_longer()

    async def _poll_once(self, claim: Claim, loop: int) -> None:
        began = self._clock.monotonic()
        batch = await self._poll(claim)
        if not self._goes_on(loop) and not self._has_to_route(loop):
            self._give_back_unrouted(batch)
            return
        await self._accept(batch)
        if 0 < len(batch) < claim.messages:
            await self._pause(self._queue.capabilities.partial_pause_s)
        elif not batch and self._clock.monotonic() - began < min(EARLY_S, self._queue.capabilities.long_poll_s / 2):
            await self._pause(EARLY_PAUSE_S)

    def _has_to_route(self, loop: int) -> bool:
        """Whether a batch of a loop that was replaced has to be routed all the same.

        Where a message given back would come after its followers, the queue serves one receive after the other: what
        the old loop got comes before what the new one will get.
        """
        replaced = loop != self.restarts and not self._stop_asked.done()
        return replaced and not self._queue.capabilities.ordered_redelivery

    def _give_back_unrouted(self, batch: Sequence[Delivery]) -> None:
        """A batch that came too late: only what is new to us goes back."""
        fresh = []
        for delivery in _newest_of_each(batch):
            delivery.source = self._settler
            if not self._settler.ends_already(delivery):
                fresh.append(delivery)
        self._give_back(self._router.adopt_owned(fresh))

    def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self._settler.nack(delivery, 0.0)

    # Messages that found no room and may not go back, since their followers would pass them. They wait here, by pool.

    def _keep(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            pool = self._router.pool_of(delivery)
            code = self._kept_with(delivery) or pool.code
            if code not in self._kept:
                self._kept[code] = deque()
                self._route_kept_later(code, pool)
            delivery.arrived_at = self._clock.monotonic()
            self._kept[code].append(delivery)

    def _kept_with(self, delivery: Delivery) -> str | None:
        """Where the message's place is, if others of its group or of its pool wait here: behind them."""
        own_code = self._router.pool_of(delivery).code
        for code, kept in self._kept.items():
            if any(other.group == delivery.group for other in kept):
                return code  # perhaps under the code of a pool that is no longer theirs
        return own_code if own_code in self._kept else None

    def _route_kept_later(self, code: str, pool: Pool) -> None:
        """Route what is kept under `code` when `pool` has room; another pool takes over when the first one drains."""
        self._kept_for[code] = pool
        pool.room_future().add_done_callback(lambda _: self._route_kept(code))

    def _look_after_kept(self) -> None:
        """Those at the head of what is kept may have got another pool meanwhile, and it may have room."""
        for code, kept in list(self._kept.items()):
            if self._router.pool_of(kept[0]) is not self._kept_for[code]:
                self._route_kept(code)

    def _route_kept(self, code: str) -> None:
        """Room appeared: route what was kept, one by one so that its order stays, until there is none again."""
        kept = self._kept.get(code)
        if kept is None or self._stop_asked.done():
            return  # a stop gives them back
        while kept and self._router.route_kept(kept[0]):
            kept.popleft()
        if kept:
            self._route_kept_later(code, self._router.pool_of(kept[0]))
        else:
            del self._kept[code]

    async def _wait_for_room(self) -> Claim:
        """Claim as much as the pools this queue feeds have room for."""
        self._look_after_kept()
        while self.kept_count >= self._queue.capabilities.max_batch:
            await self._first_of([self._router.pool_of(kept[0]).room_future() for kept in self._kept.values()], None)
            if self._stop_asked.done():
                break
            self._look_after_kept()
        fed, _ = self._pools()
        if fed and not any(pool.room for pool in fed):
            self._shares.wait(self, fed)
            await self._first_of([pool.room_future() for pool in fed], FULL_POOL_PATIENCE_S)
        if self._queue.capabilities.whole_batches:
            await self._wait_for_a_whole_batch()
        return await self._share_of_room()

    def _pools(self) -> tuple[list[Pool], list[Pool]]:
        """Those that took the last batch, and all of them."""
        pools = self._router.pools
        return [pools[code] for code in self._fed if code in pools], list(pools.values())

    async def _share_of_room(self) -> Claim:
        """What has room besides that which other polls may bring: else one of them would be refused."""
        while not self._stop_asked.done():
            fed, everyone = self._pools()  # anew: a reload may have changed them meanwhile
            pools = _with_room(fed) or _with_room(everyone)
            if everyone and not pools and not any(pool.draining for pool in everyone):  # another poll was faster
                self._shares.wait(self, everyone)
                await self._first_of([pool.room_future() for pool in everyone], FULL_POOL_PATIENCE_S)
            elif (left := self._left(pools, fed)) > 0:
                return self._claim(pools, left)
            elif self._shares.has_claim(self):  # by another poll loop of this queue: not a wait for room
                await self._pause(OTHER_POLLS_LOOK_S)
            else:
                self._shares.wait(self, pools)
                await self._first_of([self._shares.changed()], OTHER_POLLS_LOOK_S)
        return self._claim((), 1)

    def _left(self, pools: Sequence[Pool], fed: Sequence[Pool]) -> int:
        """How much to ask for. So little that the pools it feeds take it; while they are full, so much that it finds
        what it has for others behind that.
        """
        left = self._shares.left(self, pools, self._clock.monotonic())
        if not left:
            return 0 if self._shares.has_claim(self) else 1
        return max(left) if fed and pools[0] not in fed else min(left)

    def _claim(self, pools: Sequence[Pool], most: int) -> Claim:
        messages = min(self._queue.capabilities.max_batch, most)
        return self._shares.claim(self, pools, messages, self._brought, self._clock.monotonic())

    async def _wait_for_a_whole_batch(self) -> None:
        """Until a batch fits; not for long, since messages that wait for an endpoint may keep the room for hours."""
        fed, everyone = self._pools()
        pools = fed or everyone
        capacity = min((pool.limits.effective_capacity for pool in pools), default=0)
        wanted = min(self._queue.capabilities.max_batch, capacity)
        kept_free = int(min(wanted, capacity // 2, self._brought))  # by the others; no pool should run dry for it
        now = self._clock.monotonic()
        give_up_at = now + WHOLE_BATCH_PATIENCE_S
        self._shares.wait(self, pools, kept_free, now + HEEDED_S)
        while (
            min(self._shares.left(self, _with_room(pools), self._clock.monotonic()), default=0) < wanted
            and self._clock.monotonic() < give_up_at
            and not self._stop_asked.done()
        ):
            await self._pause(WHOLE_BATCH_LOOK_S)

    async def _poll(self, claim: Claim) -> list[Delivery]:
        try:
            batch = await self._queue.receive(claim.messages, self._queue.capabilities.long_poll_s)
        except QueueUnavailableError as error:
            self._shares.release(claim)
            self._brought = 0
            text = f"queue {self._queue.name} cannot be read: {error}"
            self._warnings.add(WarningCode.QUEUE_UNAVAILABLE, Severity.ERROR, text, "consumer")
            log.warning("poll_failed", action="poll_failed", queue=self._queue.name, error=str(error))
            self._is_in_trouble(str(error))
            await self._pause_longer()
            return []
        self._shares.release(claim)  # what it brought is routed before anybody else looks
        self._brought = len(batch) if len(batch) < claim.messages else math.inf
        self._pause_s = 0.0
        self.last_poll_at = self._clock.monotonic()
        if self.trouble:
            self._has_recovered()
        if self._queue.advice != self._advised:
            self._pass_on_advice()
        return batch

    def _is_in_trouble(self, why: str) -> None:
        if not self.trouble:
            self._trouble_since = self._clock.monotonic()
        self.trouble = why

    def _has_recovered(self) -> None:
        self.trouble, self._advised = "", ()
        name, seconds = self._queue.name, round(self._clock.monotonic() - self._trouble_since, 1)
        self._warnings.add(WarningCode.QUEUE_RECOVERED, Severity.WARN, f"queue {name} can be read again", "consumer")
        log.warning("queue_recovered", action="queue_recovered", queue=name, after_s=seconds)

    def _pass_on_advice(self) -> None:
        news = [text for text in self._queue.advice if text not in self._advised]
        self._advised = self._queue.advice
        for text in news:
            self._warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, f"queue {self._queue.name}: {text}", "consumer")

    async def _accept(self, batch: Sequence[Delivery]) -> None:
        """Route what can be read, bury what cannot."""
        unreadable = self._route_readable(batch)
        for delivery, reason in unreadable.values():
            await self._bury(delivery, reason)

    def _route_readable(self, batch: Sequence[Delivery]) -> dict[str, tuple[Delivery, str]]:
        """In one step: what we know of a message, its receipt for one, may not change before it is routed.

        Returns what cannot be read, by broker id, with the reason.
        """
        readable: list[Delivery] = []
        unreadable: dict[str, tuple[Delivery, str]] = {}
        for delivery in _newest_of_each(batch):
            delivery.source = self._settler
            if self._settler.ends_already(delivery):
                continue
            try:
                delivery.pointer = parse_pointer(delivery.body)
            except InvalidMessageError as error:
                unreadable[delivery.broker_id] = (delivery, str(error))
            else:
                readable.append(delivery)
        if readable:
            self._route(readable)
            one_of_each = {delivery.pointer.pool_code: delivery for delivery in readable}.values()
            self._fed = {self._router.pool_of(delivery).code for delivery in one_of_each}
        return unreadable

    def _route(self, readable: Sequence[Delivery]) -> None:
        """Hand over, but for those whose group or pool has others waiting here already: they wait behind them."""
        if self._kept:
            self._keep(self._router.route(readable, lambda one: self._kept_with(one) is not None))
        else:
            self._keep(self._router.route(readable))

    async def _bury(self, delivery: Delivery, reason: str) -> None:
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

    async def _pause_longer(self) -> None:
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        await self._pause(self._pause_s)

    async def _pause(self, seconds: float) -> None:
        """Pause, or less if asked to stop."""
        if seconds > 0:
            await self._first_of([], seconds)

    async def _first_of(self, futures: list[asyncio.Future[None]], seconds: float | None) -> None:
        """Until one of the futures is done, the time is over, or somebody asked to stop."""
        self.waits_for_room = bool(futures)
        await asyncio.wait([self._stop_asked, *futures], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.waits_for_room:
            self.waits_for_room = False
            self._polls_since = self._clock.monotonic()
        for future in futures:
            future.cancel()


def _newest_of_each(batch: Sequence[Delivery]) -> Iterable[Delivery]:
    """A queue may show a message twice in one batch: only the newer receipt is of use. First come, first routed."""
    return {delivery.broker_id or delivery: delivery for delivery in batch}.values()


def _with_room(pools: Sequence[Pool]) -> list[Pool]:
    return [pool for pool in pools if pool.room]
