"""Explaining: finds what an id means, and says why it is not there yet."""

import asyncio
from typing import Final

from flowcatalyst.control.explain_dispatch import explain_event, explain_job, explain_job_group
from flowcatalyst.control.explain_messages import Messages
from flowcatalyst.control.explanation import (
    BY_A_PERSON,
    Explanation,
    ThingKind,
    ThingState,
    of_group,
    of_message,
    of_pool,
    of_stop,
    say_whether_to_send_again,
    seconds,
)
from flowcatalyst.control.group_states import GroupStates, Where
from flowcatalyst.control.group_states import Standing as GroupStateKind
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.words import count
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.router.pool import Pool

SEARCH_WITHIN_S: Final = 10.0  # of a queue, for a message that it has not shown yet
_GROUPS: Final = {
    GroupStateKind.BLOCKED: ThingState.BLOCKED,
    GroupStateKind.HELD: ThingState.HELD,
    GroupStateKind.IN_FLIGHT: ThingState.IN_FLIGHT,
    GroupStateKind.WAITING: ThingState.WAITING,
}


async def explain_anything(app: RouterView, name: str, kind: ThingKind | None = None) -> Explanation:
    """Of the kind that is asked for, else of the first that knows it: message, job, event, group, pool. What a queue
    holds and has not shown is searched last, since that takes longest."""
    messages, looked = Messages(app), list[str]()
    if kind in (None, ThingKind.MESSAGE):
        looked += ["messages that this router has", "messages that failed here", "dead letters", "recent deliveries"]
        if (found := await messages.known(name)) is not None:
            if kind is None and await GroupStates(app).find(name) is not None:
                found.chain.append(f"There is a group {name} too, which this is not about: ask for the kind group.")
            return _looked(found, looked)
    if kind in (None, ThingKind.JOB) and app.jobs is not None:
        looked.append("dispatch jobs")
        if (found := await explain_job(app, name)) is not None:
            return _looked(found, looked)
    if kind in (None, ThingKind.EVENT) and app.platform is not None:
        looked.append("events")
        if (found := await explain_event(app, name)) is not None:
            return _looked(found, looked)
    if kind in (None, ThingKind.GROUP):
        looked.append("groups of messages")
        if (found := await explain_group(app, name)) is not None:
            return _looked(found, looked)
        if app.jobs is not None:
            looked.append("groups of dispatch jobs")
            if (found := await explain_job_group(app, name)) is not None:
                return _looked(found, looked)
    if kind in (None, ThingKind.POOL):
        looked.append("pools")
        if (pool := app.router.pools.get(name) or app.router.retiring.get(name)) is not None:
            return _looked(explain_pool(app, pool), looked)
    if kind in (None, ThingKind.MESSAGE):
        try:
            async with asyncio.timeout(SEARCH_WITHIN_S):
                found = await messages.in_queues(name, looked)
        except TimeoutError:
            found = None
            looked.append(f"(the search of the queues was given up after {SEARCH_WITHIN_S:.0f} s)")
        if found is not None:
            return _looked(await Messages(app).known(name) or found, looked)  # it may have come meanwhile
    return _looked(messages.never_seen(name, kind, looked), looked)


async def explain_group(app: RouterView, name: str) -> Explanation | None:
    state = await GroupStates(app).find(name)
    if state is None:
        return None
    head = state.head
    summary = f"Group {name} {_GROUP_WORDS[state.state]}."
    found = Explanation(name, ThingKind.GROUP, _GROUPS[state.state], str(state.state), summary, group=name)
    found.pool, found.queue, found.head = state.pool or None, state.queue, head
    found.last_answer, found.pointer, found.next_attempt_in_s = (
        state.last_answer,
        state.pointer,
        state.next_attempt_in_s,
    )
    found.chain.append(state.waits_for)
    if state.last_answer is not None:
        found.chain.append(
            f"Its latest attempt, {seconds(state.last_answer.ago_s)} ago, got: {state.last_answer.detail}."
        )
    behind = f"{state.behind}{'' if state.behind_is_exact else ' or more'}"
    waits = "waits" if state.behind == 1 and state.behind_is_exact else "wait"
    found.chain.append(f"{behind} of its messages {waits} behind it.")
    if state.next_attempt_in_s is not None:
        found.estimate_s = state.next_attempt_in_s
        found.estimate = f"Its next attempt is due in {seconds(state.next_attempt_in_s)}."
    if state.held_by is not None or state.stop is not None:
        found.estimate = BY_A_PERSON
    if state.stop is not None and state.stop.kind is not PauseKind.GROUP:
        found.actions.append(of_stop(state.stop))
    if state.held_by is not None:
        found.actions.append(of_group(name, "release", "let it go on"))
    if head is not None and head.where is not Where.IN_FLIGHT and state.held_by is None and state.stop is None:
        found.actions.append(of_message(head.broker_id, "retry", f"try message {head.id} now", "retry-head"))
    if head is not None:
        text = f"give up message {head.id}: it becomes a dead letter"
        found.actions.append(of_message(head.broker_id, "skip", text, "skip-head"))
    if state.held_by is None:
        found.actions.append(of_group(name, "hold", "start nothing more of it"))
    return found


