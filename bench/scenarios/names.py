"""Names that do not resolve: who else waits for them?"""

import asyncio
import statistics
import subprocess
import time
from pathlib import Path

from tests.servers import program

from bench.scenarios.stage import Answer, Figure, Stage, message

SHIM = Path(__file__).parent / "slow_names.c"
WATCH_S = 60
HEALTHY_NAMES = 20


async def two_dead_names(stage: Stage) -> list[Figure]:
    """2 names whose lookup takes 9 s and fails; 2 messages/s to 20 healthy names, in another pool, no keep-alive."""
    return await _beside_dead_names(stage, 2)


async def ten_dead_names(stage: Stage) -> list[Figure]:
    """10 names whose lookup takes 9 s and fails; 2 messages/s to 20 healthy names, in another pool, no keep-alive."""
    return await _beside_dead_names(stage, 10)


async def _beside_dead_names(stage: Stage, dead: int) -> list[Figure]:
    receiver = await stage.receiver(lambda _: Answer(200, 0.01), keep_alive=False)
    router = await stage.router(env={"LD_PRELOAD": str(_compiled(stage.folder))})
    published: dict[str, float] = {}

    def healthy(number: int) -> dict[str, object]:
        published[f"H{number}"] = time.monotonic()
        return message(f"H{number}", receiver.url(host=f"n{number % HEALTHY_NAMES}.ok.test"), "DEFAULT-POOL")

    async with router.steadily(2, healthy):
        await asyncio.sleep(5)
        dead_since = time.monotonic()
        await router.publish(
            message(f"X{number}", receiver.url(host=f"n{number}.hang.test"), "POOL-HIGH") for number in range(dead)
        )
        await asyncio.sleep(WATCH_S)
    await asyncio.sleep(1)
    end = time.monotonic()
    delivered = receiver.delivered("H")
    before = [delivered.get(name, end) - at for name, at in published.items() if at < dead_since]
    waits = [delivered.get(name, end) - at for name, at in published.items() if at >= dead_since]
    failed = await router.failed_attempts("DEFAULT-POOL")
    return [
        Figure("healthy delivered in 60 s", f"{sum(at >= dead_since for at in delivered.values())} of {len(waits)}"),
        Figure("their wait, delivered or not: median", f"{statistics.median(waits):.2f} s"),
        Figure("their wait, delivered or not: longest", f"{max(waits):.2f} s"),
        Figure("failed attempts on healthy names", str(failed)),
        Figure("longest wait of a healthy one before the dead names", f"{max(before):.2f} s"),
    ]


def _compiled(folder: Path) -> Path:
    shim = folder / "slow_names.so"
    subprocess.run([program("cc"), "-shared", "-fPIC", "-O1", "-o", shim, SHIM, "-ldl"], check=True)
    return shim
