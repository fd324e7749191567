"""Watchers on virtual time: each does its one thing by its own clock, and one that fails, hangs or dies is noticed."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Depth
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.watch import Backlog, ConsumerHealth, LeakDetector, LeaseKeeper, Watch, Watches
from tests.support.deliveries import delivery
from tests.support.rig import Rig, outgoing, outgoings
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time


def codes(log: WarningLog) -> list[WarningCode]:
    return [warning.code for warning in log.recent()]


class TestLeases:
    async def test_a_message_that_takes_longer_than_its_lease_is_never_shown_again(self) -> None:
        rig = Rig(latency_s=1000.0)
        await rig.publish(outgoing("m1"))
        async with rig:
            await rig.until_started(1)
            [owned] = rig.tracker
            watches = Watches(rig.clock, rig.warnings)
            watches.add("leases", 15.0, LeaseKeeper(rig.tracker, rig.clock, rig.router.release).look)
            watches.start(rig.tasks)
            await asyncio.sleep(900)
            assert owned.receive_count == 1
            assert owned.lease_until > rig.clock.monotonic()
            await rig.until_empty()
            assert rig.endpoint.started == ["m1"]

    async def test_a_lease_is_extended_by_its_own_deadline_not_blindly(self) -> None:
        rig = Rig(latency_s=100.0)
        await rig.publish(outgoing("m1"))
        async with rig:
            await rig.until_started(1)
            [owned] = rig.tracker
            before = owned.lease_until
            keeper = LeaseKeeper(rig.tracker, rig.clock, rig.router.release)
            await keeper.look()
            assert owned.lease_until == before
            await asyncio.sleep(31)  # less than half of its 60 s is left
            await keeper.look()
            assert owned.lease_until > before

    async def test_what_went_with_its_connection_is_let_go_although_it_waits_for_long(self) -> None:
        rig = Rig(ordered=False)
        rig.queue.capabilities = replace(rig.queue.capabilities, extends=False, locks_groups=True)  # as ActiveMQ
        rig.endpoint.answers("m1", interpret(429, "3600", b"", 0.0))
        await rig.publish(outgoing("m1"), outgoing("m2"))
        async with rig:
            await rig.until_started(1)
            await asyncio.sleep(1)
            keeper = LeaseKeeper(rig.tracker, rig.clock, rig.router.release)
            await keeper.look()
            assert len(rig.tracker) == 2
            rig.settler.still_ours = lambda delivery: False
            await keeper.look()
            assert (len(rig.tracker), rig.pool.buffered) == (0, 0)


class Looks:
    """A watcher that counts its looks and does as told."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.hangs = False

    async def look(self) -> None:
        self.count += 1
        if self.fails:
            raise ValueError("no")
        if self.hangs:
            await asyncio.sleep(3600)


class TestWatches:
    async def test_a_watcher_looks_every_period_and_goes_on_after_a_failure(self) -> None:
        clock, tasks, looks = VirtualClock(), Tasks(), Looks()
        warnings = WarningLog(clock)
        watches = Watches(clock, warnings)
        watches.add("things", 10.0, looks.look)
        watches.start(tasks)
        await asyncio.sleep(25)
        assert (looks.count, codes(warnings)) == (2, [])
        looks.fails = True
        await asyncio.sleep(10)
        assert codes(warnings) == [WarningCode.WATCHER_DIED]
        assert watches.all[0].last_error
        assert "ValueError" not in watches.all[0].last_error + warnings.recent()[0].message
        looks.fails = False
        await asyncio.sleep(10)
        assert (looks.count, watches.all[0].last_error) == (4, "")
        await tasks.cancel()

    async def test_a_watcher_that_hangs_is_noticed_and_looks_again(self) -> None:
        clock, tasks, looks = VirtualClock(), Tasks(), Looks()
        watches = Watches(clock, WarningLog(clock))
        watches.add("things", 10.0, looks.look)
        watches.start(tasks)
        looks.hangs = True
        await asyncio.sleep(100)
        assert watches.late() == ["things"]
        assert looks.count == 3  # one look takes 30 s and is then given up
        looks.hangs = False
        await asyncio.sleep(50)
        assert watches.late() == []
        await tasks.cancel()

    async def test_a_watcher_that_dies_is_noticed_and_started_again(self) -> None:
        class Mortal(Watches):
            deaths = 0

            async def look_once(self, watch: Watch) -> None:
                if not self.deaths:
                    self.deaths += 1
                    raise RuntimeError("a bug in the watcher's own loop")
                await super().look_once(watch)

        clock, tasks, looks = VirtualClock(), Tasks(), Looks()
        warnings = WarningLog(clock)
        watches = Mortal(clock, warnings)
        watches.add("things", 10.0, looks.look)
        watches.start(tasks)
        await asyncio.sleep(45)
        assert codes(warnings) == [WarningCode.TASK_DIED]
        assert looks.count == 3
        await tasks.cancel()


