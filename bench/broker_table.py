"""`python -m bench.broker_table`: the router on each broker, one after the other, with what each message costs."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.brokers import KINDS, places

from bench.servers import nginx_sink, require_tools

MESSAGES = 5_000
ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args()
    require_tools()
    print_table(options.messages)


def print_table(messages: int) -> None:
    print(f"{messages} messages, 64 slots, one nginx sink; brokers on this machine too")
    print("plain loop: the same queue and client with no router and no HTTP: receive, ack, receive")
    print(f"{'':20} {'plain loop/s':>13} {'delivered/s':>12} {'ratio':>6} {'CPU us/message':>15} {'calls/message':>14}")
    with tempfile.TemporaryDirectory() as name, nginx_sink(Path(name)) as target, places(Path(name)) as brokers:
        for kind in KINDS:
            place = brokers.new(kind)
            command = [sys.executable, "-m", "bench.broker", place.folder, target, messages, place.uri]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
            if done.returncode != 0:
                sys.exit(f"{kind.name} failed:\n{done.stderr}")
            read = json.loads(done.stdout.splitlines()[-1])
            delivered, cpu_us = messages / read["seconds"], read["cpu_s"] / messages * 1e6
            plain = read["plain_per_second"]
            print(
                f"{kind.name:20} {plain:>13,.0f} {delivered:>12,.0f} {delivered / plain:>6.2f} {cpu_us:>15,.0f}"
                f" {read['calls'] / messages:>14.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
