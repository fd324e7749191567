"""The router of `bench.page_cost`: full load, and an answer with its figures to each line on stdin.

What comes as fast as it can be delivered is never in memory for long: of 10,000 such groups the router has about a
thousand at a time. So there is a second pool with as many groups again, whose rate limit lets nearly nothing go, and
all of these are in memory all the time.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop

from bench import router
from bench.flood.router import Ticker
from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.settings import EgressSettings
from flowcatalyst.core import interpreter
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DEFAULT_POOL, MessagePointer, encode_pointer

SLOTS = 64
SLOW = "SLOW"  # the pool whose groups wait


def messages(count: int, groups: int, target: str, pool: str) -> list[tuple[str, str, str]]:
    """Groups take turns, so that each has some until the end."""
    pointers = (
        MessagePointer(id=f"{pool}-{number}", pool_code=pool, mediation_target=target) for number in range(count)
    )
    return [(one.id, f"{pool}-{number % groups}", encode_pointer(one).decode()) for number, one in enumerate(pointers)]


async def work(app: App) -> None:
    async with serve(app, with_sandbox=False) as listening:
        print(json.dumps({"port": listening.port}), flush=True)
        pools = app.router.pools
        ticker, asked = Ticker(), asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked.set)
        while True:
            await asked.wait()
            asked.clear()
            if not os.read(sys.stdin.fileno(), 1000):
                return
            figures = {
                "at": time.monotonic(),
                "cpu_s": time.process_time(),
                "delivered": pools[DEFAULT_POOL].stats.delivered,
                "groups": sum(pool.group_count for pool in pools.values()),
                "turn_ms": ticker.busy_s * 1000,
            }
            print(json.dumps(figures), flush=True)
            ticker.restart()


def main() -> None:
    folder, target, count, groups = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = router.settings(folder, SLOTS, "warning").model_copy(
        update={
            "port": 0,
            "egress": EgressSettings(allow_private=True),
            "pools": [
                PoolSettings(code=DEFAULT_POOL, concurrency=SLOTS),
                PoolSettings(code=SLOW, concurrency=SLOTS, rate_limit_per_minute=1, capacity=4 * groups),
            ],
        }
    )
    configure_logs(config.log.level, config.log.format, config.log.file)
    waiting = messages(groups, groups, target, SLOW)
    uvloop.run(router.seed(App(config), [*waiting, *messages(count, groups, target, DEFAULT_POOL)]))
    interpreter.tune()
    uvloop.run(work(App(config)))


if __name__ == "__main__":
    main()
