"""Several queues that feed one pool: nothing is nacked, none of them is passed over, an idle one holds up nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Delivery
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Demand
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from tests.support.rig import NOT_YET, Rig, SilentLog, outgoing

pytestmark = pytest.mark.virtual_time

MESSAGES, ATTEMPT_S, SLOTS = 1000, 0.01, 2
BEST_S = MESSAGES * ATTEMPT_S / SLOTS
GROUPS = 20


class DistantQueue(MemoryQueue):
    """What it shows takes a while to arrive, as from any broker."""

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        batch = await super().receive(limit, wait_s, demand)
        await asyncio.sleep(0.02)
        return batch


class HangingQueue(DistantQueue):
    """Its first receive never ends."""

    hangs = True

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        if self.hangs:
            self.hangs = False
            await asyncio.Event().wait()
        return await super().receive(limit, wait_s, demand)


class Scene:
    """A router with a small pool and several queues."""

    def __init__(self, attempt_s: float = ATTEMPT_S, pools: dict[str, PoolLimits] | None = None) -> None:
        self.rig = Rig(latency_s=attempt_s)
        self.engine = Engine(self.rig.dead_letters, self.rig.warnings, self.rig.clock)
        self.pools = pools or {DEFAULT_POOL: PoolLimits(concurrency=SLOTS)}
        self.queues: dict[str, MemoryQueue] = {}
        self.connections: dict[str, int] = {}

    def queue(
        self,
        name: str,
        max_batch: int = 512,
        connections: int = 1,
        kind: type[MemoryQueue] = DistantQueue,
        **differs: Any,
    ) -> None:
        """One more queue, which differs from others in some capabilities."""
        queue = kind(name, self.rig.clock, max_batch=max_batch)
        queue.capabilities = replace(queue.capabilities, **differs)
        self.queues[name], self.connections[name] = queue, connections

    async def publish(self, name: str, count: int, pool: str = "") -> None:
        """Messages of twenty groups."""
        messages = [outgoing(f"{name}.{number}", f"{name}.{number % GROUPS}", pool=pool) for number in range(count)]
        await self.queues[name].publish(messages)

    async def fill(self, places: int, pool: str = "") -> None:
        """Let so many messages wait in a pool for endpoints that never take them."""
        self.queue("stuck", ordered_redelivery=False)
        for number in range(places):
            self.rig.endpoint.answers(f"stuck.{number}", *[NOT_YET] * 100_000)
        await self.queues["stuck"].publish(
            [outgoing(f"stuck.{number}", f"stuck.{number}", pool=pool) for number in range(places)]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.engine.start(self.queues, self.pools, self.rig.endpoint, SilentLog(), connections=self.connections)
        yield
        await self.engine.stop()

    async def seconds_until_delivered(self, name: str, count: int) -> float:
        began = self.rig.clock.monotonic()
        while self.delivered(name) < count and self.rig.clock.monotonic() < began + 1000:
            await asyncio.sleep(0.01)
        return self.rig.clock.monotonic() - began

    @property
    def refusals(self) -> int:
        warnings = self.rig.warnings.recent()
        return sum(warning.count for warning in warnings if warning.code is WarningCode.QUEUE_FULL)

    def delivered(self, name: str) -> int:
        """Of a queue, or of all of them."""
        return sum(not name or message.startswith(f"{name}.") for _, message in self.rig.endpoint.ends)


@pytest.mark.parametrize("max_batch", [10, 256])
@pytest.mark.parametrize("count", [2, 4])
async def test_queues_that_feed_one_full_pool_share_its_room(count: int, max_batch: int) -> None:
    scene = Scene()
    for number in range(count):
        scene.queue(f"q{number}", max_batch)
        await scene.publish(f"q{number}", MESSAGES // count)
    async with scene.running():
        assert await scene.seconds_until_delivered("", MESSAGES) < BEST_S * 1.05
    assert scene.refusals == 0


@pytest.mark.parametrize("max_batch", [10, 256])
async def test_queues_with_a_backlog_get_equal_turns(max_batch: int) -> None:
    scene = Scene()
    for name in ("a", "b", "c"):
        scene.queue(name, max_batch)
        await scene.publish(name, MESSAGES)
    async with scene.running():
        await asyncio.sleep(BEST_S)
        shares = [scene.delivered(name) for name in scene.queues]
    assert sum(shares) > MESSAGES * 0.95
    assert min(shares) > max(shares) * 0.7, shares


async def test_a_queue_with_small_batches_gets_a_batch_in_each_turn_of_one_with_large_ones() -> None:
    scene = Scene()
    scene.queue("small", 10)
    scene.queue("large", 256)
    for name in scene.queues:
        await scene.publish(name, MESSAGES)
    async with scene.running():
        await asyncio.sleep(BEST_S)
        small, large = (scene.delivered(name) for name in scene.queues)
    assert small + large > MESSAGES * 0.95
    assert small / large > 10 / 256, (small, large)


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize("held", [0, 48, 49])
async def test_idle_queues_hold_up_nobody(held: int, connections: int) -> None:
    """The pool has 50 places. With few of them left, one that an idle queue keeps would be missed."""
    scene = Scene()
    for number in range(50 - held if held else 3):
        scene.queue(f"idle{number}", connections=connections)
    scene.queue("busy")
    if held:
        await scene.fill(held)
    async with scene.running():
        await asyncio.sleep(50)  # each has polled in vain, more than once
        await scene.publish("busy", MESSAGES)
        seconds = await scene.seconds_until_delivered("busy", MESSAGES)
        assert seconds < (BEST_S * 1.05 if held < 48 else MESSAGES * 0.05)


@pytest.mark.parametrize("every_s", [0.05, 0.2])
async def test_a_queue_that_brings_one_message_now_and_then_keeps_nothing_from_a_busy_one(every_s: float) -> None:
    scene = Scene(attempt_s=0.001, pools={DEFAULT_POOL: PoolLimits(concurrency=20)})
    scene.queue("trickle")
    scene.queue("busy")

    async def feed() -> None:
        for number in range(10_000):
            await scene.queues["trickle"].publish([outgoing(f"trickle.{number}", f"trickle.{number % 5}")])
            await asyncio.sleep(every_s)

    async with scene.running():
        feeding = asyncio.ensure_future(feed())
        await asyncio.sleep(30)
        await scene.publish("busy", 3000)
        assert await scene.seconds_until_delivered("busy", 3000) < 1.0
        feeding.cancel()


async def test_a_queue_that_runs_dry_lets_the_others_have_its_share_soon() -> None:
    scene = Scene()
    scene.queue("long", 256)
    scene.queue("short", 256)
    await scene.publish("long", MESSAGES - 60)
    await scene.publish("short", 60)
    async with scene.running():
        assert await scene.seconds_until_delivered("long", MESSAGES - 60) < BEST_S * 1.1
    assert scene.refusals == 0


async def test_a_poll_that_hangs_is_noticed_and_replaced() -> None:
    scene = Scene()
    scene.queue("q", kind=HangingQueue)
    await scene.publish("q", 100)
    async with scene.running():
        assert await scene.seconds_until_delivered("q", 100) < 200
        assert scene.engine.consumers["q"].restarts == 1


async def test_a_poll_that_hangs_keeps_nothing_from_another_poll_of_its_queue() -> None:
    scene = Scene()
    scene.queue("q", connections=2, kind=HangingQueue)
    await scene.publish("q", 100)
    async with scene.running():
        assert await scene.seconds_until_delivered("q", 100) < 100 * ATTEMPT_S / SLOTS + 0.2


async def test_behind_messages_for_a_full_pool_a_queue_finds_those_for_others() -> None:
    """Also while others compete for the room of a third pool."""
    pools = {code: PoolLimits(concurrency=2) for code in ("FULL", "BUSY", "FREE")}
    scene = Scene(pools=pools)
    await scene.fill(50, "FULL")
    scene.queue("mixed")
    for number in range(4):
        scene.queue(f"busy{number}")
        await scene.publish(f"busy{number}", MESSAGES, "BUSY")
    mixed = scene.queues["mixed"]
    async with scene.running():
        await asyncio.sleep(5)
        for number in range(1, 11):
            await mixed.publish([outgoing(f"blocked.{number}", f"blocked.{number}", pool="FULL")])
            await asyncio.sleep(0.5)
            await mixed.publish([outgoing(f"free.{number}", f"free.{number}", pool="FREE")])
            assert await scene.seconds_until_delivered("free", number) < 2.0


async def test_a_queue_that_waits_for_capacity_sees_that_a_reload_made_some() -> None:
    scene = Scene(pools={"OLD": PoolLimits(concurrency=1)})
    await scene.fill(50, "OLD")
    async with scene.running():
        await asyncio.sleep(10)
        scene.engine.apply_pools({"NEW": PoolLimits(concurrency=1)})
        new = [outgoing(f"new.{number}", f"new.{number}", pool="NEW") for number in range(5)]
        await scene.queues["stuck"].publish(new)
        assert await scene.seconds_until_delivered("new", 5) < 60
