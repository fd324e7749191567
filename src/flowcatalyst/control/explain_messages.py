"""Why a message is not there yet: in the router, in its queue, among the dead letters, delivered, or never seen."""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from flowcatalyst.control.explain_actions import BY_PEOPLE, STANDS_BY, STATES, STOPPED, actions_on, stopped
from flowcatalyst.control.explanation import (
    BY_A_PERSON,
    Action,
    Explanation,
    ThingKind,
    ThingState,
    of_message,
    seconds,
)
from flowcatalyst.control.group_states import Answer, Head, Where
from flowcatalyst.control.stored_messages import pool_of
from flowcatalyst.control.view import RouterView
from flowcatalyst.control.waits import pool_code_of, wait_of
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import DEFAULT_POOL, Delivery, parse_pointer
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.words import count
from flowcatalyst.queues.inspection import (
    COUNTED,
    SEARCHED,
    InspectableQueue,
    Lock,
    StoredGroup,
    StoredMessage,
    inspectable,
)
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.explain import Wait
from flowcatalyst.router.pauses import Stop
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.rate import WINDOW_S
from flowcatalyst.router.recent import MOST_REMEMBERED

ESTIMATED_FROM_S: Final = 300.0
_FORESEEN: Final = (Cause.SLOTS, Cause.RATE_LIMIT)  # what is before it goes at a pace that is known


