"""A router reduced to its standby, as a process of its own that tests may stop, pause and kill.

`python -m tests.support.standby_process URL IDENTITY LOG TTL_S REFRESH_S` prints `working <fencing number>` and `idle`
when that changes, and `unit` for each unit of work. It writes `<identity> <fencing number>` to LOG for the same unit
before that. SIGTERM stops it cleanly.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import Standby
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.router.fence import Fence

ROOT = Path(__file__).parent.parent.parent
UNIT_S = 0.02
TTL_S, REFRESH_S = 2.0, 0.5
LEAVE_WITHIN_S = 30.0


class Worker:
    """Starts a unit of work every few milliseconds, as long as the fence allows it."""

    def __init__(self, standby: Standby, fence: Fence, log: Path) -> None:
        self._standby = standby
        self._fence = fence
        self._clock = SystemClock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._tasks = Tasks()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        number = self._standby.fencing_number
        print("working", number, flush=True)
        self._tasks.spawn(self._start_units(f"{self._standby.identity} {number}\n".encode()))
        try:
            yield
        finally:
            await self._tasks.cancel()
            print("idle", flush=True)

    async def _start_units(self, line: bytes) -> None:
        while True:
            if self._fence.allows(self._clock.monotonic()):
                os.write(self._log, line)
                print("unit", flush=True)
            await asyncio.sleep(UNIT_S)


async def run_worker(url: str, identity: str, log: Path, ttl_s: float, refresh_s: float) -> None:
    clock, fence = SystemClock(), Fence()
    settings = StandbySettings(redis_url=SecretStr(url), ttl_s=ttl_s, refresh_s=refresh_s)
    standby = Standby(settings, clock, identity, WarningLog(clock), fence)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, standby.stop)
    print("started", flush=True)
    await standby.run(Worker(standby, fence, log).working)


@dataclass(slots=True)
class StandbyProcess:
    """The process as a test sees it."""

    process: asyncio.subprocess.Process

    async def until_printed(self, *words: str) -> str:
        """Wait until it prints a line that begins with one of these words, and return that line."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LEAVE_WITHIN_S):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"it ended without saying {words}"
                if line.startswith(words):
                    return line.strip()

    async def until_working(self) -> int:
        """Wait until it begins to work, and return its fencing number."""
        return int((await self.until_printed("working")).split()[1])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def until_ended(self) -> int:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def standby_process(url: str, identity: str, log: Path) -> AsyncIterator[StandbyProcess]:
    """One such process that is up; killed at the end of the block if it still runs, paused or not."""
    arguments = [url, identity, str(log), str(TTL_S), str(REFRESH_S)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.standby_process", *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    started = StandbyProcess(process)
    try:
        await started.until_printed("started")
        yield started
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


if __name__ == "__main__":
    url, identity, log, ttl_s, refresh_s = sys.argv[1:]
    asyncio.run(run_worker(url, identity, Path(log), float(ttl_s), float(refresh_s)))
