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
    print("limit: the same queue, received and acked by the same client with nothing behind it")
    print(f"{'':20} {'limit/s':>10} {'delivered/s':>12} {'of limit':>9} {'CPU us/message':>15} {'calls/message':>14}")
    with tempfile.TemporaryDirectory() as name, nginx_sink(Path(name)) as target, places(Path(name)) as brokers:
        for kind in KINDS:
            place = brokers.new(kind)
            command = [sys.executable, "-m", "bench.broker", place.folder, target, messages, place.uri]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
            if done.returncode != 0:
                sys.exit(f"{kind.name} failed:\n{done.stderr}")
            read = json.loads(done.stdout.splitlines()[-1])
            delivered, cpu_us = messages / read["seconds"], read["cpu_s"] / messages * 1e6
            limit = read["limit_per_second"]
            print(
                f"{kind.name:20} {limit:>10,.0f} {delivered:>12,.0f} {delivered / limit:>9.2f} {cpu_us:>15,.0f}"
                f" {read['calls'] / messages:>14.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
