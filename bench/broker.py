"""FlowCatalyst on one broker under the workload: fill the queue, then drain it. Also prints what it cost in calls.

Before that a plain loop drains the same queue with the same client and nothing behind it: receive, ack, receive.
"""

import asyncio
import json
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
from flowcatalyst.core.message import DEFAULT_POOL, Settled
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.settings import EmbeddedSettings, PostgresSettings, QueueSettings

QUEUE = "bench"
CONNECTIONS = 4


def settings(folder: Path, slots: int, uri: str) -> Settings:
    return Settings(
        data_dir=folder,
        pools=[PoolSettings(code=DEFAULT_POOL, concurrency=slots)],
        embedded=EmbeddedSettings(queues=[]),
        queues=[QueueSettings(name=QUEUE, uri=uri, connections=CONNECTIONS)],
        postgres=PostgresSettings(user="postgres"),
        log=LogSettings.model_validate({"level": "warning", "format": "json", "file": folder / "router.log"}),
    )


async def seed(app: App, messages: list[tuple[str, str, str]]) -> float:
    """Publish everything; messages a second."""
    queue = app.queues[QUEUE]
    await queue.open()
    with Stopwatch() as watch:
        for start in range(0, len(messages), 500):
            await queue.publish([Outgoing(body, group) for _, group, body in messages[start : start + 500]])
    await queue.close()
    return len(messages) / watch.seconds


async def drain(app: App, count: int) -> tuple[Stopwatch, int]:
    with Stopwatch() as watch:
        running = app.running()
        await running.__aenter__()
        pool = app.router.pools[DEFAULT_POOL]
        while pool.stats.delivered < count or len(app.tracker):
            await asyncio.sleep(0.01)
        calls = sum(app.engine.queues[QUEUE].calls.values())
    await running.__aexit__(None, None, None)
    return watch, calls


async def plain_loop(app: App, count: int) -> float:
    """Receive and ack everything, four receives side by side where the queue allows it; messages a second."""
    queue = app.queues[QUEUE]
    await queue.open()
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            batch = await queue.receive(queue.batching.max_batch, 1.0)
            results = await queue.ack(batch) if batch else []
            left -= results.count(Settled.OK)

    with Stopwatch() as watch:
        await asyncio.gather(*(work() for _ in range(CONNECTIONS if queue.capabilities.locks_groups else 1)))
    await queue.close()
    return count / watch.seconds


def main() -> None:
    folder, target, workload, uri = Path(sys.argv[1]), sys.argv[2], Workload(messages=int(sys.argv[3])), sys.argv[4]
    config = settings(folder, workload.slots, uri)
    configure_logs(config.log.level, config.log.format, config.log.file)
    published = uvloop.run(seed(App(config), workload.bodies(target)))
    interpreter.tune()
    plain = uvloop.run(plain_loop(App(config), workload.messages))
    uvloop.run(seed(App(config), workload.bodies(target)))
    watch, calls = uvloop.run(drain(App(config), workload.messages))
    figures = {"messages": workload.messages, "seconds": watch.seconds, "cpu_s": watch.cpu_s}
    print(json.dumps({**figures, "published_per_second": published, "plain_per_second": plain, "calls": calls}))


if __name__ == "__main__":
    main()
