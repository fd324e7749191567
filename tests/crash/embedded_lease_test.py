"""kill -9 of a process that holds leases of the embedded queue."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded import store as embedded_store
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore

ANSWER_WITHIN_S = 20.0

HOLDER = """
import asyncio, sys
from pathlib import Path
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore

async def hold() -> None:
    queue = EmbeddedQueue(EmbeddedStore(Path(sys.argv[1]), SystemClock()), "orders", visibility_s=3600)
    await queue.open()
    deliveries = await queue.receive(int(sys.argv[2]), 0)
    print(*(delivery.body for delivery in deliveries), flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(hold())
"""


@asynccontextmanager
async def holder(path: Path, limit: int) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process that holds leases, and the bodies of what it leased."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(path), str(limit), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            line = await process.stdout.readline()
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[EmbeddedQueue]:
    queue = EmbeddedQueue(EmbeddedStore(path, SystemClock()), "orders")
    await queue.open()
    try:
        yield queue
    finally:
        await queue.close()


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [str(delivery.body) for delivery in deliveries]


def lock_files(path: Path) -> int:
    return len(list(path.parent.glob(f"{path.name}-owner-*.lock")))


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_leases_of_a_killed_process_come_back_at_once_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with opened(path) as queue:
        await queue.publish([Outgoing(body, body[0]) for body in ("a1", "a2", "b1", "b2", "c1")])
    async with holder(path, 2) as (victim, leased_by_victim), holder(path, 2) as (_, leased_by_survivor):
        assert (leased_by_victim, leased_by_survivor) == ("a1 a2", "b1 b2")
        await kill(victim)
        async with opened(path) as queue:
            assert bodies(await queue.receive(10, 0)) == ["c1", "a1", "a2"]  # ready longest first
            assert lock_files(path) == 2  # the survivor's and our own


async def test_an_open_store_notices_a_death_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "REAP_EVERY_S", 0.05)
    path = tmp_path / "queue.db"
    async with opened(path) as queue:
        await queue.publish([Outgoing("a1", "a"), Outgoing("a2", "a")])
        async with holder(path, 1) as (victim, leased):
            assert leased == "a1"
            assert await queue.receive(10, 0) == []
            await kill(victim)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                assert bodies(await queue.receive(10, ANSWER_WITHIN_S)) == ["a1", "a2"]


async def test_processes_that_create_the_same_file_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with AsyncExitStack() as stack:
        started = await asyncio.gather(*(stack.enter_async_context(holder(path, 1)) for _ in range(4)))
        assert [process.returncode for process, _ in started] == [None] * 4
    async with opened(path) as queue:
        await queue.publish([Outgoing("a1")])
        assert bodies(await queue.receive(10, 0)) == ["a1"]
