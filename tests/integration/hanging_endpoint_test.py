"""Endpoints that are new, or hung and answer again, get all the slots that they may have soon."""

import asyncio

import pytest

from flowcatalyst.router.limits import PoolLimits
from tests.support.hosts import USUAL_TIMEOUT_S, World
from tests.support.rig import Rig, outgoing
from tests.support.traffic import SILENT, names, spread

pytestmark = pytest.mark.virtual_time


async def test_the_first_answer_of_an_endpoint_opens_all_slots_of_its_pool() -> None:
    """Gates are opened, but nobody fills the free slots: the pool goes on with half of them for ever."""
    rig = Rig(max_batch=100, default=PoolLimits(concurrency=10))
    await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(100)))
    async with rig:
        took = await rig.until_empty()
        assert rig.endpoint.most_in_flight == 10
        assert took == pytest.approx(0.1 + 95 / 10 * 0.1, abs=0.1)


async def test_an_endpoint_that_hung_and_recovered_is_found_soon() -> None:
    """The first of ten timeouts starts another attempt with the usual deadline, which then has the only slot."""
    world = World(POOL=PoolLimits(concurrency=20))
    world.queue("embedded")
    world.hosts.hanging.add(SILENT)
    await world.publish("embedded", *spread("hangs", 100, "POOL", SILENT))
    async with world.running():
        await asyncio.sleep(USUAL_TIMEOUT_S + 5)
        world.hosts.hanging.clear()
        assert await world.seconds_until_answered(names("hangs", 100)) < 120
