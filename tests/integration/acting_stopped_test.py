"""What people do to messages that others stopped, or whose end is not durable yet. All in virtual time."""

import asyncio

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Delivery, Settled
from flowcatalyst.router.acting import Done
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from tests.support.hosts import World
from tests.support.rig import ERROR_500, Rig, outgoing, outgoings
from tests.support.virtual_loop import until

pytestmark = pytest.mark.virtual_time

HOOK = "http://endpoint.test/hook"
POOL_WAITS = f"message m1 waits for pool {DEFAULT_POOL} to be resumed: ann paused it"
STOPS = pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (PauseKind.POOL, DEFAULT_POOL, POOL_WAITS),
        (PauseKind.ENDPOINT, HOOK, f"message m1 waits for {HOOK} to be resumed: ann paused it"),
        (PauseKind.GROUP, "g", "message m1 waits for its group to be released: ann holds it"),
    ],
    ids=["pool", "endpoint", "group"],
)


async def until_nacked(rig: Rig) -> FailedMessage:
    """Until m1 has failed and is back in its queue, for 30 s."""
    rig.endpoint.answers("m1", *[ERROR_500] * 3)
    await rig.until_started(3)
    await until(lambda: bool(rig.queue.nacked))
    found = rig.acts.find("m1")
    assert isinstance(found, FailedMessage)
    return found


async def until_held(rig: Rig) -> Delivery:
    """Until m1 has failed and waits in the router for its next attempt."""
    rig.endpoint.answers("m1", *[ERROR_500] * 3)
    await rig.until_started(3)
    await until(lambda: rig.pool.held_count == 1)
    found = rig.acts.find("m1")
    assert isinstance(found, Delivery)
    return found


# Retry


@STOPS
async def test_a_message_in_its_queue_that_a_person_stopped_is_not_shown_and_the_answer_says_who(
    kind: PauseKind, name: str, reason: str
) -> None:
    rig = Rig(latency_s=0.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        found = await until_nacked(rig)
        rig.acts.pause(kind, name, "ann")
        assert await rig.acts.retry(found) == Done(False, reason)
        await rig.acts.resume(kind, name)
        assert (await rig.acts.retry(found)).done
        assert await rig.until_empty() < 30.0


@STOPS
async def test_a_message_on_hold_that_a_person_stopped_is_not_hurried_and_the_answer_says_who(
    kind: PauseKind, name: str, reason: str
) -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        found = await until_held(rig)
        rig.acts.pause(kind, name, "ann")
        assert await rig.acts.retry(found) == Done(False, reason.replace(f"pool {DEFAULT_POOL}", "its pool"))
        await rig.acts.resume(kind, name)
        assert await rig.until_empty() >= 30.0  # it goes on waiting for its next attempt


async def test_nothing_is_tried_now_by_a_router_that_is_not_sure_that_it_is_the_primary() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        found = await until_held(rig)
        rig.tools.fence.until = 0.0
        reason = "message m1 waits for this router to be sure that it is the primary"
        assert await rig.acts.retry(found) == Done(False, reason)
        done = await rig.acts.skip(found, "ann")
        text = "message m1 becomes a dead letter when this router is sure that it is the primary"
        assert done == Done(True, text)


# Skip


async def test_one_that_is_skipped_in_a_paused_pool_becomes_a_dead_letter_when_that_is_resumed() -> None:
    rig = Rig(latency_s=0.0)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        found = await until_nacked(rig)
        rig.acts.pause(PauseKind.POOL, DEFAULT_POOL, "ann")
        done = await rig.acts.skip(found, "ann")
        assert done == Done(True, f"message m1 becomes a dead letter when pool {DEFAULT_POOL} is resumed")
        await asyncio.sleep(100.0)
        assert rig.dead_letters.letters == []
        await rig.acts.resume(PauseKind.POOL, DEFAULT_POOL)
        await rig.until_empty()
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]
        assert rig.endpoint.started == ["m1"] * 3 + ["m2"]


