"""Endpoints that hang, go down and come back: who has to wait for them?"""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

from tests.servers import free_port

from bench.scenarios.stage import (
    LIMIT_S,
    OK,
    SILENCE,
    Answer,
    Arrival,
    Figure,
    Receiver,
    Stage,
    message,
    seconds,
    until,
)

POOL = "DEFAULT-POOL"


async def silent_endpoint(stage: Stage) -> list[Figure]:
    """Default settings, 20 slots: 20 messages to an endpoint that never answers, then 20 to a healthy one."""
    silent = await stage.receiver(lambda _: SILENCE)
    healthy = await stage.receiver()
    router = await stage.router()
    await router.publish(message(f"S{number}", silent.url(), POOL) for number in range(20))
    await asyncio.sleep(2)
    start = time.monotonic()
    await router.publish(message(f"H{number}", healthy.url(), POOL) for number in range(20))
    done = await until(lambda: len(healthy.delivered()) == 20, 60)
    times = healthy.delivered().values()
    return [
        Figure("healthy delivered within 60 s", f"{len(times)} of 20"),
        Figure("last healthy delivered after", seconds(max(times) - start if done else None, 60)),
        Figure("requests that hang at once", f"{len(silent.arrivals)} of 20 slots"),
    ]


async def falls_silent(stage: Stage) -> list[Figure]:
    """One pool of 20 slots: an endpoint with 20/s falls silent after 10 s, another one gets 5/s all the time."""
    turning = await stage.receiver(lambda _: Answer(200, 0.05))
    healthy = await stage.receiver(lambda _: Answer(200, 0.05))
    router = await stage.router()
    published: dict[str, float] = {}

    def to_healthy(number: int) -> dict[str, object]:
        published[f"H{number}"] = time.monotonic()
        return message(f"H{number}", healthy.url(), POOL)

    async with (
        router.steadily(20, lambda number: message(f"T{number}", turning.url(), POOL)),
        router.steadily(5, to_healthy),
    ):
        await asyncio.sleep(10)
        turning.answer = lambda _: SILENCE
        fell_silent = time.monotonic()
        await asyncio.sleep(60)
    await asyncio.sleep(1)
    end = time.monotonic()
    asked = {name: at for name, at in published.items() if at >= fell_silent}
    times = {name: at for name, at in healthy.delivered().items() if name in asked}
    waits = sorted(times.get(name, end) - at for name, at in asked.items())
    return [
        Figure("healthy delivered in the 60 s after it fell silent", f"{len(times)} of {len(asked)}"),
        Figure("longest wait of a healthy message, delivered or not", f"{waits[-1]:.1f} s"),
        Figure("waits below 1 s", f"{sum(wait < 1 for wait in waits) / len(waits):.0%}"),
    ]


async def hanging_probes(stage: Stage) -> list[Figure]:
    """An endpoint refuses connections for 15 s, then accepts but hangs on 3 requests, then is healthy; 1 message/s.

    At the same time, in a pool of its own: one message whose endpoint answers 500 for ever.
    """
    failing = await stage.receiver(lambda _: Answer(500))
    router = await stage.router()
    port = free_port()
    watched = time.monotonic()
    await router.publish([message("head", failing.url(), "POOL-LOW")])
    target = f"http://127.0.0.1:{port}/hook"
    await router.publish(message(f"M{number}", target, POOL) for number in range(20))
    async with router.steadily(1, lambda number: message(f"N{number}", target, POOL)):
        await asyncio.sleep(15)
        states = await router.get("/monitoring/circuit-breakers")
        back = await stage.receiver(_hangs_on_the_first(3), port=port)
        listening = time.monotonic()
        await until(lambda: bool(back.delivered()), LIMIT_S)
    await until(lambda: time.monotonic() >= watched + LIMIT_S, LIMIT_S)
    attempts = [arrival.at for arrival in failing.arrivals if arrival.at <= watched + LIMIT_S]
    return [
        Figure("breaker when the endpoint came back", "open" if '"OPEN"' in states else "not open"),
        *_return_of(back, listening),
        Figure("attempts on a head that always fails (500), in 120 s", str(len(attempts))),
        Figure("pauses between them", ", ".join(f"{b - a:.0f}" for a, b in pairwise(attempts))),
    ]


def _hangs_on_the_first(count: int) -> Callable[[Arrival], Answer]:
    seen = 0

    def answer(_: Arrival) -> Answer:
        nonlocal seen
        seen += 1
        return SILENCE if seen <= count else OK

    return answer


def _return_of(back: Receiver, listening: float) -> list[Figure]:
    """How long it took until something was delivered, since it listens and since the third request hung."""
    times = back.delivered().values()
    healthy = back.arrivals[2].at if len(back.arrivals) >= 3 else None
    since_healthy = "did not hang 3 times" if healthy is None else seconds(min(times) - healthy if times else None)
    return [
        Figure("third hanging request after it listened", seconds(healthy - listening if healthy else None)),
        Figure("from then (healthy) to the first delivered", since_healthy),
        Figure("from listening to the first delivered", seconds(min(times) - listening if times else None)),
    ]
