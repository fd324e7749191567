"""What a job waits for, in one sentence."""

from dataclasses import replace
from typing import Any

import pytest

from flowcatalyst.core.message import DispatchMode, Terms
from flowcatalyst.dispatch.job import Job, JobState, Kind, Status
from flowcatalyst.dispatch.store.contract import PLACES_COUNTED, GroupState, Place
from flowcatalyst.dispatch.waiting import WaitsFor, explain
from flowcatalyst.router.explain import Wait

NOW = 1_800_000_000.0


def state(status: Status = Status.PENDING, name: str = "a", **more: Any) -> JobState:
    job = Job(
        id=name,
        kind=Kind.TASK,
        code="c",
        target="http://x.test/",
        payload=None,
        content_type="application/json",
        headers=(),
        group="g",
        sequence=99,
        mode=DispatchMode.BLOCK_ON_ERROR,
        pool="POOL",
        terms=Terms(30, 3, (1.0,)),
        scheduled_for=None,
        expires_at=None,
        idempotency_key=None,
        metadata={},
        created_at=NOW,
    )
    return JobState(job, status, **more)


PARKED = state(Status.ERROR, "head", last_error="HTTP 500")
RETRIED = state(Status.ERROR, "head", last_error="HTTP 500", next_attempt_at=NOW + 5)
SCHEDULED = replace(state(), job=replace(state().job, scheduled_for=NOW + 60))
PATIENT = state(Status.PENDING, "head", last_error="HTTP 429", next_attempt_at=NOW + 5)
HELD = GroupState("g", 2, state(), held_since=NOW, held_by="ann")


@pytest.mark.parametrize(
    ("job", "place", "group", "in_hand", "kind", "words"),
    [
        (state(), None, None, None, WaitsFor.ROUTER, "for a router to take it for pool POOL."),
        (state(last_error="HTTP 429"), None, None, None, WaitsFor.ROUTER, "the last attempt: HTTP 429."),
        (state(Status.QUEUED), None, None, None, WaitsFor.ROUTER, "A router has it"),
        (state(attempts=1), None, None, Wait("x", under_way=True), WaitsFor.ANSWER, "the answer to attempt 2."),
        (state(), None, None, Wait("a free slot", behind="b"), WaitsFor.ROUTER, "it waits for a free slot."),
        (PARKED, None, None, None, WaitsFor.PERSON, "failed (HTTP 500) and waits for a person"),
        (RETRIED, None, None, None, WaitsFor.RETRY, "is tried again at 2027-01-15T08:00:05Z."),
        (
            PATIENT,
            None,
            None,
            None,
            WaitsFor.RETRY,
            "was told to wait (HTTP 429) and is tried again at 2027-01-15T08:00:05Z.",
        ),
        (state(), Place(1, PATIENT), None, None, WaitsFor.JOB, "which was told to wait (HTTP 429)"),
        (RETRIED, None, HELD, None, WaitsFor.RELEASE, "held by ann"),
        (PARKED, None, HELD, None, WaitsFor.PERSON, "waits for a person"),
        (SCHEDULED, Place(1, PARKED), HELD, None, WaitsFor.TIME, "its time, 2027-01-15T08:01:00Z."),
        (state(), Place(1, PARKED), HELD, None, WaitsFor.RELEASE, "held by ann since 2027-01-15T08:00:00Z"),
        (state(), Place(1, PARKED), None, None, WaitsFor.JOB, "job head, the first of its group, which failed"),
        (state(), Place(3, RETRIED), None, None, WaitsFor.JOB, "; 2 of its group are between them."),
        (state(), Place(PLACES_COUNTED, RETRIED), None, None, WaitsFor.JOB, "; 10000 or more of its group"),
        (state(), Place(1, state(Status.QUEUED, "head")), None, None, WaitsFor.JOB, "which a router has in hand."),
        (state(), Place(1, state(name="head")), None, None, WaitsFor.JOB, "which has its turn next."),
    ],
)
def test_every_wait_has_a_kind_and_a_sentence(
    job: JobState, place: Place | None, group: GroupState | None, in_hand: Wait | None, kind: WaitsFor, words: str
) -> None:
    found = explain(job, place, group, in_hand, NOW)
    assert found is not None
    assert found.kind is kind
    assert words in found.sentence
    assert found.sentence.endswith(".")


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.CANCELLED, Status.EXPIRED])
def test_a_finished_job_waits_for_nothing(status: Status) -> None:
    assert explain(state(status), None, None, None, NOW) is None


def test_a_job_behind_another_names_it_and_when_it_is_due() -> None:
    found = explain(state(), Place(1, RETRIED), None, None, NOW)
    assert found is not None
    assert (found.job_id, found.until) == ("head", NOW + 5)


def test_a_job_that_left_its_group_does_not_wait_for_it_to_be_released() -> None:
    alone = replace(state(), job=replace(state().job, mode=DispatchMode.IMMEDIATE))
    found = explain(alone, None, HELD, None, NOW)
    assert found is not None
    assert found.kind is WaitsFor.ROUTER


def of_subscription(one: JobState) -> JobState:
    return replace(one, job=replace(one.job, subscription="t1"))


@pytest.mark.parametrize(
    ("job", "place", "group"),
    [
        (state(), None, None),
        (RETRIED, None, None),
        (SCHEDULED, None, None),
        (state(), Place(1, of_subscription(RETRIED)), HELD),
    ],
)
def test_a_job_of_a_paused_subscription_waits_for_it_to_be_resumed(
    job: JobState, place: Place | None, group: GroupState | None
) -> None:
    found = explain(of_subscription(job), place, group, None, NOW, {"t1"})
    assert found is not None
    assert (found.kind, found.sentence) == (WaitsFor.RESUME, "Its subscription t1 is paused: resume it.")
    going_on = explain(of_subscription(job), place, group, None, NOW, {"t2"})
    assert going_on is not None
    assert going_on.kind is not WaitsFor.RESUME


def test_a_job_behind_one_of_a_paused_subscription_waits_for_that_to_be_resumed() -> None:
    found = explain(state(), Place(1, of_subscription(state(name="head"))), None, None, NOW, {"t1"})
    assert found is not None
    assert (found.kind, found.job_id) == (WaitsFor.RESUME, "head")
    assert found.sentence.endswith("job head, the first of its group, whose subscription t1 is paused: resume it.")


def test_what_is_in_flight_or_parked_does_not_wait_for_a_pause_to_end() -> None:
    in_flight = explain(of_subscription(state()), None, None, Wait("x", under_way=True), NOW, {"t1"})
    parked = explain(of_subscription(PARKED), None, None, None, NOW, {"t1"})
    assert in_flight is not None
    assert parked is not None
    assert (in_flight.kind, parked.kind) == (WaitsFor.ANSWER, WaitsFor.PERSON)
