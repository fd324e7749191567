"""A table of expectations: how long 100 messages take with 10 slots and a 100 ms endpoint."""

import pytest

from flowcatalyst.router.limits import PoolLimits
from tests.support.rig import Rig, outgoing

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(("groups", "seconds"), [(1, 10.0), (5, 2.0), (10, 1.0), (100, 1.0)])
async def test_100_messages_take_as_long_as_their_groups_allow(groups: int, seconds: float) -> None:
    rig = Rig(max_batch=100, default=PoolLimits(concurrency=10))
    await rig.publish(outgoing("first"))  # the endpoint is known to answer
    async with rig:
        began = await rig.until_empty()
        await rig.publish(*(outgoing(f"m{number}", f"g{number % groups}") for number in range(100)))
        took = await rig.until_empty() - began
        assert rig.endpoint.most_in_flight == min(groups, 10)
    assert took == pytest.approx(seconds, rel=0.03)
