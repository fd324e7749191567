"""`python -m bench.jobs_at_size`: what a job costs in an empty store, behind many that wait, and beside many finished.

The same jobs are delivered each time; only what else the store holds differs. Ratios are to the empty store.
"""

import argparse
import tempfile
from pathlib import Path

from tests.servers.postgres import PostgresServer, postgres_server

from bench.jobs_table import MESSAGES, Delivered, deliver, new_database, new_folder
from bench.servers import nginx_sink, require_tools

WAITING, FINISHED = 1_000_000, 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--finished", type=int, default=FINISHED)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], action="append")
    options = parser.parse_args()
    require_tools()
    with (
        tempfile.TemporaryDirectory() as name,
        nginx_sink(Path(name)) as target,
        postgres_server(Path(name) / "postgres") as postgres,
    ):
        print(f"{'':46} {'delivered/s':>12} {'CPU us/job':>11} {'ratio':>6}")
        for store in options.store or ["sqlite", "postgresql"]:
            base = 0.0
            for what, waiting, finished in (
                ("empty", 0, 0),
                (f"{options.waiting:,} waiting", options.waiting, 0),
                (f"{options.finished:,} finished", 0, options.finished),
            ):
                figure = _measure(store, postgres, Path(name), target, options.messages, waiting, finished)
                base = base or figure.cpu_us
                name_of_row = f"{store}, {what}"
                row = (
                    f"{name_of_row:46} {figure.per_second:>12,.0f} {figure.cpu_us:>11,.0f} {figure.cpu_us / base:>6.2f}"
                )
                print(row, flush=True)


def _measure(
    store: str, postgres: PostgresServer, folder: Path, target: str, messages: int, waiting: int, finished: int
) -> Delivered:
    url = new_database(postgres) if store == "postgresql" else None
    return deliver("bench.jobs", "deliver", new_folder(folder), target, messages, waiting, finished, url=url)


if __name__ == "__main__":
    main()
