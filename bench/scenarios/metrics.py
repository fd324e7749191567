"""Many paths: what does it cost to look at the router?"""

import asyncio
import time
import urllib.request
from collections.abc import Awaitable

from bench.scenarios.stage import LIMIT_S, Figure, Router, Stage, message, until

PATHS = 20_000
TICK_S = 0.01
SCRAPES = 5


async def unique_paths(stage: Stage) -> list[Figure]:
    """20,000 messages to a path each, delivered; then /metrics is scraped while GET /health is asked every 10 ms."""
    receiver = await stage.receiver()
    router = await stage.router()
    calm_before = await _longest_gap(router, asyncio.sleep(2))
    await router.publish(
        message(f"M{number}", receiver.url(f"/orders/{number}"), "DEFAULT-POOL") for number in range(PATHS)
    )
    await until(lambda: len(receiver.arrivals) >= PATHS and len(receiver.delivered()) == PATHS, LIMIT_S)
    await asyncio.sleep(2)
    calm = await _longest_gap(router, asyncio.sleep(2))
    sizes: list[int] = []
    spans: list[float] = []
    gaps: list[float] = []
    for _ in range(SCRAPES):
        start = time.monotonic()
        scrape = asyncio.create_task(asyncio.to_thread(_read, f"{router.url}/metrics"))
        gaps.append(await _longest_gap(router, scrape))
        sizes.append(len(scrape.result()))
        spans.append(time.monotonic() - start)
        await asyncio.sleep(1.5)  # so that each one is rendered anew
    return [
        Figure("delivered", f"{len(receiver.delivered())} of {PATHS:,}"),
        Figure("size of /metrics", f"{max(sizes) / 1000:,.0f} kB"),
        Figure(f"time of a scrape, longest of {SCRAPES}", f"{max(spans) * 1000:.0f} ms"),
        Figure("longest gap of GET /health during a scrape", f"{max(gaps) * 1000:.0f} ms"),
        Figure("without one", f"{calm * 1000:.0f} ms (before the messages: {calm_before * 1000:.0f} ms)"),
    ]


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
        data: bytes = answer.read()
        return data


async def _longest_gap(router: Router, work: Awaitable[object]) -> float:
    """Between two answers of /health, asked every 10 ms until the work is done."""
    working = asyncio.ensure_future(work)
    last, longest = time.monotonic(), 0.0
    while not working.done():
        await asyncio.sleep(max(0.0, last + TICK_S - time.monotonic()))
        await router.get("/health")
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    await working
    return longest
