"""FlowCatalyst's job store under the workload, in a process of its own: `deliver` what is in it, or `accept` over HTTP.

Where the jobs are kept is `platform.database_url` by the environment: a SQLite file in the folder, or PostgreSQL.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from bench.measure import Stopwatch
from bench.old_jobs import DELIVERED, copy_finished
from bench.workload import Workload
from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.settings import LogSettings, Settings
from flowcatalyst.core import interpreter
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.dispatch.job import NewJob, new_job
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.queues.settings import EmbeddedSettings

BATCH = 1000
IN_ORDER = DispatchMode.BLOCK_ON_ERROR
PAYLOAD = msgspec.Raw(b'{"order":12345,"total":12}')


def settings(folder: Path, slots: int, *, works: bool) -> Settings:
    return Settings(
        enabled=works,
        port=0,
        data_dir=folder,
        pools=[PoolSettings(code=DEFAULT_POOL, concurrency=slots)],
        embedded=EmbeddedSettings(queues=["default"]),
        log=LogSettings.model_validate({"level": "warning", "format": "json", "file": folder / "router.log"}),
    )


def store_of(app: App) -> JobStore:
    assert app.jobs is not None, "FLOWCATALYST_PLATFORM__ENABLED is not set"
    return app.jobs


async def fill(app: App, workload: Workload, target: str, waiting: int = 0) -> float:
    """Make the jobs of the workload, each in its group in strict order, and so many that wait behind them; jobs a
    second."""
    app.prepare_data_dir()
    store = store_of(app)
    jobs = [
        new_job(
            NewJob(
                target_url=target, code="bench", payload=PAYLOAD, message_group=group, mode=DispatchMode.BLOCK_ON_ERROR
            ),
            app.ids.new_id(),
            app.clock.wall(),
        )
        for _, group, _ in workload.bodies(target)
    ]
    await store.open()
    with Stopwatch() as watch:
        for start in range(0, len(jobs), BATCH):
            await store.create(jobs[start : start + BATCH])
    for start in range(0, waiting, BATCH):
        asked = NewJob(target_url=target, code="waiting", payload=PAYLOAD, message_group=f"w{start}", mode=IN_ORDER)
        await store.create([new_job(asked, app.ids.new_id(), app.clock.wall()) for _ in range(BATCH)])
    await store.close()
    return len(jobs) / watch.seconds


async def drain(app: App, count: int) -> Stopwatch:
    """Run the router until so many are delivered and their ends are durable. Its shutdown is not measured."""
    with Stopwatch() as watch:
        running = app.running()
        await running.__aenter__()
        pool = app.router.pools[DEFAULT_POOL]
        while pool.stats.delivered < count:
            await asyncio.sleep(0.01)
    await running.__aexit__(None, None, None)
    return watch


async def accept(app: App) -> Stopwatch:
    """Serve the API, with no router at work, until SIGTERM. Prints where."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serve(app, with_sandbox=False) as listening:
        with Stopwatch() as watch:
            print(json.dumps({"url": f"http://127.0.0.1:{listening.from_here[1]}"}), flush=True)
            await stop.wait()
    return watch


def main() -> None:
    what, folder, target, workload = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Workload(messages=int(sys.argv[4]))
    config = settings(folder, workload.slots, works=what == "deliver")
    configure_logs(config.log.level, config.log.format, config.log.file)
    interpreter.tune()
    waiting, finished = (int(number) for number in sys.argv[5:7] or ("0", "0"))
    if what == "deliver":
        if finished:
            uvloop.run(fill(App(config), Workload(messages=DELIVERED), target))
            uvloop.run(drain(App(config), DELIVERED))
            uvloop.run(copy_finished(folder, finished))
        made = uvloop.run(fill(App(config), workload, target, waiting))
        watch = uvloop.run(drain(App(config), workload.messages))
    else:
        made, watch = 0.0, uvloop.run(accept(App(config)))
    figures = {"messages": workload.messages, "seconds": watch.seconds, "cpu_s": watch.cpu_s, "made_per_second": made}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
