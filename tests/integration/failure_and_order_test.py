"""What a failure does to its group, in each dispatch mode and scope, on both kinds of queue. All in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Demand
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import Delays
from tests.support.rig import ERROR_400, ERROR_500, NOT_YET, UNREACHABLE, Rig, outgoing, outgoings

pytestmark = pytest.mark.virtual_time

BATCH_SCOPE = PoolLimits(concurrency=10, failure_scope=FailureScope.BATCH)


@pytest.mark.parametrize("ordered", [True, False])
async def test_failed_message_blocks_its_group_until_it_succeeds(ordered: bool) -> None:
    rig = Rig(ordered=ordered)
    rig.endpoint.answers("m1", *[ERROR_500] * 7)
    await rig.publish(*outgoings(["m1", "m2", "m3"]), outgoing("other", "bystander"))
    async with rig:
        took = await rig.until_empty()
        started = [name for name in rig.endpoint.started if name != "other"]
        assert started == ["m1"] * 8 + ["m2", "m3"]
        assert rig.endpoint.starts[1] == (0.0, "other")
        assert took > 753.0  # 1, 2, 30, 60, 120, 240 and 300 s in between


async def test_a_retryable_failure_is_retried_after_1_and_2_seconds_then_given_back_for_30() -> None:
    rig = Rig(latency_s=0.0)
    rig.endpoint.answers("m1", *[ERROR_500] * 3)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert [round(at, 1) for at, name in rig.endpoint.starts if name == "m1"] == [0.0, 1.0, 3.0, 33.0]
        assert rig.queue.nacked == [("m2", 10.0), ("m1", 30.0)]


async def test_on_an_unordered_queue_the_failed_message_is_held_in_place_and_never_nacked() -> None:
    rig = Rig(ordered=False, latency_s=0.0)
    rig.endpoint.answers("m1", *[ERROR_500] * 5)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert [round(at, 1) for at, name in rig.endpoint.starts if name == "m1"] == [0, 1, 3, 33, 93, 213]
        assert rig.queue.nacked == []


@pytest.mark.thorough
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_message_that_fails_for_ever_is_tried_less_and_less_often_whether_or_not_its_queue_counts(
    ordered: bool,
) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0, default=PoolLimits(concurrency=1, max_delivery_attempts=9))
    receive = rig.queue.receive

    async def receive_without_memory(limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        batch = await receive(limit, wait_s, demand)
        for delivery in batch:
            delivery.failures = 0  # as most brokers
        return batch

    rig.queue.receive = receive_without_memory  # type: ignore[method-assign]
    rig.endpoint.answers("m1", *[ERROR_500] * 30)
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_empty()
        starts = [round(at) for at, _ in rig.endpoint.starts]
        assert starts == [0, 1, 3, 33, 93, 213, 453, 753, 1053]
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_on_an_unordered_queue_a_message_that_failed_20_times_becomes_a_dead_letter_and_its_group_moves_on() -> (
    None
):
    rig = Rig(ordered=False)
    rig.tools = replace(rig.tools, delays=Delays(longest_s=30.0))
    rig.endpoint.answers("m1", *[ERROR_500] * 30)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"] * 20 + ["m2"]
        assert rig.dead_letters.letters == [("m1", "gave up after 20 failed attempts; last: HTTP 500")]


async def test_max_delivery_attempts_counts_across_redeliveries() -> None:
    rig = Rig(default=PoolLimits(concurrency=1, max_delivery_attempts=5))
    rig.endpoint.answers("m1", *[ERROR_500] * 30)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"] * 5 + ["m2"]
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_an_endpoint_asking_for_patience_never_makes_a_dead_letter() -> None:
    rig = Rig(ordered=False, default=PoolLimits(concurrency=1, max_delivery_attempts=3))
    rig.endpoint.answers("m1", *[interpret(429, "5", b"", 0.0), NOT_YET] * 10)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1"] * 21 + ["m2"]
        assert rig.dead_letters.letters == []


async def test_scenario_1_batch_scope_a_failure_gives_back_the_rest_of_its_batch_and_group() -> None:
    rig = Rig(default=BATCH_SCOPE)
    rig.endpoint.answers("msg2", *[ERROR_500] * 3)
    await rig.publish(*outgoings(["msg1", "msg2", "msg3"], "order-12345"), outgoing("msg4", "order-67890"))
    async with rig:
        await rig.until_started(5)
        await asyncio.sleep(5)
        assert rig.queue.acked == ["msg1", "msg4"]
        assert rig.queue.nacked == [("msg3", 10.0), ("msg2", 30.0)]


async def test_scenario_2_batch_scope_all_messages_of_one_group() -> None:
    rig = Rig(default=BATCH_SCOPE)
    rig.endpoint.answers("msg3", *[ERROR_500] * 3)
    await rig.publish(*outgoings([f"msg{n}" for n in range(1, 6)], "order-12345"))
    async with rig:
        await rig.until_started(5)
        await asyncio.sleep(5)
        assert rig.queue.acked == ["msg1", "msg2"]
        assert rig.queue.nacked == [("msg4", 10.0), ("msg5", 10.0), ("msg3", 30.0)]


@pytest.mark.parametrize(
    ("scope", "acked", "nacked"),
    [
        (FailureScope.BATCH, ["msg3", "msg4"], ["msg2", "msg1"]),
        (FailureScope.GROUP, [], ["msg2", "msg3", "msg4", "msg1"]),
    ],
)
async def test_scenario_3_another_batch_of_the_group_goes_on_in_batch_scope_only(
    scope: FailureScope, acked: list[str], nacked: list[str]
) -> None:
    # Two batches of one group in memory at once: a queue without group locks that redelivers in order.
    rig = Rig(max_batch=2, default=PoolLimits(concurrency=10, failure_scope=scope))
    object.__setattr__(rig.queue.capabilities, "locks_groups", False)
    rig.endpoint.answers("msg1", *[ERROR_500] * 3)
    await rig.publish(*outgoings(["msg1", "msg2", "msg3", "msg4"], "order-12345"))
    async with rig:
        await rig.until_started(3)
        await asyncio.sleep(3)
        assert rig.queue.acked == acked
        assert [name for name, _ in rig.queue.nacked] == nacked


@pytest.mark.parametrize("ordered", [True, False])
async def test_next_on_error_skips_the_failed_message_and_retries_it_later(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0)
    rig.endpoint.answers("m2", *[ERROR_500] * 3)
    await rig.publish(*(outgoing(f"m{n}", mode=DispatchMode.NEXT_ON_ERROR) for n in (1, 2, 3)))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2", "m2", "m2", "m3", "m2"]
        assert [round(at) for at, _ in rig.endpoint.starts] == [0, 0, 1, 3, 3, 33]


async def test_block_on_error_keeps_the_rest_of_the_group_waiting() -> None:
    rig = Rig(latency_s=0.0)
    rig.endpoint.answers("m2", *[ERROR_500] * 4)
    await rig.publish(*(outgoing(f"m{n}", mode=DispatchMode.BLOCK_ON_ERROR) for n in (1, 2, 3)))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", *["m2"] * 5, "m3"]


async def test_immediate_messages_of_one_group_run_at_once_and_wait_for_nobody() -> None:
    rig = Rig()
    rig.endpoint.answers("m1", ERROR_500)
    await rig.publish(*(outgoing(f"m{n}", mode=DispatchMode.IMMEDIATE) for n in range(5)))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.most_in_flight == 5
        assert [at for at, _ in rig.endpoint.starts[:5]] == [0.0] * 5


@pytest.mark.parametrize("group", [None, "", "  "])
async def test_messages_without_a_group_are_ordered_as_the_default_group(group: str | None) -> None:
    rig = Rig()
    rig.endpoint.answers("m1", *[ERROR_500] * 4)
    await rig.publish(*(outgoing(f"m{n}", group) for n in (1, 2, 3)))
    async with rig:
        await rig.until_started(1)
        assert repr(rig.pool).count("__DEFAULT__[*m1 m2 m3]") == 1
        await rig.until_empty()
        assert rig.endpoint.most_in_flight == 1


async def test_a_high_priority_message_goes_before_the_regular_ones_of_its_group() -> None:
    rig = Rig(default=PoolLimits(concurrency=1))
    await rig.publish(*outgoings(["m1", "m2", "m3"]), outgoing("urgent", high=True))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["urgent", "m1", "m2", "m3"]


async def test_a_terminal_response_is_recorded_before_the_ack_and_the_group_moves_on() -> None:
    rig = Rig()
    rig.endpoint.answers("m1", ERROR_400)
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2"]
        assert rig.dead_letters.letters == [("m1", "HTTP 400")]
        assert rig.queue.acked == ["m1", "m2"]
        assert [(w.code, w.severity) for w in rig.warnings.recent()] == [("CONFIGURATION", "ERROR")]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_dead_letter_that_cannot_be_recorded_is_not_acked_and_still_blocks_its_group(ordered: bool) -> None:
    rig = Rig(ordered=ordered)
    rig.endpoint.answers("m1", ERROR_400, ERROR_400)
    rig.dead_letters.broken = True
    await rig.publish(*outgoings(["m1", "m2"]))
    async with rig:
        await rig.until_started(1)
        await asyncio.sleep(20)
        assert rig.queue.acked == []
        rig.dead_letters.broken = False
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m1", "m2"]
        assert [name for name, _ in rig.dead_letters.letters] == ["m1"]


async def test_a_body_that_cannot_be_parsed_is_recorded_then_acked_and_holds_nobody_up() -> None:
    rig = Rig()
    bad = type(outgoing("x"))("{not json", "g")
    await rig.publish(outgoing("m1"), bad, outgoing("m2"))
    async with rig:
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2"]
        [(broker_id, reason)] = rig.dead_letters.letters
        assert broker_id == "q-2"
        assert "not a message pointer" in reason


@pytest.mark.parametrize("ordered", [True, False])
async def test_an_open_breaker_costs_no_attempts_and_no_order(ordered: bool) -> None:
    rig = Rig(ordered=ordered, latency_s=0.0, max_batch=100)
    for group in range(12):
        rig.endpoint.answers(f"m{group}.0", *[UNREACHABLE] * 2)
    await rig.publish(*(outgoing(f"m{g}.{n}", f"g{g}") for n in range(2) for g in range(12)))
    async with rig:
        await rig.until_empty()
        attempts_while_down = [name for _, name in rig.endpoint.starts if name.endswith(".0")]
        assert len(attempts_while_down) == 12 * 3  # two failures and a success each, nothing wasted
        for group in range(12):
            mine = [name for name in rig.endpoint.started if name.startswith(f"m{group}.")]
            assert mine == [f"m{group}.0"] * 3 + [f"m{group}.1"]
        assert rig.dead_letters.letters == []


async def test_a_hold_occupies_no_slot() -> None:
    rig = Rig(default=PoolLimits(concurrency=1), latency_s=0.1)
    rig.endpoint.answers("stuck", ERROR_500)
    await rig.publish(outgoing("stuck", "a"), *outgoings([f"m{n}" for n in range(8)], "b"))
    async with rig:
        await rig.until_empty()
        # The stuck message waits for one second; the other group uses the only slot meanwhile.
        assert [round(at, 1) for at, name in rig.endpoint.starts if name != "stuck"] == [
            round(0.1 * n, 1) for n in range(1, 9)
        ]
