"""The one place where tasks are made: each is owned, and one that dies of an error is told about."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger("flowcatalyst.tasks")


class Tasks:
    """Owns tasks until they end. A failed one is logged; it takes nobody else down."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they began

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel what still runs and wait for its end."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task_died", action="task_died", task=task.get_name(), error=repr(error), exc_info=error)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Do the work to its end. A cancellation that comes meanwhile takes effect at the caller's next wait."""
    task = asyncio.get_running_loop().create_task(work)
    interrupted = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            interrupted = True
        except Exception:
            break  # of the work itself: raised below
    if interrupted and (me := asyncio.current_task()) is not None:
        me.cancel()
    return task.result()
