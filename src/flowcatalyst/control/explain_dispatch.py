"""Why a dispatch job or an event is not delivered yet."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Final

from flowcatalyst.control.explain_actions import BY_PEOPLE, STANDS_BY, STATES, actions_on, stopped
from flowcatalyst.control.explanation import (
    BY_A_PERSON,
    Action,
    Explanation,
    ThingKind,
    ThingState,
    of_job,
    seconds,
    segment,
)
from flowcatalyst.control.group_states import Answer
from flowcatalyst.control.view import RouterView
from flowcatalyst.control.waits import pool_code_of, wait_of
from flowcatalyst.core.message import DEFAULT_POOL, Delivery
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.words import count
from flowcatalyst.dispatch.job import FINISHED, JobState, Status
from flowcatalyst.dispatch.store.contract import Filter, GroupState, UnknownJobError
from flowcatalyst.dispatch.store.platform_contract import UnknownEventError
from flowcatalyst.dispatch.subscription import SubscriptionStatus
from flowcatalyst.dispatch.waiting import WaitsFor, explain
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.explain import Wait

SHOWN_JOBS: Final = 100
_STATES: Final = {
    WaitsFor.ANSWER: ThingState.IN_FLIGHT,
    WaitsFor.ROUTER: ThingState.WAITING,
    WaitsFor.JOB: ThingState.WAITING,
    WaitsFor.RELEASE: ThingState.HELD,
    WaitsFor.RESUME: ThingState.PAUSED,
    WaitsFor.TIME: ThingState.SCHEDULED,
    WaitsFor.RETRY: ThingState.ON_HOLD,
    WaitsFor.PERSON: ThingState.ERROR,
}
_MAY_BE_STOPPED: Final = (WaitsFor.ROUTER, WaitsFor.JOB, WaitsFor.RETRY)
_ENDS: Final = {
    Status.COMPLETED: "was delivered",
    Status.CANCELLED: "was cancelled",
    Status.EXPIRED: "expired before it could be delivered",
}


async def explain_job(app: RouterView, job_id: str) -> Explanation | None:
    """None: there is no such job."""
    assert app.jobs is not None, "asked only where there are jobs"
    if "\0" in job_id:
        return None
    try:
        state = await app.jobs.find(job_id)
    except UnknownJobError:
        return None
    now = app.clock.wall()
    if state.status in FINISHED:
        ago = "" if state.finished_at is None else f" {seconds(max(0.0, now - state.finished_at))} ago"
        text = f"Job {job_id} {_ENDS.get(state.status, str(state.status))}{ago}."
        found = Explanation(job_id, ThingKind.JOB, ThingState(state.status), str(state.status), text)
        found.estimate = "It is finished."
        return await _with_facts(app, found, state)
    place, group = await asyncio.gather(app.jobs.place_of(job_id), _group(app, state))
    delivery = app.tracker.get(job_id)
    in_hand = wait_of(app, delivery) if delivery is not None and delivery.terms is not None else None
    head = None if place is None else place.head
    waiting = explain(state, place, group, in_hand, now, _paused(app, state, head))
    assert waiting is not None, "it is not finished"
    cause = in_hand.cause if in_hand is not None else waiting.kind
    found = Explanation(job_id, ThingKind.JOB, _STATES[waiting.kind], str(cause), waiting.sentence)
    if waiting.until is not None:
        found.next_attempt_in_s = found.estimate_s = max(0.0, waiting.until - now)
        found.estimate = f"In about {seconds(found.estimate_s)}."
    if in_hand is not None and delivery is not None:
        _in_hand(app, found, delivery, in_hand)
    elif waiting.kind in _MAY_BE_STOPPED and state.status not in (Status.QUEUED, Status.IN_PROGRESS):
        _not_in_hand(app, found, state, head, waiting.kind)
    _add_actions(found, state, waiting.kind, head)
    return await _with_facts(app, found, state)


def _in_hand(app: RouterView, found: Explanation, delivery: Delivery, wait: Wait) -> None:
    """This router has it: what keeps it is what would keep a message."""
    first, pool = wait.first or delivery, app.engine.acts.pool_of(delivery)
    at_head = wait
    if wait.first is not None and pool is not None and pool.has(first):
        at_head = pool.explain(first)
        found.chain.append(f"Job {first.pointer.id}, the first of its group, waits for {at_head.what}.")
    if at_head.cause in BY_PEOPLE:
        found.cause = at_head.cause
    found.state = STATES.get(Cause(found.cause), found.state)
    if found.state is ThingState.PAUSED:
        found.estimate = BY_A_PERSON
    target = first.pointer.mediation_target
    found.actions += actions_on(app, at_head.cause, pool_code_of(delivery), None, target)
    if wait.first is not None:
        found.actions.append(of_job(first.pointer.id, "cancel", f"give up job {first.pointer.id}: its group goes on"))


def _not_in_hand(app: RouterView, found: Explanation, state: JobState, head: JobState | None, kind: WaitsFor) -> None:
    """A router has to take it, or the one before it: whether one would."""
    job = (head or state).job
    if _is_remote(app, job.pool):
        return
    pool = app.router.pools.get(job.pool) or app.router.pools.get(DEFAULT_POOL)
    code = job.pool if pool is None else pool.code
    if not app.at_work:
        found.state, found.cause = ThingState.STANDBY, "STANDBY"
        found.chain.append(STANDS_BY)
    elif (stop := app.engine.pauses.stop_of(code, None, job.target, endpoint_of, origin_of)) is not None:
        stopped(found, stop, also="" if kind is WaitsFor.ROUTER else "also ")
    elif (breaker := app.breakers.find(endpoint_of(job.target))) is not None and breaker.state is BreakerState.OPEN:
        found.cause = Cause.BREAKER
        found.chain.append(f"The circuit breaker of {endpoint_of(job.target)} is open.")
        found.actions += actions_on(app, Cause.BREAKER, code, None, job.target)
    elif kind is WaitsFor.ROUTER and pool is not None and not pool.free_capacity:
        found.cause = Cause.CAPACITY
        found.chain.append(f"Pool {code} has no free capacity: it holds {count(pool.size, 'message')}.")


def _is_remote(app: RouterView, pool: str) -> bool:
    """Whether its jobs are for routers elsewhere, of which nothing is known here."""
    kept = None if app.platform is None else app.platform.catalog.pools.get(pool)
    return kept is not None and kept.document.queue is not None


async def explain_job_group(app: RouterView, name: str) -> Explanation | None:
    """None: no unfinished job in order is of that group, and nobody holds it."""
    assert app.jobs is not None, "asked only where there are jobs"
    if "\0" in name:
        return None
    group = await app.jobs.group(name)
    if group.head is None and group.held_since is None:
        return None
    blocked, held = group.blocked_since is not None, group.held_since is not None
    state = ThingState.HELD if held else ThingState.BLOCKED if blocked else ThingState.WAITING
    words = "is held by a person" if held else "is blocked" if blocked else "waits"
    summary = f"Group {name} of dispatch jobs {words}; it has {count(group.jobs, 'unfinished job')}."
    found = Explanation(name, ThingKind.GROUP, state, str(state), summary, group=name)
    found.facts = {"jobs": group.jobs, "of": "dispatch jobs"}
    path = f"/api/message-groups/{segment(name)}"
    if held:
        found.actions.append(Action("release", f"{path}/release", f"release group {name}"))
    if group.head is not None:
        why = await explain_job(app, group.head.job.id)
        if why is not None:
            found.pool, found.last_answer, found.next_attempt_in_s = why.pool, why.last_answer, why.next_attempt_in_s
            found.chain += [f"Its first job is {group.head.job.id}: {why.summary}", *why.chain]
            found.estimate_s, found.estimate = why.estimate_s, why.estimate
        if not held:
            found.actions.append(Action("retry-head", f"{path}/retry-head", "try its first job now"))
        found.actions.append(Action("skip-head", f"{path}/skip-head", "give up its first job: the group goes on"))
    return found


async def explain_event(app: RouterView, event_id: str) -> Explanation | None:
    """None: there is no such event."""
    assert app.platform is not None, "asked only where there are events"
    if "\0" in event_id:
        return None
    try:
        kept = await app.platform.store.event(event_id)
    except UnknownEventError:
        return None
    page = await app.platform.store.page(Filter(metadata=(("eventId", event_id),)), SHOWN_JOBS)
    counts = Counter(state.status for state in page.items)
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "none"
    summary = f"Event {event_id} made {count(kept.jobs, 'job')}: {text}."
    if not page.items:
        summary = f"Event {event_id} was accepted, and no subscription wanted it."
    open_jobs = [state for state in page.items if state.status not in FINISHED]
    overall = ThingState.WAITING if open_jobs else ThingState.COMPLETED
    found = Explanation(event_id, ThingKind.EVENT, overall, "JOBS" if open_jobs else "FINISHED", summary)
    found.group = kept.event.message_group
    found.facts = {"type": kept.event.type, "jobs": kept.jobs}
    for state in open_jobs[:10]:
        why = await explain_job(app, state.job.id)
        if why is not None:
            found.chain.append(f"Job {state.job.id} for {state.job.subscription or state.job.code}: {why.summary}")
            of_it = (replace(one, text=f"{one.text} (job {state.job.id})") for one in why.actions)
            found.actions += [one for one in of_it if one.path not in {other.path for other in found.actions}]
    found.estimate = "Each of its jobs goes its own way." if open_jobs else "All of its jobs are finished."
    return found


async def _with_facts(app: RouterView, found: Explanation, state: JobState) -> Explanation:
    assert app.jobs is not None, "asked only where there are jobs"
    job = state.job
    found.pool, found.group = job.pool, job.group
    found.facts = {
        "status": str(state.status),
        "mode": str(job.mode),
        "attempts": state.attempts,
        "failures": state.failures,
        "subscription": job.subscription,
    }
    if state.last_error and (made := await app.jobs.attempts_of(job.id)):
        last = made[-1]
        ago_s = max(0.0, app.clock.wall() - last.began_at - last.duration_s)
        found.last_answer = Answer(last.status, last.detail, last.excerpt, ago_s)
        found.chain.append(f"Its latest attempt, {seconds(ago_s)} ago, got: {last.detail}.")
    return found


def _add_actions(found: Explanation, state: JobState, kind: WaitsFor, head: JobState | None) -> None:
    job_id, group = state.job.id, state.job.group
    if kind in (WaitsFor.RETRY, WaitsFor.PERSON):
        found.actions.append(of_job(job_id, "retry", "try it now"))
    if kind is WaitsFor.JOB and head is not None:
        found.actions.append(of_job(head.job.id, "retry", f"try job {head.job.id}, which it waits for, now"))
        found.actions.append(of_job(head.job.id, "cancel", f"give up job {head.job.id}: its group goes on"))
    if kind is WaitsFor.RELEASE and group is not None:
        found.actions.append(
            Action("release", f"/api/message-groups/{segment(group)}/release", f"release group {group}")
        )
    if kind is WaitsFor.RESUME and state.job.subscription is not None:
        code = state.job.subscription
        found.actions.append(
            Action("resume", f"/api/subscriptions/{segment(code)}/resume", f"resume subscription {code}")
        )
    if kind is not WaitsFor.ANSWER:
        found.actions.append(of_job(job_id, "cancel", "give it up"))


async def _group(app: RouterView, state: JobState) -> GroupState | None:
    assert app.jobs is not None, "asked only where there are jobs"
    return None if state.job.lane is None or state.job.group is None else await app.jobs.group(state.job.group)


def _paused(app: RouterView, *states: JobState | None) -> set[str]:
    if app.platform is None:
        return set()
    known = app.platform.catalog.subscriptions
    codes = {state.job.subscription for state in states if state is not None and state.job.subscription is not None}
    return {code for code in codes if code in known and known[code].document.status is SubscriptionStatus.PAUSED}
