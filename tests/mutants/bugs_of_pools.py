"""Bugs in slots, room, permits, attempts and what follows from them."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from flowcatalyst.core.message import Ack, Delivery, Nack, Reject, Retry, Verdict
from flowcatalyst.router import policy
from flowcatalyst.router.admission import Admission
from flowcatalyst.router.alarm import Alarm
from flowcatalyst.router.failure_memory import FailureMemory
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.rate import WINDOW_S, SlidingWindow
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()


# Slots and timers


@BUGS.add(
    "an alarm that is due is lost when the pool sets it anew",
    test="tests/integration/rate_alarm_test.py",
)
def _() -> None:
    @instead_of(Pool, "_arm")
    def arm(original: Any, self: Any) -> None:
        was_due, pump_soon = self._pump_is_due, self._pump_soon
        self._pump_soon = lambda: None
        original(self)
        self._pump_soon = pump_soon
        self._pump_is_due = was_due


@BUGS.add(
    "a stop does not wait for the attempts of a pool that was removed and came back",
    test="tests/integration/pool_test.py::test_drain_of_a_pool_that_was_removed_and_came_back_waits_for_its_attempts",
)
def _() -> None:
    @instead_of(Pool, "drain")
    def drain(original: Any, self: Any) -> None:
        was_drained = self._drained.is_set()
        original(self)
        if was_drained:
            self._drained.set()


@BUGS.add(
    "groups that wait for a message to come back fill their pool",
    test="tests/integration/admission_test.py::"
    "test_groups_that_wait_for_a_message_to_come_back_take_no_place_in_their_pool",
)
def _() -> None:
    @instead_of(Admission, "free_capacity")
    def free_capacity(original: Any, self: Any, limits: PoolLimits) -> int:
        free: int = limits.most - len(self._scheduler) - self._scheduler.awaiting
        asked: int = original(self, limits)
        return max(0, min(asked, free))


@BUGS.add("a slot goes on although its pool shrank")
def _() -> None:
    @instead_of(Pool, "_run_slot")
    async def run_slot(original: Any, self: Any) -> None:
        while (delivery := self._next()) is not None:
            await self._process(delivery)


@BUGS.add("a pool fills its slots as if all of them were free")
def _() -> None:
    @instead_of(Pool, "_pump")
    def pump(original: Any, self: Any) -> None:
        slots, self.slots = self.slots, {}
        original(self)
        self.slots = {**slots, **self.slots}


@BUGS.add("a cancelled slot stays in the pool's count")
def _() -> None:
    @instead_of(Pool, "_slot_ended")
    def slot_ended(original: Any, self: Any, slot: "asyncio.Task[None]") -> None:
        if not slot.cancelled():
            original(self, slot)


@BUGS.add(
    "a message that comes while the last slot ends wakes nobody",
    test="tests/integration/pool_test.py::"
    "test_slots_that_all_end_at_once_while_their_pool_shrinks_leave_nobody_waiting",
)
def _() -> None:
    @instead_of(Pool, "_slot_ended")
    def slot_ended(original: Any, self: Any, slot: "asyncio.Task[None]") -> None:
        self.slots.pop(slot, None)


@BUGS.add("a held message keeps its slot")
def _() -> None:
    @instead_of(Pool, "_process")
    async def process(original: Any, self: Any, delivery: Delivery) -> None:
        await original(self, delivery)
        while (until := self._scheduler.place_of(delivery).held_until) is not None and not self.draining:
            await asyncio.sleep(max(0.0, until - self._now()))


@BUGS.add("the timer that rang still counts as set")
def _() -> None:
    @instead_of(Alarm, "_rings")
    def rings(original: Any, self: Any) -> None:
        self._ring()


@BUGS.add("a reload stops the timer of the holds and sets none")
def _() -> None:
    @instead_of(Pool, "change")
    def change(original: Any, self: Any, limits: PoolLimits) -> None:
        due, self._pump_is_due = self._pump_is_due, True  # so it is not asked for
        original(self, limits)
        self._pump_is_due = due
        self._alarm.stop()


@BUGS.add("a drain leaves the timer of the holds running")
def _() -> None:
    @instead_of(Pool, "drain")
    def drain(original: Any, self: Any) -> None:
        timer, self._alarm._timer = self._alarm._timer, None
        original(self)
        self._alarm._timer = timer


# Room


@BUGS.add(
    "a pool whose capacity is used up asks for nothing although a slot is idle",
    test="tests/integration/admission_test.py::"
    "test_what_waits_for_the_share_of_a_silent_endpoint_does_not_keep_others_out_when_it_fills_the_pool",
)
def _() -> None:
    @instead_of(Pool, "free_capacity")
    def free_capacity(original: Any, self: Any) -> int:
        wanted = self.limits.effective_capacity - self.size + self._scheduler.stalled
        return int(original(self)) if wanted >= self.limits.effective_capacity // 4 else 0


@BUGS.add(
    "a pool looks no further for what could start than a quarter of its capacity at a time",
    test="tests/integration/admission_test.py::test_a_long_line_for_one_endpoint_does_not_hide_what_is_for_another",
)
def _() -> None:
    @instead_of(Admission, "_look")
    def _look(original: Any, self: Any, some: int) -> int:
        return some


@BUGS.add(
    "a full pool refuses the message that its group waits for",
    test="tests/integration/group_order_test.py::TestSeveralQueuesFeedOneGroup::"
    "test_a_full_pool_still_takes_the_message_that_its_group_waits_for",
)
def _() -> None:
    @instead_of(Pool, "has_to_take")
    def has_to_take(original: Any, self: Any, delivery: Delivery) -> bool:
        return False


@BUGS.add(
    "a group does not wait for a message that its full pool sent back",
    test="tests/integration/group_order_test.py::TestSeveralQueuesFeedOneGroup::"
    "test_nobody_passes_a_message_that_a_full_pool_sent_back_for_a_while",
)
def _() -> None:
    @instead_of(Pool, "refused")
    def refused(original: Any, self: Any, delivery: Delivery, delay_s: float) -> None: ...


@BUGS.add("what only waits takes the place of what could start")
def _() -> None:
    @instead_of(Pool, "free_capacity")
    def free_capacity(original: Any, self: Any) -> int:
        return 0 if self.draining else max(0, self.limits.effective_capacity - self.size)


@BUGS.add(
    "a pool parks without a limit",
    test="tests/integration/pool_test.py::"
    "test_a_pool_never_holds_more_than_capacity_and_parked_limit_even_while_everything_fails",
)
def _() -> None:
    @instead_of(Pool, "is_full")
    def is_full(original: Any, self: Any) -> bool:
        return False


@BUGS.add("nobody is told that a pool has room again")
def _() -> None:
    @instead_of(Pool, "_tell_capacity")
    def tell_room(original: Any, self: Any) -> None:
        if self.draining:
            original(self)


# Permits


@BUGS.add("a retry does not take a permit")
def _() -> None:
    @instead_of(Pool, "_next")
    def next_one(original: Any, self: Any) -> Delivery | None:
        delivery: Delivery | None = original(self)
        if delivery is not None and delivery.tries > 1 and self.rate.per_minute is not None:
            self.rate._starts.pop()
        return delivery


@BUGS.add("a permit is taken twice", machine="rate")
def _() -> None:
    @instead_of(SlidingWindow, "take")
    def take(original: Any, self: Any, now: float) -> None:
        original(self, now)
        if self.per_minute is not None:
            self._starts.append(now)


@BUGS.add("a lowered rate limit waits for the oldest start only", machine="rate")
def _() -> None:
    @instead_of(SlidingWindow, "next_permit_at")
    def next_permit_at(original: Any, self: Any, now: float) -> float:
        return now if original(self, now) <= now else self._starts[0] + WINDOW_S


@BUGS.add("the window of the rate jumps instead of sliding")
def _() -> None:
    @instead_of(SlidingWindow, "_forget_old")
    def forget_old(original: Any, self: Any, now: float) -> None:
        if self._starts and self._starts[0] + WINDOW_S <= now:
            self._starts.clear()


@BUGS.add("a reload forgets the permits that were taken", machine="rate")
def _() -> None:
    @instead_of(SlidingWindow, "change")
    def change(original: Any, self: Any, per_minute: int | None) -> None:
        original(self, per_minute)
        self._starts.clear()


# Attempts and what follows from them


@BUGS.add("a retry does not wait for its backoff")
def _() -> None:
    @instead_of(Pool, "_hold")
    def hold(original: Any, self: Any, delivery: Delivery, seconds: float, reason: str) -> None:
        original(self, delivery, seconds / 2, reason)


@BUGS.add("a cancelled attempt stays in flight for ever")
def _() -> None:
    @instead_of(Pool, "_abandon")
    def abandon(original: Any, self: Any, delivery: Delivery, **options: Any) -> None:
        if not self.draining:
            original(self, delivery, **options)


@BUGS.add("a cancelled attempt counts as done and is acked")
def _() -> None:
    @instead_of(Pool, "_abandon")
    def abandon(original: Any, self: Any, delivery: Delivery, **options: Any) -> None:
        original(self, delivery, **options)
        if self.draining:
            delivery.source.ack(delivery)


@BUGS.add("a failed message lets its followers pass")
def _() -> None:
    @instead_of(Pool, "_requeue")
    def requeue(original: Any, self: Any, delivery: Delivery, delay_s: float, scope: FailureScope | None) -> None:
        original(self, delivery, delay_s, None)


@BUGS.add("those behind a message that is due in a second stay away for ten")
def _() -> None:
    @instead_of(Pool, "_requeue")
    def requeue(original: Any, self: Any, delivery: Delivery, delay_s: float, scope: FailureScope | None) -> None:
        nack = self._nack
        self._nack = lambda one, after_s, **options: nack(one, after_s if one is delivery else 10.0, **options)
        original(self, delivery, delay_s, scope)
        del self._nack


@BUGS.add("a failed message goes back to a queue that does not keep order")
def _() -> None:
    @instead_of(policy, "wait_before_next_attempt")
    def wait_before_next_attempt(original: Any, delay_s: float, *_: Any) -> Verdict:
        return Nack(delay_s)


@BUGS.add("a message whose dead letter could not be recorded is acked all the same")
def _() -> None:
    @instead_of(Judge, "dead_letter")
    async def dead_letter(original: Any, self: Any, delivery: Delivery, verdict: Reject, outcome: Any) -> Verdict:
        await original(self, delivery, verdict, outcome)
        return verdict


@BUGS.add("delivered messages are not counted")
def _() -> None:
    @instead_of(Pool, "_conclude")
    def conclude(original: Any, self: Any, delivery: Delivery, verdict: Verdict) -> None:
        original(self, delivery, verdict)
        self.stats.delivered -= isinstance(verdict, Ack)


@BUGS.add("a dead letter counts as delivered")
def _() -> None:
    @instead_of(Pool, "_conclude")
    def conclude(original: Any, self: Any, delivery: Delivery, verdict: Verdict) -> None:
        original(self, delivery, verdict)
        dead_lettered = isinstance(verdict, Reject)
        self.stats.dead_lettered -= dead_lettered
        self.stats.delivered += dead_lettered


@BUGS.add(
    "the next message does not wait for the ack where it should",
    test="tests/integration/group_order_test.py::TestAckBeforeNext::"
    "test_next_message_of_a_group_starts_only_when_the_ack_of_the_one_before_is_durable",
)
def _() -> None:
    @instead_of(Pool, "_ack")
    def ack(original: Any, self: Any, delivery: Delivery) -> None:
        self._scheduler.finish(delivery)
        delivery.source.ack(delivery)


@BUGS.add(
    "a stop that gives up on an ack forgets nothing of what waits for it",
    test="tests/integration/group_order_test.py::TestAckBeforeNext::"
    "test_a_stop_that_does_not_wait_for_an_ack_keeps_nothing_and_nacks_what_is_behind_it_once",
)
def _() -> None:
    @instead_of(GroupScheduler, "forget_waiting")
    def forget_waiting(original: Any, self: Any) -> None:
        return None


@BUGS.add(
    "a message that came back begins with the quick retries again",
    test="tests/unit/failure_memory_test.py",
)
def _() -> None:
    @instead_of(FailureMemory, "restore")
    def restore(original: Any, self: Any, delivery: Delivery) -> None:
        return None


@BUGS.add(
    "a message that goes on failing is tried as often as ever",
    test="tests/unit/policy_test.py::TestConfiguredDelays",
)
def _() -> None:
    @instead_of(policy.Delays, "after")
    def after(original: Any, self: Any, failures: int) -> float:
        return float(self.nack_delay_s)


@BUGS.add(
    "a mis-deploy buries what its pool wanted to be retried",
    test="tests/integration/admission_test.py::"
    "test_statuses_of_the_pool_setting_are_retried_in_order_instead_of_becoming_dead_letters",
)
def _() -> None:
    @instead_of(policy, "decide")
    def decide(
        original: Any, outcome: Any, delivery: Delivery, queue: Any, limits: PoolLimits, *delays: Any
    ) -> Verdict:
        verdict: Verdict = original(outcome, delivery, queue, replace(limits, retry_statuses=frozenset()), *delays)
        return verdict


@BUGS.add("a pool takes any 2xx for a success although it asked for 200")
def _() -> None:
    @instead_of(policy, "by_the_rule_of_a_pool")
    def by_the_rule_of_a_pool(original: Any, outcome: Any, limits: PoolLimits) -> Any:
        return outcome


@BUGS.add(
    "a message that was lost during its attempt is retried later all the same",
    test="tests/integration/admission_test.py::"
    "test_a_group_does_not_wait_for_a_message_that_was_lost_with_its_connection_during_its_attempt",
)
def _() -> None:
    @instead_of(Pool, "_lose")
    def lose(original: Any, self: Any, delivery: Delivery) -> None:
        self._hold(delivery, 300.0, "")


@BUGS.add(
    "an attempt whose verdict failed is repeated at once",
    test="tests/integration/admission_test.py::test_an_attempt_without_a_verdict_is_not_repeated_without_a_pause",
)
def _() -> None:
    @instead_of(Judge, "judge")
    def judge(original: Any, self: Any, delivery: Delivery, outcome: Any, limits: PoolLimits, _: float) -> Verdict:
        delivery.failures += outcome.counts
        return policy.decide(outcome, delivery, delivery.source.capabilities, limits, self._tools.delays)


# Ends


@BUGS.add("a drain keeps the followers of the last attempt of a group")
def _() -> None:
    @instead_of(Pool, "_nack_waiting")
    def nack_waiting(original: Any, self: Any, after: Delivery | None = None) -> None:
        if after is None:
            original(self)
        elif not self.size:
            self._drained.set()


@BUGS.add("what a drain gives back to a queue without order waits there")
def _() -> None:
    @instead_of(Pool, "_conclude")
    def conclude(original: Any, self: Any, delivery: Delivery, verdict: Verdict) -> None:
        if not (self.draining and isinstance(verdict, Retry)):
            original(self, delivery, verdict)
            return
        self._scheduler.finish(delivery)
        self._nack(delivery, verdict.after_s)
        self._nack_waiting(delivery)


@BUGS.add("a removed pool gives back what its queue cannot keep in order")
def _() -> None:
    @instead_of(Pool, "_leaves")
    def leaves(original: Any, self: Any, delivery: Delivery) -> bool:
        return bool(self.draining or self.retiring)
