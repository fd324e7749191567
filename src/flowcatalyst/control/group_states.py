"""Groups as an operator wants to see them: which stand still, behind whom, since when, and until when.

A group may be in a pool, in its queue between two attempts, or both. What the router nacked it remembers; where the
storage is ours, the queue is asked too, so that a restart forgets nothing that matters.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import nsmallest
from typing import Final, NamedTuple

from flowcatalyst.control import stored_messages
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import Delivery, MessagePointer, parse_pointer
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.words import count
from flowcatalyst.queues.inspection import COUNTED, InspectableQueue, Lock, StoredGroup, inspectable
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.explain import Wait
from flowcatalyst.router.pauses import Stop
from flowcatalyst.router.pool import Pool

HANGS_S: Final = 10.0  # an attempt under way for so long blocks its group
SLICE: Final = 2000  # groups that are looked at in one go
STORED_AT_MOST: Final = 10_000
NAMED_AT_ONCE: Final = 100  # groups whose first messages are read in one go
ANSWER_WITHIN_S: Final = 2.0


class Standing(StrEnum):
    BLOCKED = "BLOCKED"  # its first message failed, or its attempt hangs
    HELD = "HELD"  # by a person
    IN_FLIGHT = "IN_FLIGHT"
    WAITING = "WAITING"


class Where(StrEnum):
    """Where the first message of a group is."""

    IN_FLIGHT = "IN_FLIGHT"
    ON_HOLD = "ON_HOLD"  # until its next attempt is due
    AT_GATE = "AT_GATE"  # its endpoint may start nothing more now, or a person stopped it
    READY = "READY"  # it waits for a slot or a permit
    IN_QUEUE = "IN_QUEUE"
    CONFIRMING = "CONFIRMING"


_PLACES: Final = {
    Cause.ANSWER: Where.IN_FLIGHT,
    Cause.RETRY: Where.ON_HOLD,
    Cause.BREAKER: Where.AT_GATE,
    Cause.ENDPOINT_SHARE: Where.AT_GATE,
    Cause.ENDPOINT_PAUSED: Where.AT_GATE,
    Cause.GROUP_HELD: Where.AT_GATE,
    Cause.CONFIRMATION: Where.CONFIRMING,
}


@dataclass(slots=True, frozen=True)
class Head:
    id: str
    broker_id: str
    where: Where
    failures: int
    endpoint: str | None  # None: it was not read here


@dataclass(slots=True, frozen=True)
class Answer:
    """What the latest attempt got."""

    status: int | None
    detail: str
    excerpt: str
    ago_s: float


@dataclass(slots=True, frozen=True)
class GroupState:
    group: str
    pool: str
    queue: str | None
    state: Standing
    blocked_s: float | None
    head: Head | None
    last_answer: Answer | None
    next_attempt_in_s: float | None
    behind: int  # messages that wait for the first
    behind_is_exact: bool  # else its queue may hold more
    waits_for: str
    held_by: str | None
    held_s: float | None
    pointer: MessagePointer | None = None  # of the first, for who has to keep its secrets
    stop: Stop | None = None  # who stopped the first


class GroupFilter(NamedTuple):
    """Which groups; None: any."""

    blocked: bool = False  # or held
    pool: str | None = None
    queue: str | None = None
    endpoint: str | None = None  # or the beginning of one
    prefix: str = ""


class _Row(NamedTuple):
    """A group that may be listed; rows are in the order of the list. A cursor is one: a row is the same whenever one
    looks."""

    tier: int
    since: float  # by the clock of the tier
    group: str
    pool: str


_BLOCKED: Final = 0  # since a monotonic time
_STORED: Final = 1  # it failed before this router was started, nobody knows when
_HELD: Final = 2  # since a wall time
_GOING: Final = 3

Cursor = tuple[int, float, str, str]


@dataclass(slots=True, frozen=True)
class GroupPage:
    items: list[GroupState]
    cursor: Cursor | None  # of the next page


class GroupStates:
    """Looks at the groups of a router."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._now = app.clock.monotonic()
        self._blocking: dict[tuple[str, str], FailedMessage] = {}  # by group and pool: what it has waited for longest
        for one in app.engine.failed.by_message.values():
            known = self._blocking.get((one.group, one.pool))
            if one.blocks and (known is None or one.since < known.since):
                self._blocking[one.group, one.pool] = one

    async def page(self, which: GroupFilter, limit: int, after: Cursor | None = None) -> GroupPage:
        """Those that stand still first, longest first."""
        stored = await self.stored()
        found: list[_Row] = []
        async for rows in self._slices(which, stored):
            fitting = [row for row in rows if row.group.startswith(which.prefix) and (after is None or row > after)]
            found = nsmallest(limit + 1, [*found, *fitting]) if fitting else found
        states: list[GroupState] = []
        for row in found[:limit]:
            state = self._state(row.group, row.pool, stored.get(row.group))
            if state is not None:
                states.append(state)
        states = [state for state in await self._named(states) if _fits(state, which)]
        cursor: Cursor | None = found[limit - 1] if len(found) > limit else None
        return GroupPage(await self._counted(states), cursor)

    async def find(self, group: str) -> GroupState | None:
        """None: neither the router nor a queue that can be asked knows of it."""
        stored = await self._look_at([group])
        for code in (*self.pools_of(group), *([stored[group].pool] if group in stored else [])):
            state = self._state(group, code, stored.get(group))
            if state is not None:
                return (await self._counted(await self._named([state])))[0]
        if group in self._app.engine.pauses.groups:
            return self._empty(group)
        return None

    def pools_of(self, group: str) -> list[str]:
        """Pools that have a group of this name, as far as the router knows. Those of two pools are two groups."""
        pools = [pool.code for pool in self._app.router.all_pools() if pool.has_group(group)]
        failed = [one.pool for one in self._app.engine.failed.by_message.values() if one.blocks and one.group == group]
        return list(dict.fromkeys([*pools, *failed]))

    async def _named(self, states: list[GroupState]) -> list[GroupState]:
        """With the ids that senders know, and the endpoints, of first messages that were not read here."""
        unread = [state.group for state in states if state.head is not None and state.head.endpoint is None]
        heads: dict[tuple[str, str], MessagePointer] = {}
        for begin in range(0, len(unread), NAMED_AT_ONCE):
            for queue in self._inspectable():
                with suppress(QueueUnavailableError, TimeoutError):
                    async with asyncio.timeout(ANSWER_WITHIN_S):
                        for name, head in (await queue.heads(unread[begin : begin + NAMED_AT_ONCE])).items():
                            with suppress(InvalidMessageError):  # then it becomes a dead letter when it comes
                                heads[name, head.broker_id] = parse_pointer(head.body)
        return [_with_name(state, heads) for state in states]

    def count_blocked(self, stored: dict[str, StoredGroup]) -> int:
        """That stand still, as far as this router knows; `stored` are those that failed before it was started too."""
        return sum(1 for _ in self._blocked_rows(stored))

    # Which groups there are

    async def _slices(self, which: GroupFilter, stored: dict[str, StoredGroup]) -> AsyncIterator[list[_Row]]:
        """Rows of groups; one may come in two tiers, and counts once, in the first of them."""
        blocked = list(self._blocked_rows(stored))
        known = {(row.group, row.pool) for row in blocked}
        yield [row for row in blocked if which.pool is None or row.pool == which.pool]
        if which.blocked:
            return
        for pool in list(self._app.router.all_pools()):
            if which.pool is not None and pool.code != which.pool:
                continue
            names = [group.name or "" for group in pool.groups]
            for begin in range(0, len(names), SLICE):
                part = names[begin : begin + SLICE]
                yield [_Row(_GOING, 0.0, name, pool.code) for name in part if (name, pool.code) not in known]
                await asyncio.sleep(0)

    def _blocked_rows(self, stored: dict[str, StoredGroup]) -> Iterator[_Row]:
        engine, seen = self._app.engine, set[tuple[str, str]]()
        for one in self._blocking.values():
            seen.add((one.group, one.pool))
            yield _Row(_BLOCKED, one.since, one.group, one.pool)
        for pool in self._app.router.all_pools():
            for delivery in pool.under_way_since(self._now - HANGS_S):
                if delivery.ordered and delivery.blocks_group and (delivery.group or "", pool.code) not in seen:
                    seen.add((delivery.group or "", pool.code))
                    yield _Row(_BLOCKED, delivery.attempt_at, delivery.group or "", pool.code)
        names = {group for group, _ in seen}
        for name, group in stored.items():
            if name not in names:
                names.add(name)
                yield _Row(_STORED, 0.0, name, group.pool)
        for name, pause in engine.pauses.groups.items():
            if name not in names:
                code = next((pool.code for pool in self._app.router.all_pools() if pool.has_group(name)), "")
                yield _Row(_HELD, pause.since, name, code)

    # One of them

    def _state(self, group: str, code: str, stored: StoredGroup | None) -> GroupState | None:
        engine = self._app.engine
        pool = next((one for one in self._app.router.all_pools() if one.code == code and one.has_group(group)), None)
        found = engine.acts.head(group, code) if pool is not None else self._blocking.get((group, code))
        if isinstance(found, Delivery) and pool is not None:
            state = self._in_pool(group, pool, found)
        elif isinstance(found, FailedMessage):
            state = self._in_queue(group, found, stored)
        elif stored is not None:
            state = self._only_stored(group, stored)
        elif group in engine.pauses.groups:
            return self._empty(group)
        else:
            return None
        held = engine.pauses.groups.get(group)
        if held is None or (isinstance(found, Delivery) and found.terms is not None):  # jobs are held in their database
            return state
        held_s = max(0.0, self._app.clock.wall() - held.since)
        return replace(state, state=Standing.HELD, held_by=held.by, held_s=held_s)

    def _in_pool(self, group: str, pool: Pool, head: Delivery) -> GroupState:
        known, wait = self._app.engine.failed.of(head), pool.explain(head)
        hangs = wait.under_way and head.attempt_at <= self._now - HANGS_S
        since = known.since if known is not None and known.blocks else head.attempt_at if hangs else None
        state = Standing.BLOCKED if since is not None else Standing.IN_FLIGHT if wait.under_way else Standing.WAITING
        place = pool.group(group)
        return GroupState(
            group=group,
            pool=pool.code,
            queue=head.source.name,
            state=state,
            blocked_s=None if since is None else self._now - since,
            head=Head(
                head.pointer.id,
                head.broker_id,
                _PLACES.get(wait.cause, Where.READY),
                head.failures,
                _endpoint(head.pointer),
            ),
            last_answer=self._answer(known),
            next_attempt_in_s=_in_s(wait, self._now),
            behind=0 if place is None else len(place) - (place.busy is None),
            behind_is_exact=False,
            waits_for=f"Message {head.pointer.id} waits for {wait.what}.",
            held_by=None,
            held_s=None,
            pointer=head.pointer,
            stop=self._app.engine.acts.stop_of(head),
        )

    def _in_queue(self, group: str, head: FailedMessage, stored: StoredGroup | None) -> GroupState:
        due_s: float | None = max(0.0, head.due_at - self._now)
        where = f"Message {head.message_id} was nacked to queue {head.queue}"
        when = f"is due again in {due_s:.0f} s" if due_s else "is shown again when its group has its turn"
        stop = self._app.engine.acts.stop_of(head)
        if stop is not None:
            due_s, when = None, f"waits for {stop.what}"
        return GroupState(
            group=group,
            pool=head.pool,
            queue=head.queue,
            state=Standing.BLOCKED,
            blocked_s=self._now - head.since,
            head=Head(head.message_id, head.broker_id, Where.IN_QUEUE, head.failures, _endpoint(head.pointer)),
            last_answer=self._answer(head),
            next_attempt_in_s=due_s,
            behind=0,
            behind_is_exact=False,
            waits_for=f"{where} and {when}.",
            held_by=None,
            held_s=None,
            pointer=head.pointer,
            stop=stop,
        )

    def _only_stored(self, group: str, stored: StoredGroup) -> GroupState:
        """Nothing of it is known here but what its queue says: it failed before a restart, or waits to be received."""
        blocked = stored.head_failures > 0
        what = {
            Lock.NONE: "waits to be received",
            Lock.LEASED: "is in a router's hands",
            Lock.DELAYED: f"failed {count(stored.head_failures, 'time')} and is due again in "
            f"{stored.due_in_s or 0.0:.0f} s",
        }[stored.lock]
        code = stored_messages.pool_of(self._app, stored.pool)
        stop = self._app.engine.pauses.stop_of(code, group, None, endpoint_of, origin_of)
        if stop is not None:
            what += f"; it also waits for {stop.what}"
        return GroupState(
            group=group,
            pool=stored.pool,
            queue=stored.queue,
            state=Standing.BLOCKED if blocked else Standing.WAITING,
            blocked_s=max(0.0, self._app.clock.wall() - stored.head_published_at) if blocked else None,
            head=Head(stored.head_id, stored.head_id, Where.IN_QUEUE, stored.head_failures, None),
            last_answer=None,
            next_attempt_in_s=stored.due_in_s if stop is None else None,
            behind=stored.messages - 1,
            behind_is_exact=stored.messages < COUNTED,
            waits_for=f"Its first message, {stored.head_id}, {what}.",
            held_by=None,
            held_s=None,
            stop=stop,
        )

    def _empty(self, group: str) -> GroupState:
        pause = self._app.engine.pauses.groups[group]
        held_s = max(0.0, self._app.clock.wall() - pause.since)
        text = f"{pause.by} holds it; no message of it is known here."
        return GroupState(group, "", None, Standing.HELD, None, None, None, None, 0, False, text, pause.by, held_s)

    def _answer(self, known: FailedMessage | None) -> Answer | None:
        if known is None or known.answered_at is None:
            return None
        return Answer(known.status, known.detail, known.excerpt, self._now - known.answered_at)

    # What queues know

    def _inspectable(self) -> list[InspectableQueue]:
        return inspectable(self._app.engine.queues.values())

    async def stored(self) -> dict[str, StoredGroup]:
        """Groups that wait in their queues because their first message failed."""
        found: dict[str, StoredGroup] = {}
        for queue in self._inspectable():
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    for one in await queue.delayed_groups(STORED_AT_MOST):
                        found.setdefault(one.group or "", one)
            except (QueueUnavailableError, TimeoutError):
                continue  # what this router knows is listed all the same
        return found

    async def _look_at(self, groups: list[str]) -> dict[str, StoredGroup]:
        found: dict[str, StoredGroup] = {}
        for queue in self._inspectable() if groups else []:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    for name, one in (await queue.look_at(groups)).items():
                        found.setdefault(name, one)
            except (QueueUnavailableError, TimeoutError):
                continue
        return found

    async def _counted(self, states: list[GroupState]) -> list[GroupState]:
        """With those behind that are still in their queues, where these can tell."""
        stored = await self._look_at([state.group for state in states])
        own = {queue.name for queue in self._inspectable()}
        counted = []
        for state in states:
            there = stored.get(state.group)
            if there is not None and (state.queue is None or state.queue in own):
                most = max(state.behind, there.messages - 1)
                counted.append(replace(state, behind=most, behind_is_exact=there.messages < COUNTED))
            else:
                counted.append(replace(state, behind_is_exact=state.queue in own))
        return counted


def _with_name(state: GroupState, heads: dict[tuple[str, str], MessagePointer]) -> GroupState:
    pointer = None if state.head is None else heads.get((state.group, state.head.broker_id))
    if state.head is None or pointer is None:
        return state
    head = replace(state.head, id=pointer.id, endpoint=_endpoint(pointer))
    waits_for = state.waits_for.replace(state.head.broker_id, pointer.id)
    return replace(state, head=head, pointer=pointer, waits_for=waits_for)


def _fits(state: GroupState, which: GroupFilter) -> bool:
    if which.queue is not None and state.queue != which.queue:
        return False
    if which.endpoint is None:
        return True
    return state.head is not None and (state.head.endpoint or "").startswith(which.endpoint)


def _in_s(wait: Wait, now: float) -> float | None:
    return None if wait.until is None else max(0.0, wait.until - now)


def _endpoint(pointer: MessagePointer | None) -> str | None:
    return None if pointer is None else endpoint_of(pointer.mediation_target)
