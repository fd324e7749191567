"""`make bench`: router, limit (wrk) and a naive router, in one run against one nginx; then https, brokers, jobs and
events."""

import argparse
import statistics
import tempfile
from pathlib import Path

from bench import broker_table, events_table, group_table, https_table, jobs_table
from bench.measure import Figure, median, run_child
from bench.servers import nginx_sink, require_tools, run_wrk
from bench.workload import Workload


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--messages", type=int, default=Workload().messages)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-table", action="store_true", help="leave out the 100-message table (15 s)")
    parser.add_argument("--skip-brokers", action="store_true", help="leave out SQS, JetStream and ActiveMQ")
    parser.add_argument("--skip-jobs", action="store_true", help="leave out events and jobs on SQLite and PostgreSQL")
    options = parser.parse_args()
    require_tools()
    compare(options.messages, options.rounds)
    print()
    https_table.print_table(https_table.MESSAGES, options.rounds)
    if not options.skip_table:
        print()
        group_table.print_table()
    if not options.skip_brokers:
        print()
        broker_table.print_table(broker_table.MESSAGES)
    if not options.skip_jobs:
        print()
        jobs_table.print_table(jobs_table.MESSAGES, options.rounds)
        print()
        events_table.print_table(events_table.MESSAGES, options.rounds)


def compare(messages: int, rounds: int) -> None:
    """One round is wrk, naive, router, router: interleaved, so that a noisy minute hits all of them."""
    wrk: list[float] = []
    naive: list[Figure] = []
    router: list[Figure] = []
    quiet: list[Figure] = []
    work = Workload(messages=messages)
    print(
        f"{messages} messages, {work.groups} groups (Zipf {work.zipf}), {work.slots} slots; median of {rounds} rounds"
    )
    with tempfile.TemporaryDirectory() as name, nginx_sink(Path(name)) as target:
        for number in range(rounds):
            wrk.append(run_wrk(target, work.slots, Path(name)))
            naive.append(_run("bench.naive", target, messages))
            router.append(_run("bench.router", target, messages, "info"))
            quiet.append(_run("bench.router", target, messages, "warning"))
            print(
                f"  round {number + 1}: wrk {wrk[-1]:,.0f}/s   naive {naive[-1].per_second:,.0f}/s"
                f"   router {router[-1].per_second:,.0f}/s",
                flush=True,
            )
    _print_table(statistics.median(wrk), median(naive), median(router), median(quiet))
    # Ratios are taken within a round, where all three met the same machine, and only then the median.
    to_naive = statistics.median(
        ours.per_second / theirs.per_second for ours, theirs in zip(router, naive, strict=True)
    )
    to_wrk = statistics.median(ours.per_second / limit for ours, limit in zip(router, wrk, strict=True))
    cpu = statistics.median(ours.cpu_us / theirs.cpu_us for ours, theirs in zip(router, naive, strict=True))
    print(f"\nFlowCatalyst: {to_naive:.2f}x the naive router with {cpu:.2f} of its CPU, {to_wrk:.2f} of wrk.")


def _run(module: str, target: str, messages: int, *options: str) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        return run_child(module, folder, target, messages, *options)


def _print_table(limit: float, naive: Figure, router: Figure, quiet: Figure) -> None:
    print(f"\n{'':34} {'messages/s':>11} {'CPU us/message':>15}")
    print(f"{'wrk, the limit of the sink':34} {limit:>11,.0f}")
    for name, figure in (
        ("naive asyncio+aiohttp+SQLite router", naive),
        ("FlowCatalyst, a log line per attempt", router),
        ("FlowCatalyst, log level warning", quiet),
    ):
        print(f"{name:34} {figure.per_second:>11,.0f} {figure.cpu_us:>15.0f}")


if __name__ == "__main__":
    main()
