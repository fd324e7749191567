"""Rate limits on the loop that production runs on: its timers ring early, and its clock goes on between two looks."""

import asyncio
import random

import pytest
import uvloop

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.router import rate
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.pool_tools import PoolTools
from tests.support.deliveries import delivery
from tests.support.patience import PATIENCE_S
from tests.support.rig import ListedDeadLetters, ScriptedEndpoint, SilentLog

POOLS, MESSAGES = 100, 4


@pytest.mark.parametrize("per_minute", [1, 2])
def test_pools_with_a_rate_limit_never_stand_still(monkeypatch: pytest.MonkeyPatch, per_minute: int) -> None:
    """Each of a hundred pools waits for its permits a few times: one in three stood still for ever."""
    monkeypatch.setattr(rate, "WINDOW_S", 0.3)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pools = runner.run(_deliver_all(PoolLimits(concurrency=5, rate_per_minute=per_minute)))
    assert [pool for pool in pools if pool.buffered] == []


async def _deliver_all(limits: PoolLimits) -> list[Pool]:
    clock, rng = SystemClock(), random.Random(1)
    tools = PoolTools(
        mediator=ScriptedEndpoint(0.001),
        breakers=Breakers(),
        endpoint_of=endpoint_of,
        origin_of=origin_of,
        dead_letters=ListedDeadLetters(),
        warnings=WarningLog(clock),
        log=SilentLog(),
        clock=clock,
        spawn=Tasks().spawn,
    )
    pools = []
    for number in range(POOLS):
        pool = Pool(f"p{number}", limits, tools)
        pools.append(pool)
        for message in range(MESSAGES):
            pool.submit(delivery(f"{number}-{message}", f"g{message}"))
        await asyncio.sleep(rng.random() * 0.02)
    deadline = clock.monotonic() + PATIENCE_S
    while any(pool.buffered or pool.in_flight for pool in pools) and clock.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return pools
