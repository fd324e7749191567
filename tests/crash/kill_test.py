"""The real process, ended in the middle of its work: nothing is lost, no group is seen out of order."""

import random
import signal
from pathlib import Path

import pytest

from tests.crash.scene import ALL, PATIENT, TEST_BUILD, scene
from tests.support.crashing_router import POINTS

LIVES = 4
# How often a point is passed before the process dies there: not at the first chance where there are many. All acks may
# come in two commits: those of before a message that fails for a while, and those of after it.
TIMES = {
    "before_request": 20,
    "after_response": 20,
    "after_verdict": 20,
    "before_ack_commit": 2,
    "after_ack_commit": 2,
}


@pytest.mark.parametrize("seed", [1, 2])
async def test_kill_9_at_random_again_and_again_loses_nothing_and_keeps_every_group_in_order(
    tmp_path: Path, seed: int
) -> None:
    luck = random.Random(seed)
    async with scene(tmp_path, fault_rate=0.3, seed=seed) as play:
        for life in range(LIVES):
            async with play.router() as router:
                if life == 0:
                    await play.publish()
                await play.witness.until_arrived(play.witness.arrivals + luck.randint(1, ALL // LIVES))
                await play.kill(router)
        await play.deliver_the_rest()
        await play.assert_every_promise_was_kept()


@pytest.mark.parametrize("point", [point for point in POINTS if point != "during_drain"])
async def test_a_death_at_this_point_loses_nothing_and_keeps_every_group_in_order(tmp_path: Path, point: str) -> None:
    async with scene(tmp_path) as play:
        play.witness.script = {"run.g0.3": ["400"] * 2, "run.g1.3": ["500"] * 3}
        async with play.router(module=TEST_BUILD, crash_at=f"{point}:{TIMES.get(point, 1)}") as router:
            await play.publish()
            await play.dies_by_itself(router)
        await play.deliver_the_rest()
        await play.assert_every_promise_was_kept()


async def test_a_death_during_the_drain_loses_nothing_and_keeps_every_group_in_order(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        async with play.router(module=TEST_BUILD, crash_at="during_drain:1") as router:
            await play.publish()
            await play.witness.until_arrived(ALL // 4)
            router.process.send_signal(signal.SIGTERM)
            await play.dies_by_itself(router)
        await play.deliver_the_rest()
        await play.assert_every_promise_was_kept()


async def test_the_product_ignores_the_variable_of_the_test_build(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        async with play.router(PATIENT, crash_at="after_receive:1") as router:
            await play.publish(groups=2, per_group=2)
            await play.witness.until_acked(4)
            await play.stop(router)
        await play.assert_every_promise_was_kept()


async def test_sigterm_under_load_drains_in_order_and_the_next_start_delivers_the_rest(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        async with play.router(PATIENT) as router:
            await play.publish()
            await play.witness.until_acked(ALL // 4)
            await play.stop(router)
        answered = dict(play.witness.acked)
        await play.deliver_the_rest()
        assert not answered.keys() & play.witness.acked.keys()  # a clean stop does not even cause a duplicate
        await play.assert_every_promise_was_kept()


async def test_kill_9_while_a_drain_waits_for_its_last_attempt_loses_nothing_and_keeps_every_group_in_order(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as play:
        play.witness.script = {"run.g0.3": ["hang"]}
        async with play.router(PATIENT) as router:
            await play.publish()
            await play.witness.until_acked(ALL // 4)
            router.process.send_signal(signal.SIGTERM)
            await router.until_printed("Stopping")
            await play.kill(router)
        await play.deliver_the_rest()
        await play.assert_every_promise_was_kept()
