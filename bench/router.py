"""FlowCatalyst itself under the workload: seed the embedded queue durably, then drain it."""

import asyncio
import cProfile
import pstats
import sys
from pathlib import Path

import uvloop

from bench.measure import Stopwatch
from bench.workload import Workload
from flowcatalyst.app.router import App
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.settings import LogSettings, Settings
from flowcatalyst.core import interpreter
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.settings import EmbeddedSettings


def settings(folder: Path, slots: int, level: str = "info") -> Settings:
    return Settings(
        data_dir=folder,
        pools=[PoolSettings(code=DEFAULT_POOL, concurrency=slots)],
        embedded=EmbeddedSettings(queues=["default"]),
        log=LogSettings.model_validate({"level": level, "format": "json", "file": folder / "router.log"}),
    )


async def seed(app: App, messages: list[tuple[str, str, str]]) -> None:
    queue = app.queues["default"]
    await queue.open()
    for start in range(0, len(messages), 1000):
        await queue.publish([Outgoing(body, group) for _, group, body in messages[start : start + 1000]])
    await queue.close()


async def drain(app: App, count: int) -> Stopwatch:
    """Run the router until everything is delivered and its ack is durable. Its shutdown is not measured."""
    with Stopwatch() as watch:
        running = app.running()
        await running.__aenter__()
        pool = app.router.pools[DEFAULT_POOL]
        while pool.stats.delivered < count or len(app.tracker):
            await asyncio.sleep(0.01)
    await running.__aexit__(None, None, None)
    return watch


def main() -> None:
    folder, target, workload = Path(sys.argv[1]), sys.argv[2], Workload(messages=int(sys.argv[3]))
    level, profile = sys.argv[4], len(sys.argv) > 5
    config = settings(folder, workload.slots, level)
    configure_logs(config.log.level, config.log.format, config.log.file)
    uvloop.run(seed(App(config), workload.bodies(target)))
    interpreter.tune()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    watch = uvloop.run(drain(App(config), workload.messages))
    profiler.disable()
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    watch.report(workload.messages)


if __name__ == "__main__":
    main()
