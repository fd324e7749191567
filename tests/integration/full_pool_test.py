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


@pytest.mark.virtual_time
@pytest.mark.parametrize("groups", [1000, 40])
async def test_a_pool_full_of_what_waits_for_an_endpoint_that_is_down_lets_others_come_by(groups: int) -> None:
    kind: QueueKind = "embedded"
    world = World(A=PoolLimits(concurrency=4, capacity=50, parked_limit=100))
    world.queue(kind, max_batch=50)
    world.hosts.hanging.add(SILENT)
    async with world.running():
        dead = [outgoing(f"s{n}", f"s{n % groups}", pool="A", target=SILENT) for n in range(1000)]
        await world.publish(kind, *dead)
        await asyncio.sleep(300)
        await world.publish(kind, *spread("h", 20, "A", HEALTHY))
        assert await world.seconds_until_answered({f"h{n}" for n in range(20)}) < 5
        world.hosts.hanging.clear()
        await world.until_empty()
    assert len(set(world.started("s"))) == 1000
    for group in range(groups):
        delivered = [int(name[1:]) for name in dict.fromkeys(world.started("s")) if int(name[1:]) % groups == group]
        assert delivered == sorted(delivered)


@pytest.mark.virtual_time
async def test_a_pool_full_of_what_waits_for_its_share_of_slots_lets_others_come_by() -> None:
    world = World(A=PoolLimits(concurrency=4, capacity=50, parked_limit=100))
    world.queue("embedded", max_batch=50)
    world.hosts.slow[SILENT] = 3.0
    async with world.running():
        await world.publish("embedded", *spread("h", 1, "A", HEALTHY), *spread("s", 1000, "A", SILENT))
        await asyncio.sleep(60)
        await world.publish("embedded", *spread("t", 20, "A", HEALTHY))
        assert await world.seconds_until_answered({f"t{n}" for n in range(20)}) < 5
        assert len(world.started("s")) > 50  # three slots were busy with them
        world.hosts.slow.clear()
        await world.until_empty()