_GROUP_WORDS: Final = {
    GroupStateKind.BLOCKED: "is blocked",
    GroupStateKind.HELD: "is held by a person",
    GroupStateKind.IN_FLIGHT: "is being delivered",
    GroupStateKind.WAITING: "waits",
}


def explain_pool(app: RouterView, pool: Pool) -> Explanation:
    now, limits, pause = app.clock.monotonic(), pool.limits, app.engine.pauses.pools.get(pool.code)
    permit_at = pool.rate.next_permit_at(now)
    chain = [
        f"{pool.in_flight} of {limits.concurrency} slots are busy.",
        f"{count(pool.buffered, 'message')} {_wait(pool.buffered)} in it; {count(pool.ready_count, 'group')} could "
        f"start now, and {pool.held_count} {_wait(pool.held_count)} for a time.",
    ]
    if limits.rate_per_minute is not None:
        left = "no permit is left" if permit_at > now else "there are permits left"
        chain.append(f"Its rate limit is {limits.rate_per_minute} attempts a minute, and {left}.")
    if pool.parked:
        chain.append(f"{pool.parked} of its messages are parked: beyond its capacity of {limits.effective_capacity}.")
    state, cause, summary = ThingState.WAITING, "NONE", f"Pool {pool.code} works."
    actions = [of_pool(pool.code, "pause", "start nothing more in it")]
    if pool.draining:
        cause, summary, actions = "DRAINING", f"Pool {pool.code} ends with its router: nothing more starts in it.", []
        chain.append("What is in flight ends as usual; the rest is back in its queue.")
    elif pool.retiring:
        summary = f"Pool {pool.code} is no longer configured: it ends what it began, and is gone then."
        cause, actions = "RETIRING", []
        chain.append(
            "What it did not begin is returned to its queue, for the default pool; "
            "what cannot go back in order is tried here."
        )
    elif pause is not None:
        state, cause, summary = ThingState.PAUSED, "POOL_PAUSED", f"Pool {pool.code} is paused by {pause.by}."
        actions = [of_pool(pool.code, "resume", "let it go on")]
    elif not app.at_work:
        state, cause, summary = (
            ThingState.STANDBY,
            "STANDBY",
            "This router does not work now: it is a standby or disabled.",
        )
    elif not pool.size:
        state, summary = ThingState.IDLE, f"Pool {pool.code} has nothing to do."
    elif pool.in_flight >= limits.concurrency:
        cause, summary = "SLOTS", f"All slots of pool {pool.code} are busy."
    elif permit_at > now:
        cause, summary = "RATE_LIMIT", f"Pool {pool.code} waits for its rate limit."
    elif not pool.ready_count:
        cause, summary = "NOTHING_STARTABLE", f"Pool {pool.code} has free slots, but all that it holds waits itself."
    facts = {"slots": limits.concurrency, "inFlight": pool.in_flight, "buffered": pool.buffered, "parked": pool.parked}
    found = Explanation(pool.code, ThingKind.POOL, state, cause, summary, chain, pool=pool.code, estimate="")
    found.facts, found.actions = dict(facts), actions
    return found


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _looked(found: Explanation, looked: list[str]) -> Explanation:
    found.looked = looked
    say_whether_to_send_again(found)
    return found
