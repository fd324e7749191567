"""The lease keeper: leases of messages at work are extended before they run out, by their own deadline."""

import asyncio

from flowcatalyst.operations.watch import LeaseKeeper
from tests.support.rig import Rig, outgoing
from tests.support.virtual_loop import run_virtual


def test_a_message_that_takes_longer_than_its_lease_is_never_shown_again() -> None:
    async def main() -> None:
        rig = Rig(latency_s=1000.0)
        await rig.publish(outgoing("m1"))
        async with rig:
            await rig.until_started(1)
            [owned] = rig.tracker
            keeper = rig.tasks.spawn(LeaseKeeper(rig.tracker, rig.clock, 15.0, rig.router.disown).run())
            await asyncio.sleep(900)
            assert owned.receive_count == 1
            assert owned.lease_until > rig.clock.wall()
            keeper.cancel()
            await rig.until_empty()
            assert rig.endpoint.started == ["m1"]

    run_virtual(main())


def test_a_fresh_lease_is_left_alone() -> None:
    async def main() -> None:
        rig = Rig(latency_s=100.0)
        await rig.publish(outgoing("m1"))
        async with rig:
            await rig.until_started(1)
            [owned] = rig.tracker
            before = owned.lease_until
            keeper = LeaseKeeper(rig.tracker, rig.clock, 15.0, rig.router.disown)
            await keeper.extend_once()
            assert owned.lease_until == before
            await asyncio.sleep(31)  # less than half of its 60 s is left
            await keeper.extend_once()
            assert owned.lease_until > before

    run_virtual(main())
