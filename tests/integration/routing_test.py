"""The three phases of routing: duplicates, capacity, refused messages, lost acks."""

import asyncio

import pytest
from structlog.testing import capture_logs

from flowcatalyst.core.message import Delivery, Settled, parse_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.router import REFUSAL_S
from flowcatalyst.router.settler import Settler
from tests.support.rig import ERROR_500, RecordingQueue, Rig, outgoing, outgoings

pytestmark = pytest.mark.virtual_time


def redelivery_of(rig: Rig, delivery: Delivery, receipt: object) -> Delivery:
    again = Delivery(delivery.broker_id, receipt, delivery.body, delivery.group, receive_count=2)
    again.source = rig.settler
    again.pointer = parse_pointer(again.body)
    return again


async def test_a_physical_redelivery_adopts_the_new_receipt_and_is_neither_processed_nor_nacked() -> None:
    rig = Rig(latency_s=100.0)  # longer than the visibility timeout of 60 s: the queue shows it again
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        [owned] = rig.tracker
        assert owned.receipt == (1, 1)
        await asyncio.sleep(61)
        assert owned.receipt == (1, 2)
        assert rig.queue.nacked == []
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"]
        assert rig.queue.acked == ["m1"]


async def test_the_same_message_twice_in_one_batch_is_processed_once_and_not_deleted_early() -> None:
    rig = Rig()
    async with rig:
        await rig.publish(outgoing("m1"))
        [first] = await rig.queue.receive(1, 0)
        first.source, first.pointer = rig.settler, parse_pointer(first.body)
        rig.router.route([first, redelivery_of(rig, first, (1, 1))])
        await asyncio.sleep(0.05)
        assert rig.queue.acked == []
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"]


@pytest.mark.parametrize("same_batch", [True, False])
async def test_a_logical_requeue_is_acked_while_the_original_goes_on_and_is_counted_and_logged(
    same_batch: bool,
) -> None:
    rig = Rig(ordered=False, latency_s=1.0, max_batch=2 if same_batch else 1)
    await rig.publish(outgoing("m1"), outgoing("m1"))
    async with rig:
        with capture_logs() as logged:
            await asyncio.sleep(0.5)
        assert len(rig.queue) == 1
        assert rig.queue.acked == ["m1"]
        assert rig.tracker.dropped == {"q": 1}
        [line] = [line for line in logged if line.get("action") == "duplicate_dropped"]
        assert (line["message"], line["queue"], line["broker_id"], line["same_as"]) == ("m1", "q", "q-2", "q-1")
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"]


@pytest.mark.parametrize("same_batch", [True, False])
@pytest.mark.parametrize(
    "other", [outgoing("m1", "another"), outgoing("m1", target="http://endpoint.test/another")], ids=["group", "target"]
)
async def test_another_message_with_the_same_application_id_is_delivered_too(other: Outgoing, same_batch: bool) -> None:
    rig = Rig(ordered=False, latency_s=1.0, max_batch=2 if same_batch else 1)
    await rig.publish(outgoing("m1"), other)
    async with rig:
        await rig.until_empty()
    assert rig.endpoint.started == ["m1", "m1"]
    assert rig.queue.acked == ["m1", "m1"]
    assert rig.tracker.dropped == {}


async def test_message_with_the_same_application_id_from_another_queue_is_delivered_too() -> None:
    rig = Rig(latency_s=1.0)
    other = RecordingQueue("other", rig.clock)
    await rig.publish(outgoing("m1"))
    await other.publish([outgoing("m1")])
    async with rig:
        await rig.until_started(1)
        settler = Settler(other, rig.tracker)
        rig.tasks.spawn(settler.run())
        [delivery] = await other.receive(1, 0)
        delivery.source, delivery.pointer = settler, parse_pointer(delivery.body)
        rig.router.route([delivery])
        await rig.until_empty()
    assert rig.endpoint.started == ["m1", "m1"]
    assert (rig.queue.acked, other.acked) == (["m1"], ["m1"])


async def test_a_pool_refuses_only_what_is_beyond_capacity_and_parked_limit_and_then_the_rest_of_the_group() -> None:
    small = PoolLimits(concurrency=1, capacity=2, parked_limit=1)
    large = PoolLimits(concurrency=5)
    rig = Rig(SMALL=small, LARGE=large)
    async with rig:
        messages = [outgoing(f"s{n}", f"g{n % 2}", pool="SMALL") for n in range(5)] + [outgoing("l1", pool="LARGE")]
        rig.consumer.stop()
        await rig.publish(*messages)
        batch = await rig.queue.receive(10, 0)
        for delivery in batch:
            delivery.source, delivery.pointer = rig.settler, parse_pointer(delivery.body)
        rig.router.route(batch)
        await asyncio.sleep(1)
        assert rig.endpoint.started == ["s0", "l1", "s1", "s2"]
        assert rig.queue.nacked == [("s3", REFUSAL_S), ("s4", REFUSAL_S)]
        assert [warning.code for warning in rig.warnings.recent()] == ["QUEUE_FULL"]
        assert len(rig.tracker) == 0


