"""Several queues that feed one full pool: none of them is refused, none is passed over, an idle one holds up nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flowcatalyst.engine import Engine
from flowcatalyst.message import DEFAULT_POOL, Delivery
from flowcatalyst.operations.warnings import WarningCode
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.routing.limits import PoolLimits
from tests.support.rig import Rig, SilentLog, outgoing
from tests.support.virtual_loop import run_virtual

MESSAGES, ATTEMPT_S, SLOTS = 1000, 0.01, 2
BEST_S = MESSAGES * ATTEMPT_S / SLOTS
GROUPS = 20


class DistantQueue(MemoryQueue):
    """What it shows takes a while to arrive, as from any broker."""

    async def receive(self, limit: int, wait_s: float) -> list[Delivery]:
        batch = await super().receive(limit, wait_s)
        await asyncio.sleep(0.02)
        return batch


class Scene:
    """A router with a small pool and several queues."""

    def __init__(self, names: list[str], max_batch: int) -> None:
        self.rig = Rig(latency_s=ATTEMPT_S)
        self.engine = Engine(self.rig.dead_letters, self.rig.warnings, self.rig.clock)
        self.queues = {name: DistantQueue(name, self.rig.clock, max_batch=max_batch) for name in names}

    async def publish(self, name: str, count: int) -> None:
        await self.queues[name].publish(
            [outgoing(f"{name}.{number}", f"{name}.{number % GROUPS}") for number in range(count)]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        pools = {DEFAULT_POOL: PoolLimits(concurrency=SLOTS)}
        self.engine.start(self.queues, pools, self.rig.endpoint, SilentLog())
        yield
        await self.engine.stop()

    async def seconds_until_empty(self) -> float:
        began = self.rig.clock.monotonic()
        while any(len(queue) for queue in self.queues.values()):
            await asyncio.sleep(0.01)
        return self.rig.clock.monotonic() - began

    @property
    def refusals(self) -> int:
        warnings = self.rig.warnings.list()
        return sum(warning.count for warning in warnings if warning.code is WarningCode.QUEUE_FULL)

    def delivered(self, name: str) -> int:
        return sum(message.startswith(f"{name}.") for _, message in self.rig.endpoint.ends)


@pytest.mark.parametrize("max_batch", [10, 256])
@pytest.mark.parametrize("count", [2, 4])
def test_queues_that_feed_one_full_pool_share_its_room(count: int, max_batch: int) -> None:
    async def play() -> None:
        scene = Scene([f"q{number}" for number in range(count)], max_batch)
        for name in scene.queues:
            await scene.publish(name, MESSAGES // count)
        async with scene.running():
            assert await scene.seconds_until_empty() < BEST_S * 1.05
        assert scene.refusals == 0

    run_virtual(play())


@pytest.mark.parametrize("max_batch", [10, 256])
def test_a_queue_with_a_backlog_gets_its_turn_beside_the_others(max_batch: int) -> None:
    async def play() -> None:
        scene = Scene(["q0", "q1", "q2"], max_batch)
        for name in scene.queues:
            await scene.publish(name, MESSAGES)
        async with scene.running():
            await asyncio.sleep(BEST_S)
            shares = [scene.delivered(name) for name in scene.queues]
        assert sum(shares) > MESSAGES * 0.95
        assert min(shares) > max(shares) / 2

    run_virtual(play())


def test_idle_queues_hold_up_nobody() -> None:
    async def play() -> None:
        scene = Scene(["busy", "idle1", "idle2", "idle3"], 256)
        await scene.publish("busy", MESSAGES)
        async with scene.running():
            assert await scene.seconds_until_empty() < BEST_S * 1.05
        assert scene.refusals == 0

    run_virtual(play())


def test_a_queue_that_runs_dry_lets_the_others_have_its_share_soon() -> None:
    async def play() -> None:
        scene = Scene(["long", "short"], 256)
        await scene.publish("long", MESSAGES - 60)
        await scene.publish("short", 60)
        async with scene.running():
            assert await scene.seconds_until_empty() < BEST_S * 1.1
        assert scene.refusals == 0

    run_virtual(play())
