"""procrastinate under the workload: jobs that post to the sink, one of a group at a time by its lock."""

import asyncio
import json
import sys

import aiohttp
import uvloop
from procrastinate import App, PsycopgConnector

from bench.jobs import PAYLOAD
from bench.measure import Stopwatch
from bench.workload import Workload

BATCH = 1000


async def run(url: str, target: str, workload: Workload) -> tuple[float, Stopwatch]:
    """Jobs made a second, and what it took to work them off."""
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=10))
    done = 0

    @app.task(name="post")  # type: ignore[untyped-decorator, unused-ignore]
    async def post(number: int) -> None:
        nonlocal done
        async with session.post(target, data=bytes(PAYLOAD), headers={"Content-Type": "application/json"}) as response:
            response.raise_for_status()
            await response.read()
        done += 1

    connector = aiohttp.TCPConnector(limit=workload.slots)
    async with app.open_async(), aiohttp.ClientSession(connector=connector) as session:
        await app.schema_manager.apply_schema_async()
        groups = [group for _, group, _ in workload.bodies(target)]
        with Stopwatch() as making:
            for start in range(0, len(groups), BATCH):
                part = groups[start : start + BATCH]
                await asyncio.gather(
                    *(
                        post.configure(lock=group).defer_async(number=start + position)
                        for position, group in enumerate(part)
                    )
                )
        with Stopwatch() as watch:
            await app.run_worker_async(concurrency=workload.slots, wait=False, install_signal_handlers=False)
        assert done == workload.messages, f"{done} of {workload.messages} jobs were done"
    return workload.messages / making.seconds, watch


def main() -> None:
    url, target, workload = sys.argv[1], sys.argv[2], Workload(messages=int(sys.argv[3]))
    made, watch = uvloop.run(run(url, target, workload))
    figures = {"messages": workload.messages, "seconds": watch.seconds, "cpu_s": watch.cpu_s, "made_per_second": made}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
