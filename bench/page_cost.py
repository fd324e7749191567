"""What an open page costs a router with 10,000 active groups under full load, in one run.

Slices with a page and without one take turns. A page is a client that reads what the dashboard reads, at its intervals
(`dashboard/live.js`, `dashboard/views/`), and draws nothing: a browser's own CPU time is not the router's. Each slice
with a page is compared to the mean of the two beside it without one, so that what drifts hits both.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.servers import nginx_sink

LIVE = "/monitoring/live"
# What each view reads besides the stream of overviews, and how many seconds it rests after each answer.
VIEWS: dict[str, dict[str, float]] = {
    "overview": {},
    "groups": {"/monitoring/groups?blocked=true&limit=50": 5.0},
    "all groups": {"/monitoring/groups?limit=50": 5.0},
    "pools": {"/monitoring/pool-stats": 2.0},
    "queues": {"/monitoring/queue-stats": 2.0, "/monitoring/consumer-health": 2.0},
    "endpoints": {"/monitoring/endpoints?limit=50": 2.0},
    "warnings": {"/monitoring/warnings?acknowledged=false": 2.0},
}
SETTLE_S = 0.5  # after a page came or went
BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Slice:
    """What the router did in a few seconds."""

    view: str | None  # None: no page was open
    seconds: float
    messages: int
    cpu_s: float
    groups: int
    turn_ms: float  # CPU time of the longest turn of its loop

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6


class Router:
    """The process under load."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.url = url
        self._stdin, self._stdout = process.stdin, process.stdout

    async def figures(self) -> dict[str, float]:
        self._stdin.write(b"\n")
        found: dict[str, float] = json.loads(await self._stdout.readline())
        return found

    async def slice(self, view: str | None, seconds: float) -> Slice:
        await asyncio.sleep(SETTLE_S)
        begin = await self.figures()
        await asyncio.sleep(seconds)
        end = await self.figures()
        return Slice(
            view,
            end["at"] - begin["at"],
            round(end["delivered"] - begin["delivered"]),
            end["cpu_s"] - begin["cpu_s"],
            round(end["groups"]),
            end["turn_ms"],
        )


@asynccontextmanager
async def loaded_router(folder: Path, target: str, messages: int, groups: int) -> AsyncIterator[Router]:
    command = [sys.executable, "-m", "bench.page_cost_router", folder, target, messages, groups]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*map(str, command), stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        yield Router(process, f"http://127.0.0.1:{json.loads(await process.stdout.readline())['port']}")
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def open_page(url: str, view: str) -> AsyncIterator[None]:
    """A page that shows a view, as far as the router can tell."""

    async def listen() -> None:
        async with session.get(url + LIVE) as answer:
            async for _ in answer.content:
                pass

    async def look(path: str, every_s: float) -> None:
        while True:
            async with session.get(url + path) as answer:
                answer.raise_for_status()
                await answer.read()
            await asyncio.sleep(every_s)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(listen()), *(asyncio.create_task(look(*one)) for one in VIEWS[view].items())]
        try:
            yield
            assert not any(task.done() for task in tasks), "a page does not end by itself"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def measure(options: argparse.Namespace, folder: Path, target: str) -> list[Slice]:
    slices: list[Slice] = []
    async with loaded_router(folder, target, options.messages, options.groups) as router:
        await asyncio.sleep(3.0)  # until it has messages of all groups
        for number in range(options.rounds * len(options.views)):
            view = options.views[number % len(options.views)]
            slices.append(await router.slice(None, options.seconds))
            async with open_page(router.url, view):
                slices.append(await router.slice(view, options.seconds))
        slices.append(await router.slice(None, options.seconds))
    if any(one.groups < 0.9 * options.groups for one in slices):
        sys.exit("the messages did not last: give more of them (--messages)")
    return slices


@dataclass(frozen=True, slots=True)
class Cost:
    """A slice with a page, against its neighbours without: 0.01 is one per cent more CPU time or less throughput."""

    view: str
    cpu: float
    throughput: float


def costs(slices: list[Slice]) -> Iterator[Cost]:
    for before, with_page, after in zip(slices[::2], slices[1::2], slices[2::2], strict=False):
        assert with_page.view is not None
        cpu = with_page.cpu_us / ((before.cpu_us + after.cpu_us) / 2) - 1
        yield Cost(with_page.view, cpu, 1 - with_page.per_second / ((before.per_second + after.per_second) / 2))


def interval(values: list[float]) -> str:
    """The median, and between what bounds 90 of 100 medians of such slices are."""
    rng = random.Random(7)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    low, high = medians[BOOTSTRAPS // 20], medians[-BOOTSTRAPS // 20]
    return f"{statistics.median(values):+6.1%} ({low:+.1%} to {high:+.1%})"


def report(slices: list[Slice]) -> None:
    print(f"{'':12} {'slices':>6} {'messages/s':>11} {'CPU us/message':>15} {'longest turn ms':>16}")
    for name, chosen in (("no page", slices[::2]), ("a page", slices[1::2])):
        per_second, cpu_us, turn_ms = (
            statistics.median(values)
            for values in zip(*((one.per_second, one.cpu_us, one.turn_ms) for one in chosen), strict=True)
        )
        print(f"{name:12} {len(chosen):>6} {per_second:>11,.0f} {cpu_us:>15.1f} {turn_ms:>16.1f}")
    found = list(costs(slices))
    print(f"\n{'a page costs':12} {'CPU per message, median (90 %)':>34} {'throughput, median (90 %)':>34}")
    for view in (*dict.fromkeys(one.view for one in found), "all"):
        of_view = [one for one in found if view in ("all", one.view)]
        cpu, throughput = interval([one.cpu for one in of_view]), interval([one.throughput for one in of_view])
        print(f"{view:12} {cpu:>34} {throughput:>34}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.page_cost", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_400_000, help="that are in the queue when it starts")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each slice")
    parser.add_argument("--rounds", type=int, default=2, help="slices with each view")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, nginx_sink(Path(folder)) as target:
        report(asyncio.run(measure(options, Path(folder), target)))


if __name__ == "__main__":
    main()
