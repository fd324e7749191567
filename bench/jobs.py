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
from flowcatalyst.dispatch.job import Job, NewJob, new_job
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.queues.settings import EmbeddedSettings

BATCH = 1000
UNSERVED = "UNSERVED"  # a pool that is paused: what waits for it is not delivered
HELD_OF = 10  # of so many groups that wait, one is in the pool of the workload, and held
PAYLOAD = msgspec.Raw(b'{"order":12345,"total":12}')


def settings(folder: Path, slots: int, *, works: bool) -> Settings:
    return Settings(
        enabled=works,
        port=0,
        data_dir=folder,
        pools=[PoolSettings(code=DEFAULT_POOL, concurrency=slots), PoolSettings(code=UNSERVED, concurrency=slots)],
        embedded=EmbeddedSettings(queues=["default"]),
        log=LogSettings.model_validate({"level": "warning", "format": "json", "file": folder / "router.log"}),
    )


def store_of(app: App) -> JobStore:
    assert app.jobs is not None, "FLOWCATALYST_PLATFORM__ENABLED is not set"
    return app.jobs


async def fill(app: App, workload: Workload, target: str, waiting: int = 0) -> float:
    """Make so many jobs that wait, and those of the workload behind them, each in its group in strict order; of these,
    jobs a second."""
    app.prepare_data_dir()
    store = store_of(app)
    jobs = [_job(app, target, group) for _, group, _ in workload.bodies(target)]
    await store.open()
    await _fill_waiting(app, store, target, waiting)
    with Stopwatch() as watch:
        for start in range(0, len(jobs), BATCH):
            await store.create(jobs[start : start + BATCH])
    await store.close()
    return len(jobs) / watch.seconds


async def _fill_waiting(app: App, store: JobStore, target: str, count: int) -> None:
    """Half of those that nobody serves are in one group, the others in groups of a batch each."""
    for number, start in enumerate(range(0, count, BATCH)):
        size = min(BATCH, count - start)
        if number % HELD_OF == 0:
            group, pool = f"held-{number}", DEFAULT_POOL
            await store.hold(group, "bench")
        else:
            group, pool = f"waiting-{number}" if number % 2 else "waiting", UNSERVED
        await store.create([_job(app, target, group, pool) for _ in range(size)])


def _job(app: App, target: str, group: str, pool: str = DEFAULT_POOL) -> Job:
    asked = NewJob(
        target_url=target,
        code="bench",
        payload=PAYLOAD,
        message_group=group,
        mode=DispatchMode.BLOCK_ON_ERROR,
        dispatch_pool_code=pool,
    )
    return new_job(asked, app.ids.new_id(), app.clock.wall())


async def drain(app: App, count: int, server_pid: int | None = None) -> Stopwatch:
    """Run the router until so many are delivered and their ends are durable. Its shutdown is not measured."""
    with Stopwatch(server_pid) as watch:
        running = app.running()
        await running.__aenter__()
        app.router.pools[UNSERVED].pause()
        pool = app.router.pools[DEFAULT_POOL]
        while pool.stats.delivered < count:
            await asyncio.sleep(0.01)
    await running.__aexit__(None, None, None)
    others = app.router.pools[UNSERVED].stats.delivered
    if (pool.stats.delivered, others) != (count, 0):
        sys.exit(f"{pool.stats.delivered} of {count} jobs of the workload were delivered, and {others} others")
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
    waiting, finished, server = (int(number) for number in [*sys.argv[5:], "0", "0", "0"][:3])
    if what == "deliver":
        if finished:
            uvloop.run(fill(App(config), Workload(messages=DELIVERED), target))
            uvloop.run(drain(App(config), DELIVERED))
            uvloop.run(copy_finished(folder, finished))
        made = uvloop.run(fill(App(config), workload, target, waiting))
        watch = uvloop.run(drain(App(config), workload.messages, server or None))
    else:
        made, watch = 0.0, uvloop.run(accept(App(config)))
    figures = {
        "messages": workload.messages,
        "seconds": watch.seconds,
        "cpu_s": watch.cpu_s,
        "server_cpu_s": watch.server_cpu_s,
        "made_per_second": made,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
