"""Too rare for random histories, so that a bug of it would survive them."""

import asyncio

from flowcatalyst.routing.limits import PoolLimits
from tests.support.rig import Rig, outgoing
from tests.support.virtual_loop import run_virtual


def test_slots_that_end_at_once_while_their_pool_shrinks_leave_nobody_waiting() -> None:
    async def main() -> None:
        rig = Rig(latency_s=1.0, default=PoolLimits(concurrency=2))
        # To one endpoint that never answered there would be one attempt at a time.
        await rig.publish(*(outgoing(f"m{n}", f"g{n}", target=f"http://host{n}.test/") for n in range(3)))
        async with rig:
            await rig.until_started(2)
            rig.pool.change(PoolLimits(concurrency=1))  # each of the two slots now thinks that it is one too many
            async with asyncio.timeout(60):
                await rig.until_empty()

    run_virtual(main())
