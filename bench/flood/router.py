"""A router with the platform that asks for keys or passwords, beside a steady load of deliveries.

It says every second how its loop is doing.
"""

import asyncio
import json
import os
import resource
import sys
import time
from itertools import count
from pathlib import Path
from typing import Final

import uvloop

from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.settings import AuthSettings, EgressSettings, LogSettings, Settings
from flowcatalyst.core import interpreter
from flowcatalyst.core.credentials import hash_key, hash_password
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DEFAULT_POOL, MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.settings import EmbeddedSettings

GROUPS: Final = 200
BATCHES_PER_S: Final = 10
TICK_S: Final = 0.001


class Ticker:
    """The longest time between two turns of the loop.

    `stall_s`: on the clock. `net_s`: without the time in which other processes had the processor. `busy_s`: CPU time of
    the loop's own thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self.restart()
        self._tick()

    def restart(self) -> None:
        self.stall_s = self.net_s = self.busy_s = 0.0
        self._at, self._cpu_at, self._waited_at = time.monotonic(), time.thread_time(), self._waited_s()

    def _waited_s(self) -> float:
        """How long this thread could have run and was not let, so far."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9

    def _tick(self) -> None:
        now, cpu, waited = time.monotonic(), time.thread_time(), self._waited_s()
        stall_s = now - self._at - TICK_S
        self.stall_s = max(self.stall_s, stall_s)
        self.net_s = max(self.net_s, stall_s - (waited - self._waited_at))
        self.busy_s = max(self.busy_s, cpu - self._cpu_at)
        self._at, self._cpu_at, self._waited_at = now, cpu, waited
        self._loop.call_later(TICK_S, self._tick)


async def feed(app: App, target: str, per_s: int) -> None:
    """Publish at an even pace, whatever the router makes of it."""
    numbers, size, loop = count(), per_s // BATCHES_PER_S, asyncio.get_running_loop()
    due = loop.time()
    while True:
        ids = [next(numbers) for _ in range(size)]
        pointers = [MessagePointer(id=f"m{id}", mediation_target=target) for id in ids]  # noqa: A001
        batch = [Outgoing(encode_pointer(one).decode(), f"g{i % GROUPS}") for i, one in zip(ids, pointers, strict=True)]
        await app.queues["default"].publish(batch)
        due += 1 / BATCHES_PER_S
        await asyncio.sleep(due - loop.time())


def auth(mode: str) -> AuthSettings:
    if mode == "basic":
        return AuthSettings(mode="basic", admin=[f"admin:{hash_password(b'secret')}"])
    return AuthSettings(mode="api_key", admin=[hash_key(b"secret")])


async def main(folder: Path, target: str, per_s: int, mode: str) -> None:
    settings = Settings(
        port=0,
        data_dir=folder / "data",
        pools=[PoolSettings(code=DEFAULT_POOL, concurrency=50)],
        embedded=EmbeddedSettings(queues=["default"]),
        auth=auth(mode),
        platform=PlatformSettings(enabled=True),
        egress=EgressSettings(allow_private=True),
        log=LogSettings.model_validate({"level": "warning", "format": "json", "file": folder / "router.log"}),
    )
    configure_logs(settings.log.level, settings.log.format, settings.log.file)
    app = App(settings)
    interpreter.tune()
    async with serve(app, with_sandbox=False) as listening:
        print(json.dumps({"port": listening.port}), flush=True)
        feeding = asyncio.ensure_future(feed(app, target, per_s))
        ticker, delivered = Ticker(), 0
        while not feeding.done():
            await asyncio.sleep(1)
            now = app.router.pools[DEFAULT_POOL].stats.delivered
            line = {
                "delivered": now - delivered,
                "stall_ms": round(ticker.stall_s * 1000, 1),
                "net_ms": round(ticker.net_s * 1000, 1),
                "busy_ms": round(ticker.busy_s * 1000, 1),
                "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
                "failed": sum(app.router.pools[DEFAULT_POOL].stats.attempts.values())
                - app.router.pools[DEFAULT_POOL].stats.attempts["SUCCESS"],  # type: ignore[index]
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
            print(json.dumps(line), flush=True)
            delivered = now
            ticker.restart()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
