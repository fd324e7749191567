"""`python -m bench.scenarios [NAME ...] [--code PATH]`: plays each scenario once and prints what it measured."""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.servers import ServerMissingError

from bench.scenarios import brokers, endpoints, metrics, names, pools
from bench.scenarios.stage import Figure, Stage, stage

ROOT = Path(__file__).parent.parent.parent
SCENARIOS: dict[str, Callable[[Stage], Awaitable[list[Figure]]]] = {
    "B1-idle-pool": pools.idle_pool,
    "B1-burst": pools.burst,
    "B1-burst-beside": pools.burst_beside,
    "B2-failing-groups": pools.failing_groups,
    "B3-silent-endpoint": endpoints.silent_endpoint,
    "B3-falls-silent": endpoints.falls_silent,
    "B4-hanging-probes": endpoints.hanging_probes,
    "B5-jetstream": brokers.jetstream,
    "B5-activemq": brokers.activemq,
    "B6-two-dead-names": names.two_dead_names,
    "B6-ten-dead-names": names.ten_dead_names,
    "B7-unique-paths": metrics.unique_paths,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}, or their beginnings")
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout to measure; this one by default")
    options = parser.parse_args()
    chosen = [name for name in SCENARIOS if not options.names or name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"the scenarios are: {', '.join(SCENARIOS)}")
    code = options.code.resolve()
    print(f"{code} at {_commit(code)}, Python {sys.version.split()[0]}\n")
    print(f"{'scenario':20} {'what is measured':56} figure")
    for name in chosen:
        start = time.monotonic()
        figures = asyncio.run(_play(name, code))
        print(f"{name:20} {(SCENARIOS[name].__doc__ or '').splitlines()[0]} [{time.monotonic() - start:.0f} s]")
        for figure in figures:
            print(f"{'':20} {figure.what:56} {figure.value}", flush=True)


async def _play(name: str, code: Path) -> list[Figure]:
    try:
        async with stage(code) as scene:
            return await SCENARIOS[name](scene)
    except ServerMissingError as error:
        return [Figure("not measured", str(error))]


def _commit(code: Path) -> str:
    said = subprocess.run(["git", "-C", code, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return said.stdout.strip() or "no commit"


if __name__ == "__main__":
    main()
