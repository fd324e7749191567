"""GroupCommit: what several callers want kept at the same time is one unit of work of the store."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.tasks import Tasks

AT_ONCE: Final = 2  # units of work under way: while one waits for the disk, the next one comes together

Item = TypeVar("Item")
Kept = TypeVar("Kept")
_Waiting = tuple[Sequence[Item], int, "asyncio.Future[list[Kept]]"]


class GroupCommit(Generic[Item, Kept]):
    """Nobody waits for company: who comes while nothing is under way goes alone, and under load many go together.

    While the store cannot be reached a unit of work fails for all who shared it; after another error each goes alone.
    """

    def __init__(self, keep: Callable[[Sequence[Item]], Awaitable[list[Kept]]], most: int) -> None:
        """`keep` answers for each item, in their order; `most` weight goes together, unless one caller has more."""
        self._keep = keep
        self._most = most
        self._waiting: deque[_Waiting[Item, Kept]] = deque()
        self._tasks = Tasks()
        self._under_way = 0

    async def keep(self, items: Sequence[Item], weight: int) -> list[Kept]:
        """Durable when it returns. A caller who gives up takes nothing back."""
        answer: asyncio.Future[list[Kept]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, weight, answer))
        if self._under_way < AT_ONCE:
            self._under_way += 1
            self._tasks.spawn(self._work(), "keep together")
        return await answer

    async def close(self) -> None:
        """Whoever still waits is told nothing: it may be kept or not."""
        await self._tasks.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._keep_some()
        finally:
            self._under_way -= 1

    async def _keep_some(self) -> None:
        shared = [self._waiting.popleft()]
        left = self._most - shared[0][1]
        while self._waiting and self._waiting[0][1] <= left:
            left -= self._waiting[0][1]
            shared.append(self._waiting.popleft())
        try:
            await self._answer(shared)
        except asyncio.CancelledError:  # it is closed
            for _, _, answer in (*shared, *self._waiting):
                answer.cancel()
            raise
        except QueueUnavailableError as error:
            _fail(shared, error)
        except Exception as error:
            if len(shared) == 1:
                _fail(shared, error)
            else:  # it may be about what one of them brought
                self._waiting.extendleft(reversed([(items, self._most, answer) for items, _, answer in shared]))

    async def _answer(self, shared: "Sequence[_Waiting[Item, Kept]]") -> None:
        kept = await self._keep([item for items, _, _ in shared for item in items])
        begin = 0
        for items, _, answer in shared:
            if not answer.done():  # else who asked gave up
                answer.set_result(kept[begin : begin + len(items)])
            begin += len(items)


def _fail(shared: "Sequence[_Waiting[Item, Kept]]", error: Exception) -> None:
    for _, _, answer in shared:
        if not answer.done():
            answer.set_exception(error)