class Messages:
    """Explains messages of a router."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._engine = app.engine
        self._now = app.clock.monotonic()

    async def known(self, name: str) -> Explanation | None:
        """By what this router has in memory, and its dead letters."""
        found = self._engine.acts.find(name)
        if isinstance(found, Delivery):
            return self._owned(found) if found.terms is None else None
        if (letter := (await self._app.dead_letters.numbers_of([name])).get(name)) is not None and found is None:
            return await self._dead_letter(name, letter, self._engine.delivered.find(name))
        if found is not None:
            return self._nacked(found)
        if (at := self._engine.delivered.find(name)) is not None:
            return self._delivered(name, at)
        return None

    # In the router

    def _owned(self, delivery: Delivery) -> Explanation:
        as_it_stands, name = wait_of(self._app, delivery), delivery.pointer.id
        wait = as_it_stands  # but if a person stopped the first of its group, that is what it waits for
        pool, known = self._engine.acts.pool_of(delivery), self._engine.failed.of(delivery)
        at_head = wait  # what the first of its group waits for
        if wait.first is not None and pool is not None and pool.has(wait.first):
            at_head = pool.explain(wait.first)
            if at_head.cause in BY_PEOPLE:
                wait = replace(wait, cause=at_head.cause)
        elif (stop := self._stop_of_away(wait)) is not None:
            wait = replace(wait, cause=STOPPED[stop.kind])
        state = STATES.get(wait.cause, ThingState.WAITING)
        if state is ThingState.WAITING and pool is not None and _is_parked(pool, delivery):
            state = ThingState.PARKED
        found = Explanation(name, ThingKind.MESSAGE, state, wait.cause, f"Message {name} waits for {wait.what}.")
        found.pool, found.queue = pool_code_of(delivery), delivery.source.name
        found.group = delivery.group if delivery.ordered else None
        found.pointer = delivery.pointer
        if wait.until is not None and wait.cause not in BY_PEOPLE:
            found.next_attempt_in_s = max(0.0, wait.until - self._now)
        found.facts = {
            "attempts": delivery.number,
            "failures": delivery.failures,
            "receives": delivery.receive_count,
            "inRouterMs": round((self._now - delivery.arrived_at) * 1000),
            "endpoint": endpoint_of(delivery.pointer.mediation_target),
            "copiesDropped": self._app.tracker.copies_of(name),
        }
        if known is not None:
            self._add_answer(found, known)
        if wait.first is not None:
            self._behind(found, wait.first, pool)
        found.head = self._head(wait.first or delivery, as_it_stands)
        self._sentences(found, delivery, wait, pool)
        self._estimate(found, delivery, wait, at_head, pool)
        self._actions(found, delivery, wait)
        return found

    def _behind(self, found: Explanation, first: Delivery, pool: Pool | None) -> None:
        """The first of its group, and what that waits for."""
        failed = self._engine.failed.of(first)
        if pool is not None and pool.has(first):
            what = pool.explain(first).what
            found.chain.append(f"Message {first.pointer.id}, the first of group {first.group}, waits for {what}.")
        elif failed is not None:
            found.chain.append(
                f"Message {first.pointer.id}, the first of group {first.group}, {_is_in_queue(failed, self._now)}."
            )
            if (stop := self._engine.acts.stop_of(failed)) is not None:
                found.chain.append(f"It also waits for {stop.what}.")
        if failed is not None and found.last_answer is None:
            self._add_answer(found, failed)
            found.pointer = first.pointer

    def _stop_of_away(self, wait: Wait) -> Stop | None:
        """Who stopped the first of a group that is back in its queue."""
        away = None if wait.first is None else self._engine.failed.of(wait.first)
        return None if away is None else self._engine.acts.stop_of(away)

    def _head(self, first: Delivery, wait: Wait) -> Head:
        where = {Cause.ANSWER: Where.IN_FLIGHT, Cause.SLOW_HEAD: Where.IN_FLIGHT, Cause.AWAY_HEAD: Where.IN_QUEUE}
        place = where.get(wait.cause, Where.ON_HOLD if wait.until is not None else Where.READY)
        return Head(
            first.pointer.id, first.broker_id, place, first.failures, endpoint_of(first.pointer.mediation_target)
        )

    def _sentences(self, found: Explanation, delivery: Delivery, wait: Wait, pool: Pool | None) -> None:
        if wait.under_way:
            since = seconds(self._now - delivery.attempt_at)
            found.summary = f"Attempt {delivery.number} of message {found.id} has been under way for {since}."
        if wait.cause is Cause.CONFIRMATION:
            found.summary = f"Message {found.id} is done with: its queue has to confirm that."
        if pool is not None and wait.cause in (Cause.SLOTS, Cause.RATE_LIMIT, Cause.ENDPOINT_SHARE):
            found.chain.append(f"Pool {pool.code} has {pool.in_flight} of {pool.limits.concurrency} slots busy.")
        if found.state is ThingState.PARKED and pool is not None:
            found.chain.append(
                f"It is parked: pool {pool.code} holds more than its capacity of {pool.limits.effective_capacity}."
            )
        if delivery.skip:
            found.given_up = delivery.skip
            found.chain.append(f"It becomes a dead letter instead of being tried: {delivery.skip}.")
        if found.facts["copiesDropped"]:
            copies = self._app.tracker.copies_of(found.id)
            were = "was" if copies == 1 else "were"
            found.chain.append(f"{count(copies, 'copy', 'copies')} of it came meanwhile and {were} dropped.")

    def _estimate(self, found: Explanation, delivery: Delivery, wait: Wait, at_head: Wait, pool: Pool | None) -> None:
        if pool is None or wait.cause in (Cause.ANSWER, Cause.CONFIRMATION):
            found.estimate = "It is on its way."
            return
        if found.state in (ThingState.PAUSED, ThingState.HELD, ThingState.STANDBY):
            found.estimate = BY_A_PERSON if found.state is not ThingState.STANDBY else found.estimate
            return
        if at_head.until is None and at_head.cause not in _FORESEEN:
            return  # an answer, a slot for its endpoint: nobody knows when
        stats = pool.windows.window(ESTIMATED_FROM_S, self._now).stats
        attempt_s = stats.mean_duration_s or 0.0
        group = pool.group(delivery.group or "") if delivery.ordered else None
        ahead = 0
        if group is not None and wait.first is not None:
            ahead = next((place for place, one in enumerate(group) if one is delivery), 0) + (group.busy is not None)
        begins_s = 0.0 if at_head.until is None else max(0.0, at_head.until - self._now)
        ready = pool.ready_count if at_head.cause in _FORESEEN else 0
        attempts_s = ready * attempt_s / max(1, pool.limits.concurrency) + ahead * attempt_s
        found.estimate_s = begins_s + max(attempts_s, self._permits_s(pool, ready + ahead))
        failing = wait.first is not None and self._engine.failed.of(wait.first) is not None
        condition = ", if the first of its group is delivered then" if failing else ""
        about = "Within a second" if found.estimate_s < 1.0 else f"In about {seconds(found.estimate_s)}"
        found.estimate = f"{about}{condition}."

    def _permits_s(self, pool: Pool, attempts: int) -> float:
        """How long the rate limit makes the last of so many attempts wait, from when there is a permit on."""
        if not pool.limits.rate_per_minute:
            return 0.0
        at_once = max(1, pool.rate.available(self._now) or 0)
        return max(0, attempts - at_once) * WINDOW_S / pool.limits.rate_per_minute

    def _actions(self, found: Explanation, delivery: Delivery, wait: Wait) -> None:
        target = (wait.first or delivery).pointer.mediation_target
        named = delivery.pointer.pool_code or DEFAULT_POOL  # its own may be configured no more
        code = named if named in self._engine.pauses.pools else found.pool or DEFAULT_POOL
        if ends := actions_on(self._app, wait.cause, code, delivery.group, target):
            found.actions += ends
        elif wait.first is not None and delivery.group is not None:
            found.actions += _of_head(
                wait.first.broker_id, wait.first.pointer.id, can_retry=wait.cause is not Cause.SLOW_HEAD
            )
        elif wait.cause is Cause.RETRY:
            found.actions.append(of_message(found.id, "retry", "try it now"))
        if wait.cause is not Cause.CONFIRMATION:
            found.actions.append(of_message(found.id, "skip", f"give up message {found.id}: it becomes a dead letter"))

    # Elsewhere

    def _nacked(self, failed: FailedMessage) -> Explanation:
        name = failed.message_id
        found = Explanation(
            name, ThingKind.MESSAGE, ThingState.IN_QUEUE, "NACKED", f"Message {name} {_is_in_queue(failed, self._now)}."
        )
        found.pool, found.queue, found.group = failed.pool, failed.queue, failed.group or None
        found.pointer = failed.pointer
        found.next_attempt_in_s = found.estimate_s = max(0.0, failed.due_at - self._now)
        found.estimate = (
            f"Its next attempt is due in {seconds(found.estimate_s)}, if pool {failed.pool} has a slot then."
        )
        found.facts = {"failures": failed.failures, "failingMs": round((self._now - failed.since) * 1000)}
        self._add_answer(found, failed)
        if (stop := self._engine.acts.stop_of(failed)) is not None:
            stopped(found, stop)
        else:
            found.actions.append(of_message(name, "retry", "try it now"))
        if reason := self._engine.skips.find(failed.broker_id):
            found.given_up = reason
            found.chain.append(f"It becomes a dead letter when its turn comes: {reason}.")
        found.actions.append(of_message(name, "skip", f"give up message {name}: it becomes a dead letter"))
        return found

    def _delivered(self, name: str, at: float) -> Explanation:
        text = f"Message {name} was delivered {seconds(self._now - at)} ago."
        found = Explanation(name, ThingKind.MESSAGE, ThingState.DELIVERED, "DELIVERED", text)
        found.estimate = "It was delivered."
        return found

    async def _dead_letter(self, name: str, number: int, delivered_at: float | None) -> Explanation:
        letter = await self._app.dead_letters.get(number, 0)
        reason = "" if letter is None else f": {letter.reason}"
        text = f"Message {name} is dead letter {number}{reason}."
        found = Explanation(name, ThingKind.MESSAGE, ThingState.DEAD_LETTER, "DEAD_LETTER", text)
        found.estimate = "It is not tried again until somebody replays it."
        if letter is not None:
            found.queue, found.group = letter.queue, letter.group
            ago_s = max(0.0, self._app.clock.wall() - letter.recorded_at)
            found.last_answer = Answer(letter.status, letter.reason, letter.excerpt, ago_s)
            found.facts = {"number": number, "failures": letter.failures}
        if delivered_at is not None:
            found.chain.append(
                f"A message of this id was delivered {seconds(self._now - delivered_at)} ago all the same."
            )
        found.actions = [Action("replay", f"/monitoring/dead-letters/{number}/replay", "send it once more")]
        return found

    async def in_queues(self, name: str, looked: list[str]) -> Explanation | None:
        """What its queue holds and has not shown, where the storage is ours."""
        queues = self._app.queues_to_show().values()  # a standby polls none, and has its own files all the same
        for closed in (one for one in queues if not isinstance(one, InspectableQueue)):
            looked.append(f"(queue {closed.name} cannot be searched: its broker does not let us look)")
        for queue in inspectable(queues):
            looked.append(f"queue {queue.name}, the first {SEARCHED:,} messages")
            try:
                stored = await queue.find(name)
            except QueueUnavailableError as error:
                looked.append(f"(queue {queue.name} did not answer: {error})")
                continue
            if stored is not None:
                return self._not_received(name, queue.name, stored)
        return None

    def _not_received(self, name: str, queue: str, stored: StoredMessage) -> Explanation:
        group, lane = stored.group.group, stored.group
        with suppress(InvalidMessageError):  # then it becomes a dead letter when it comes
            name = parse_pointer(stored.body).id
        found = Explanation(
            name, ThingKind.MESSAGE, ThingState.IN_QUEUE, "NOT_RECEIVED", f"Message {name} waits in queue {queue}."
        )
        found.pool, found.queue, found.group = lane.pool or DEFAULT_POOL, queue, group
        found.facts = {"ahead": stored.ahead, "failures": stored.failures}
        found.next_attempt_in_s = lane.due_in_s
        head, here = self._engine.failed.find(lane.head_id), self._app.tracker.owned(lane.head_id)
        if stored.ahead:
            ahead = f"{COUNTED:,} or more messages" if stored.ahead >= COUNTED else count(stored.ahead, "message")
            known = head.message_id if head is not None else None if here is None else here.pointer.id
            first = lane.head_id if known is None else f"message {known}"
            found.cause = "BEHIND_HEAD"
            are = "is" if stored.ahead == 1 else "are"
            found.chain.append(f"{ahead} of its group {group} {are} before it; the first is {first}.")
        if lane.lock is Lock.DELAYED:
            whose = "It" if not stored.ahead else "The first"
            found.cause = "NACKED" if not stored.ahead else found.cause
            times = f"failed {count(lane.head_failures, 'time')}" if lane.head_failures else "was told to wait"
            found.chain.append(f"{whose} {times} and is due again in {seconds(lane.due_in_s or 0.0)}.")
            found.estimate_s = lane.due_in_s
            condition = ", if the first of its group is delivered then" if stored.ahead else ""
            found.estimate = f"In about {seconds(lane.due_in_s or 0.0)}{condition}."
            if head is not None:
                self._add_answer(found, head)
                found.pointer = head.pointer
                endpoint = None if head.pointer is None else endpoint_of(head.pointer.mediation_target)
                found.head = Head(head.message_id, head.broker_id, Where.IN_QUEUE, head.failures, endpoint)
        elif lane.lock is Lock.LEASED and not self._behind_in_hand(found, lane):
            found.chain.append("A router has messages of its group in hand; the rest follows when these are done with.")
        pool = self._app.router.pools.get(found.pool) or self._app.router.pools.get(DEFAULT_POOL)
        if not self._app.at_work:
            found.state, found.cause = ThingState.STANDBY, "STANDBY"
            found.chain.append(STANDS_BY)
        elif (stop := self._stop_of(stored, head)) is not None:
            stopped(found, stop)
        elif pool is not None and lane.lock is Lock.NONE and not pool.free_capacity:
            found.cause = Cause.CAPACITY
            found.chain.append(f"Pool {pool.code} has no free capacity: it holds {pool.size} messages.")
        if reason := self._engine.skips.find(stored.broker_id):
            found.given_up = reason
            found.chain.append(f"It becomes a dead letter when its turn comes: {reason}.")
        is_stopped = found.state in (ThingState.PAUSED, ThingState.HELD)
        if group is not None and lane.lock is Lock.DELAYED:
            first = lane.head_id if head is None else head.message_id
            found.actions += _of_head(lane.head_id, first, can_retry=not is_stopped)
        found.actions.append(of_message(found.id, "skip", f"give up message {found.id}: it becomes a dead letter"))
        return found

    def _behind_in_hand(self, found: Explanation, lane: StoredGroup) -> bool:
        """Whether it is this router that has the first of its group, which is told then."""
        first = self._engine.acts.find(lane.head_id)
        if not isinstance(first, Delivery):
            return False
        wait = wait_of(self._app, first)
        found.chain.append(f"Message {first.pointer.id}, the first of group {lane.group}, waits for {wait.what}.")
        found.head = self._head(first, wait)
        if (known := self._engine.failed.of(first)) is not None:
            self._add_answer(found, known)
            found.pointer = first.pointer
        if wait.cause is not Cause.CONFIRMATION:
            found.actions += _of_head(first.broker_id, first.pointer.id, can_retry=wait.cause is Cause.RETRY)
        return True

    def _stop_of(self, stored: StoredMessage, head: FailedMessage | None) -> Stop | None:
        """Who stopped it, or the first of its group, in the pool that it will go to."""
        target: str | None = None
        with suppress(InvalidMessageError):
            target = parse_pointer(stored.body).mediation_target
        lane, pauses = stored.group, self._engine.pauses
        stop = pauses.stop_of(pool_of(self._app, lane.pool), lane.group, target, endpoint_of, origin_of)
        return stop if stop is not None or head is None else self._engine.acts.stop_of(head)

    def never_seen(self, name: str, kind: ThingKind | None, looked: list[str]) -> Explanation:
        what = "message, job, event, group or pool" if kind is None else kind.lower()
        text = f"No {what} {name!r} is known here: it was never seen, or was delivered longer ago than is remembered."
        if kind in (None, ThingKind.GROUP):
            text += " A group is known as long as a message of it waits, or somebody holds it."
        if not self._app.at_work:
            text = f"No {what} {name!r} is known here, and this router does not work now: ask the primary one."
        found = Explanation(name, ThingKind.UNKNOWN, ThingState.NEVER_SEEN, "NEVER_SEEN", text, estimate="")
        if kind not in (None, ThingKind.MESSAGE):
            return found
        old = f"delivered before this router was started, or {MOST_REMEMBERED:,} deliveries ago: none older is known"
        if not self._app.at_work:
            found.send_again = "That cannot be told here: ask the primary router."
        elif any(place.startswith("(") for place in looked):
            found.send_again = f"Yes, unless it waits in a queue that could not be searched, or was {old}."
        else:
            found.safe_to_send_again = True
            found.send_again = f"Yes, unless it was {old}."
        return found

    def _add_answer(self, found: Explanation, failed: FailedMessage) -> None:
        if failed.answered_at is None:
            return
        ago_s = self._now - failed.answered_at
        found.last_answer = Answer(failed.status, failed.detail, failed.excerpt, ago_s)
        found.chain.append(f"Its latest attempt, {seconds(ago_s)} ago, got: {failed.detail}.")


def _of_head(broker_id: str, name: str, *, can_retry: bool) -> list[Action]:
    skip = of_message(broker_id, "skip", f"give up message {name}: it becomes a dead letter", "skip-head")
    return [of_message(broker_id, "retry", f"try message {name} now", "retry-head"), skip] if can_retry else [skip]


def _is_parked(pool: Pool, delivery: Delivery) -> bool:
    """Among those that came when its pool was full."""
    return pool.parked > 0 and pool.came_before(delivery) >= pool.limits.effective_capacity


def _is_in_queue(failed: FailedMessage, now: float) -> str:
    due_s = failed.due_at - now
    when = f"is due again in {seconds(due_s)}" if due_s > 0 else "comes again when its group has its turn"
    times = f"failed {count(failed.failures, 'time')}" if failed.failures else "was told to wait"
    return f"{times}, waits in queue {failed.queue} and {when}"
