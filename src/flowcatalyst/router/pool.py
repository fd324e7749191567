"""Pool: slots, permits and attempts round a GroupScheduler.

A pool has no standing workers. A slot is a task that lives as long as there is something to start; while the pool is
busy it goes from message to message, when nothing may start it ends. Holds, rate waits, open breakers and full shares
occupy no slot: one timer per pool ends the earliest of them.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from math import inf
from operator import attrgetter

from flowcatalyst.core.errors import LocalShortageError, NotSignedError
from flowcatalyst.core.message import Ack, Delivery, Nack, Outcome, Reject, Retry, Told, Verdict
from flowcatalyst.router import policy
from flowcatalyst.router.admission import GRAIN_S, Admission
from flowcatalyst.router.alarm import Alarm
from flowcatalyst.router.endpoints import Endpoints, Gate
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool_state import PoolState
from flowcatalyst.router.pool_tools import PoolTools
from flowcatalyst.router.rate import SlidingWindow
from flowcatalyst.router.stats import PoolStats
from flowcatalyst.router.windows import PoolWindows


class Pool(PoolState):
    """A bound on concurrency and rate, and the groups that share it."""

    def __init__(self, code: str, limits: PoolLimits, tools: PoolTools) -> None:
        self.code, self.configured, self.limits = code, limits, tools.divide(code, limits)  # what we may use of them
        self.stats = PoolStats()
        self.windows = PoolWindows(self.stats, tools.clock.monotonic())
        self.draining, self.paused = False, code in tools.pauses.pools
        self.retiring = False  # no longer configured: ends what it has
        self._tools, self._now, self._fence = tools, tools.clock.monotonic, tools.fence
        self._scheduler, self.rate = GroupScheduler(), SlidingWindow(self.limits.rate_per_minute)
        self.forget_waiting = self._scheduler.forget_waiting  # whoever stops the router nacks what is left
        self.all_groups, self.slow_groups = self._scheduler.all_groups, self.stats.slow_groups
        self._endpoints = Endpoints(tools.breakers, tools.endpoint_of, tools.origin_of)
        self.slots: dict[asyncio.Task[None], None] = {}  # in the order they began
        self._alarm, self._judge = Alarm(self._now, self._pump), Judge(code, self.stats, tools)
        self._pump_is_due, self._rate_waited_until = False, 0.0
        self._leaving = 0  # so many messages at gates may return to their queue now
        self.admission, self._drained = Admission(self._scheduler, self.rate, self._now), asyncio.Event()

    def asked_capacity(self) -> int:
        """The same for somebody who is told later if there is none now."""
        self.admission.note(free_capacity := self.free_capacity)
        if not free_capacity and not self.draining:
            self._pump_soon()  # perhaps only time has to pass until there is some
        return free_capacity

    def refused(self, delivery: Delivery, delay_s: float) -> None:
        """A message is nacked unheard, or was nacked late. If its group waits for it, it waits for longer."""
        self._scheduler.wait_longer(delivery, self._now() + delay_s + policy.RETURN_GRACE_S)

    def submit(self, delivery: Delivery) -> bool:
        """Accept a message, unless the pool is draining. Who receives asks for capacity before, not here."""
        if self.draining:
            return False
        delivery.pool = self.code
        delivery.arrived_at = delivery.arrived_at or self._now()
        self._tools.failures.restore(delivery)
        if self._tools.skips:
            self._tools.skips.restore(delivery)
        delivery.earlier = max(delivery.earlier, delivery.failures)  # a queue may know of others
        self._scheduler.submit(delivery)
        if self._scheduler.gates:
            self.admission.count_look(self.limits)
        self._pump_soon()
        return True

    # Changes while running

    def change(self, limits: PoolLimits) -> None:
        """Apply new limits at once. Attempts in flight are never cut short: a smaller pool shrinks as they end."""
        self.configured = limits
        self.divide()

    def divide(self) -> None:
        """Our share of the limits may be another one. With no slot of ours, others may have what waits here."""
        self.limits = self._tools.divide(self.code, self.configured)
        self.rate.change(self.limits.rate_per_minute)
        self.open_gates(list(self._scheduler.gates))
        self._nack_waiting()
        self._tell_capacity()

    def open_gates(self, endpoints: Iterable[str]) -> None:
        """Whoever waits at one of these tries again now: there may be more slots, or its breaker was reset."""
        for endpoint in endpoints:
            self._scheduler.open(endpoint, self.limits.concurrency)
        self._pump_soon()

    def pause(self) -> None:
        """Start nothing and ask for nothing until `resume`. Attempts in flight end as usual."""
        self.paused = True

    def resume(self) -> None:
        self.paused, back_by = False, self._now() + policy.RETURN_GRACE_S
        for away in list(self._scheduler.awaited):  # nothing was received meanwhile: it could not come back
            if (self._scheduler.place_of(away).held_until or 0.0) < back_by:
                self._scheduler.wait_longer(away, back_by)
        self._pump_soon()
        self._tell_capacity()

    def resume_gate(self, gate: str) -> None:
        """All that waited for a person there may start."""
        self._scheduler.open(gate, len(self._scheduler.gates.get(gate, ())))
        self._pump_soon()

    def hurry(self, delivery: Delivery) -> bool:
        """Let a message that waits here, with its group, for a time or at a gate, be looked at now. What is at its head
        then may have to wait again. False: it waits for something else."""
        if not self.has(delivery) or not self._scheduler.let_go(delivery):
            return False
        self._pump_soon()
        return True

    def drain(self) -> None:
        """Accept nothing more, nack what has not started, let attempts in flight end."""
        self.draining = True
        self._alarm.stop()
        self._drained.clear()  # it may have been empty before, while it retired, and was revived since
        self._nack_waiting()
        self._tell_capacity()  # there will be none here: look elsewhere

    def retire(self) -> None:
        """No longer configured. What returns in order is nacked at once, the rest is worked off here, in its order."""
        self.retiring = True
        self._nack_waiting()
        self.admission.tell()

    def revive(self, limits: PoolLimits) -> None:
        """The pool is configured again."""
        self.retiring = False
        self.change(limits)

    def _leaves(self, delivery: Delivery) -> bool:
        """Whether a message that cannot start now returns to its queue instead of waiting here."""
        return self.draining or ((self.retiring or not self.limits.concurrency) and delivery.returns_in_order)

    def _nack_waiting(self, after: Delivery | None = None) -> None:
        """Nack what has not started and may not, of all groups or of one message's, but for followers of an attempt."""
        if not (self.draining or self.retiring or not self.limits.concurrency):
            return
        for delivery in self._scheduler.clear_idle(self._leaves, of=after, keep_awaiting=not self.draining):
            self._nack(delivery, 0.0)
        if not len(self._scheduler):
            self._drained.set()

    def release(self, delivery: Delivery, *, recalled: bool = False, told: Told = None, delay_s: float = 0.0) -> int:
        """Forget a waiting message that is not ours, nack what is behind it; how many. A recalled one is nacked too."""
        cut_off = self._scheduler.cut(delivery, attrgetter("is_shown_again"))
        for one in cut_off if recalled else cut_off[1:]:
            self._nack(one, delay_s if recalled else self._tools.delays.follower_s, told=told)
        self._tell_capacity()
        return len(cut_off)

    async def wait_drained(self) -> None:
        await self._drained.wait()

    def cancel(self) -> None:
        """Stop attempts in flight. Their messages stay with the tracker, to be nacked by the caller."""
        for slot in list(self.slots):
            slot.cancel()

    # Slots

    def _pump_soon(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """End the waits whose time has come, then fill free slots, as many as there are groups and permits for."""
        self._pump_is_due, now = False, self._now()
        if self.draining or self.paused or not self._fence.allows(now):
            return
        self._scheduler.end_holds(now)
        for gate, groups in self._endpoints.due_probes(now):
            self._scheduler.open(gate, groups)
            if gate in self._scheduler.gates:
                self._endpoints.try_later(Gate(gate), now)
        self._leaving = self.admission.shed(self.limits) if self.admission.asked_in_vain else 0
        wanted = min(self.limits.concurrency - len(self.slots), self._scheduler.ready_count)
        for _ in range(wanted if (permits := self.rate.available(now)) is None else min(wanted, permits)):
            slot = self._tools.spawn(self._run_slot())
            self.slots[slot] = None
            slot.add_done_callback(self._slot_ended)
        self._arm()
        self._tell_capacity()

    async def _run_slot(self) -> None:
        while len(self.slots) <= self.limits.concurrency and (delivery := self._next()) is not None:
            if delivery.skip:
                await self._skip(delivery)
            else:
                self._judge.note_start(delivery)
                await self._process(delivery)

    def _slot_ended(self, slot: "asyncio.Task[None]") -> None:
        self.slots.pop(slot, None)
        if self._scheduler.has_ready:
            self._pump_soon()

    def _next(self) -> Delivery | None:
        """The next message that may start now, with its permit taken; otherwise None and the timer is set."""
        now = self._now()
        if self.paused or not self._fence.allows(now):
            return None  # a person wants it so, or another router may be at work by now
        scheduler, pauses, limited = self._scheduler, self._tools.pauses, self.limits.rate_per_minute is not None
        while not limited or self.rate.next_permit_at(now) <= now:
            if (delivery := scheduler.take()) is None:
                break
            over = delivery.recalled or 0.0 < delivery.expires_at <= self._tools.clock.wall()
            if over or not delivery.source.still_ours(delivery):
                self._lose(delivery)
                continue
            if 0.0 < delivery.lease_until <= now and delivery.source.capabilities.ordered_redelivery:
                reason = "its lease ran out: its queue has to confirm that it is ours"
                self._hold(delivery, policy.LEASE_PATIENCE_S, reason)
                continue
            if delivery.skip:
                delivery.attempt_at = now
                return delivery
            gate = self._closed_by_people(delivery) if pauses.gates_closed else None
            if gate is None:
                gate = self._endpoints.admit(delivery.pointer.mediation_target, self.limits.concurrency, now)
            if gate is not None:
                self._wait_at(gate, delivery, now)
                continue
            if limited:
                self.rate.take(now)
            delivery.tries += 1
            delivery.attempt_at = now
            if scheduler.gates or (limited and scheduler.has_ready):
                self._arm()
            return delivery
        self._arm()
        self._tell_capacity()
        return None

    def _closed_by_people(self, delivery: Delivery) -> Gate | None:
        name = self._tools.pauses.gate_of(delivery, self._tools.endpoint_of, self._tools.origin_of)
        return None if name is None else Gate(name, for_people=True)

    def _lose(self, delivery: Delivery) -> None:
        """Let go of a message that is over, went with its connection or was recalled, and of those behind it too."""
        self._scheduler.unstart(delivery)
        self.release(delivery, recalled=True)  # says that it is no longer ours; its queue knows

    def _wait_at(self, gate: Gate, delivery: Delivery, now: float) -> None:
        """Nothing is spent, only time: the group waits here until its endpoint may be probed or has a slot for it."""
        leaves = gate.for_long and self._has_to_leave(delivery)
        if leaves or (self._leaving > 0 and delivery.source.capabilities.selects_pools):  # elsewhere a receive counts
            self._leaving -= 1
            # It did not fail, so it may not fall behind its group even where a failure would let the others pass.
            delay_s = policy.away_s(delivery.receive_count, 0.0 if gate.probe_at is None else gate.probe_at - now)
            self._requeue(delivery, delay_s, FailureScope.GROUP if delivery.ordered else None)
            return
        if not self._scheduler.gates:
            self.admission.begin_looks()
        self._scheduler.wait_at(delivery, gate.name, blocked=gate.for_long)
        if gate.for_people:
            return
        self._endpoints.try_later(gate, now)
        if gate.name != (origin := self._tools.origin_of(delivery.pointer.mediation_target)):
            self._scheduler.open(origin, 1)  # it may have come from there: its turn is another one's

    async def _process(self, delivery: Delivery) -> None:
        """One attempt and what follows from it."""
        outcome, concluded, waits_for, unsigned = None, False, "", False
        timeout_s = self._endpoints.timeout_s(delivery.pointer.mediation_target, delivery.attempt_at)
        if delivery.terms is not None:
            timeout_s = min(timeout_s or inf, delivery.terms.timeout_s)
        try:
            try:
                outcome = await self._tools.mediator.attempt(delivery, timeout_s)
            except LocalShortageError as shortage:  # there was no attempt
                waits_for, unsigned = self._judge.no_attempt(delivery, shortage), isinstance(shortage, NotSignedError)
                return
            except Exception as error:  # a bug of ours must not cost a slot or a message
                outcome = self._judge.crashed(error)
            outcome = outcome if outcome.status == 200 else policy.by_the_rule_of_a_pool(outcome, self.limits)
            now = self._now()
            self._end_attempt(delivery, outcome, now)
            verdict = self._judge.judge(delivery, outcome, self.limits, now - delivery.attempt_at)
            if isinstance(verdict, Reject):
                verdict = await self._judge.dead_letter(delivery, verdict, outcome)
            self._conclude(delivery, verdict)
            concluded = True
        finally:
            if not concluded:
                self._abandon(delivery, attempted=outcome is not None, waits_for=waits_for, unsigned=unsigned)

    async def _skip(self, delivery: Delivery) -> None:
        """A person gave it up: it becomes a dead letter, and its group goes on."""
        concluded = False
        try:
            self._conclude(delivery, await self._judge.skip(delivery))
            concluded = True
        finally:
            if not concluded and self.draining:
                self._scheduler.finish(delivery)  # the tracker still has it
                self._nack_waiting(delivery)
            elif not concluded:
                self._scheduler.unstart(delivery)

    def _end_attempt(self, delivery: Delivery, outcome: Outcome | None, now: float) -> None:
        """Tell breaker and shares that the attempt ended, and let go who waited for that. None: it was cut off."""
        self._endpoints.end(target := delivery.pointer.mediation_target, delivery.attempt_at, now, outcome)
        if self._scheduler.gates:
            openings = self._endpoints.openings(target, self._scheduler.gates_in_turn(), self.limits.concurrency, now)
            for gate, groups in list(openings):
                self._scheduler.open(gate, groups)
            if self._scheduler.has_ready:  # perhaps for more slots than the one that is free now
                self._pump_soon()

    def _conclude(self, delivery: Delivery, verdict: Verdict) -> None:
        """Apply a verdict: towards the group and towards the queue, in one step that cannot suspend."""
        match verdict:
            case Ack():
                self.stats.delivered += 1
                if self._tools.skips:
                    self._tools.skips.forget(delivery)  # it is no dead letter, even if it comes once more
                self._ack(delivery)
            case Reject():
                delivery.rejected = True
                self.stats.dead_lettered += 1
                self._ack(delivery)
            case Retry(after_s) if self.draining:
                # Its followers are nacked after it and may not pass it meanwhile.
                self._scheduler.finish(delivery)
                self._nack(delivery, after_s if delivery.returns_in_order else 0.0)
            case Retry(after_s) if self._has_to_leave(delivery):
                self._requeue(delivery, after_s, FailureScope.GROUP if delivery.ordered else None)
            case Retry() if not delivery.source.still_ours(delivery):
                self._lose(delivery)  # what comes of its group must not wait for it
            case Retry(after_s):
                self.stats.retried += 1
                self._hold(delivery, after_s, f"its next attempt, after {policy.in_words(delivery.failures)}")
            case Nack(delay_s):
                self._requeue(delivery, delay_s, self.limits.failure_scope if delivery.blocks_group else None)
        self._nack_waiting(delivery)
        if self.admission.asked_in_vain:
            self._tell_capacity()

    def _ack(self, delivery: Delivery) -> None:
        # A skip is over when its message is gone: who is killed before that gets it again, and nobody wants it.
        is_skipped = bool(self._tools.skips) and self._tools.skips.find(delivery.broker_id) != ""
        if not (self.limits.ack_before_next and delivery.ordered):
            self._scheduler.finish(delivery)
            delivery.source.ack(delivery, partial(self._tools.skips.forget, delivery) if is_skipped else None)
            return

        def acked() -> None:
            if self._scheduler.awaits_ack(delivery):  # and was not forgotten meanwhile
                self._scheduler.finish(delivery)
                self._nack_waiting(delivery)
                self._pump_soon()
            if is_skipped:
                self._tools.skips.forget(delivery)

        self._scheduler.await_ack(delivery)
        delivery.source.ack(delivery, acked)

    def _abandon(self, delivery: Delivery, *, attempted: bool, waits_for: str = "", unsigned: bool = False) -> None:
        """The attempt was cancelled: whether the endpoint got it is unknown, so the message stays ours to nack."""
        if not attempted:
            self._end_attempt(delivery, None, self._now())
        if self.draining:
            self._scheduler.finish(delivery)  # nothing starts any more; the tracker still has it
            self._nack_waiting(delivery)
        elif attempted:
            self._hold(delivery, self._tools.delays.nack_delay_s, "an internal error: its attempt was not judged")
        elif unsigned:  # in order, and without having failed: another process may be able to sign it
            self._scheduler.unstart(delivery)
            self.release(delivery, recalled=True, delay_s=policy.UNSIGNED_DELAY_S)
        elif waits_for:
            self._hold(delivery, policy.SHORTAGE_PAUSE_S, waits_for)
        else:
            self._scheduler.unstart(delivery)
            self._nack_waiting(delivery)

    def _has_to_leave(self, delivery: Delivery) -> bool:
        """A pool that holds all it may lets go of what its queue can keep in order."""
        return self._leaves(delivery) or (self.is_full and delivery.returns_in_order)

    def _hold(self, delivery: Delivery, seconds: float, reason: str) -> None:
        delivery.waits_for = reason
        self._scheduler.hold(delivery, self._now() + seconds)
        self._arm()

    def _requeue(self, delivery: Delivery, delay_s: float, scope: FailureScope | None) -> None:
        """Nack a message with those that may not pass it (no scope: all may), for no longer than it. Followers whose
        queue would show them in another order stay, and where several queues feed a group it waits for its return."""
        self._tools.failures.note(delivery)
        if scope is None:
            self._scheduler.finish(delivery)
        else:
            # Who brings terms of its own comes from a store that keeps its group locked for as long as it takes.
            waits = scope is FailureScope.GROUP and self._tools.several_queues() and delivery.terms is None
            back_by = self._now() + delay_s + policy.RETURN_GRACE_S if waits else None
            follower_s = self._tools.delays.follower_s if delivery.terms is None else 0.0  # its store keeps them
            for follower in self._scheduler.fail(delivery, scope, attrgetter("returns_in_order"), back_by):
                self._nack(follower, min(delay_s, follower_s))
            self._arm()
        told = partial(self.refused, delivery, delay_s)  # which may be much later: its delay begins then
        self._nack(delivery, delay_s, unlock=scope is None, told=told)

    def _nack(self, delivery: Delivery, delay_s: float, *, unlock: bool = False, told: Told = None) -> None:
        delivery.source.nack(delivery, delay_s, unlock=unlock, told=told)
        self.stats.nacked += 1

    def _arm(self) -> None:
        """Set the alarm to the earliest moment at which something may start that may not start now. What is due by now
        may not be lost with the alarm that would have rung for it: time goes on, loops ring early."""
        if self.draining:
            return
        times = [] if (hold_ends := self._scheduler.next_hold_end()) is None else [hold_ends]
        if (probe_at := self._endpoints.next_probe_at()) is not None:
            times.append(probe_at)
        now, asked_in_vain, ready = self._now(), self.admission.asked_in_vain, self._scheduler.has_ready
        if asked_in_vain and self.admission.looks_ahead_at > now + GRAIN_S:
            times.append(self.admission.looks_ahead_at)
        if ready or asked_in_vain:
            permit_at = self.rate.next_permit_at(now)
            if permit_at > now:
                times += [permit_at] if permit_at < inf else []
                if ready and permit_at > self._rate_waited_until:  # once per wait, not per look
                    self._rate_waited_until = permit_at
                    self.stats.rate_limit_waits += 1
            elif (ready and len(self.slots) < self.limits.concurrency) or (asked_in_vain and self.free_capacity):
                self._pump_soon()
        self._alarm.set(min(times, default=None))

    def _tell_capacity(self) -> None:
        if self.admission.asked_in_vain and (self.draining or self.free_capacity):
            self.admission.tell()