class TestConsumerHealth:
    async def test_a_consumer_without_a_successful_poll_for_60_s_is_restarted(self) -> None:
        rig = Rig()
        hanging = asyncio.Event()
        receive = rig.queue.receive

        async def receive_or_hang(limit: int, wait_s: float, demand: object = None) -> list[Delivery]:
            if not hanging.is_set():
                hanging.set()
                await asyncio.sleep(10_000)
                raise QueueUnavailableError
            return await receive(limit, wait_s)

        rig.queue.receive = receive_or_hang  # type: ignore[method-assign]
        await rig.publish(*outgoings(["m1", "m2"]))
        async with rig:
            restarted: list[str] = []

            async def restart(name: str) -> None:
                restarted.append(name)
                rig.consumer.restart()
                rig.tasks.spawn(rig.consumer.run())

            health = ConsumerHealth({"q": rig.consumer}, restart, rig.clock, rig.warnings)
            await asyncio.sleep(59)
            await health.look()
            assert restarted == []
            await asyncio.sleep(2)
            await health.look()
            assert restarted == ["q"]
            assert codes(rig.warnings) == [WarningCode.CONSUMER_RESTART]
            await rig.until_empty()
            assert rig.endpoint.started == ["m1", "m2"]
            await health.look()
            assert restarted == ["q"]

    async def test_a_consumer_that_waits_for_capacity_is_healthy(self) -> None:
        rig = Rig(latency_s=1000.0, default=PoolLimits(concurrency=1, capacity=1))
        await rig.publish(*outgoings(["m1", "m2", "m3"]))
        async with rig:
            await asyncio.sleep(500)
            assert rig.consumer.waits_for_capacity
            assert rig.consumer.silent_s(rig.clock.monotonic()) == 0.0

    async def test_a_restart_that_fails_is_critical(self) -> None:
        rig = Rig()

        async def restart(name: str) -> None:
            raise RuntimeError("no")

        async with rig:
            rig.consumer.silent_s = lambda now: 61.0  # type: ignore[method-assign]
            with capture_logs() as logged:
                await ConsumerHealth({"q": rig.consumer}, restart, rig.clock, rig.warnings).look()
            assert WarningCode.CONSUMER_RESTART_FAILED in codes(rig.warnings)
            assert not [one for one in rig.warnings.recent() if "RuntimeError" in one.message]
            assert any(isinstance(line.get("exc_info"), RuntimeError) for line in logged), "the log has the details"


class TestLeaks:
    async def test_more_owned_messages_than_anybody_can_have_are_a_leak(self) -> None:
        rig = Rig(default=PoolLimits(concurrency=1, capacity=50))
        async with rig:
            detector = LeakDetector(rig.tracker, rig.router, {"q": rig.settler}, rig.warnings)
            for n in range(50):
                rig.tracker.track(delivery(f"m{n}"))
            await detector.look()
            assert codes(rig.warnings) == []
            rig.tracker.track(delivery("one-more"))
            await detector.look()
            assert codes(rig.warnings) == [WarningCode.PIPELINE_MAP_LEAK]

    async def test_messages_that_a_pool_has_parked_are_no_leak(self) -> None:
        rig = Rig(latency_s=1000.0, max_batch=100, default=PoolLimits(concurrency=1, capacity=50))
        async with rig:
            detector = LeakDetector(rig.tracker, rig.router, {"q": rig.settler}, rig.warnings)
            await rig.publish(*outgoings(f"m{n}" for n in range(80)))
            await rig.until_started(1)
            assert (rig.pool.parked, len(rig.tracker)) == (30, 80)
            await detector.look()
            assert codes(rig.warnings) == []
            rig.tracker.track(delivery("one-more"))
            await detector.look()
            assert codes(rig.warnings) == [WarningCode.PIPELINE_MAP_LEAK]


