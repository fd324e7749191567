"""The real process, killed in the middle of its work: nothing is lost, no group is seen out of order."""

from pathlib import Path

from flowcatalyst.clock import SystemClock
from flowcatalyst.queues.embedded import EmbeddedQueue, EmbeddedStore
from tests.integration.chaos_test import messages
from tests.support.faulty_receiver import FaultyReceiver
from tests.support.router_process import router_process

GROUPS, PER_GROUP = 12, 20
ALL = GROUPS * PER_GROUP


async def publish(folder: Path, url: str) -> None:
    """From this process, into the file that the router process works on."""
    queue = EmbeddedQueue(EmbeddedStore(folder / "data" / "queue.db", SystemClock()), "default")
    await queue.open()
    await queue.publish(messages(url, GROUPS, PER_GROUP))
    await queue.close()


async def depth(folder: Path) -> int:
    queue = EmbeddedQueue(EmbeddedStore(folder / "data" / "queue.db", SystemClock()), "default")
    await queue.open()
    depth = await queue.depth()
    await queue.close()
    return depth.waiting + depth.leased + depth.delayed


async def test_kill_9_again_and_again_loses_nothing_and_keeps_every_group_in_order(tmp_path: Path) -> None:
    receiver = FaultyReceiver(fault_rate=0.3, seed=5)
    async with receiver.running():
        for kill_number in range(1, 5):
            async with router_process(tmp_path) as router:
                if kill_number == 1:
                    await publish(tmp_path, receiver.url)
                await receiver.until_acked(ALL * kill_number // 6)
                await router.kill()
        receiver.fault_rate = 0.0
        async with router_process(tmp_path) as router:
            await receiver.until_acked(ALL)
            code, rest = await router.terminate()
    assert receiver.judge.order_violations == 0, receiver.judge.last_violations
    assert len(receiver.acked) == ALL
    assert (code, await depth(tmp_path)) == (0, 0), rest


async def test_sigterm_under_load_drains_in_order_and_the_next_start_delivers_the_rest(tmp_path: Path) -> None:
    receiver = FaultyReceiver(fault_rate=0.0)
    async with receiver.running():
        async with router_process(tmp_path) as router:
            await publish(tmp_path, receiver.url)
            await receiver.until_acked(ALL // 4)
            code, rest = await router.terminate()
            assert code == 0
            assert "Nothing was lost" in rest
        async with router_process(tmp_path) as router:
            await receiver.until_acked(ALL)
            await router.terminate()
    assert receiver.judge.order_violations == 0
    assert set(receiver.acked.values()) == {1}  # a clean stop does not even cause a duplicate
    assert await depth(tmp_path) == 0
