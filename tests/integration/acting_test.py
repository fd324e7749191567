"""What people do to messages and groups by hand, and that nothing else is touched by it. All in virtual time."""

import asyncio

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Delivery, DispatchMode, Settled
from flowcatalyst.router.acting import Done
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from tests.support.rig import ERROR_500, UNREACHABLE, RecordingQueue, Rig, outgoing, outgoings
from tests.support.virtual_loop import until

pytestmark = pytest.mark.virtual_time

HOOK = "http://endpoint.test/hook"
ORDERS = pytest.mark.parametrize("ordered", [True, False])


async def retry_head(rig: Rig, group: str = "g") -> Done:
    head = rig.acts.head(group)
    assert head is not None
    return await rig.acts.retry(head)


async def skip_head(rig: Rig, group: str = "g") -> Done:
    head = rig.acts.head(group)
    assert head is not None
    return await rig.acts.skip(head, "ann")


def failing(rig: Rig, name: str, times: int = 3) -> None:
    rig.endpoint.answers(name, *[ERROR_500] * times)


# Retry


@ORDERS
async def test_a_head_that_waits_for_its_next_attempt_is_tried_at_once_and_its_group_follows(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0)
    failing(rig, "m1")
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(1.0)
        done = await retry_head(rig)
        assert done.done, done.text
        assert (
            await rig.until_empty() < 15.0
        )  # it would have been 33 s; what was nacked behind it waits for 10 s at most
        assert rig.endpoint.started == ["m1"] * 4 + ["m2"]


async def test_a_message_is_not_tried_before_those_in_front_of_it() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    failing(rig, "m1")
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(0.1)
        found = rig.acts.find("m2")
        assert found is not None
        done = await rig.acts.retry(found)
        assert not done.done
        assert done.text == "message m2 waits for message m1, the first of its group: retry or skip that one"


async def test_an_attempt_under_way_cannot_be_hurried() -> None:
    rig = Rig(latency_s=5.0)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        assert await retry_head(rig) == Done(False, "an attempt of message m1 is under way")


async def test_a_queue_that_cannot_show_a_message_early_says_so() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    failing(rig, "m1")
    await rig.publish(outgoing("m1", mode=DispatchMode.NEXT_ON_ERROR))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(1.0)
        found = rig.acts.find("m1")
        assert isinstance(found, FailedMessage)
        done = await rig.acts.retry(found)
        assert not done.done
        assert done.text == "message m1 waits in queue q, which cannot show it before its 29 s are over"
        assert await rig.until_empty() >= 30.0


async def test_what_waits_for_a_breaker_is_not_hurried_past_it() -> None:
    rig = Rig(latency_s=0.0)
    names = [f"m{number}" for number in range(20)]
    for name in names:
        rig.endpoint.answers(name, UNREACHABLE, UNREACHABLE, UNREACHABLE)
    await rig.publish(*[outgoing(name, name) for name in names])
    async with rig:
        await until(lambda: bool(rig.pool._scheduler.gates))
        waiting = next(one for one in rig.tracker if "breaker" in rig.pool.explain(one).what)
        spent = len(rig.endpoint.starts)
        done = await rig.acts.retry(waiting)
        assert not done.done
        assert done.text.endswith("whose circuit breaker is open: reset that to try it now")
        await asyncio.sleep(0)
        assert len(rig.endpoint.starts) == spent


# Skip


@ORDERS
async def test_a_skipped_head_becomes_a_dead_letter_and_only_it(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0)
    failing(rig, "m1", 100)
    await rig.publish(*outgoings(["m1", "m2", "m3"]), outgoing("other", "bystander"))
    async with rig:
        await rig.until_started(4)
        await asyncio.sleep(1.0)
        done = await skip_head(rig)
        assert done == Done(True, "message m1 becomes a dead letter now")
        await rig.until_empty()
        assert rig.dead_letters.letters == [("m1", "skipped by ann; last: HTTP 500")]
        assert [name for name in rig.endpoint.started if name != "other"][3:] == ["m2", "m3"]


async def test_one_that_is_skipped_during_its_attempt_counts_as_delivered_if_that_succeeds() -> None:
    rig = Rig(latency_s=5.0)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        assert (
            await skip_head(rig)
        ).text == "an attempt of message m1 is under way: if that fails it becomes a dead letter"
        await rig.until_empty()
        assert rig.dead_letters.letters == []
        assert not len(rig.tools.skips)


