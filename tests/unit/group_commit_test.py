"""What is kept together: nobody waits for company, and nobody fails for what another brought."""

import asyncio
from collections.abc import Sequence

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.store.group_commit import AT_ONCE, GroupCommit


class Disk:
    """Answers each unit of work when it is told to."""

    def __init__(self) -> None:
        self.units: list[tuple[list[str], asyncio.Future[None]]] = []
        self.refuses = ""

    async def keep(self, items: Sequence[str]) -> list[str]:
        done = asyncio.get_running_loop().create_future()
        self.units.append((list(items), done))
        await done
        if self.refuses in items:
            raise ValueError(self.refuses)
        return [f"kept {item}" for item in items]

    @property
    def asked(self) -> list[list[str]]:
        return [items for items, _ in self.units]

    async def finish(self, error: Exception | None = None) -> None:
        """All that is under way ends, and all that follows from it."""
        while under_way := [done for _, done in self.units if not done.done()]:
            for done in under_way:
                done.set_exception(error) if error else done.set_result(None)
            await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def asks(together: GroupCommit[str, str], *all_items: str) -> list[asyncio.Task[list[str]]]:
    """A caller each, one after the other, whose items are letters."""
    callers = []
    for items in all_items:
        callers.append(asyncio.create_task(together.keep(list(items), len(items))))
        await settle()
    return callers


async def test_the_first_goes_alone_and_those_who_come_meanwhile_go_together() -> None:
    disk = Disk()
    together = GroupCommit(disk.keep, most=5)
    callers = await asks(together, "a", "b", "cd", "ef", "g", "h")
    assert disk.asked == [["a"], ["b"]]
    assert AT_ONCE == 2
    await disk.finish()
    assert disk.asked[2:] == [["c", "d", "e", "f", "g"], ["h"]]
    assert [await caller for caller in callers] == [
        [f"kept {letter}" for letter in items] for items in ("a", "b", "cd", "ef", "g", "h")
    ]


async def test_who_has_more_than_goes_together_goes_alone() -> None:
    disk = Disk()
    callers = await asks(GroupCommit(disk.keep, most=3), "a", "b", "cdefg", "h")
    await disk.finish()
    assert disk.asked[2:] == [["c", "d", "e", "f", "g"], ["h"]]
    assert len(await callers[2]) == 5


async def test_what_one_brought_fails_for_nobody_else() -> None:
    disk = Disk()
    disk.refuses = "d"
    callers = await asks(GroupCommit(disk.keep, most=5), "a", "b", "c", "d", "e")
    await disk.finish()
    assert [await callers[n] for n in (2, 4)] == [["kept c"], ["kept e"]]
    with pytest.raises(ValueError, match="d"):
        await callers[3]


async def test_a_store_that_is_away_is_asked_once_for_all() -> None:
    disk = Disk()
    callers = await asks(GroupCommit(disk.keep, most=5), "a", "b", "c", "d")
    await disk.finish(QueueUnavailableError("away"))
    for caller in callers:
        with pytest.raises(QueueUnavailableError, match="away"):
            await caller
    assert disk.asked == [["a"], ["b"], ["c", "d"]]


async def test_a_caller_who_gives_up_takes_nothing_from_the_others() -> None:
    disk = Disk()
    together = GroupCommit(disk.keep, most=5)
    callers = await asks(together, "a", "b", "c", "d")
    callers[2].cancel()
    await disk.finish()
    assert await callers[3] == ["kept d"]
    assert disk.asked[2] == ["c", "d"]
    later = await asks(together, "e")
    await disk.finish()
    assert await later[0] == ["kept e"]


async def test_who_waits_when_it_closes_is_told() -> None:
    disk = Disk()
    together = GroupCommit(disk.keep, most=5)
    callers = await asks(together, "a", "b", "c")
    await together.close()
    for caller in callers:
        with pytest.raises(asyncio.CancelledError):
            await caller
