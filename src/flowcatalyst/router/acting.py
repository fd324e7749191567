"""Acting by hand: retry now, skip, hold, pause. What changes here changes in one step; only a queue is waited for."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import DEFAULT_POOL, Delivery
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.queues.contract import Queue
from flowcatalyst.router.blocked import FailedMessage, FailedMessages
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.explain import Wait
from flowcatalyst.router.pauses import HELD_GROUPS, Pause, PauseKind, Pauses, Stop, gate_of_endpoint, gate_of_pool
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.skips import Skips
from flowcatalyst.router.tracker import InFlightTracker

Found = Delivery | FailedMessage
RETURN_WITHIN_S: Final = 2.0


@dataclass(slots=True, frozen=True)
class Done:
    """Whether something was done, and in one sentence what, or why not and what to do instead."""

    done: bool
    text: str


class Acts:
    """What a person can do to messages, groups, pools and endpoints of an engine."""

    def __init__(
        self,
        tracker: InFlightTracker,
        pools: Callable[[], Iterable[Pool]],
        queues: Mapping[str, Queue],
        failed: FailedMessages,
        skips: Skips,
        pauses: Pauses,
        clock: Clock,
    ) -> None:
        self._tracker = tracker
        self._pools = pools
        self._queues = queues
        self._failed = failed
        self._skips = skips
        self._pauses = pauses
        self._clock = clock

    # Who is meant

    def find(self, name: str) -> Found | None:
        """A message by its application id or broker id: one that the router has, else one that failed here and waits in
        its queue."""
        return self._tracker.owned(name) or self._tracker.get(name) or self._failed.find(name)

    def head(self, group: str, code: str | None = None) -> Found | None:
        """The message that its group waits for, or that is tried next; None: nothing is known of the group. Groups of
        one name in two pools are two groups: `code` picks one of them."""
        for pool in self._pools():
            if (found := pool.group(group)) is not None and code in (None, pool.code):
                if found.away is not None and found.is_awaiting:
                    return self._failed.of(found.away) or found.away
                return found.busy or next(iter(found), None)
        failed = self._failed.by_message.values()
        blocking = (one for one in failed if one.group == group and one.blocks and code in (None, one.pool))
        return min(blocking, key=lambda one: one.since, default=None)

    def has_messages(self, group: str) -> bool:
        """Whether the router has a message of it that is no dispatch job, or remembers one that failed."""
        here = (found for pool in self._pools() if (found := pool.group(group)) is not None)
        if any(one is not None and one.terms is None for found in here for one in (found.busy, *found)):
            return True
        return any(one.group == group for one in self._failed.by_message.values())

    def pool_of(self, delivery: Delivery) -> Pool | None:
        return next((pool for pool in self._pools() if pool.code == delivery.pool and pool.has(delivery)), None)

    def stop_of(self, one: Found) -> Stop | None:
        """Whom it waits for, wherever it is, or would wait for if nothing else kept it."""
        target = None if one.pointer is None else one.pointer.mediation_target
        named = one.pool if one.pointer is None else one.pointer.pool_code or DEFAULT_POOL
        code = named if named in self._pauses.pools else one.pool
        group = one.group
        if isinstance(one, Delivery) and (not one.ordered or one.terms is not None):
            group = None  # as `Pauses.gate_of` sees it
        return self._pauses.stop_of(code, group, target, endpoint_of, origin_of)

    # Messages

    async def retry(self, found: Found) -> Done:
        """Try a message now that waits for its next attempt."""
        found = self._as_it_is_now(found)
        if isinstance(found, FailedMessage):
            return await self._retry_in_queue(found)
        name, pool = f"message {found.pointer.id}", self.pool_of(found)
        if pool is None:
            return Done(False, f"{name} is done with: only its queue has to confirm that")
        wait = pool.explain(found)
        if wait.cause is Cause.AWAY_HEAD and wait.first is not None and (away := self._failed.of(wait.first)):
            return await self._retry_in_queue(away)
        if (refusal := _why_not_now(name, found, wait)) is not None:
            return Done(False, refusal)
        if not pool.hurry(found):
            return Done(False, f"{name} waits for {wait.what}")
        self._failed.hurried(found, self._clock.monotonic())
        return Done(True, f"{name} is tried as soon as pool {pool.code} has a slot and a permit for it")

    async def skip(self, found: Found, by: str) -> Done:
        """Give a message up: it becomes a dead letter and its group goes on."""
        found, reason = self._as_it_is_now(found), f"skipped by {by}"
        if isinstance(found, FailedMessage):
            self._skips.add(found.broker_id, f"{reason}; last: {found.detail}")
            shown, name, stop = await self._show(found), f"message {found.message_id}", self.stop_of(found)
            resumed = f"pool {stop.name} is resumed" if stop is not None and stop.kind is PauseKind.POOL else ""
            if shown.done:
                return Done(True, f"{name} becomes a dead letter {f'when {resumed}' if resumed else 'now'}")
            when = f"{resumed} and its queue shows it again" if resumed else "its queue shows it again"
            return Done(True, f"{name} becomes a dead letter when {when}: {shown.text}")
        name, pool = f"message {found.pointer.id}", self.pool_of(found)
        if found.terms is not None:
            return Done(False, f"{name} is a dispatch job: cancel that")
        if pool is None:
            return Done(False, f"{name} is done with: only its queue has to confirm that")
        wait, known = pool.explain(found), self._failed.of(found)
        if wait.cause is Cause.CONFIRMATION:
            return Done(False, f"{name} is done with: only its queue has to confirm that")
        found.skip = reason if known is None else f"{reason}; last: {known.detail}"
        self._skips.add(found.broker_id, found.skip)
        if wait.under_way:
            return Done(True, f"an attempt of {name} is under way: if that fails it becomes a dead letter")
        if wait.first is not None:
            return Done(True, f"{name} becomes a dead letter when its turn comes, after message {wait.behind}")
        pool.hurry(found)
        if wait.cause is Cause.POOL_PAUSED and pool.paused:
            return Done(True, f"{name} becomes a dead letter when pool {pool.code} is resumed")
        if wait.cause is Cause.FENCE:
            return Done(True, f"{name} becomes a dead letter when this router is sure that it is the primary")
        return Done(True, f"{name} becomes a dead letter now")

    def _as_it_is_now(self, found: Found) -> Found:
        """What waited in its queue may have come while somebody looked for it there."""
        return (self._tracker.owned(found.broker_id) if isinstance(found, FailedMessage) else None) or found

    async def _retry_in_queue(self, one: FailedMessage) -> Done:
        if (stop := self.stop_of(one)) is not None:
            return Done(False, f"message {one.message_id} waits for {stop.what}")
        return await self._show(one)

    async def _show(self, one: FailedMessage) -> Done:
        name, queue = f"message {one.message_id}", self._queue(one.queue)
        wait_s = max(0.0, one.due_at - self._clock.monotonic())
        if queue is None:
            return Done(False, f"{name} waits in queue {one.queue}, which is not polled here any more")
        if not queue.capabilities.hurries:
            return Done(
                False, f"{name} waits in queue {one.queue}, which cannot show it before its {wait_s:.0f} s are over"
            )
        try:
            shown = await queue.hurry(Delivery(one.broker_id, one.receipt, "", one.group or None))
        except QueueUnavailableError as error:
            return Done(False, f"{name} waits in queue {one.queue}, which does not answer: {error}")
        if not shown:
            return Done(
                False, f"queue {one.queue} does not keep {name} back any more: it comes when its group has its turn"
            )
        one.due_at = self._clock.monotonic()
        return Done(True, f"{name} is shown by its queue now, and tried as soon as pool {one.pool} has a slot for it")

    def _queue(self, name: str) -> Queue | None:
        return self._queues.get(name) or next((one for one in self._queues.values() if one.name == name), None)

    # Pools, endpoints, groups

    async def return_group(self, group: str, queue: str, seconds: float) -> bool:
        """Nack what waits here of a group of a queue, to be shown again after so many seconds, in order; whether the
        queue was told within `RETURN_WITHIN_S`. Nothing is, if one of it is in flight: nothing gets before that."""
        busy = (found.busy for pool in self._pools() if (found := pool.group(group)) is not None)
        if any(one is not None and one.source.name == queue for one in busy):
            return False
        told, left = asyncio.Event(), 0

        def one_told() -> None:
            nonlocal left
            left -= 1
            if not left:
                told.set()

        for pool in self._pools():
            waiting = (one for one in pool.group(group) or () if one.returns_in_order and one.source.name == queue)
            if (first := next(waiting, None)) is not None:
                left += pool.release(first, recalled=True, told=one_told, delay_s=seconds)
        if not left:
            return False
        try:
            async with asyncio.timeout(RETURN_WITHIN_S):
                await told.wait()
        except TimeoutError:
            return False
        return True

    def pause(self, kind: PauseKind, name: str, by: str) -> Pause:
        """Start nothing of it until it is resumed. Attempts in flight end as usual."""
        pause = self._pauses.add(kind, name, Pause(by, self._clock.wall()))
        if kind is PauseKind.POOL:
            for pool in self._pools():
                if pool.code == name:
                    pool.pause()
        return pause

    async def resume(self, kind: PauseKind, name: str) -> bool:
        """Whether it was paused."""
        was_paused = self.let_go(kind, name)
        if was_paused and kind is PauseKind.GROUP:
            await self.show_group(name)
        return was_paused

    def let_go(self, kind: PauseKind, name: str) -> bool:
        """The same, but for what waits in queues: that is for `show_group`."""
        was_paused = self._pauses.remove(kind, name)
        for pool in self._pools():
            if kind is PauseKind.POOL and pool.code == name:
                pool.resume()
            elif kind is PauseKind.POOL:
                pool.resume_gate(gate_of_pool(name))
                pool.admission.tell()  # what names it may come here, if no pool is called so
            elif kind is PauseKind.ENDPOINT:
                pool.resume_gate(gate_of_endpoint(name))
            elif kind is PauseKind.GROUP and (group := pool.group(name)) is not None and group.gate == HELD_GROUPS:
                for delivery in list(group)[:1]:  # a backoff or a breaker that it waits for here is not over by that
                    pool.hurry(delivery)
        if kind is PauseKind.POOL:
            for one in self._failed.by_message.values():
                if one.pool == name:  # nobody asked for it before
                    one.due_at = max(one.due_at, self._clock.monotonic())
        return was_paused

    async def show_group(self, group: str) -> None:
        """What waits in its queue, because its pool was full or because it failed, need not wait any more."""
        for queue in list(self._queues.values()):
            if group in self._pauses.groups:
                return  # held again
            if queue.capabilities.hurries and queue.capabilities.selects_pools:
                try:
                    shown = await queue.hurry(Delivery("", None, "", group))
                except QueueUnavailableError:
                    continue  # it comes when its delay is over
                for one in self._failed.by_message.values():
                    if shown and one.group == group and one.queue == queue.name and one.is_nacked:
                        one.due_at = min(one.due_at, self._clock.monotonic())


def _why_not_now(name: str, found: Delivery, wait: Wait) -> str | None:
    if found.terms is not None:
        return f"{name} is a dispatch job: retry that"
    if wait.under_way:
        return f"an attempt of {name} is under way"
    if wait.first is not None:
        return f"{name} waits for message {wait.behind}, the first of its group: retry or skip that one"
    if wait.cause is Cause.BREAKER:
        return f"{name} waits for its endpoint, whose circuit breaker is open: reset that to try it now"
    if wait.cause in (Cause.POOL_PAUSED, Cause.ENDPOINT_PAUSED, Cause.GROUP_HELD, Cause.ENDPOINT_SHARE, Cause.FENCE):
        return f"{name} waits for {wait.what}"
    return None
