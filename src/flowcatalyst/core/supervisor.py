"""Supervisor: keeps tasks running that have to run as long as their owner does, and tells of those that died.

Such a task (a poll loop, a settler, a watcher, config sync, the standby loop) handles what it expects. One that dies of
anything else died of a bug: it is reported and started again, and the router is DEGRADED until the new run has lasted.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import plain
from flowcatalyst.core.message import Severity
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningSink

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
RECOVERED_S: Final = 60.0  # longer than any pause: a task that dies again and again never counts as recovered

log = structlog.get_logger("flowcatalyst.supervisor")


@dataclass(slots=True, frozen=True)
class Death:
    """The latest of one task."""

    task: str
    error: str
    at: float  # monotonic


class Supervisor:
    """Knows which tasks died a short while ago."""

    def __init__(self, clock: Clock, warnings: WarningSink) -> None:
        self._clock = clock
        self._warnings = warnings
        self._deaths: dict[str, Death] = {}

    def spawn(self, tasks: Tasks, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """A task that does the work until it returns or is cancelled, with a new start after each death."""
        return tasks.spawn(self._keep_up(name, work), name)

    async def survives(self, name: str, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work; whether it came to its end. Whatever it raises is a death of task `name`, and ends here."""
        try:
            await work
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._note_death(name, error)  # not meant for us: a library let it slip through
        except Exception as error:
            self._note_death(name, error)
        else:
            return True
        return False

    def recent_deaths(self) -> list[Death]:
        """Those after which the task has not run for a while yet."""
        now = self._clock.monotonic()
        self._deaths = {name: death for name, death in self._deaths.items() if now - death.at < RECOVERED_S}
        return list(self._deaths.values())

    async def _keep_up(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause_s, began_at = 0.0, self._clock.monotonic()
        while not await self.survives(name, work()):
            lasted = self._clock.monotonic() - began_at >= RECOVERED_S
            pause_s = FIRST_PAUSE_S if lasted else min(max(pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
            began_at = self._clock.monotonic()

    def _note_death(self, name: str, error: BaseException) -> None:
        self._deaths[name] = Death(name, plain(error), self._clock.monotonic())
        text = f"the task '{name}' died of an error inside FlowCatalyst and is started again"
        text += ": report it with what the log says"
        self._warnings.add(WarningCode.TASK_DIED, Severity.ERROR, text, "supervisor")
        log.error("task_died", action="task_died", task=name, error=repr(error), exc_info=error)
