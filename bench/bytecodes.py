"""`python -m bench.bytecodes [--code PATH]`: how many bytecodes Python executes per message, and in which functions.

Other processes on the machine change it far less than they change times, so it tells two checkouts apart where those do
not. What runs by the clock counts more in a run that takes longer: compare function by function on a busy machine.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT = Path(__file__).parent.parent
FEW, MANY = 2000, 6000  # what is done once, at the start, is in both


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bytecodes", description=__doc__)
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout to measure; this one by default")
    parser.add_argument("--top", type=int, default=30, help="functions to show")
    options = parser.parse_args()
    few, many = asyncio.run(_both(options.code.resolve()))
    each = Counter({name: (many[name] - few[name]) / (MANY - FEW) for name in many})
    print(f"{sum(each.values()):,.0f} bytecodes per message")
    for name, count in each.most_common(options.top):
        print(f"{count:8.1f}  {name}")


async def _both(code: Path) -> list[Counter[str]]:
    from bench.servers import slow_endpoint

    async with slow_endpoint(0.0) as target:
        return [await _run(code, target, messages) for messages in (FEW, MANY)]


async def _run(code: Path, target: str, messages: int) -> Counter[str]:
    """In a process of its own, with the router and the workload of that checkout."""
    with tempfile.TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            __file__,
            folder,
            target,
            str(messages),
            "info",
            cwd=code,
            env={**os.environ, "PYTHONPATH": f"{code / 'src'}:{code}", CHILD: "1"},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
    if process.returncode != 0:
        sys.exit("the router could not be measured")
    return Counter(json.loads(said.splitlines()[-1]))


CHILD: Final = "BENCH_COUNTS_BYTECODES"
_counts: Counter[CodeType] = Counter()


def _count(frame: FrameType, event: str, argument: object) -> Any:
    if event == "opcode":
        _counts[frame.f_code] += 1
    return _count


def _enter(frame: FrameType, event: str, argument: object) -> Any:
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return _count


def count_a_drain() -> None:
    """Play the workload that the command line says, and print what each function executed while it was delivered."""
    router: Any = import_module("bench.router")
    drain = router.drain

    async def counted(*arguments: Any) -> Any:
        threading.settrace(_enter)
        sys.settrace(_enter)
        try:
            return await drain(*arguments)
        finally:
            sys.settrace(None)
            threading.settrace(None)

    router.drain = counted
    router.main()
    by_name: Counter[str] = Counter()
    for code, count in _counts.items():
        by_name[f"{Path(code.co_filename).name}:{code.co_qualname}"] += count
    print(json.dumps(by_name))


if __name__ == "__main__":
    if CHILD in os.environ:
        count_a_drain()
    else:
        main()