async def test_after_a_refused_submit_the_rest_of_that_group_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    real_submit = Pool.submit

    def submit(pool: Pool, delivery: Delivery) -> bool:
        return delivery.pointer.id != "a2" and real_submit(pool, delivery)

    monkeypatch.setattr(Pool, "submit", submit)
    await rig.publish(*outgoings(["a1", "a2", "a3"], "a"), *outgoings(["b1", "b2"], "b"))
    async with rig:
        await asyncio.sleep(1)
        assert [name for name, _ in rig.queue.nacked] == ["a2", "a3"]
        assert sorted(rig.endpoint.started) == ["a1", "b1", "b2"]
        assert len(rig.tracker) == 0


async def test_what_is_beyond_the_capacity_is_parked_behind_its_group_and_not_received_again() -> None:
    rig = Rig(ordered=False, default=PoolLimits(concurrency=1, capacity=3))
    rig.endpoint.answers("m1", *[ERROR_500] * 4)
    async with rig:
        await rig.publish(*outgoings([f"m{n}" for n in range(1, 11)]))
        await rig.until_empty()
        assert list(dict.fromkeys(rig.endpoint.started)) == [f"m{n}" for n in range(1, 11)]
        assert rig.queue.nacked == []


async def test_an_unknown_pool_is_served_by_the_default_pool_with_a_warning() -> None:
    rig = Rig(OTHER=PoolLimits(concurrency=1))
    await rig.publish(outgoing("m1", pool="NOWHERE"))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"]
        assert rig.router.pools["DEFAULT-POOL"].limits.concurrency == 20
        [warning] = rig.warnings.recent()
        assert (warning.code, warning.severity) == ("ROUTING", "WARN")
        assert "NOWHERE" in warning.message


async def test_an_ack_that_failed_is_repeated_until_the_queue_confirms_it() -> None:
    rig = Rig()
    rig.queue.next_acks.extend([Settled.FAILED] * 4)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2"]
        assert sorted(rig.queue.acked) == ["m1", "m2"]


async def test_a_delete_whose_receipt_had_expired_is_remembered_and_done_at_the_next_sight() -> None:
    rig = Rig()
    rig.queue.next_acks.append(Settled.GONE)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(1)
        assert (len(rig.queue), len(rig.tracker)) == (1, 0)
        assert "remembered=1" in repr(rig.settler)
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"]
        assert "remembered=0" in repr(rig.settler)


async def test_the_poll_loop_asks_nothing_while_no_pool_has_room_and_goes_on_at_once_when_one_has() -> None:
    rig = Rig(latency_s=50.0, max_batch=4, default=PoolLimits(concurrency=1, capacity=4))
    await rig.publish(*outgoings([f"m{n}" for n in range(4)]), *outgoings(["late"], "other"))
    async with rig:
        await rig.until_started(1)
        polls = rig.queue.polls
        await asyncio.sleep(40)
        assert rig.queue.polls == polls
        await rig.until_started(2)
        assert rig.endpoint.starts[1][0] == pytest.approx(50.0, abs=0.02)
        assert rig.pool.buffered == 3  # "late" came in at once
        assert rig.queue.nacked == []


async def test_a_full_pool_does_not_keep_its_queue_from_feeding_another_pool() -> None:
    slow, fast = PoolLimits(concurrency=1, capacity=5), PoolLimits(concurrency=1, capacity=5)
    rig = Rig(latency_s=1000.0, max_batch=5, SLOW=slow, FAST=fast)
    await rig.publish(*(outgoing(f"s{n}", f"s{n}", pool="SLOW") for n in range(8)), outgoing("f1", "f", pool="FAST"))
    async with rig:
        await rig.until_started(2)
        assert "f1" in rig.endpoint.started
        assert rig.clock.monotonic() < 10


async def test_attempts_that_a_queue_knows_of_count_although_they_were_no_failures() -> None:
    rig = Rig(latency_s=1.0)
    async with rig:
        await rig.publish(outgoing("m1"))
        [delivery] = await rig.queue.receive(1, 0)
        delivery.source, delivery.pointer, delivery.earlier = rig.settler, parse_pointer(delivery.body), 4
        rig.router.route([delivery])
        await rig.until_started(1)
        assert (delivery.earlier, delivery.tries) == (4, 1)  # the endpoint is told of the fifth
        await rig.until_empty()
