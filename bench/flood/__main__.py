"""Each attack by itself, then all of them at once, beside a steady load of deliveries."""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from bench.flood.attacks import ATTACKS, PASSWORDS_ASKED
from bench.servers import nginx_sink

Second = dict[str, Any]


class Router:
    """The router under attack, and what it says every second."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.seconds: list[Second] = []

    @property
    def reader(self) -> asyncio.StreamReader:
        assert self.process.stdout is not None
        return self.process.stdout

    async def watch(self) -> None:
        while line := await self.reader.readline():
            self.seconds.append(json.loads(line))


async def probe(port: int, seconds: float) -> list[float]:
    """How long an honest client waits for /health/live, each time on a new connection; 5 s: in vain."""
    waits, end = [], time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=5)
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            url = f"http://127.0.0.1:{port}/health/live"
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            waits.append(5.0)
        else:
            waits.append(time.monotonic() - began)
        await asyncio.sleep(0.2)
    return waits


async def phase(options: argparse.Namespace, name: str, kinds: list[str], seconds: float) -> None:
    """A router of its own for each attack, so that none is measured with what another one left behind."""
    with tempfile.TemporaryDirectory() as folder, nginx_sink(Path(folder)) as target:
        # The router has a processor to itself, so that it is not measured what attackers on the same one take from it.
        first, *others = sorted(os.sched_getaffinity(0))
        alone, elsewhere = (["taskset", "-c", str(first)], [first, *others][1:]) if others else ([], [first])
        limit = ["sh", "-c", f'ulimit -n {options.files}; exec "$@"', "sh"] if options.files else []
        mode = "basic" if set(kinds) & PASSWORDS_ASKED and len(kinds) == 1 else "api_key"
        command = [*alone, *limit, sys.executable, "-m", "bench.flood.router", folder, target, str(options.rate), mode]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        router = Router(process, json.loads(await process.stdout.readline())["port"])
        watching = asyncio.ensure_future(router.watch())
        attack = [sys.executable, "-m", "bench.flood.attacks", str(router.port), str(options.connections), *kinds]
        attacker = await asyncio.create_subprocess_exec(*attack)
        os.sched_setaffinity(attacker.pid, elsewhere)
        try:
            await asyncio.sleep(2)
            router.seconds.clear()
            waits = await probe(router.port, seconds)
            seen = list(router.seconds)
        finally:
            with suppress(ProcessLookupError):  # without an attack it has ended
                attacker.kill()
            await attacker.wait()
            process.kill()
            await process.wait()
            watching.cancel()
    if not seen:
        print(f"{name:20} the loop stood still all the time", flush=True)
        return
    rate = sum(second["delivered"] for second in seen) / len(seen)
    if not kinds and not rate:
        sys.exit("The router delivers nothing although nobody attacks it: these figures would say nothing.")
    print(
        f"{name:20} {rate:>9,.0f} {min(second['delivered'] for second in seen):>9,.0f}"
        f" {max(second['stall_ms'] for second in seen):>9.1f} {max(second['net_ms'] for second in seen):>9.1f}"
        f" {max(second['busy_ms'] for second in seen):>9.1f}"
        f" {statistics.median(waits) * 1000:>9.0f} {max(waits) * 1000:>9.0f}"
        f" {max(second['files'] for second in seen):>7} {seen[-1]['rss_mb']:>7} {seen[-1]['failed']:>7}",
        flush=True,
    )


async def main(options: argparse.Namespace) -> None:
    print(f"{options.connections} connections of each kind, {options.rate} messages/s to deliver\n")
    print(f"{'':30} {'worst':>9} {'loop stall in ms:':>29} {'probe in ms:':>19}")
    heads = ("delivered", "second", "clock", "net", "CPU", "median", "longest")
    print(f"{'':20} {' '.join(f'{head:>9}' for head in heads)} {'files':>7} {'MB':>7} {'failed':>7}")
    await phase(options, "(nobody)", [], options.seconds)
    for kind in options.kinds or ATTACKS:
        await phase(options, kind, [kind], options.seconds)
    if not options.kinds:
        await phase(options, "all at once", list(ATTACKS), 3 * options.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.flood", description=__doc__)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--files", type=int, help="limit of open files of the router")
    parser.add_argument("kinds", nargs="*")
    asyncio.run(main(parser.parse_args()))
