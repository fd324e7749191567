"""The poll loop towards brokers: what it tells of a queue, and how it spares polls that cost money."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import DEFAULT_POOL, Delivery, Outcome, Settled
from flowcatalyst.core.warnings import Warning, WarningCode, WarningFilter  # noqa: A004 - the word operators know
from flowcatalyst.queues.contract import Demand, Outgoing
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.settler import MAX_NACK_TRIES
from flowcatalyst.router.watch import Backlog
from tests.support.rig import UNREACHABLE, ListedDeadLetters, Rig, SilentLog, outgoing
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time


class AskedFor:
    """What the consumer asked the queue of a rig for."""

    def __init__(self, rig: Rig) -> None:
        self.limits: list[int] = []
        self._receive = rig.queue.receive
        rig.queue.receive = self.receive  # type: ignore[method-assign]
        self.broken = False

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        self.limits.append(limit)
        if self.broken:
            raise QueueUnavailableError("the broker is away")
        return await self._receive(limit, wait_s, demand)


def codes(rig: Rig) -> list[WarningCode]:
    return [warning.code for warning in rig.warnings.recent()]


async def test_a_queue_that_comes_back_is_told_once() -> None:
    rig = Rig()
    asked = AskedFor(rig)
    asked.broken = True
    async with rig:
        await asyncio.sleep(5)
        assert codes(rig) == [WarningCode.QUEUE_UNAVAILABLE]
        assert rig.consumer.reports.last_error == "the broker is away"
        asked.broken = False
        await rig.publish(outgoing("m1"))
        await rig.until_empty()
        assert sorted(codes(rig)) == [WarningCode.QUEUE_RECOVERED, WarningCode.QUEUE_UNAVAILABLE]
        assert rig.consumer.reports.last_error == ""
        await asyncio.sleep(60)
        recovered = [one for one in rig.warnings.recent() if one.code is WarningCode.QUEUE_RECOVERED]
        assert [one.count for one in recovered] == [1]


async def test_every_outage_of_a_queue_is_told_and_nobody_has_to_acknowledge_it_when_it_is_over() -> None:
    rig, told = Rig(), []
    rig.warnings.on_new = lambda warning: told.append((warning.code, warning.source))
    asked = AskedFor(rig)
    async with rig:
        for _ in range(2):
            asked.broken = True
            await asyncio.sleep(60)
            asked.broken = False
            await asyncio.sleep(60)
            open_codes = [one.code for one in rig.warnings.recent() if not one.acknowledged]
            assert open_codes == []
    outage = [(WarningCode.QUEUE_UNAVAILABLE, "queue q"), (WarningCode.QUEUE_RECOVERED, "queue q")]
    assert told == 2 * outage


async def test_advice_of_a_queue_becomes_a_warning_after_the_first_poll_and_after_each_recovery() -> None:
    rig = Rig()
    rig.queue.setup_warnings = ["its dead-letter queue takes followers"]
    asked = AskedFor(rig)
    async with rig:
        await rig.publish(outgoing("m1"))
        await rig.until_empty()
        [warning] = rig.warnings.recent()
        assert warning.code is WarningCode.QUEUE_SETUP
        assert warning.message == "queue q: its dead-letter queue takes followers"
        asked.broken = True
        await asyncio.sleep(30)
        asked.broken = False
        await asyncio.sleep(60)
        [setup] = [one for one in rig.warnings.recent() if one.code is WarningCode.QUEUE_SETUP]
        assert setup.count == 2


async def test_messages_that_cannot_be_read_are_one_warning_a_minute_with_their_count() -> None:
    rig = Rig()
    async with rig:
        await rig.publish(*(Outgoing("no json", f"g{number}") for number in range(7)))
        await asyncio.sleep(10)
        await rig.publish(*(Outgoing("{}", f"g{number}") for number in range(300)))
        await asyncio.sleep(20)
        [first] = unreadable(rig)
        assert first.message.startswith("queue q: 7 messages could not be read and became dead letters")
        assert first.count == 1
        await asyncio.sleep(60)  # nothing more comes, and the rest is told all the same
        assert len(unreadable(rig)) == 2
        assert "queue q: 300 messages could not be read" in unreadable(rig)[0].message
        assert len(rig.dead_letters.letters) == 307
        await asyncio.sleep(300)
        assert len(unreadable(rig)) == 2
        await rig.publish(Outgoing("[]", "g"))
        await asyncio.sleep(20)
        assert "queue q: a message could not be read" in unreadable(rig)[0].message


def unreadable(rig: Rig) -> list[Warning]:
    return rig.warnings.recent(WarningFilter(code=WarningCode.MESSAGES_UNREADABLE))


async def test_advice_that_a_queue_has_only_later_becomes_a_warning_too() -> None:
    rig = Rig()
    rig.queue.setup_warnings = ["one"]
    async with rig:
        await asyncio.sleep(60)
        rig.queue.setup_warnings = ["one", "two"]
        await asyncio.sleep(60)
        assert sorted((one.message, one.count) for one in rig.warnings.recent()) == [
            ("queue q: one", 1),
            ("queue q: two", 1),
        ]


async def test_a_whole_batch_is_asked_for_and_only_when_a_quarter_of_the_capacity_is_free() -> None:
    rig = Rig(latency_s=0.05, default=PoolLimits(concurrency=4, capacity=40))
    asked = AskedFor(rig)
    room_at_polls: list[int] = []
    receive = rig.queue.receive

    async def noted(limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        room_at_polls.append(rig.pool.free_capacity)
        return await receive(limit, wait_s, demand)

    rig.queue.receive = noted  # type: ignore[method-assign]
    async with rig:
        await rig.publish(*(outgoing(f"m{number}", f"g{number}") for number in range(200)))
        await rig.until_empty()
    assert set(asked.limits) == {10}
    assert min(room_at_polls) >= 10
    assert len(asked.limits) <= 200 / 10 + 2


async def test_a_pool_with_less_room_than_a_batch_and_idle_slots_is_still_fed() -> None:
    rig = Rig(latency_s=1000.0, default=PoolLimits(concurrency=50, capacity=15))
    async with rig:
        await rig.publish(*(outgoing(f"m{number}", f"g{number}") for number in range(15)))
        await asyncio.sleep(10)
        assert len(rig.endpoint.starts) == 15  # ten, and five that have room although a batch has not


async def test_a_queue_that_cannot_tell_its_depth_is_left_alone_by_the_backlog_watch() -> None:
    rig = Rig()

    async def depth() -> None:
        return None

    rig.queue.depth = depth  # type: ignore[assignment,method-assign]
    for _ in range(5):
        await Backlog({"q": rig.queue}, rig.warnings).look()
    assert rig.warnings.recent() == []


async def test_a_batch_that_comes_after_a_restart_is_routed_where_giving_it_back_would_reorder_it() -> None:
    rig = Rig(ordered=False, max_batch=2)
    receive, one_at_a_time = rig.queue.receive, asyncio.Lock()
    delays = iter([70.0])

    async def slow_at_first(limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        async with one_at_a_time:  # as the adapters of such brokers do
            batch = await receive(limit, wait_s)
            await asyncio.sleep(next(delays, 0.0))
            return batch

    rig.queue.receive = slow_at_first  # type: ignore[method-assign]
    await rig.publish(*(outgoing(f"m{number}") for number in range(1, 6)))
    async with rig:
        await asyncio.sleep(60)
        rig.consumer.restart()
        rig.tasks.spawn(rig.consumer.run())
        await rig.until_empty()
        assert rig.endpoint.started == ["m1", "m2", "m3", "m4", "m5"]
        assert rig.queue.nacked == []
        rig.consumer.stop()


async def test_polls_of_one_queue_share_the_room_and_refuse_each_other_nothing() -> None:
    rig = Rig(latency_s=0.05, default=PoolLimits(concurrency=2, capacity=12))
    asked = AskedFor(rig)
    async with rig:
        others = [rig.tasks.spawn(rig.consumer.run()) for _ in range(4)]
        await rig.publish(*(outgoing(f"m{number}", f"g{number % 30}") for number in range(120)))
        await rig.until_empty()
        rig.consumer.stop()
        await asyncio.wait(others)
    assert rig.queue.nacked == []
    assert len(asked.limits) > 10
    assert len(rig.endpoint.starts) == 120


async def test_a_poll_that_hangs_keeps_no_room_from_the_loop_that_replaces_it() -> None:
    rig = Rig(default=PoolLimits(concurrency=2, capacity=10))
    receive, hangs = rig.queue.receive, iter([3600.0])

    async def hang_once(limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        await asyncio.sleep(next(hangs, 0.0))
        return await receive(limit, wait_s)

    rig.queue.receive = hang_once  # type: ignore[method-assign]
    async with rig:
        await asyncio.sleep(60)
        rig.consumer.restart()
        rig.tasks.spawn(rig.consumer.run())
        await rig.publish(outgoing("m1"))
        assert await rig.until_empty() < 120


async def test_a_queue_that_answers_nothing_at_once_again_and_again_is_asked_now_and_then() -> None:
    rig = Rig()
    polls = 0

    async def nothing(limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        nonlocal polls
        polls += 1
        return []

    rig.queue.receive = nothing  # type: ignore[method-assign]
    async with rig:
        await asyncio.sleep(60)
    assert 10 < polls <= 241


async def test_a_stop_with_acks_that_nobody_confirmed_says_how_many_come_again() -> None:
    rig = Rig()
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    await rig.publish(outgoing("m1", "a"), outgoing("m2", "b"))

    async def away(deliveries: Sequence[Delivery]) -> list[Settled]:
        raise QueueUnavailableError("the broker is away")

    rig.queue.ack = away  # type: ignore[method-assign]
    engine.start({"q": rig.queue}, {DEFAULT_POOL: PoolLimits(concurrency=2)}, rig.endpoint, SilentLog())
    await rig.until_started(2)
    await asyncio.sleep(1)
    await engine.stop()
    assert (engine.stopped_clean, engine.unsettled) == (False, 2)
    assert WarningCode.SHUTDOWN_CLEANUP_ERRORS in codes(rig)


async def test_an_outage_that_is_over_does_not_make_a_stop_unclean() -> None:
    rig = Rig()
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    rig.endpoint.answers("m1", *[UNREACHABLE] * 3)
    await rig.publish(outgoing("m1", "a"))
    requeue, refused = rig.queue.nack, 0

    async def away(deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        nonlocal refused
        refused += 1
        raise QueueUnavailableError("the broker is away")

    rig.queue.nack = away  # type: ignore[method-assign]
    engine.start({"q": rig.queue}, {DEFAULT_POOL: PoolLimits(concurrency=2)}, rig.endpoint, SilentLog())
    while refused < MAX_NACK_TRIES:
        await asyncio.sleep(0.1)
    rig.queue.nack = requeue  # type: ignore[method-assign]
    await rig.until_empty()
    await engine.stop()
    assert (engine.stopped_clean, engine.unsettled) == (True, 0)
    assert rig.queue.acked == ["m1"]


async def test_a_broker_that_hangs_costs_other_queues_no_leases() -> None:
    rig, other = Rig(latency_s=100.0), MemoryQueue("other", VirtualClock(), visibility_s=30.0)
    await rig.publish(outgoing("m1", "a"))
    await other.publish([outgoing("m2", "b")])

    async def hang(deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        await asyncio.sleep(3600)
        return []

    rig.queue.extend = hang  # type: ignore[method-assign]
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    queues = {"q": rig.queue, "other": other}
    engine.start(queues, {DEFAULT_POOL: PoolLimits(concurrency=2)}, rig.endpoint, SilentLog())
    await asyncio.sleep(95)
    assert [one.receive_count for one in engine.tracker if one.pointer.id == "m2"] == [1]
    await asyncio.sleep(30)
    await engine.stop()


async def test_a_poll_that_fails_of_a_bug_is_told_in_a_sentence_and_the_queue_is_read_again() -> None:
    async with Rig() as rig:
        receive, bugs = rig.queue.receive, [KeyError("inner state"), OSError(28, "No space left on device")]

        async def broken(*args: Any, **more: Any) -> list[Delivery]:
            if bugs:
                raise bugs.pop(0)
            return await receive(*args, **more)

        rig.queue.receive = broken  # type: ignore[method-assign]
        await rig.publish(*(outgoing(f"m{number}") for number in range(3)))
        await rig.until_empty()
        said = [warning.message for warning in rig.warnings.recent()]
        start = "queue q: a poll failed unexpectedly and is repeated"
        assert f"{start}: an error inside FlowCatalyst; its log says more" in said
        assert f"{start}: No space left on device" in said


async def test_a_drain_that_takes_too_long_says_what_each_pool_still_has() -> None:
    rig = Rig(latency_s=1000.0)
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    limits = {DEFAULT_POOL: PoolLimits(concurrency=2), "IDLE": PoolLimits(concurrency=1)}
    engine.start({"q": rig.queue}, limits, rig.endpoint, SilentLog())
    await rig.publish(*(outgoing(f"m{number}", "a") for number in range(5)))
    await asyncio.sleep(5)
    with capture_logs() as logged:
        await engine.stop()
    [line] = [line for line in logged if line["event"] == "drain_timed_out"]
    assert line["pools"] == ["DEFAULT-POOL: 1 attempt in flight, 4 messages waiting"]
    [cut] = [line for line in logged if line["event"] == "attempt_cut"]
    assert (cut["message"], cut["pool"], cut["attempt"], cut["verdict"]) == ("m0", DEFAULT_POOL, 1, "nack")
    assert cut["seconds"] >= 30
    assert rig.queue.nacked == [(f"m{number}", 0.0) for number in range(5)]  # in order, and each of them once


@pytest.mark.virtual_time
async def test_unreadable_messages_of_a_batch_are_recorded_together() -> None:
    class SlowDeadLetters(ListedDeadLetters):
        async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
            await asyncio.sleep(0.1)
            await super().record(delivery, reason, outcome)

    rig = Rig(max_batch=100)
    rig.dead_letters = SlowDeadLetters()
    await rig.publish(*(Outgoing("no JSON", f"g{number}") for number in range(100)))
    async with rig:
        assert await rig.until_empty() < 1.0
    assert len(rig.dead_letters.letters) == 100
