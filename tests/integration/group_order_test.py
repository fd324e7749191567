"""The next of a group waits for an ack where it should, and groups that several queues feed stay in order."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router.admission import LOOK_AHEAD_S
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.explain import CONFIRMATION
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.router.router import REFUSAL_S
from tests.support.hosts import QueueKind, World
from tests.support.rig import ERROR_500, Rig, SilentLog, outgoing, outgoings
from tests.support.traffic import spread
from tests.support.virtual_loop import until

pytestmark = pytest.mark.virtual_time


class TestAckBeforeNext:
    CAREFUL = PoolLimits(concurrency=5, ack_before_next=True)

    def slow_acks(self, rig: Rig, seconds: float) -> list[tuple[float, str]]:
        """Make acks take so long; returns when each of them became durable."""
        durable: list[tuple[float, str]] = []
        ack = rig.queue.ack

        async def slow(deliveries):  # type: ignore[no-untyped-def]
            await asyncio.sleep(seconds)
            results = await ack(deliveries)
            durable.extend((rig.clock.monotonic(), delivery.pointer.id) for delivery in deliveries)
            return results

        rig.queue.ack = slow  # type: ignore[method-assign]
        return durable

    @pytest.mark.parametrize("ordered", [True, False])
    async def test_next_message_of_a_group_starts_only_when_the_ack_of_the_one_before_is_durable(
        self, ordered: bool
    ) -> None:
        rig = Rig(ordered=ordered, default=self.CAREFUL)
        durable = self.slow_acks(rig, 0.7)
        await rig.publish(*outgoings(["m1", "m2", "m3"]), outgoing("other", "other"))
        async with rig:
            await rig.until_empty()
        acked = {name: at for at, name in durable}
        started = {name: at for at, name in rig.endpoint.starts}
        assert started["m2"] >= acked["m1"] > 0.7
        assert started["m3"] >= acked["m2"]
        assert started["other"] == 0.0

    async def test_without_the_setting_it_starts_before(self) -> None:
        rig = Rig(default=replace(self.CAREFUL, ack_before_next=False))
        durable = self.slow_acks(rig, 0.7)
        await rig.publish(*outgoings(["m1", "m2"]))
        async with rig:
            await rig.until_empty()
        started = {name: at for at, name in rig.endpoint.starts}
        assert started["m2"] < {name: at for at, name in durable}["m1"]

    async def test_drain_waits_for_the_ack_and_then_nacks_what_is_behind_it(self) -> None:
        rig = Rig(default=self.CAREFUL)
        durable = self.slow_acks(rig, 5.0)
        await rig.publish(*outgoings(["m1", "m2", "m3"]))
        async with rig:
            await asyncio.sleep(1.0)  # m1 was delivered; its ack is under way
            rig.consumer.stop()
            rig.pool.drain()
            assert rig.queue.nacked == []
            await rig.pool.wait_drained()
            assert [name for _, name in durable] == ["m1"]
            await rig.settler.wait_idle()
            assert rig.queue.nacked[:2] == [("m2", 0.0), ("m3", 0.0)]
            assert rig.endpoint.started == ["m1"]
            assert len(rig.tracker) == 0

    @pytest.mark.parametrize(
        ("ack_s", "nacks"), [(60.0, 1), (1000.0, 0)], ids=["while what is left is nacked", "never"]
    )
    async def test_a_stop_that_does_not_wait_for_an_ack_keeps_nothing_and_nacks_what_is_behind_it_once(
        self, ack_s: float, nacks: int
    ) -> None:
        rig = Rig()
        self.slow_acks(rig, ack_s)
        engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
        engine.start({"q": rig.queue}, {DEFAULT_POOL: self.CAREFUL}, rig.endpoint, SilentLog())
        await rig.publish(*outgoings(["m1", "m2", "m3"]))
        await asyncio.sleep(5.0)  # m1 was delivered; its ack is under way
        [pool] = engine.router.all_pools()
        [m1] = [delivery for delivery in engine.tracker if delivery.pointer.id == "m1"]
        assert pool.explain(m1) == CONFIRMATION
        with capture_logs() as logged:
            await engine.stop()
        assert {"drain_timed_out", "settle_timed_out"} <= {line["event"] for line in logged}
        assert {line["event"] for line in logged}.isdisjoint({"attempt_cut", "settle_crashed"})
        assert (pool.size, pool.group_count, len(engine.tracker)) == (0, 0, 0)
        assert [name for name, _ in rig.queue.nacked if name != "m1"] == ["m2", "m3"] * nacks
        assert rig.endpoint.started == ["m1"]


class TestSeveralQueuesFeedOneGroup:
    """`A` comes from a queue that redelivers in order, `N` from one that does not."""

    def world(self, first: QueueKind) -> World:
        world = World(latency_s=0.1, POOL=PoolLimits(concurrency=5))
        world.queue(first)
        world.queue("unordered")
        return world

    def feed(self, prefix: str, count: int) -> list[Outgoing]:
        return [outgoing(f"{prefix}{n}", "shared", pool="POOL") for n in range(1, count + 1)]

    @pytest.mark.parametrize("first", ["embedded", "ordered"])
    async def test_what_waited_behind_a_head_that_is_nacked_keeps_its_order_and_stays_behind(
        self, first: QueueKind
    ) -> None:
        world = self.world(first)
        world.hosts.answers("A1", *[ERROR_500] * 5)
        async with world.running():
            await world.publish(first, *self.feed("A", 3))
            await asyncio.sleep(0.05)
            await world.publish("unordered", *self.feed("N", 5))
            await world.until_empty()
        assert world.started()[:6] == ["A1"] * 6
        assert world.started("N") == ["N1", "N2", "N3", "N4", "N5"]
        assert [name for name in world.started("A") if name != "A1"] == ["A2", "A3"]
        assert world.hosts.most_in_flight == 1
        assert world.queues["unordered"].nacked == []
        assert {name for name, _ in world.queues[first].nacked} == {"A1", "A2", "A3"}

    @pytest.mark.parametrize("first", ["embedded", "ordered"])
    async def test_failing_head_of_the_queue_that_cannot_take_it_back_is_held_and_nobody_passes(
        self, first: QueueKind
    ) -> None:
        world = self.world(first)
        world.hosts.answers("N1", *[ERROR_500] * 5)
        async with world.running():
            await world.publish("unordered", *self.feed("N", 3))
            await asyncio.sleep(0.05)
            await world.publish(first, *self.feed("A", 3))
            await world.until_empty()
        assert world.started() == ["N1"] * 6 + ["N2", "N3", "A1", "A2", "A3"]
        assert world.queues["unordered"].nacked == []

    @pytest.mark.parametrize("first", ["embedded", "ordered"])
    async def test_a_pool_that_was_paused_for_long_still_waits_for_a_head_that_another_queue_has_to_show(
        self, first: QueueKind
    ) -> None:
        world = self.world(first)
        world.hosts.answers("A1", *[ERROR_500] * 3)
        async with world.running():
            await world.publish(first, *self.feed("A", 2))
            await asyncio.sleep(0.05)
            await world.publish("unordered", *self.feed("N", 3))
            await until(lambda: world.started().count("A1") == 3)
            await asyncio.sleep(1.0)
            world.engine.acts.pause(PauseKind.POOL, "POOL", "ann")
            await asyncio.sleep(200.0)  # longer than its delay and than anybody waits for it
            await world.engine.acts.resume(PauseKind.POOL, "POOL")
            await world.until_empty()
        assert world.started()[:4] == ["A1"] * 4

    @pytest.mark.parametrize("first", ["embedded", "ordered"])
    async def test_a_full_pool_still_takes_the_message_that_its_group_waits_for(self, first: QueueKind) -> None:
        world = World(latency_s=0.1, POOL=PoolLimits(concurrency=2, capacity=12, parked_limit=0))
        world.queue(first)
        world.queue("unordered")
        world.hosts.answers("A1", *[ERROR_500] * 5)
        async with world.running():
            await world.publish(first, *self.feed("A", 1))
            await asyncio.sleep(0.05)
            await world.publish("unordered", *self.feed("N", 30))
            await world.publish(first, *spread("other", 5, "POOL"))
            await world.until_empty()
        shared = [name for name in world.started() if not name.startswith("other")]
        assert shared == ["A1"] * 6 + [f"N{n}" for n in range(1, 31)]

    async def test_nobody_passes_a_message_that_a_full_pool_sent_back_for_a_while(self) -> None:
        world = World(latency_s=0.05, POOL=PoolLimits(concurrency=1, capacity=2, parked_limit=0))
        world.queue("ordered")
        world.queue("unordered")
        world.hosts.answers("A1", *[ERROR_500] * 3)
        async with world.running():
            await world.publish("ordered", *self.feed("A", 1))
            await asyncio.sleep(5.0)  # its queue has it for half a minute
            world.hosts.latency_s = 100.0
            await world.publish("ordered", *spread("busy", 1, "POOL"))
            await asyncio.sleep(1.0)
            world.hosts.latency_s = 0.05
            await world.publish("unordered", *self.feed("N", 3))
            await asyncio.sleep(80.0)
            assert len([name for name, delay_s in world.queues["ordered"].nacked if delay_s == REFUSAL_S]) >= 3
            await world.until_empty()
        shared = [name for name in world.started() if not name.startswith("busy")]
        assert shared == ["A1"] * 4 + ["N1", "N2", "N3"]

    @pytest.mark.parametrize("first", ["embedded", "ordered"])
    async def test_messages_that_groups_wait_for_keep_their_places_in_a_full_pool(self, first: QueueKind) -> None:
        world = World(latency_s=0.05, POOL=PoolLimits(concurrency=2, capacity=8, parked_limit=0))
        world.queue(first, max_batch=100)
        world.queue("unordered")
        for n in range(60):
            world.hosts.answers(f"a{n}", *[ERROR_500] * 3)
        await world.publish(first, *spread("a", 60, "POOL"))
        async with world.running():
            await asyncio.sleep(5.0)
            world.hosts.latency_s = 100.0  # those that failed come back to a pool that stands still
            await world.publish(first, *spread("b", 100, "POOL"))
            held = []
            for _ in range(4000):
                await asyncio.sleep(0.0137)
                held.append(world.engine.router.pools["POOL"].size)
        assert max(held) <= 8 + 2  # a few of them at a time are let in all the same

    async def test_a_full_pool_that_waits_for_messages_does_not_leaf_through_its_queue_all_the_time(self) -> None:
        world = World(latency_s=0.05, POOL=PoolLimits(concurrency=2, capacity=8, parked_limit=0))
        world.queue("embedded", max_batch=100)
        world.queue("unordered")
        for n in range(60):
            world.hosts.answers(f"a{n}", *[ERROR_500] * 3)
        await world.publish("embedded", *spread("a", 60, "POOL"))
        async with world.running():
            await asyncio.sleep(5.0)
            await world.publish("embedded", *spread("b", 2000, "POOL"))
            world.hosts.latency_s = 100.0
            await asyncio.sleep(20.0)
            refused = [name for name, delay_s in world.queues["embedded"].nacked if delay_s == REFUSAL_S]
        assert len(refused) <= 20.0 / LOOK_AHEAD_S * 2 + 2  # a quarter of its capacity at each look

    async def test_group_goes_on_where_a_nacked_head_never_comes_back(self) -> None:
        world = self.world("ordered")
        world.hosts.answers("A1", *[ERROR_500] * 3)
        async with world.running():
            await world.publish("ordered", *self.feed("A", 1))
            await asyncio.sleep(0.05)
            await world.publish("unordered", *self.feed("N", 3))
            await asyncio.sleep(10)
            world.queues["ordered"]._stored.clear()  # somebody purged the queue
            await world.until_empty()
        assert world.started() == ["A1"] * 3 + ["N1", "N2", "N3"]
        assert world.starts_of("N1")[0] == pytest.approx(3.3 + 30.0 + 30.0, abs=1.0)  # its delay and some grace
