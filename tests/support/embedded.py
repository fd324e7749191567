"""What the tests of the embedded queue share."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.support.clocks import SetClock


@asynccontextmanager
async def opened(path: Path, clock: SetClock, name: str = "orders") -> AsyncIterator[EmbeddedQueue]:
    """A queue with a store of its own: on a file that is open already it stands for another process."""
    store = EmbeddedStore(path, clock)
    queue = EmbeddedQueue(store, name)
    await queue.open()
    try:
        yield queue
    finally:
        await store.close()


async def another(store: EmbeddedStore, name: str) -> EmbeddedQueue:
    """One more open queue of a store."""
    queue = EmbeddedQueue(store, name)
    await queue.open()
    return queue


def grouped(*bodies: str) -> list[Outgoing]:
    """Messages whose group is the first character of their body."""
    return [Outgoing(body, body[0]) for body in bodies]


async def take(queue: EmbeddedQueue, limit: int = 256) -> list[Delivery]:
    """What can be had without waiting."""
    return await queue.receive(limit, 0)


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [str(delivery.body) for delivery in deliveries]


async def instructions(queue: EmbeddedQueue, job: Callable[[sqlite3.Connection], Any]) -> int:
    """Virtual machine instructions of a job: the work done, whatever the machine is busy with."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    def counted(connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(tick, 1)
        job(connection)
        connection.set_progress_handler(None, 1)

    await queue.store.writer.run(counted)
    return count