async def test_one_that_is_skipped_during_its_attempt_is_not_tried_again_if_that_fails() -> None:
    rig = Rig(latency_s=5.0)
    failing(rig, "m1")
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        await skip_head(rig)
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2"]
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_one_that_was_delivered_and_waits_for_its_ack_cannot_be_skipped() -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=1, ack_before_next=True))
    rig.queue.next_acks.extend([Settled.FAILED] * 5)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(0.5)
        assert await skip_head(rig) == Done(False, "message m1 is done with: only its queue has to confirm that")
        assert not len(rig.tools.skips)
        await rig.until_empty()
        assert rig.dead_letters.letters == []


async def test_one_in_the_middle_is_skipped_when_its_turn_comes() -> None:
    rig = Rig(latency_s=1.0)
    await rig.publish(*outgoings(["m1", "m2", "m3"]))
    async with rig:
        await rig.until_started(1)
        found = rig.acts.find("m2")
        assert found is not None
        assert (await rig.acts.skip(found, "ann")).text.endswith("when its turn comes, after message m1")
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m3"]
        assert rig.queue.acked == ["m1", "m2", "m3"]


async def test_a_skip_that_cannot_be_recorded_loses_nothing_and_is_made_good() -> None:
    rig = Rig(latency_s=0.0)
    failing(rig, "m1", 100)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(1.0)
        rig.dead_letters.broken = True
        await skip_head(rig)
        await asyncio.sleep(20.0)
        assert rig.dead_letters.letters == []
        assert len(rig.queue) == 2
        rig.dead_letters.broken = False
        await rig.until_empty()
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]
        assert rig.endpoint.started == ["m1"] * 3 + ["m2"]


# Hold, pause


@ORDERS
async def test_a_held_group_starts_nothing_until_it_is_released_and_others_go_on(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.5)
    await rig.publish(*outgoings(["m1", "m2"]), outgoing("other", "bystander"))
    async with rig:
        await rig.until_started(2)
        rig.acts.pause(PauseKind.GROUP, "g", "ann")
        await rig.publish(outgoing("m3"), outgoing("later", "bystander"))
        await asyncio.sleep(300.0)
        assert sorted(rig.endpoint.started) == ["later", "m1", "other"]
        assert rig.pool.explain(next(iter(rig.tracker))).what == "its group to be released: ann holds it"
        assert rig.acts.head("g") is not None
        assert await rig.acts.resume(PauseKind.GROUP, "g")
        await rig.until_empty()
        assert [name for name in rig.endpoint.started if name.startswith("m")] == ["m1", "m2", "m3"]


async def test_a_group_that_is_released_waits_for_its_next_attempt_as_before() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    failing(rig, "m1")
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(3)
        rig.acts.pause(PauseKind.GROUP, "g", "ann")
        await asyncio.sleep(1.0)
        await rig.acts.resume(PauseKind.GROUP, "g")
        assert await rig.until_empty() >= 30.0


async def test_the_head_of_a_held_group_can_be_skipped() -> None:
    rig = Rig(latency_s=0.5)
    await rig.publish(*outgoings(["m1", "m2"]))
    rig.acts.pause(PauseKind.GROUP, "g", "ann")
    async with rig:
        await asyncio.sleep(1.0)
        await skip_head(rig)
        await asyncio.sleep(10.0)
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]
        assert rig.endpoint.started == []
        await rig.acts.resume(PauseKind.GROUP, "g")
        await rig.until_empty()
        assert rig.endpoint.started == ["m2"]


async def test_a_held_group_that_is_larger_than_its_pool_does_not_keep_others_out() -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=1, parked_limit=10))
    rig.acts.pause(PauseKind.GROUP, "g", "ann")
    await rig.publish(*outgoings([f"m{n}" for n in range(600)]), *[outgoing(f"o{n}", f"b{n}") for n in range(20)])
    async with rig:
        await until(lambda: len(rig.endpoint.starts) == 20)
        await rig.acts.resume(PauseKind.GROUP, "g")
        await rig.until_empty()
        assert [name for name in rig.endpoint.started if name.startswith("m")] == [f"m{n}" for n in range(600)]


async def test_a_paused_pool_starts_and_receives_nothing_and_another_one_goes_on() -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=2), other=PoolLimits(concurrency=2))
    async with rig:
        rig.acts.pause(PauseKind.POOL, DEFAULT_POOL, "ann")
        await rig.publish(*outgoings(["m1", "m2"]), outgoing("o1", "h", pool="other"))
        await asyncio.sleep(100.0)
        assert rig.endpoint.started == ["o1"]
        assert not rig.pool.free_capacity
        assert await rig.acts.resume(PauseKind.POOL, DEFAULT_POOL)
        await rig.until_empty()
        assert rig.endpoint.started == ["o1", "m1", "m2"]


