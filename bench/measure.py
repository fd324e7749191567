"""Wall time and CPU time of a child process, and how a parent reads them."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


class Stopwatch:
    """Measures a block in this process: all its threads, user and system time; and that of a server beside it."""

    def __init__(self, server_pid: int | None = None) -> None:
        self._server_pid = server_pid

    def __enter__(self) -> Self:
        self._server_cpu_s = _cpu_of_server_s(self._server_pid)
        self._cpu_s, self._at = _cpu_s(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds, self.cpu_s = time.perf_counter() - self._at, _cpu_s() - self._cpu_s
        self.server_cpu_s = _cpu_of_server_s(self._server_pid) - self._server_cpu_s

    def report(self, messages: int) -> None:
        print(json.dumps({"messages": messages, "seconds": self.seconds, "cpu_s": self.cpu_s}))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu_of_server_s(pid: int | None) -> float:
    """Of a process, of the children that it has, and of those that ended."""
    if pid is None:
        return 0.0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (_cpu_ticks(pid, 4) + sum(_cpu_ticks(int(child), 2) for child in children)) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(pid: int, fields: int) -> int:
    """User and system time of a process; with four fields, also of children that it waited for. 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, stat.rpartition(")")[2].split()[11 : 11 + fields]))


@dataclass(frozen=True, slots=True)
class Figure:
    per_second: float
    cpu_us: float


def run_child(module: str, *args: object, **settings: str) -> Figure:
    """Run a benchmark module in a process of its own and read what it measured. Settings go by the environment."""
    command = [sys.executable, "-m", module, *map(str, args)]
    variables = {f"FLOWCATALYST_{name.upper()}": value for name, value in settings.items()}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **variables},
    )
    if done.returncode != 0:
        sys.exit(f"{module} failed:\n{done.stderr}")
    read = json.loads(done.stdout.splitlines()[-1])
    return Figure(read["messages"] / read["seconds"], read["cpu_s"] / read["messages"] * 1e6)


def median(figures: list[Figure]) -> Figure:
    return Figure(
        statistics.median(figure.per_second for figure in figures),
        statistics.median(figure.cpu_us for figure in figures),
    )
