"""`flowcatalyst up` as a real process that tests may kill."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

IMPATIENT_TOML = """
[retry]
backoff_s = [0.02, 0.04]
give_back_s = 0.3
follower_s = 0.1

[mediator.http]
timeout_ms = 250
version = "HTTP_1_1"

[log]
level = "warning"
"""


@dataclass(slots=True)
class RouterProcess:
    """A running router: its address and its process."""

    process: asyncio.subprocess.Process
    url: str

    async def kill(self) -> None:
        """The end without a farewell."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def terminate(self) -> tuple[int, str]:
        """Ask it to stop; its exit code and the rest of what it printed."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = await self.process.communicate()
        return self.process.returncode or 0, rest.decode()


async def run_cli(*args: object) -> tuple[int, str, str]:
    """Run the command to its end: exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *_command(*args), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


@asynccontextmanager
async def router_process(folder: Path) -> AsyncIterator[RouterProcess]:
    """`flowcatalyst up` on a free port; killed at the end of the block if it still runs."""
    config = folder / "impatient.toml"
    config.write_text(IMPATIENT_TOML)
    process = await asyncio.create_subprocess_exec(
        *_command("up", "--port", "0", "--data-dir", folder / "data", "--config", config),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None, f"it did not start: {line}"
        yield RouterProcess(process, found[0])
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def _command(*args: object) -> list[str]:
    return [sys.executable, "-m", "flowcatalyst", *map(str, args)]
