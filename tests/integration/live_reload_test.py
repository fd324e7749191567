"""The configuration of a real router process changes all the time while messages flow."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.queues.contract import Outgoing
from tests.support.live import live, message
from tests.support.witness import Witness

RELOADS = 100
POOLS = ("A", "B", "C", "D")
QUEUES = ("orders", "bills")
GROUPS, PER_GROUP = 24, 15
TURN_S = 0.06  # for as long as this at most a configuration waits for a few requests before the next one comes


def random_pools(luck: random.Random) -> dict[str, Any]:
    """Some of the pools, each with limits of its own. A rate limit may be used up already, so that a pool stands."""
    return {
        code: {"concurrency": luck.choice((1, 2, 5, 20)), "rateLimitPerMinute": luck.choice((0, 0, 20, 200))}
        for code in POOLS
        if luck.random() < 0.7
    }


@pytest.mark.parametrize("seed", [1])
async def test_a_hundred_reloads_under_load_lose_nothing_and_keep_every_group_in_order(
    tmp_path: Path, seed: int
) -> None:
    luck = random.Random(seed)
    witness = Witness(fault_rate=0.2, seed=seed)
    async with live(tmp_path, witness) as scene:
        scene.config.say(random_pools(luck), QUEUES)
        waves = waves_of_messages(witness.url)
        async with scene.router() as router:
            api = scene.api(router)
            for number in range(RELOADS):
                if number % (RELOADS // PER_GROUP) == 0 and waves:
                    for queue, outgoing in waves.pop().items():
                        await scene.publish(outgoing, queue)
                scene.config.say(random_pools(luck), [queue for queue in QUEUES if luck.random() < 0.8])
                report = await api.reload()
                assert "problems" not in report
                with suppress(TimeoutError):
                    await witness.until_arrived(witness.arrivals + luck.randint(1, 20), TURN_S)
            assert not waves
            assert len(witness.acked) > len(scene.published) // 2  # they were under load indeed
            witness.fault_rate = 0.0
            scene.config.say(dict.fromkeys(POOLS, 5), QUEUES)
            await api.reload()
            await scene.until_delivered()
            await scene.stop(router)
        await scene.assert_every_promise_was_kept()
        assert witness.judge.order_violations == 0, witness.judge.last_violations


def waves_of_messages(url: str) -> list[dict[str, list[Outgoing]]]:
    """For each queue the next message of each of its groups; the last wave is published first."""
    return [
        {
            queue: [
                message(url, f"{queue}-{group}", position, POOLS[group % len(POOLS)])
                for group in range(GROUPS // len(QUEUES))
            ]
            for queue in QUEUES
        }
        for position in range(PER_GROUP, 0, -1)
    ]
