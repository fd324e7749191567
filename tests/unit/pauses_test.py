"""Pauses: whom a message waits for, in the router and in its queue."""

import pytest

from flowcatalyst.core.message import DispatchMode, Terms
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.router.pauses import HELD_GROUPS, Pause, PauseKind, Pauses, gate_of_endpoint
from tests.support.deliveries import delivery

HOOK, ORIGIN = "http://shop.test/hook", "http://shop.test"


def paused(*stopped: tuple[PauseKind, str]) -> Pauses:
    pauses = Pauses()
    for kind, name in stopped:
        pauses.add(kind, name, Pause("ann", 0.0))
    return pauses


def test_a_held_group_holds_its_messages_and_no_jobs_of_a_group_that_is_called_so() -> None:
    pauses = paused((PauseKind.GROUP, "g"))
    message, job, alone = delivery("m1"), delivery("j1"), delivery("m2", mode=DispatchMode.IMMEDIATE)
    job.terms = Terms(30.0, 3, (1.0,))
    gates = [pauses.gate_of(one, endpoint_of, origin_of) for one in (message, job, alone, delivery("m3", "h"))]
    assert gates == [HELD_GROUPS, None, None, None]


def test_jobs_of_a_held_name_wait_for_their_endpoint_all_the_same() -> None:
    pauses = paused((PauseKind.GROUP, "g"), (PauseKind.ENDPOINT, HOOK))
    job = delivery("j1", target=HOOK)
    job.terms = Terms(30.0, 3, (1.0,))
    assert pauses.gate_of(job, endpoint_of, origin_of) == gate_of_endpoint(HOOK)


@pytest.mark.parametrize(
    ("stopped", "what"),
    [
        ((PauseKind.POOL, "P"), "pool P to be resumed: ann paused it"),
        ((PauseKind.GROUP, "g"), "its group to be released: ann holds it"),
        ((PauseKind.ENDPOINT, HOOK), f"{HOOK} to be resumed: ann paused it"),
        ((PauseKind.ENDPOINT, ORIGIN), f"{ORIGIN} to be resumed: ann paused it"),
    ],
)
def test_what_waits_in_its_queue_says_whom_it_waits_for(stopped: tuple[PauseKind, str], what: str) -> None:
    stop = paused(stopped).stop_of("P", "g", f"{HOOK}?token=x", endpoint_of, origin_of)
    assert stop is not None
    assert ((stop.kind, stop.name), stop.what) == (stopped, what)


@pytest.mark.parametrize("stopped", [(PauseKind.POOL, "Q"), (PauseKind.GROUP, "h"), (PauseKind.ENDPOINT, ORIGIN)])
def test_what_nobody_stopped_waits_for_nobody(stopped: tuple[PauseKind, str]) -> None:
    assert paused(stopped).stop_of("P", "g", "http://other.test/hook", endpoint_of, origin_of) is None
    assert paused(stopped).stop_of("P", None, None, endpoint_of, origin_of) is None


def test_who_resumes_a_pool_is_needed_before_all_others() -> None:
    pauses = paused((PauseKind.ENDPOINT, HOOK), (PauseKind.GROUP, "g"), (PauseKind.POOL, "P"))
    kinds = []
    while (stop := pauses.stop_of("P", "g", HOOK, endpoint_of, origin_of)) is not None:
        kinds.append(stop.kind)
        pauses.remove(stop.kind, stop.name)
    assert kinds == [PauseKind.POOL, PauseKind.GROUP, PauseKind.ENDPOINT]
