"""Pools and their queue: does a free slot get the work that waits for it?"""

import asyncio
import time
from itertools import pairwise

from bench.scenarios.stage import LIMIT_S, Answer, Arrival, Figure, Stage, message, seconds, until


async def idle_pool(stage: Stage) -> list[Figure]:
    """Default settings: 200 messages for POOL-LOW (2 slots, endpoint 50 ms) while POOL-HIGH gets 15/s; 5 s of work."""
    receiver = await stage.receiver(lambda _: Answer(200, 0.05))
    router = await stage.router()
    async with router.steadily(15, lambda number: message(f"B{number}", receiver.url("/b"), "POOL-HIGH")):
        await asyncio.sleep(2)
        start = time.monotonic()
        await router.publish(message(f"A{number}", receiver.url("/a"), "POOL-LOW") for number in range(200))
        done = await until(lambda: len(receiver.delivered("A")) == 200, 60)
        after_60 = len(receiver.delivered("A"))
        done = done or await until(lambda: len(receiver.delivered("A")) == 200, LIMIT_S - 60)
    starts = [arrival.at for arrival in receiver.arrivals if arrival.message_id.startswith("A")]
    times = receiver.delivered("A").values()
    return [
        Figure("first of 200 started after", seconds(min(starts) - start if starts else None)),
        Figure("delivered within 60 s", f"{after_60} of 200"),
        Figure("all delivered after (work: 5.0 s)", seconds(max(times) - start if done else None)),
        Figure("longest time without a start", _longest_pause(starts, start, max(times) if done else time.monotonic())),
    ]


async def burst(stage: Stage) -> list[Figure]:
    """Default settings: 1,000 messages of 100 groups at once for POOL-MEDIUM (5 slots, endpoint 50 ms)."""
    return await _burst(stage, "POOL-MEDIUM", slots=5, count=1000, groups=100, endpoint_s=0.05, beside_s=0)


async def burst_beside(stage: Stage) -> list[Figure]:
    """Default settings: 200 of 200 groups for POOL-LOW (2 slots, 150 ms) while POOL-HIGH gets 15/s, for 10 s only."""
    return await _burst(stage, "POOL-LOW", slots=2, count=200, groups=200, endpoint_s=0.15, beside_s=10)


async def _burst(
    stage: Stage, pool: str, *, slots: int, count: int, groups: int, endpoint_s: float, beside_s: float
) -> list[Figure]:
    receiver = await stage.receiver(lambda _: Answer(200, endpoint_s))
    router = await stage.router()
    start = time.monotonic()
    burst = [message(f"A{number}", receiver.url(), pool, f"group-{number % groups}") for number in range(count)]
    if beside_s:
        async with router.steadily(15, lambda number: message(f"B{number}", receiver.url("/b"), "POOL-HIGH")):
            await asyncio.sleep(2)
            start = time.monotonic()
            await router.publish(burst)
            await asyncio.sleep(beside_s)
    else:
        await router.publish(burst)
    done = await until(lambda: len(receiver.delivered("A")) == count, start + LIMIT_S - time.monotonic())
    times = receiver.delivered("A").values()
    end = max(times) if done else time.monotonic()
    starts = [arrival.at for arrival in receiver.arrivals if arrival.message_id.startswith("A")]
    work_s = count * endpoint_s / slots
    return [
        Figure("delivered", f"{len(times):,} of {count:,}"),
        Figure(f"all after (work: {work_s:.1f} s)", seconds(end - start if done else None)),
        Figure("slots busy meanwhile", f"{len(times) * endpoint_s / (slots * (end - start)):.0%}"),
        Figure("longest time without a start", _longest_pause(starts, start, end)),
    ]


async def failing_groups(stage: Stage) -> list[Figure]:
    """700 groups whose endpoint answers 500, then 20 healthy groups, in one pool of 2 slots; endpoints take 10 ms."""
    failing = await stage.receiver(lambda _: Answer(500, 0.01))
    healthy = await stage.receiver(lambda _: Answer(200, 0.01))
    router = await stage.router('[[pools]]\ncode = "DEFAULT-POOL"\nconcurrency = 2\n')
    await router.publish(message(f"F{number}", failing.url(), "DEFAULT-POOL") for number in range(700))
    await asyncio.sleep(5)
    start = time.monotonic()
    await router.publish(message(f"H{number}", healthy.url(), "DEFAULT-POOL") for number in range(20))
    done = await until(lambda: len(healthy.delivered()) == 20, 60)
    after_60 = len(healthy.delivered())
    done = done or await until(lambda: len(healthy.delivered()) == 20, LIMIT_S - 60)
    end = time.monotonic()
    busy = (failing.busy_s(start, end) + healthy.busy_s(start, end)) / (2 * (end - start))
    times = healthy.delivered().values()
    return [
        Figure("healthy delivered within 60 s", f"{after_60} of 20"),
        Figure("healthy delivered within 120 s", f"{len(times)} of 20"),
        Figure("last healthy delivered after", seconds(max(times) - start if done else None)),
        Figure("slots busy meanwhile", f"{busy:.0%}"),
        Figure("failing groups tried at all", f"{_different(failing.arrivals)} of 700"),
    ]


def _longest_pause(starts: list[float], since: float, until_: float) -> str:
    points = [since, *starts, until_]
    return f"{max(b - a for a, b in pairwise(points)):.1f} s"


def _different(arrivals: list[Arrival]) -> int:
    return len({arrival.message_id for arrival in arrivals})
