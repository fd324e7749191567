"""A process that stood still blames nobody for that time, and a session that is over leaves no warning open."""

import asyncio

import pytest

from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.router.limits import PoolLimits
from tests.support.hosts import World
from tests.support.rig import ERROR_500, outgoing
from tests.support.traffic import SILENT, spread
from tests.support.virtual_loop import stand_still

pytestmark = pytest.mark.virtual_time

BLAMES = {WarningCode.ENDPOINT_DOWN, WarningCode.GROUP_BLOCKED, WarningCode.CONSUMER_RESTART}


def world() -> World:
    made = World(POOL=PoolLimits(concurrency=20))
    made.queue("embedded")
    return made


def still_open(of: World, code: WarningCode) -> list[str]:
    return [one.source for one in of.warnings.recent(WarningFilter(code=code, acknowledged=False))]


@pytest.mark.parametrize("awake_s", [7, 28, 58])
async def test_a_process_that_stood_still_says_so_once_and_blames_nobody(awake_s: float) -> None:
    scene = world()
    scene.hosts.hanging.add(SILENT)
    await scene.publish("embedded", *spread("m", 5, "POOL", SILENT))
    async with scene.running():
        await asyncio.sleep(awake_s)
        stand_still(2000)
        await asyncio.sleep(59)
        assert not scene.warned & BLAMES
        [told] = scene.warnings.recent(WarningFilter(code=WarningCode.STOOD_STILL))
        assert told.message.startswith("this process stood still for about 200")
        assert told.count == 1


async def test_an_endpoint_that_hangs_on_after_a_standstill_is_told() -> None:
    scene = world()
    scene.hosts.hanging.add(SILENT)
    await scene.publish("embedded", *spread("m", 5, "POOL", SILENT))
    async with scene.running():
        await asyncio.sleep(10)
        stand_still(100)
        await asyncio.sleep(75)
        assert still_open(scene, WarningCode.ENDPOINT_DOWN) == [SILENT]


async def test_a_second_of_hard_work_is_no_standstill() -> None:
    scene = world()
    async with scene.running():
        await asyncio.sleep(10)
        stand_still(29)
        await asyncio.sleep(100)
        assert WarningCode.STOOD_STILL not in scene.warned


async def test_outages_and_blocked_groups_of_a_session_that_is_over_are_not_left_open() -> None:
    scene = world()
    scene.hosts.refuse("first", ERROR_500)
    scene.hosts.hanging.add(SILENT)
    await scene.publish("embedded", outgoing("first", group="g", pool="POOL"), *spread("m", 5, "POOL", SILENT))
    async with scene.running():
        await asyncio.sleep(1200)
        assert SILENT in still_open(scene, WarningCode.ENDPOINT_DOWN)
        assert still_open(scene, WarningCode.GROUP_BLOCKED) == ["pool POOL"]
    assert still_open(scene, WarningCode.ENDPOINT_DOWN) == []
    assert still_open(scene, WarningCode.GROUP_BLOCKED) == []
    assert scene.engine.endpoint_outages.down == {}
