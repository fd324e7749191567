"""Pool: slots, permits and attempts round a GroupScheduler.

A pool has no standing workers. A slot is a task that lives as long as there is something to start; while the pool is
busy it goes from message to message, when nothing may start it ends. Holds, rate waits and open breakers occupy no
slot: one timer per pool ends the earliest of them.
"""

import asyncio
from typing import Final

from flowcatalyst.message import (
    DEFAULT_POOL,
    Ack,
    Delivery,
    Nack,
    Outcome,
    Reject,
    Retry,
    Severity,
    Verdict,
)
from flowcatalyst.observe.stats import PoolStats
from flowcatalyst.observe.windows import PoolWindows
from flowcatalyst.operations.warnings import WarningCode
from flowcatalyst.routing import policy
from flowcatalyst.routing.breaker import Breaker
from flowcatalyst.routing.groups import FailureScope, GroupScheduler
from flowcatalyst.routing.limits import PoolLimits
from flowcatalyst.routing.pool_tools import PoolTools, Wait
from flowcatalyst.routing.rate import SlidingWindow
from flowcatalyst.tasks import uninterrupted

LEASE_PATIENCE_S: Final = 1.0


class Pool:
    """A bound on concurrency and rate, and the groups that share it."""

    def __init__(self, code: str, limits: PoolLimits, tools: PoolTools) -> None:
        self.code = code
        self.limits = limits
        self._capacity = limits.effective_capacity
        self.stats = PoolStats()
        self.windows = PoolWindows(self.stats, tools.clock.monotonic())
        self.draining = False  # for the end of the process: nothing starts any more
        self.retiring = False  # no longer configured: ends what it has
        self._tools = tools
        self._now = tools.clock.monotonic
        self._fence = tools.fence
        self._scheduler = GroupScheduler()
        self._rate = SlidingWindow(limits.rate_per_minute)
        self._slots: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._pump_is_due = False
        self._rate_waited_until = 0.0
        self._room_waiters: list[asyncio.Future[None]] = []
        self._drained = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Pool {self.code} slots={len(self._slots)}/{self.limits.concurrency} {self._scheduler!r}>"

    # What others may know

    @property
    def in_flight(self) -> int:
        return self._scheduler.in_flight

    @property
    def buffered(self) -> int:
        return self._scheduler.buffered

    @property
    def group_count(self) -> int:
        return self._scheduler.group_count

    @property
    def held_count(self) -> int:
        return self._scheduler.held_count

    @property
    def size(self) -> int:
        """Messages here, waiting or in flight."""
        return len(self._scheduler)

    @property
    def slot_count(self) -> int:
        """Tasks that work for the pool now."""
        return len(self._slots)

    @property
    def room(self) -> int:
        """How many more messages the pool accepts. One in flight keeps its place, since it may have to wait again."""
        return 0 if self.draining else max(0, self._capacity - len(self._scheduler))

    def has(self, delivery: Delivery) -> bool:
        """Whether the message is still here: waiting or being attempted."""
        return delivery in self._scheduler

    def places(self) -> set[tuple[str, str]]:
        """(pool code that its messages name, group) of every ordered group that is here."""
        mine = (message for message in self._scheduler if message.ordered)
        return {(message.pointer.pool_code or DEFAULT_POOL, message.group or "") for message in mine}

    @property
    def is_over(self) -> bool:
        """Nothing is left here, and nothing that started here counts against the rate limit any more."""
        return not len(self._scheduler) and self._rate.is_unused(self._now())

    def has_group_of(self, delivery: Delivery) -> bool:
        return delivery.ordered and self._scheduler.has_group(delivery.group)

    def explain(self, delivery: Delivery) -> Wait:
        """What a message of this pool waits for (G7)."""
        first, held_until = self._scheduler.place_of(delivery)
        if first is not delivery:
            return Wait(f"its turn in group {delivery.group}", behind=first.pointer.id, until=held_until)
        if held_until is not None:
            return Wait(delivery.waits_for, until=held_until)
        if self._scheduler.is_in_flight(delivery):
            return Wait(f"the answer to attempt {delivery.tries}")
        now = self._now()
        permit_at = self._rate.next_permit_at(now)
        if permit_at > now:
            return Wait(f"a permit: {self.limits.rate_per_minute} attempts per minute are used up", until=permit_at)
        return Wait(f"a free slot: {self.in_flight} of {self.limits.concurrency} are busy")

    # Messages in

    def submit(self, delivery: Delivery) -> bool:
        """Accept a message, or refuse it because the pool is full or draining."""
        if self.room < 1:
            return False
        delivery.pool = self.code
        delivery.arrived_at = delivery.arrived_at or self._now()
        self._scheduler.submit(delivery)
        self._pump_soon()
        return True

    def room_future(self) -> asyncio.Future[None]:
        """Done as soon as the pool has room, or never will have any; at once if it has some."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.room or self.draining:
            future.set_result(None)
        else:
            self._room_waiters = [waiter for waiter in self._room_waiters if not waiter.done()]
            self._room_waiters.append(future)
        return future

    # Changes while running

    def change(self, limits: PoolLimits) -> None:
        """Apply new limits at once. Attempts in flight are never cut short: a smaller pool shrinks as they end."""
        self.limits = limits
        self._capacity = limits.effective_capacity
        self._rate.change(limits.rate_per_minute)
        self._pump_soon()
        self._tell_room()

    def drain(self) -> None:
        """Accept nothing more, give back what has not started, let attempts in flight end."""
        self.draining = True
        self._disarm()
        self._give_back_waiting()
        self._wake_room_waiters()  # there will be none here: look elsewhere

    def retire(self) -> None:
        """The pool is no longer configured. What its queue redelivers in order goes back at once and finds another
        pool; the rest is worked off here, under the limits of the pool, since giving it back would reorder it."""
        self.retiring = True
        self._give_back_waiting()
        self._wake_room_waiters()  # those who wait for room here look elsewhere

    def revive(self, limits: PoolLimits) -> None:
        """The pool is configured again."""
        self.retiring = False
        self.change(limits)

    def _goes_back(self, delivery: Delivery) -> bool:
        """Whether a message that cannot start now returns to its queue instead of waiting here."""
        return self.draining or (self.retiring and delivery.source.capabilities.ordered_redelivery)

    def _give_back_waiting(self) -> None:
        """Give back what has not started, but for the followers of an attempt in flight: they go back after it."""
        for delivery in self._scheduler.clear_idle(self._goes_back):
            delivery.source.nack(delivery, 0.0)
            self.stats.given_back += 1
        if not len(self._scheduler):
            self._drained.set()

    def withdraw(self, delivery: Delivery) -> bool:
        """Forget a message that waits here, because it is no longer ours. One in flight ends by itself.

        Those behind it in its group go back to their queue, or they would pass it.
        """
        cut_off = self._scheduler.cut(delivery)
        for follower in cut_off[1:]:
            follower.source.nack(follower, self._tools.delays.follower_s)
            self.stats.given_back += 1
        if cut_off:
            self._tell_room()
        return bool(cut_off)

    async def wait_drained(self) -> None:
        await self._drained.wait()

    def cancel(self) -> None:
        """Stop attempts in flight. Their messages stay with the tracker, to be given back by the caller."""
        for slot in list(self._slots):
            slot.cancel()

    # Slots

    def _pump_soon(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Fill free slots, as many as there are groups and permits for."""
        self._pump_is_due = False
        now = self._now()
        if self.draining or not self._fence.allows(now):
            return
        self._scheduler.end_holds(now)
        wanted = min(self.limits.concurrency - len(self._slots), self._scheduler.ready_count)
        permits = self._rate.available(now)
        for _ in range(wanted if permits is None else min(wanted, permits)):
            slot = self._tools.spawn(self._run_slot())
            self._slots[slot] = None
            slot.add_done_callback(self._slot_ended)
        self._arm()

    async def _run_slot(self) -> None:
        while len(self._slots) <= self.limits.concurrency:
            delivery = self._next()
            if delivery is None:
                return
            await self._process(delivery)

    def _slot_ended(self, slot: "asyncio.Task[None]") -> None:
        self._slots.pop(slot, None)
        if self._scheduler.has_ready:
            self._pump_soon()

    def _next(self) -> Delivery | None:
        """The next message that may start now, with its permit taken; otherwise None and the timer is set."""
        now = self._now()
        if not self._fence.allows(now):
            return None  # another router may be at work by now
        self._scheduler.end_holds(now)
        while self._scheduler.has_ready and self._rate.next_permit_at(now) <= now:
            delivery = self._scheduler.take()
            assert delivery is not None
            if self._lost_its_lease(delivery):
                self._hold(delivery, LEASE_PATIENCE_S, "its lease ran out: its queue has to confirm that it is ours")
                continue
            breaker = self._tools.breakers.get(self._tools.endpoint_of(delivery.pointer.mediation_target))
            probe_at = breaker.admit(now)
            if probe_at is None:
                self._rate.take(now)
                delivery.tries += 1
                delivery.attempt_at = now
                return delivery
            self._wait_for_breaker(delivery, probe_at - now)
        self._arm()
        return None

    def _lost_its_lease(self, delivery: Delivery) -> bool:
        """Its queue may have given it to another router, for instance while this process was paused.

        The lease keeper finds out. A queue that does not keep order cannot help: there it stays ours.
        """
        if not delivery.source.capabilities.ordered_redelivery:
            return False
        return 0.0 < delivery.lease_until <= self._tools.clock.wall()

    async def _process(self, delivery: Delivery) -> None:
        """One attempt and what follows from it."""
        concluded = False
        outcome: Outcome | None = None
        try:
            try:
                outcome = await self._tools.mediator.attempt(delivery.pointer)
            except Exception as error:  # a bug of ours must not cost a slot or a message
                outcome = self._unexpected(error)
            verdict = self._judge(delivery, outcome)
            if isinstance(verdict, Reject):
                verdict = await self._bury(delivery, verdict, outcome)
            self._conclude(delivery, verdict)
            concluded = True
        finally:
            if not concluded:
                self._abandon(delivery, attempted=outcome is not None)

    def _unexpected(self, error: Exception) -> Outcome:
        text = f"attempt failed unexpectedly: {error!r}"
        self._tools.warnings.add(WarningCode.PROCESSING, Severity.WARN, text, f"pool {self.code}")
        return policy.interpret_failure(error)

    def _judge(self, delivery: Delivery, outcome: Outcome) -> Verdict:
        """Count the attempt, report it, and say what it means for the message."""
        tools = self._tools
        now = self._now()
        duration_s = now - delivery.attempt_at
        delivery.failures += outcome.counts
        self._breaker_of(delivery).record(outcome.trips_breaker, now, delivery.attempt_at)
        self.stats.attempt(outcome.result, duration_s)
        capabilities, max_attempts = delivery.source.capabilities, self.limits.max_delivery_attempts
        verdict = policy.decide(outcome, delivery, capabilities, max_attempts, tools.delays)
        if outcome.warning is not None:
            endpoint = tools.endpoint_of(delivery.pointer.mediation_target)  # without the query: it may hold secrets
            tools.warnings.add(
                WarningCode.CONFIGURATION, outcome.warning, f"{outcome.detail} from {endpoint}", "mediator"
            )
        try:
            tools.log.attempt(self.code, delivery, outcome, verdict, duration_s)
        except Exception as error:  # what cannot be told has happened all the same
            tools.warnings.add(WarningCode.PROCESSING, Severity.WARN, f"attempt not logged: {error!r}", "pool")
        return verdict

    async def _bury(self, delivery: Delivery, verdict: Reject, outcome: Outcome) -> Verdict:
        """Record the dead letter before its message may be acked. If that fails the message stays in its queue."""
        try:
            await uninterrupted(self._tools.dead_letters.record(delivery, verdict.reason, outcome))
        except Exception as error:
            self._tools.warnings.add(
                WarningCode.PROCESSING, Severity.CRITICAL, f"dead letter not recorded: {error}", f"pool {self.code}"
            )
            return policy.wait_before_next_attempt(
                self._tools.delays.give_back_s, delivery, delivery.source.capabilities
            )
        return verdict

    def _conclude(self, delivery: Delivery, verdict: Verdict) -> None:
        """Apply a verdict: towards the group and towards the queue, in one step that cannot suspend."""
        match verdict:
            case Ack():
                self.stats.delivered += 1
                self._scheduler.finish(delivery)
                delivery.source.ack(delivery)
            case Reject():
                delivery.rejected = True
                self.stats.dead_lettered += 1
                self._scheduler.finish(delivery)
                delivery.source.ack(delivery)
            case Retry(after_s) if not self._goes_back(delivery):
                self.stats.retried += 1
                self._hold(delivery, after_s, f"retry after {delivery.failures} failed attempts")
            case Retry(after_s):
                self._leave_to_queue(delivery, after_s)
            case Nack(delay_s):
                self._give_back(delivery, delay_s, self.limits.failure_scope if delivery.blocks_group else None)
        self._tell_room()
        if self.draining or self.retiring:
            self._give_back_waiting()

    def _leave_to_queue(self, delivery: Delivery, after_s: float) -> None:
        """A retry that is due after the pool is gone. Its followers go back after it and may not pass it meanwhile."""
        ordered = delivery.source.capabilities.ordered_redelivery
        self._scheduler.finish(delivery)
        delivery.source.nack(delivery, after_s if ordered else 0.0)
        self.stats.given_back += 1

    def _abandon(self, delivery: Delivery, *, attempted: bool) -> None:
        """The attempt was cancelled: whether the endpoint got it is unknown, so the message stays ours to give back."""
        if not attempted:
            self._breaker_of(delivery).withdraw(delivery.attempt_at)
        if self.draining:
            self._scheduler.finish(delivery)  # nothing starts any more; the tracker still has it
            self._give_back_waiting()
        else:
            self._scheduler.put_back(delivery)

    def _wait_for_breaker(self, delivery: Delivery, wait_s: float) -> None:
        verdict = policy.wait_for_breaker(wait_s, delivery, delivery.source.capabilities)
        if isinstance(verdict, Nack) or self._goes_back(delivery):
            # It did not fail, so it may not fall behind its group even where a failure would let the others pass.
            delay_s = verdict.delay_s if isinstance(verdict, Nack) else wait_s
            self._give_back(delivery, delay_s, FailureScope.GROUP if delivery.ordered else None)
            self._tell_room()
        else:
            self._hold(delivery, wait_s, "circuit breaker of its endpoint is open")

    def _hold(self, delivery: Delivery, seconds: float, reason: str) -> None:
        delivery.held_s += seconds
        delivery.waits_for = reason
        self._scheduler.hold(delivery, self._now() + seconds)
        self._arm()

    def _give_back(self, delivery: Delivery, delay_s: float, scope: FailureScope | None) -> None:
        """Give a message back together with those that may not pass it; with no scope, everybody may."""
        if scope is None:
            self._scheduler.finish(delivery)
        else:
            for follower in self._scheduler.fail(delivery, scope):
                follower.source.nack(follower, self._tools.delays.follower_s)
                self.stats.given_back += 1
        delivery.source.nack(delivery, delay_s, unlock=scope is None)
        self.stats.given_back += 1

    # Timer

    def _arm(self) -> None:
        """Set the timer to the earliest moment at which something may start that may not start now."""
        wake_at = self._scheduler.next_hold_end()
        if self._scheduler.has_ready:
            now = self._now()
            permit_at = self._rate.next_permit_at(now)
            if permit_at > now:
                self._count_rate_wait(permit_at)
                wake_at = permit_at if wake_at is None else min(wake_at, permit_at)
        if self._timer is not None:
            if wake_at is not None and self._timer_at <= wake_at:
                return  # it will look again in time
            self._disarm()
        if wake_at is not None and not self.draining:
            self._timer_at = wake_at
            delay_s = max(0.0, wake_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_rang)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_rang(self) -> None:
        self._timer = None
        self._pump()

    def _count_rate_wait(self, permit_at: float) -> None:
        if permit_at > self._rate_waited_until:  # once per wait, not once per look
            self._rate_waited_until = permit_at
            self.stats.rate_limit_waits += 1

    # Those who wait for the pool

    def _tell_room(self) -> None:
        if self._room_waiters and self.room:
            self._wake_room_waiters()

    def _wake_room_waiters(self) -> None:
        for future in self._room_waiters:
            if not future.done():
                future.set_result(None)
        self._room_waiters.clear()

    def _breaker_of(self, delivery: Delivery) -> Breaker:
        return self._tools.breakers.get(self._tools.endpoint_of(delivery.pointer.mediation_target))
