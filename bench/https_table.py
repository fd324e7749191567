"""`python -m bench.https_table`: what a message costs over http, https and HTTP/2, in one run on one nginx worker."""

import argparse
import importlib.util
import statistics
import tempfile
from pathlib import Path

from bench.measure import Figure, median, run_child
from bench.servers import nginx_sinks, require_tools

MESSAGES = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    require_tools()
    print_table(options.messages, options.rounds)


def print_table(messages: int, rounds: int) -> None:
    """One round is all of them in turn; ratios are taken within a round, where all met the same machine."""
    with tempfile.TemporaryDirectory() as name, nginx_sinks(Path(name)) as (http, https, ca_file):
        kinds = {"http": (http, "HTTP_1_1"), "https, our client": (https, "HTTP_1_1")}
        if importlib.util.find_spec("pyreqwest") is not None:
            kinds["https, HTTP/2 (pyreqwest)"] = (https, "HTTP_2")
        figures: dict[str, list[Figure]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, (target, version) in kinds.items():
                figures[kind].append(_run(target, messages, version, ca_file))
    print(f"{messages} messages over TLS to one nginx worker, log level warning; median of {rounds} rounds")
    print(f"{'':34} {'messages/s':>11} {'CPU us/message':>15} {'CPU to http':>12}")
    for kind, runs in figures.items():
        middle = median(runs)
        ratio = statistics.median(run.cpu_us / plain.cpu_us for run, plain in zip(runs, figures["http"], strict=True))
        print(f"{kind:34} {middle.per_second:>11,.0f} {middle.cpu_us:>15.0f} {ratio:>12.2f}")


def _run(target: str, messages: int, version: str, ca_file: Path) -> Figure:
    settings = {"mediator__http__version": version, "mediator__http__ca_file": str(ca_file)}
    with tempfile.TemporaryDirectory() as folder:
        return run_child("bench.router", folder, target, messages, "warning", **settings)


if __name__ == "__main__":
    main()
