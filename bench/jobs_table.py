"""`python -m bench.jobs_table`: dispatch jobs on SQLite and on PostgreSQL, beside the embedded queue and procrastinate.

Accepted: over HTTP, by wrk with 16 connections, one job or a hundred in a request. Delivered: jobs of the workload,
each group in strict order, from the store to the sink, until every attempt and every end is durable. One round runs all
of them one after the other, so that a noisy minute hits all; ratios are taken within a round.
"""

import argparse
import asyncio
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from tests.servers import program
from tests.servers.postgres import PostgresServer, postgres_server

from bench.servers import nginx_sink, require_tools, run_wrk

MESSAGES = 20_000
ROOT = Path(__file__).parent.parent
SECRET_KEY = base64.b64encode(bytes(range(32))).decode()  # keeps nothing that matters
ACCEPT_S = 4
ACCEPT_CONNECTIONS = 16
POST = """
wrk.method = "POST"
wrk.path = "%(path)s"
wrk.body = '%(body)s'
wrk.headers["Content-Type"] = "application/json"
"""


@dataclass(frozen=True, slots=True)
class Delivered:
    per_second: float
    cpu_us: float
    made_per_second: float
    server_cpu_us: float = 0.0  # of PostgreSQL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    require_tools()
    print_table(options.messages, options.rounds)


def print_table(messages: int, rounds: int) -> None:
    print(f"{messages} jobs with a payload, 1,000 groups in strict order, 64 slots; median of {rounds} rounds")
    print("procrastinate gets a tenth of them: its cost grows with what waits behind a lock")
    with (
        tempfile.TemporaryDirectory() as name,
        nginx_sink(Path(name)) as target,
        postgres_server(Path(name) / "postgres") as postgres,
    ):
        _print_delivered(messages, rounds, target, postgres, Path(name))
        print()
        _print_accepted(target, postgres, Path(name))


def _print_delivered(messages: int, rounds: int, target: str, postgres: PostgresServer, folder: Path) -> None:
    measured: dict[str, list[Delivered]] = {}
    limits: list[float] = []
    for _ in range(rounds):
        limits.append(run_wrk(target, 64, folder))
        for what, module, arguments in (
            ("the embedded queue, pointers", "bench.router", (new_folder(folder), target, messages, "warning")),
            ("jobs on SQLite", "bench.jobs", ("deliver", new_folder(folder), target, messages)),
            ("jobs on PostgreSQL", "bench.jobs", ("deliver", new_folder(folder), target, messages)),
            (
                "procrastinate, a lock per group",
                "bench.procrastinate_jobs",
                (new_database(postgres), target, messages // 10),
            ),
        ):
            url = new_database(postgres) if "PostgreSQL" in what else None
            measured.setdefault(what, []).append(deliver(module, *arguments, url=url))
    embedded = [one.per_second for one in measured["the embedded queue, pointers"]]
    print(f"{'':34} {'delivered/s':>12} {'CPU us/job':>11} {'to embedded':>12} {'to wrk':>7} {'made/s, by 1,000':>17}")
    for what, figures in measured.items():
        to_embedded = statistics.median(one.per_second / base for one, base in zip(figures, embedded, strict=True))
        to_wrk = statistics.median(one.per_second / limit for one, limit in zip(figures, limits, strict=True))
        print(
            f"{what:34} {statistics.median(one.per_second for one in figures):>12,.0f}"
            f" {statistics.median(one.cpu_us for one in figures):>11,.0f} {to_embedded:>12.2f} {to_wrk:>7.3f}"
            f" {statistics.median(one.made_per_second for one in figures):>17,.0f}",
            flush=True,
        )


def deliver(module: str, *arguments: object, url: str | None) -> Delivered:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(url))
    if done.returncode != 0:
        sys.exit(f"{module} failed:\n{done.stderr}")
    read = json.loads(done.stdout.splitlines()[-1])
    jobs = read["messages"]
    return Delivered(
        jobs / read["seconds"],
        read["cpu_s"] / jobs * 1e6,
        read.get("made_per_second", 0.0),
        read.get("server_cpu_s", 0.0) / jobs * 1e6,
    )


def _print_accepted(target: str, postgres: PostgresServer, folder: Path) -> None:
    print(f"{'':34} {'one by one/s':>13} {'CPU us/job':>11} {'by 100/s':>10} {'CPU us/job':>11}")
    job = json.dumps({"code": "bench", "targetUrl": target, "payload": {"total": 12}, "mode": "BLOCK_ON_ERROR"})
    one = job[:-1] + ', "messageGroup": "account:123"}'
    hundred = '{"jobs": [' + ", ".join(f'{job[:-1]}, "messageGroup": "account:{n}"}}' for n in range(100)) + "]}"
    for what, url in (("jobs on SQLite", None), ("jobs on PostgreSQL", new_database(postgres))):
        figures = []
        for path, body, jobs in (("/api/dispatch-jobs", one, 1), ("/api/dispatch-jobs/batch", hundred, 100)):
            with accepting("bench.jobs", folder, target, url) as (address, spent):
                script = folder / "accept.lua"
                script.write_text(POST % {"path": path, "body": body})
                command = [
                    program("wrk"),
                    "-t1",
                    f"-c{ACCEPT_CONNECTIONS}",
                    f"-d{ACCEPT_S}s",
                    "-s",
                    str(script),
                    address,
                ]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            if "Non-2xx" in output:
                sys.exit(f"{what}: not all were accepted:\n{output}")
            requests = int(next(line.split()[0] for line in output.splitlines() if " requests in " in line))
            figures += [requests * jobs / ACCEPT_S, spent["cpu_s"] / (requests * jobs) * 1e6]
        print(
            f"{what:34} {figures[0]:>13,.0f} {figures[1]:>11,.0f} {figures[2]:>10,.0f} {figures[3]:>11,.0f}", flush=True
        )


@contextmanager
def accepting(
    module: str, folder: Path, target: str, url: str | None, *more: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A process that takes what wrk sends and delivers none; its address, and after the block what it spent."""
    command = [sys.executable, "-m", module, "accept", new_folder(folder), target, "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(url))
    assert process.stdout is not None
    spent: dict[str, Any] = {}
    try:
        yield json.loads(process.stdout.readline())["url"], spent
    finally:
        process.send_signal(signal.SIGTERM)
        spent |= json.loads(process.communicate()[0].splitlines()[-1])


def environment(url: str | None) -> dict[str, str]:
    variables = {"FLOWCATALYST_PLATFORM__ENABLED": "true", "FLOWCATALYST_PLATFORM__SECRET_KEY": SECRET_KEY}
    if url is not None:
        variables["FLOWCATALYST_PLATFORM__DATABASE_URL"] = url
    return {**os.environ, **variables}


def new_folder(folder: Path) -> str:
    return tempfile.mkdtemp(dir=folder)


def new_database(postgres: PostgresServer) -> str:
    """A new, empty one."""
    name = f"bench_{next(_numbers)}"

    async def create() -> None:
        connection = await asyncpg.connect(postgres.url)
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(create())
    return postgres.url_for("postgres@", name)


_numbers = iter(range(1, sys.maxsize))


if __name__ == "__main__":
    main()
