"""A dead letter that cannot be recorded: its group stands still, and what its latest attempt got is still told."""

import asyncio

import pytest

from flowcatalyst.core.message import Delivery, Reject, Retry, Terms
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.stats import PoolStats
from tests.support.deliveries import delivery
from tests.support.rig import ERROR_400, ERROR_500, Rig, outgoing, outgoings
from tests.support.virtual_loop import until

pytestmark = pytest.mark.virtual_time


async def until_unrecorded(rig: Rig) -> FailedMessage:
    """What is known of the first one whose dead letter could not be recorded."""
    await until(lambda: any("dead letter not recorded" in one.message for one in rig.warnings.recent()))
    [known] = rig.tools.blocked.by_message.values()
    return known


@pytest.mark.parametrize("ordered", [True, False])
async def test_what_an_endpoint_answered_is_known_although_the_dead_letter_is_not_recorded(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0)
    rig.dead_letters.broken = True
    rig.endpoint.answers("m1", ERROR_500, ERROR_400)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        known = await until_unrecorded(rig)
        assert (known.group, known.message_id, known.blocks, known.is_nacked) == ("g", "m1", True, ordered)
        assert (known.status, known.detail, known.since) == (400, ERROR_400.detail, 0.0)
        now = rig.clock.monotonic()
        assert (known.answered_at, known.due_at) == (now, now + rig.tools.delays.nack_delay_s)
        rig.dead_letters.broken = False
        rig.endpoint.answers("m1", ERROR_400)
        await rig.until_empty()
        assert rig.tools.blocked.by_message == {}
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_a_skip_that_is_not_recorded_is_not_taken_for_an_attempt() -> None:
    rig = Rig(latency_s=0.0)
    rig.endpoint.answers("m1", *[ERROR_500] * 3)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(10.0)
        found = rig.acts.find("m1")
        assert isinstance(found, FailedMessage)
        answered_at = found.answered_at
        rig.dead_letters.broken = True
        await rig.acts.skip(found, "ann")
        known = await until_unrecorded(rig)
        assert (known.answered_at, known.detail, known.failures) == (answered_at, ERROR_500.detail, 3)
        assert known.due_at == rig.clock.monotonic() + rig.tools.delays.nack_delay_s
        rig.dead_letters.broken = False
        await rig.until_empty()
        assert rig.dead_letters.letters == [("m1", f"skipped by ann; last: {ERROR_500.detail}")]


async def test_one_that_was_never_tried_has_no_answer_although_its_skip_is_not_recorded() -> None:
    rig = Rig(latency_s=1.0)
    rig.dead_letters.broken = True
    await rig.publish(*outgoings(["m1", "m2"]), outgoing("m3", "h"))
    async with rig:
        await rig.until_started(1)
        found = rig.acts.find("m2")
        assert isinstance(found, Delivery)
        await rig.acts.skip(found, "ann")
        known = await until_unrecorded(rig)
        assert (known.message_id, known.answered_at, known.blocks) == ("m2", None, True)
        rig.dead_letters.broken = False
        await rig.until_empty()


async def test_jobs_are_not_remembered_since_their_store_does_it() -> None:
    rig = Rig()
    rig.dead_letters.broken = True
    message, job = delivery("m1"), delivery("j1")
    job.terms = Terms(30.0, 3, (1.0,))
    async with rig:
        judge = Judge("P", PoolStats(), rig.tools)
        for one in (message, job):
            later = await judge.dead_letter(one, Reject("HTTP 400"), ERROR_400)
            assert not isinstance(later, Reject | Retry)
        assert [one.message_id for one in rig.tools.blocked.by_message.values()] == ["m1"]
