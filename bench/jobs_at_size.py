"""`python -m bench.jobs_at_size`: what a job costs in an empty store, behind many that wait, and beside many finished.

The same jobs are delivered each time; only what else the store holds differs. What waits is not delivered: most of it
is for a pool that is paused, half of that in one group, and a tenth is in held groups of the pool that is at work. One
round measures a store three times, one after the other; ratios are to the empty store of the same round, those of
processor time for the router and PostgreSQL together.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.servers.postgres import PostgresServer, postgres_server

from bench.jobs_table import MESSAGES, Delivered, deliver, new_database, new_folder
from bench.servers import nginx_sink, require_tools

WAITING, FINISHED = 1_000_000, 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="jobs that are delivered and measured")
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--finished", type=int, default=FINISHED)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], action="append")
    options = parser.parse_args()
    require_tools()
    sizes = {
        "empty": (0, 0),
        f"{options.waiting:,} waiting": (options.waiting, 0),
        f"{options.finished:,} finished": (0, options.finished),
    }
    print(f"{options.messages} jobs; median of {options.rounds} rounds, with the least and the most of the ratios")
    print(f"{'':34} {'delivered/s':>12} {'to empty':>18} {'CPU us/job':>11} {'PostgreSQL':>11} {'to empty':>18}")
    for store in options.store or ["sqlite", "postgresql"]:
        rounds = [_round(store, options.messages, sizes.values()) for _ in range(options.rounds)]
        for number, what in enumerate(sizes):
            print(_row(f"{store}, {what}", number, rounds), flush=True)


def _round(store: str, messages: int, sizes: Iterable[tuple[int, int]]) -> list[Delivered]:
    """With servers and files of its own, so that nothing of the round before is in its way."""
    with (
        tempfile.TemporaryDirectory() as name,
        nginx_sink(Path(name)) as target,
        postgres_server(Path(name) / "postgres") as postgres,
    ):
        return [_measure(store, postgres, Path(name), target, messages, *size) for size in sizes]


def _row(what: str, number: int, rounds: Sequence[Sequence[Delivered]]) -> str:
    figures = [one[number] for one in rounds]
    speeds = [one[number].per_second / one[0].per_second for one in rounds]
    costs = [_cpu_us(one[number]) / _cpu_us(one[0]) for one in rounds]
    return (
        f"{what:34} {statistics.median(one.per_second for one in figures):>12,.0f} {_spread(speeds):>18}"
        f" {statistics.median(one.cpu_us for one in figures):>11,.0f}"
        f" {statistics.median(one.server_cpu_us for one in figures):>11,.0f} {_spread(costs):>18}"
    )


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _cpu_us(figure: Delivered) -> float:
    return figure.cpu_us + figure.server_cpu_us


def _measure(
    store: str, postgres: PostgresServer, folder: Path, target: str, messages: int, waiting: int, finished: int
) -> Delivered:
    url, server = (new_database(postgres), postgres.pid) if store == "postgresql" else (None, 0)
    return deliver("bench.jobs", "deliver", new_folder(folder), target, messages, waiting, finished, server, url=url)


if __name__ == "__main__":
    main()