@pytest.mark.parametrize("selects_pools", [True, False])
async def test_messages_of_a_paused_pool_wait_although_it_is_configured_no_more(selects_pools: bool) -> None:
    rig = Rig(latency_s=0.0, default=PoolLimits(concurrency=10), SMALL=PoolLimits(concurrency=1))
    rig.queue = RecordingQueue("q", rig.clock, selects_pools=selects_pools)
    await rig.publish(outgoing("o1", "h"))
    async with rig:
        rig.acts.pause(PauseKind.POOL, "SMALL", "ann")
        rig.router.apply({DEFAULT_POOL: PoolLimits(concurrency=10)})
        await rig.publish(*[outgoing(name, pool="SMALL") for name in ("m1", "m2")], outgoing("o2", "h"))
        await asyncio.sleep(100.0)
        assert rig.endpoint.started == ["o1", "o2"]
        found = rig.acts.find("m1")
        assert (found is None) is selects_pools  # nothing is asked for where that can be said
        if isinstance(found, Delivery):
            assert rig.pool.explain(found).what == "pool SMALL to be resumed: ann paused it"
        await rig.acts.resume(PauseKind.POOL, "SMALL")
        assert await rig.until_empty() < 101.0
        assert rig.endpoint.started == ["o1", "o2", "m1", "m2"]


async def test_a_paused_endpoint_gets_nothing_and_its_messages_spend_no_attempt() -> None:
    rig = Rig(latency_s=0.0)
    await rig.publish(*outgoings(["m1", "m2"]), outgoing("o1", "h", target="http://endpoint.test/other"))
    async with rig:
        rig.acts.pause(PauseKind.ENDPOINT, HOOK, "ann")
        await asyncio.sleep(100.0)
        assert rig.endpoint.started == ["o1"]
        found = rig.acts.find("m1")
        assert found is not None
        assert (await rig.acts.retry(found)).text == f"message m1 waits for {HOOK} to be resumed: ann paused it"
        await rig.acts.resume(PauseKind.ENDPOINT, HOOK)
        await rig.until_empty()
        assert rig.endpoint.started == ["o1", "m1", "m2"]
        assert rig.tools.failures.find({"m1", "m2"}) == {}


async def test_a_paused_origin_stops_all_its_endpoints() -> None:
    rig = Rig(latency_s=0.0)
    await rig.publish(outgoing("m1"), outgoing("m2", "h", target="http://elsewhere.test/"))
    async with rig:
        rig.acts.pause(PauseKind.ENDPOINT, "http://endpoint.test", "ann")
        await asyncio.sleep(10.0)
        assert rig.endpoint.started == ["m2"]
        await rig.acts.resume(PauseKind.ENDPOINT, "http://endpoint.test")
        await rig.until_empty()


async def test_hundreds_of_held_groups_do_not_keep_a_mended_endpoint_waiting() -> None:
    rig = Rig(latency_s=0.1, default=PoolLimits(concurrency=2))
    for number in range(300):
        rig.acts.pause(PauseKind.GROUP, f"held{number}", "ann")
    await rig.publish(*[outgoing(f"h{n}", f"held{n}") for n in range(300)])
    await rig.publish(*[outgoing(f"o{n}", f"b{n}") for n in range(40)])
    async with rig:
        await until(lambda: len(rig.endpoint.starts) == 40)
        assert rig.clock.monotonic() < 10.0


# In front of a group


async def test_a_group_whose_head_is_in_flight_is_not_returned_to_its_queue() -> None:
    rig = Rig(latency_s=5.0)
    await rig.publish(*outgoings(["m1", "m2", "m3"]))
    async with rig:
        await rig.until_started(1)
        assert not await rig.acts.return_group("g", "q", 2.0)
        assert rig.queue.nacked == []
        await rig.until_empty()


async def test_only_what_came_from_the_queue_of_a_letter_is_returned_to_it() -> None:
    rig = Rig(latency_s=0.0)
    rig.acts.pause(PauseKind.GROUP, "g", "ann")
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await until(lambda: len(rig.tracker) == 2)
        await asyncio.sleep(0.1)
        assert not await rig.acts.return_group("g", "another", 2.0)
        assert rig.queue.nacked == []
        assert await rig.acts.return_group("g", "q", 2.0)
        assert rig.queue.nacked == [("m1", 2.0), ("m2", 2.0)]
        await rig.acts.resume(PauseKind.GROUP, "g")
        await rig.until_empty()
