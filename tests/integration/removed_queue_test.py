"""A queue that is removed while messages of it are worked off, and configured again before they are."""

import asyncio

import pytest

from flowcatalyst.router.limits import PoolLimits
from tests.support.hosts import KINDS, QueueKind, World
from tests.support.rig import outgoing

pytestmark = pytest.mark.virtual_time

any_kind = pytest.mark.parametrize("kind", KINDS)


@any_kind
async def test_a_queue_that_comes_back_before_it_left_is_polled_again_over_the_connection_it_has(
    kind: QueueKind,
) -> None:
    world = World(5.0, POOL=PoolLimits(concurrency=2))
    queue = world.queue(kind)
    await world.publish(kind, *(outgoing(f"m{n}", pool="POOL") for n in range(3)))
    async with world.running():
        await asyncio.sleep(1)
        settler = world.engine.settlers[kind]
        world.engine.remove_queue(kind)
        await asyncio.sleep(1)
        await world.publish(kind, *(outgoing(f"m{n}", pool="POOL") for n in range(3, 6)))
        assert world.engine.take_back_queue(kind)
        assert (world.engine.queues[kind], world.engine.settlers[kind]) == (queue, settler)
        assert world.engine.consumers[kind].restarts == 0
        await world.until_empty(60.0)
    assert world.started() == [f"m{n}" for n in range(6)]


async def test_a_queue_that_has_left_cannot_be_taken_back() -> None:
    world = World()
    world.queue("embedded")
    async with world.running():
        await asyncio.sleep(1)
        world.engine.remove_queue("embedded")
        await asyncio.sleep(60)
        assert world.engine.open_queues() == []
        assert not world.engine.take_back_queue("embedded")
        assert not world.engine.take_back_queue("never seen")


async def test_what_a_poll_brings_that_was_under_way_when_the_queue_was_removed_stays_in_order() -> None:
    world = World(0.1, POOL=PoolLimits(concurrency=2))
    world.queue("unordered")
    async with world.running():
        await asyncio.sleep(1)  # a long poll waits
        world.engine.remove_queue("unordered")
        assert world.engine.take_back_queue("unordered")
        await world.publish("unordered", *(outgoing(f"m{n}", pool="POOL") for n in range(20)))
        await world.until_empty(60.0)
    assert world.started() == [f"m{n}" for n in range(20)]
