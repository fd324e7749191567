"""What a job waits for, in data and in one sentence (G7). Pure: time comes in as an argument."""

from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from flowcatalyst.dispatch.job import FINISHED, JobState, Status
from flowcatalyst.dispatch.store.contract import PLACES_COUNTED, GroupState, Place
from flowcatalyst.router.explain import Wait

SHOWN_CHARS: Final = 200  # of an error


class WaitsFor(StrEnum):
    """Kinds of things that a job waits for."""

    ANSWER = "ANSWER"  # its attempt is in flight
    ROUTER = "ROUTER"  # a router has it, or has to take it
    JOB = "JOB"  # an earlier one of its group
    RELEASE = "RELEASE"  # somebody holds its group
    RESUME = "RESUME"  # its subscription is paused, or that of the first of its group
    TIME = "TIME"  # it is scheduled
    RETRY = "RETRY"  # it failed and is tried again by itself
    PERSON = "PERSON"  # it failed and is not


@dataclass(slots=True, frozen=True)
class Waiting:
    """What a job waits for."""

    kind: WaitsFor
    sentence: str
    job_id: str | None = None  # the other job
    until: float | None = None


def explain(
    state: JobState,
    place: Place | None,
    group: GroupState | None,
    in_hand: Wait | None,
    now: float,
    paused: Container[str] = (),
) -> Waiting | None:
    """None: it is finished. `in_hand` is what it waits for in the router of this process, if that has it; `paused` are
    the codes of subscriptions."""
    if state.status in FINISHED:
        return None
    job, pool = state.job, f"pool {state.job.pool}"
    if in_hand is not None and in_hand.under_way:
        return Waiting(WaitsFor.ANSWER, f"It waits for the answer to attempt {state.attempts + 1}.")
    if in_hand is not None:
        return Waiting(WaitsFor.ROUTER, f"This router has it, and it waits for {in_hand.what}.", in_hand.behind)
    if state.status in (Status.QUEUED, Status.IN_PROGRESS):
        return Waiting(WaitsFor.ROUTER, f"A router has it and works on it in {pool}.")
    if state.status is Status.ERROR and state.next_attempt_at is None:
        return Waiting(WaitsFor.PERSON, f"It {_failed(state)}.")
    if job.subscription is not None and job.subscription in paused:
        return Waiting(WaitsFor.RESUME, f"Its subscription {job.subscription} is paused: resume it.")
    if job.scheduled_for is not None and job.scheduled_for > now:
        sentence = f"It waits for its time, {_time(job.scheduled_for)}."
        return Waiting(WaitsFor.TIME, sentence, until=job.scheduled_for)
    if group is not None and group.held_since is not None and job.lane is not None:
        sentence = f"Its group is held by {group.held_by} since {_time(group.held_since)}: release it."
        return Waiting(WaitsFor.RELEASE, sentence)
    if state.status is Status.ERROR or _is_told_to_wait(state, now):
        return Waiting(WaitsFor.RETRY, f"It {_state(state, now)}.", until=state.next_attempt_at)
    if place is not None and place.head is not None:
        return _behind(place, place.head, now, paused)
    last = f"; the last attempt: {state.last_error[:SHOWN_CHARS]}" if state.last_error else ""
    return Waiting(WaitsFor.ROUTER, f"It waits for a router to take it for {pool}{last}.")


def _behind(place: Place, head: JobState, now: float, paused: Container[str]) -> Waiting:
    more = f"{PLACES_COUNTED} or more" if place.ahead >= PLACES_COUNTED else str(place.ahead - 1)
    others = "" if place.ahead <= 1 else f"; {more} of its group are between them"
    first, theirs = f"It waits for job {head.job.id}, the first of its group", head.job.subscription
    if theirs is not None and theirs in paused:
        return Waiting(WaitsFor.RESUME, f"{first}, whose subscription {theirs} is paused: resume it.", head.job.id)
    sentence = f"{first}, which {_state(head, now)}{others}."
    return Waiting(WaitsFor.JOB, sentence, head.job.id, head.next_attempt_at)


def _is_told_to_wait(state: JobState, now: float) -> bool:
    """It did not fail: its endpoint asked for patience, or its breaker is open."""
    return state.status is Status.PENDING and state.next_attempt_at is not None and state.next_attempt_at > now


def _state(state: JobState, now: float) -> str:
    if state.status is Status.ERROR:
        return _failed(state)
    if _is_told_to_wait(state, now) and state.next_attempt_at is not None:
        why = f" ({state.last_error[:SHOWN_CHARS]})" if state.last_error else ""
        return f"was told to wait{why} and is tried again at {_time(state.next_attempt_at)}"
    return "a router has in hand" if state.status in (Status.QUEUED, Status.IN_PROGRESS) else "has its turn next"


def _failed(state: JobState) -> str:
    why = f" ({state.last_error[:SHOWN_CHARS]})" if state.last_error else ""
    if state.next_attempt_at is None:
        return f"failed{why} and waits for a person: retry, change or cancel it"
    return f"failed{why} and is tried again at {_time(state.next_attempt_at)}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