async def take_all_but(queue: MemoryQueue, count: int) -> None:
    while (extra := (await queue.depth()).waiting - count) > 0:
        await queue.ack(await queue.receive(min(extra, 10), 0.0))


class TestBacklog:
    async def test_a_queue_with_more_than_1000_waiting_messages_is_told(self) -> None:
        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        await queue.publish(outgoings([f"m{n}" for n in range(1000)]))
        backlog = Backlog({"q": queue}, warnings)
        await backlog.look()
        assert codes(warnings) == []
        await queue.publish(outgoings(["one-more"]))
        await backlog.look()
        assert [warning.message for warning in warnings.recent()] == ["more than 1000 messages wait in queue q"]

    async def test_a_queue_that_grows_three_periods_in_a_row_is_told(self) -> None:
        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        backlog = Backlog({"q": queue}, warnings)
        await queue.publish(outgoings([f"before{n}" for n in range(100)]))
        for n in range(3):
            await queue.publish(outgoings([f"m{n}"]))
            await backlog.look()
        await backlog.look()  # no longer than before
        assert codes(warnings) == []
        for n in range(3, 6):
            await queue.publish(outgoings([f"m{n}"]))
            await backlog.look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG]

    async def test_a_short_queue_may_grow_for_as_long_as_it_likes(self) -> None:
        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        backlog = Backlog({"q": queue}, warnings)
        for n in range(100):
            await queue.publish(outgoings([f"m{n}"]))
            await backlog.look()
        assert codes(warnings) == []
        await queue.publish(outgoings(["one more"]))
        await backlog.look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG]

    async def test_a_queue_that_does_not_answer_does_not_keep_the_others_from_being_watched(self) -> None:
        class Hanging(MemoryQueue):
            async def depth(self) -> Depth:
                await asyncio.sleep(3600)
                raise QueueUnavailableError

        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        await queue.publish(outgoings([f"m{n}" for n in range(1001)]))
        await Backlog({"dead": Hanging("dead", clock), "q": queue}, warnings).look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG]

    async def test_a_backlog_is_over_when_half_of_it_is_gone_and_each_is_told_with_its_end(self) -> None:
        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        told: list[tuple[WarningCode, str]] = []
        warnings.on_new = lambda warning: told.append((warning.code, warning.source))
        backlog = Backlog({"q": queue}, warnings)
        for n in range(2):
            await queue.publish(outgoings([f"m{n}-{m}" for m in range(1001)]))
            await backlog.look()
            for waiting in (999, 501, 500):
                await take_all_but(queue, waiting)
                await backlog.look()
            await take_all_but(queue, 0)
        backlogs = [(WarningCode.QUEUE_BACKLOG, "queue q"), (WarningCode.QUEUE_BACKLOG_OVER, "queue q")]
        assert told == 2 * backlogs

    async def test_growth_is_over_when_the_queue_is_as_short_as_before_it(self) -> None:
        clock = VirtualClock()
        warnings, queue = WarningLog(clock), MemoryQueue("q", clock)
        backlog = Backlog({"q": queue}, warnings)
        for n in range(4):
            await queue.publish(outgoings([f"m{n}-{m}" for m in range(200)]))
            await backlog.look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG]
        await take_all_but(queue, 201)
        await backlog.look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG]
        await take_all_but(queue, 200)
        await backlog.look()
        assert codes(warnings) == [WarningCode.QUEUE_BACKLOG_OVER, WarningCode.QUEUE_BACKLOG]
        assert all(warning.acknowledged for warning in warnings.recent())

    async def test_a_pool_that_is_made_during_a_look_is_looked_at_with_the_others(self) -> None:
        rig = Rig(default=PoolLimits(concurrency=1))

        class Slow(MemoryQueue):
            async def depth(self) -> Depth:
                if "NEW" not in rig.router.pools:  # while the queue is asked
                    rig.router.add_pool("NEW", PoolLimits(concurrency=1, parked_limit=0))
                return await super().depth()

        async with rig:
            queue = Slow("q", rig.clock, selects_pools=True)
            await queue.publish([outgoing(f"m{n}", f"g{n}", pool="NEW") for n in range(900)])
            await Backlog({"q": queue}, rig.warnings, rig.router.all_pools).look()
            [warning] = [one for one in rig.warnings.recent() if one.code is WarningCode.QUEUE_FULL]
            assert warning.message.startswith("pool NEW is full: ")
