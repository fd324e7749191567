"""QUEUE_FULL of a pool behind the embedded queue: what waits there counts as if the pool had taken it."""

import asyncio
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.router.limits import PoolLimits
from tests.support.hosts import QueueKind, World
from tests.support.rig import outgoing
from tests.support.traffic import HEALTHY, SILENT, spread

LIMITS = PoolLimits(concurrency=1, capacity=50, parked_limit=50)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", ["embedded", "ordered", "unordered"])
async def test_a_pool_is_told_to_be_full_until_half_of_it_is_empty(kind: QueueKind) -> None:
    world = World(STUCK=LIMITS, FREE=PoolLimits(concurrency=20))
    world.queue(kind)
    world.hosts.hanging.add(SILENT)
    async with world.running():
        await world.publish(kind, *spread("s", 90, "STUCK", SILENT))
        await asyncio.sleep(130)
        assert full(world) == []
        await world.publish(kind, *spread("t", 90, "STUCK", SILENT), *spread("free", 200, "FREE", HEALTHY))
        await asyncio.sleep(130)
        [text] = full(world)
        assert text.startswith("pool STUCK is full")
        world.hosts.hanging.clear()
        await world.until_empty()
        await asyncio.sleep(70)
        assert full(world) == []


def full(world: World) -> list[str]:
    """What is told and not acknowledged."""
    wanted = WarningFilter(code=WarningCode.QUEUE_FULL, acknowledged=False)
    return [warning.message for warning in world.warnings.recent(wanted)]


async def test_the_embedded_queue_counts_what_waits_for_a_pool_and_not_more_than_asked(tmp_path: Path) -> None:
    queue = EmbeddedQueue(EmbeddedStore(tmp_path / "queue.db", SystemClock()), "q")
    await queue.open()
    try:
        messages: list[Outgoing] = [outgoing(f"a{n}", f"g{n % 3}", pool="A") for n in range(30)]
        messages += [outgoing(f"b{n}", f"h{n}", pool="B") for n in range(5)]
        await queue.publish(messages)
        assert await queue.waiting_for("A", 100) == 30
        assert await queue.waiting_for("A", 7) == 7
        assert (await queue.waiting_for("B", 100), await queue.waiting_for("C", 100)) == (5, 0)
        await queue.receive(1, 0.0)
        assert await queue.waiting_for("A", 100) + await queue.waiting_for("B", 100) < 35
    finally:
        await queue.close()
