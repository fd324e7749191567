"""`flowcatalyst up` or `flowcatalyst router` as a real process that tests may kill."""

import asyncio
import os
import re
import resource
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CRASH_VARIABLE = "TEST_CRASH_AT"
LEAVE_WITHIN_S = 60.0
EPOLL_CALLS = ("232", "281", "22")  # epoll_wait and epoll_pwait of x86_64, epoll_pwait of arm64

SETTINGS = """
[retry]
backoff_s = {backoff_s}
nack_delay_s = {nack_delay_s}
follower_s = {follower_s}

[mediator.http]
timeout_ms = {timeout_ms}
version = "HTTP_1_1"

[embedded]
visibility_s = {visibility_s}

[log]
level = "warning"
"""


@dataclass(slots=True, frozen=True)
class Waits:
    """Settings that tests differ in. The defaults are short, so that a test sees many rounds of failure."""

    timeout_ms: int = 250  # of an attempt
    visibility_s: float = 60.0
    backoff_s: tuple[float, float] = (0.02, 0.04)
    nack_delay_s: float = 0.3
    follower_s: float = 0.1
    more: str = ""  # further sections, as TOML

    def toml(self) -> str:
        return SETTINGS.format_map({**asdict(self), "backoff_s": list(self.backoff_s)}) + self.more


IMPATIENT = Waits()


@dataclass(slots=True)
class RouterProcess:
    """A running router: its process, its address, its data and what it logged."""

    process: asyncio.subprocess.Process
    url: str
    data_dir: Path
    log: Path

    async def kill(self) -> None:
        """The end without a farewell."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.communicate()

    async def terminate(self) -> tuple[int, str]:
        """Ask it to stop; its exit code and the rest of what it printed."""
        self.process.send_signal(signal.SIGTERM)
        return await self.until_ended()

    async def until_ended(self) -> tuple[int, str]:
        """Wait for it to end by itself; its exit code and the rest of what it printed."""
        reading = asyncio.ensure_future(self.process.communicate())
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                rest, _ = await asyncio.shield(reading)
        except TimeoutError:
            self.process.send_signal(signal.SIGABRT)  # makes it write down what each thread does
            rest, _ = await reading
            raise AssertionError(f"it did not end: {rest.decode()}\n{self.log.read_text()}") from None
        return self.process.returncode or 0, rest.decode()

    async def until_printed(self, text: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(LEAVE_WITHIN_S):
            while text not in (line := (await self.process.stdout.readline()).decode()):
                assert line, f"it ended without saying {text!r}"

    async def pause(self, *, while_it_waits: bool = False) -> None:
        """Stop it by SIGSTOP, outside of any transaction: nobody can take SQLite's lock from a process that sleeps.

        With `while_it_waits` no attempt is decided on and not sent yet at that moment.
        """
        while True:
            self.process.send_signal(signal.SIGSTOP)
            while not self._stands_still():
                await asyncio.sleep(0)
            files = [path for path in (self.data_dir / "queue.db", self.data_dir / "jobs.db") if path.exists()]
            if all(map(_can_be_written, files)) and (self._waits() or not while_it_waits):
                return
            self.resume()
            await asyncio.sleep(0.01)  # long enough to end its transaction

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _waits(self) -> bool:
        """Whether it was stopped while its loop waited for sockets, so in a call of epoll."""
        return Path(f"/proc/{self.process.pid}/syscall").read_text().split()[0] in EPOLL_CALLS

    def _stands_still(self) -> bool:
        """Whether every thread of it does: SIGSTOP reaches them one after the other."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def _can_be_written(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


async def run_cli(*args: object, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command to its end: exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *_command("flowcatalyst", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


@asynccontextmanager
async def router_process(
    folder: Path,
    waits: Waits = IMPATIENT,
    *,
    module: str = "flowcatalyst",
    crash_at: str | None = None,
    command: Sequence[object] = ("up",),
    env: Mapping[str, str] | None = None,
    stderr: int | None = None,
    files: tuple[int, int] | None = None,
) -> AsyncIterator[RouterProcess]:
    """A command that routes, on a free port; killed at the end of the block if it still runs.

    With `files` it begins with that soft and hard limit of open files.
    With `crash_at` the variable of the test build is set; only `tests.support.crashing_router` honours it.
    """
    crash = {} if crash_at is None else {CRASH_VARIABLE: crash_at}
    starting = starting_process(
        folder, waits, module=module, command=command, env={**crash, **(env or {})}, stderr=stderr, files=files
    )
    async with starting as router:
        assert router.process.stdout is not None
        line = (await router.process.stdout.readline()).decode()
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None, f"it did not start: {line} {router.log.read_text()}"
        router.url = found[0]
        yield router


@asynccontextmanager
async def starting_process(
    folder: Path,
    waits: Waits = IMPATIENT,
    *,
    module: str = "flowcatalyst",
    command: Sequence[object] = ("up",),
    env: Mapping[str, str] | None = None,
    stderr: int | None = None,
    files: tuple[int, int] | None = None,
) -> AsyncIterator[RouterProcess]:
    """The same, but not waited for: it has no address yet. What it logs goes to the file, or to `stderr`."""
    config = folder / "flowcatalyst.toml"
    config.write_text(waits.toml())
    log = folder / "router.log"
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *_command(module, *command, "--port", "0", "--data-dir", folder / "data", "--config", config),
            stdin=asyncio.subprocess.DEVNULL,  # perhaps this run's terminal: SIGHUP means something else there
            stdout=asyncio.subprocess.PIPE,
            stderr=errors if stderr is None else stderr,
            cwd=ROOT,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})},
            preexec_fn=None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files),
        )
    try:
        yield RouterProcess(process, "", folder / "data", log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def _command(module: str, *args: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, args)]
