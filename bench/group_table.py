"""A table of expectations for real: 100 messages, 10 slots, an endpoint that takes 100 ms."""

import tempfile
from pathlib import Path

import uvloop

from bench.router import drain, seed, settings
from bench.servers import slow_endpoint
from flowcatalyst.app.router import App
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import MessagePointer, encode_pointer

EXPECTED_S = {1: 10.0, 5: 2.0, 10: 1.0, 100: 1.0}


async def measure(groups: int, folder: Path) -> float:
    async with slow_endpoint(0.1) as target:
        config = settings(folder, slots=10)
        await seed(App(config), [_message(number, f"g{number % groups}", target) for number in range(100)])
        return (await drain(App(config), 100)).seconds


def _message(number: int, group: str, target: str) -> tuple[str, str, str]:
    pointer = MessagePointer(id=f"m{number}", mediation_target=target, message_group_id=group)
    return pointer.id, group, encode_pointer(pointer).decode()


def print_table() -> None:
    configure_logs("warning", "json")
    print("100 messages, 10 slots, 100 ms endpoint")
    print(f"{'groups':>8} {'ideal s':>8} {'measured s':>11}")
    for groups, expected in EXPECTED_S.items():
        with tempfile.TemporaryDirectory() as folder:
            seconds = uvloop.run(measure(groups, Path(folder)))
        print(f"{groups:>8} {expected:>8.1f} {seconds:>11.2f}")