async def test_one_in_a_queue_that_cannot_hurry_is_skipped_when_it_comes_to_a_resumed_pool() -> None:
    rig = Rig(latency_s=0.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        found = await until_nacked(rig)
        found.queue = "elsewhere"
        rig.acts.pause(PauseKind.POOL, DEFAULT_POOL, "ann")
        done = await rig.acts.skip(found, "ann")
        assert done.text == (
            f"message m1 becomes a dead letter when pool {DEFAULT_POOL} is resumed and its queue shows it again: "
            "message m1 waits in queue elsewhere, which is not polled here any more"
        )


async def test_one_on_hold_that_is_skipped_in_a_paused_pool_does_not_wait_for_its_next_attempt_too() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        found = await until_held(rig)
        rig.acts.pause(PauseKind.POOL, DEFAULT_POOL, "ann")
        done = await rig.acts.skip(found, "ann")
        assert done == Done(True, f"message m1 becomes a dead letter when pool {DEFAULT_POOL} is resumed")
        await rig.acts.resume(PauseKind.POOL, DEFAULT_POOL)
        assert await rig.until_empty() < 30.0
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_one_that_came_while_it_was_looked_for_in_its_queue_is_acted_on_where_it_is() -> None:
    rig = Rig(latency_s=0.0)
    rig.acts.pause(PauseKind.GROUP, "g", "ann")
    await rig.publish(outgoing("m1"))
    async with rig:
        await until(lambda: len(rig.tracker) == 1)
        [here] = rig.tracker
        as_it_was = FailedMessage("g", DEFAULT_POOL, here.broker_id, "m1", 0.0, 0.0, "never tried", "q")
        refused = await rig.acts.retry(as_it_was)
        assert refused == Done(False, "message m1 waits for its group to be released: ann holds it")
        assert await rig.acts.skip(as_it_was, "bob") == Done(True, "message m1 becomes a dead letter now")
        await rig.until_empty()
        assert (rig.dead_letters.letters, rig.endpoint.started) == ([("m1", "skipped by bob")], [])


# Release


async def test_a_release_lets_a_queue_show_what_failed_and_it_is_known_to_be_due() -> None:
    world = World(latency_s=0.0, POOL=PoolLimits(concurrency=1))
    world.queue("embedded")
    for name in ("m1", "m2"):
        world.hosts.answers(name, *[ERROR_500] * 3)
    await world.publish("embedded", outgoing("m1", pool="POOL"), outgoing("m2", "other", pool="POOL"))
    async with world.running():
        acts, failed = world.engine.acts, world.engine.failed
        await until(lambda: [one.is_nacked for one in failed.by_message.values()] == [True, True])
        known, other = failed.by_message.values()
        now = world.clock.monotonic()
        assert known.due_at > now + 20.0
        acts.pause(PauseKind.POOL, "POOL", "ann")
        acts.pause(PauseKind.GROUP, "g", "ann")
        await acts.resume(PauseKind.GROUP, "g")
        assert known.due_at <= world.clock.monotonic()
        assert other.due_at > now + 20.0
        await acts.resume(PauseKind.POOL, "POOL")
        await world.until_empty()
        assert world.starts_of("m1")[-1] < now + 20.0 < world.starts_of("m2")[-1]


# Until the end is durable

AS_THEY_ARE_SETTLED = pytest.mark.parametrize("ack_before_next", [False, True])


async def skipped_although_nothing_can_be_acked(rig: Rig) -> str:
    """The broker id of m1, which is a dead letter and still in its queue."""
    rig.acts.pause(PauseKind.GROUP, "g", "ann")
    rig.queue.next_acks.extend([Settled.FAILED] * 3)
    await until(lambda: len(rig.tracker) == 2)
    found = rig.acts.find("m1")
    assert isinstance(found, Delivery)
    await rig.acts.skip(found, "ann")
    await until(lambda: bool(rig.dead_letters.letters))
    return found.broker_id


@AS_THEY_ARE_SETTLED
async def test_a_skip_is_over_when_the_ack_of_its_message_is_durable(ack_before_next: bool) -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=1, ack_before_next=ack_before_next))
    over: list[str] = []
    rig.tools.skips.on_over = over.append
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        broker_id = await skipped_although_nothing_can_be_acked(rig)
        await until(lambda: len(rig.queue.next_acks) == 1)
        assert (over, rig.tools.skips.find(broker_id)) == ([], "skipped by ann")
        await until(lambda: rig.queue.acked == ["m1"])
        await asyncio.sleep(1.0)
        assert (over, len(rig.tools.skips)) == ([broker_id], 0)
        await rig.acts.resume(PauseKind.GROUP, "g")
        await rig.until_empty()
        assert (rig.endpoint.started, over) == (["m2"], [broker_id])


@AS_THEY_ARE_SETTLED
async def test_one_whose_router_ended_between_its_dead_letter_and_its_ack_is_skipped_again(
    ack_before_next: bool,
) -> None:
    limits = PoolLimits(concurrency=1, ack_before_next=ack_before_next)
    before, after = Rig(latency_s=0.0, default=limits), Rig(latency_s=0.0, default=limits)
    await before.publish(*outgoings(["m1", "m2"]))
    async with before:
        broker_id = await skipped_although_nothing_can_be_acked(before)
        kept = before.tools.skips.find(broker_id)
    await before.queue.close()
    before.queue.next_acks.clear()
    after.queue = before.queue
    after.tools.skips.add(broker_id, kept)
    async with after:
        await after.until_empty()
        assert (after.dead_letters.letters, after.endpoint.started) == ([("m1", "skipped by ann")], ["m2"])


async def test_one_that_was_delivered_is_no_dead_letter_if_it_comes_again_although_it_was_skipped_meanwhile() -> None:
    rig = Rig(latency_s=1.0)
    over: list[str] = []
    rig.tools.skips.on_over = over.append
    rig.queue.next_acks.extend([Settled.FAILED] * 3)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        found = rig.acts.find("m1")
        assert isinstance(found, Delivery)
        await rig.acts.skip(found, "ann")
        await until(lambda: rig.pool.stats.delivered == 1)
        assert (over, rig.queue.acked) == ([found.broker_id], [])
        await rig.until_empty()
        assert rig.dead_letters.letters == []


async def test_a_skip_that_waits_for_another_message_outlives_all_that_is_settled_meanwhile() -> None:
    rig = Rig(latency_s=0.0)
    rig.tools.skips.add("another", "skipped by ann")
    rig.endpoint.answers("m1", *[ERROR_500] * 3)
    await rig.publish(outgoing("m1"), outgoing("m2", "h"))
    async with rig:
        await rig.until_empty()
    assert rig.tools.skips.find("another") == "skipped by ann"
