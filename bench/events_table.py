"""`python -m bench.events_table`: events to signed webhooks, on SQLite and on PostgreSQL.

Delivered: webhooks of the workload, each subscription's groups in strict order, each signed with the secret of its
subscription, from the store to the sink (nginx, which answers at once), until every attempt and every end is durable. A
fan-out of 10 has ten subscriptions that want every event. Accepted: events in batches of 100, with their jobs, straight
into the intake of the same process (`events/s`), and over HTTP by wrk with 16 connections, at a fan-out of 1. Whoever
wants to compare another sender: 64 requests at a time, bodies of 240 bytes, one process, a sink on the same machine;
docs/performance.md tells the rest.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers import program
from tests.servers.postgres import PostgresServer, postgres_server

from bench.jobs_table import ACCEPT_CONNECTIONS, ACCEPT_S, POST, ROOT, accepting, environment, new_database, new_folder
from bench.servers import nginx_sink, require_tools, run_wrk

MESSAGES = 20_000
FAN_OUTS = (1, 10, 100)


@dataclass(frozen=True, slots=True)
class Measured:
    per_second: float
    cpu_us: float
    events_per_second: float
    event_cpu_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="webhooks")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    require_tools()
    print_table(options.messages, options.rounds)


def print_table(messages: int, rounds: int) -> None:
    print(f"{messages} signed webhooks of events, 1,000 groups in strict order, 64 slots; median of {rounds} rounds")
    with (
        tempfile.TemporaryDirectory() as name,
        nginx_sink(Path(name)) as target,
        postgres_server(Path(name) / "postgres") as postgres,
    ):
        _print_delivered(messages, rounds, target, postgres, Path(name))
        print()
        _print_accepted(target, postgres, Path(name))


def _print_delivered(messages: int, rounds: int, target: str, postgres: PostgresServer, folder: Path) -> None:
    measured: dict[str, list[Measured]] = {}
    limits: list[float] = []
    for _ in range(rounds):
        limits.append(run_wrk(target, 64, folder))
        for store in ("SQLite", "PostgreSQL"):
            for fan_out in FAN_OUTS:
                url = new_database(postgres) if store == "PostgreSQL" else None
                figures = _deliver(new_folder(folder), target, messages, fan_out, url)
                measured.setdefault(f"{store}, fan-out {fan_out}", []).append(figures)
    print(f"{'':26} {'webhooks/s':>11} {'CPU us each':>12} {'to wrk':>7} {'events/s':>10} {'CPU us each':>12}")
    for what, rounds_of in measured.items():
        to_wrk = statistics.median(one.per_second / limit for one, limit in zip(rounds_of, limits, strict=True))
        print(
            f"{what:26} {statistics.median(one.per_second for one in rounds_of):>11,.0f}"
            f" {statistics.median(one.cpu_us for one in rounds_of):>12,.0f} {to_wrk:>7.3f}"
            f" {statistics.median(one.events_per_second for one in rounds_of):>10,.0f}"
            f" {statistics.median(one.event_cpu_us for one in rounds_of):>12,.0f}",
            flush=True,
        )


def _deliver(folder: str, target: str, messages: int, fan_out: int, url: str | None) -> Measured:
    command = [sys.executable, "-m", "bench.events", "deliver", folder, target, str(messages), str(fan_out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(url))
    if done.returncode != 0:
        sys.exit(f"bench.events failed:\n{done.stderr}")
    read = json.loads(done.stdout.splitlines()[-1])
    webhooks = read["messages"]
    return Measured(
        webhooks / read["seconds"], read["cpu_s"] / webhooks * 1e6, read["made_per_second"], read["made_cpu_us"]
    )


def _print_accepted(target: str, postgres: PostgresServer, folder: Path) -> None:
    print(f"{'accepted over HTTP':26} {'one by one/s':>13} {'CPU us each':>12} {'by 100/s':>10} {'CPU us each':>12}")
    event = '{"type": "order.created", "source": "bench", "data": {"total": 12}, "messageGroup": "account:%d"}'
    hundred = '{"events": [' + ", ".join(event % number for number in range(100)) + "]}"
    for store in ("SQLite", "PostgreSQL"):
        figures: list[float] = []
        for path, body, events in (("/api/events", event % 123, 1), ("/api/events/batch", hundred, 100)):
            url = new_database(postgres) if store == "PostgreSQL" else None
            with accepting("bench.events", folder, target, url, "1") as (address, spent):
                script = folder / "accept.lua"
                script.write_text(POST % {"path": path, "body": body})
                options = ["-t1", f"-c{ACCEPT_CONNECTIONS}", f"-d{ACCEPT_S}s", "-s", str(script), address]
                command = [program("wrk"), *options]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            if "Non-2xx" in output:
                sys.exit(f"{store}: not all were accepted:\n{output}")
            requests = int(next(line.split()[0] for line in output.splitlines() if " requests in " in line))
            figures += [requests * events / ACCEPT_S, spent["cpu_s"] / (requests * events) * 1e6]
        print(f"{store:26} {figures[0]:>13,.0f} {figures[1]:>12,.0f} {figures[2]:>10,.0f} {figures[3]:>12,.0f}")


if __name__ == "__main__":
    main()
