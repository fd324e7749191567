"""What all groups say together, found once for all who want to know: a pass over very many takes its time."""

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.top_groups import GroupFigures, GroupSurvey

KEEP_S: Final = 1.0
RESTS: Final = 50  # times as long as a pass took: no more than 2 % of the loop are spent here, whoever asks


class GroupWatch:
    """Looks at the groups of the present engine, at most once a second and seldom enough to cost little."""

    def __init__(self, engine: Callable[[], Engine], clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._tasks = Tasks()
        self._looking: asyncio.Task[None] | None = None
        self._next_at = 0.0
        self._figures = GroupFigures()

    async def figures(self) -> GroupFigures:
        """Of the latest pass, or of the one that is under way."""
        if self._looking is None or (self._looking.done() and self._clock.monotonic() >= self._next_at):
            self._looking = self._tasks.spawn(self._look(), "look at groups")
        await asyncio.shield(self._looking)  # others may wait for it too
        return self._figures

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _look(self) -> None:
        engine, clock = self._engine(), self._clock
        began = resumed = clock.monotonic()
        failed = (one for one in engine.failed.by_message.values() if one.blocks)
        blocked = chain(failed, engine.group_outages.blocked)
        survey = GroupSurvey(engine.router.all_pools(), blocked, began, clock.wall())
        spent_s = 0.0
        for _ in survey.steps():
            spent_s += clock.monotonic() - resumed
            await asyncio.sleep(0)
            resumed = clock.monotonic()
        spent_s += clock.monotonic() - resumed
        self._figures, self._next_at = survey.figures, began + max(KEEP_S, RESTS * spent_s)
