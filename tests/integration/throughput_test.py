"""The table of 000: how long 100 messages take with 10 slots and a 100 ms endpoint."""

import pytest

from flowcatalyst.routing.limits import PoolLimits
from tests.support.rig import Rig, outgoing
from tests.support.virtual_loop import run_virtual


@pytest.mark.parametrize(("groups", "seconds"), [(1, 10.0), (5, 2.0), (10, 1.0), (100, 1.0)])
def test_100_messages_take_as_long_as_their_groups_allow(groups: int, seconds: float) -> None:
    async def main() -> float:
        rig = Rig(max_batch=100, default=PoolLimits(concurrency=10))
        await rig.publish(outgoing("first"))  # the endpoint is known to answer
        async with rig:
            began = await rig.until_empty()
            await rig.publish(*(outgoing(f"m{number}", f"g{number % groups}") for number in range(100)))
            took = await rig.until_empty() - began
            assert rig.endpoint.most_in_flight == min(groups, 10)
        return took

    assert run_virtual(main()) == pytest.approx(seconds, rel=0.03)
