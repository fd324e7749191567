"""What people paused and gave up is in a file that processes of one machine may share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from flowcatalyst.control.pause_store import PauseStore
from flowcatalyst.core.errors import StorageError
from flowcatalyst.router.pauses import Pause, PauseKind, Pauses
from flowcatalyst.router.skips import Skips

POOL = PauseKind.POOL
ANN = Pause("ann", 1.0)


class Process:
    """One that has the file open."""

    def __init__(self, folder: Path) -> None:
        self.pauses, self.skips = Pauses(), Skips()
        self.store = PauseStore(folder / "pauses.db", self.pauses, self.skips)

    async def pause(self, code: str) -> None:
        await self.store.put(POOL, code, self.pauses.add(POOL, code, ANN))

    async def resume(self, code: str) -> None:
        self.pauses.remove(POOL, code)
        await self.store.remove(POOL, code)

    async def set_writable(self, *, writable: bool) -> None:
        pragma = f"PRAGMA query_only = {int(not writable)}"
        await self.store.writer.read_in_turn(lambda connection: connection.execute(pragma).fetchall())


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    async with AsyncExitStack() as stack:
        processes = Process(tmp_path), Process(tmp_path)
        for one in processes:
            await one.store.open()
            stack.push_async_callback(one.store.close)
        yield processes


async def test_a_process_that_takes_over_knows_what_another_one_was_told(two: tuple[Process, Process]) -> None:
    first, second = two
    await first.pause("A")
    await first.store.put_skip("b-1", "skipped by ann")
    await second.store.refresh()
    assert second.pauses.pools == {"A": ANN}
    assert second.pauses.gates_closed
    assert second.skips.find("b-1") == "skipped by ann"


async def test_what_another_process_ended_is_not_in_force_when_one_takes_over(two: tuple[Process, Process]) -> None:
    first, second = two
    await first.pause("A")
    await first.store.put_skip("b-1", "skipped by ann")
    await second.store.refresh()
    await first.resume("A")
    first.skips.on_over("b-1")
    await first.pause("B")
    await second.store.refresh()
    assert second.pauses.pools == {"B": ANN}
    assert not second.skips


async def test_what_could_not_be_written_stays_in_force(two: tuple[Process, Process]) -> None:
    _, process = two
    await process.pause("A")
    await process.set_writable(writable=False)
    with pytest.raises(StorageError):
        await process.pause("B")
    with pytest.raises(StorageError):
        await process.resume("A")
    process.skips.add("b-1", "skipped by ann")
    with pytest.raises(StorageError):
        await process.store.put_skip("b-1", "skipped by ann")
    await process.set_writable(writable=True)
    await process.store.refresh()
    assert process.pauses.pools == {"B": ANN}
    assert process.skips.find("b-1")
