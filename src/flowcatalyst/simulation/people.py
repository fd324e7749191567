"""People: what somebody does by hand to a simulated router, and what of it the history is told."""

from collections.abc import Callable, Coroutine
from typing import Any

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.acting import Acts, Found
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.pauses import Pause, PauseKind
from flowcatalyst.simulation.history import Kind
from flowcatalyst.simulation.world import World

SOMEBODY = "somebody"

Choose = Callable[[Acts], Found | None]  # whom an act is about, as things are at that moment


class People:
    """Each act is one that the API has. Pauses can also be changed while no router is up."""

    def __init__(self, world: World) -> None:
        self._world = world

    def name_of(self, found: Found) -> str:
        """Its name in the history."""
        queue = found.queue if isinstance(found, FailedMessage) else found.source.name
        return self._world.queues[queue].name_of(found)

    async def retry(self, choose: Choose) -> None:
        async def do(acts: Acts) -> None:
            if (found := choose(acts)) is None:
                return
            done = await acts.retry(found)
            if done.done and isinstance(found, Delivery):  # of others their queue tells
                self._world.history.add(Kind.HURRIED, self.name_of(found), found.pool)

        await self._ask(do)

    async def skip(self, choose: Choose) -> None:
        history = self._world.history

        async def do(acts: Acts) -> None:
            if (found := choose(acts)) is None:
                return
            if isinstance(found, FailedMessage):  # from now on, however long its queue takes to show it
                history.add(Kind.SKIP, self.name_of(found))
            done = await acts.skip(found, SOMEBODY)
            if done.done and isinstance(found, Delivery):
                history.add(Kind.SKIP, self.name_of(found), found.pool, done.text)

        await self._ask(do)

    async def pause(self, kind: PauseKind, name: str) -> None:
        if name in self._world.pauses.of_kind(kind):
            return
        if self._world.engine is None:
            self._world.pauses.add(kind, name, Pause(SOMEBODY, self._world.clock.wall()))
            self._world.history.add(Kind.PAUSED, value=(kind, name))
            return

        async def do(acts: Acts) -> None:
            acts.pause(kind, name, SOMEBODY)
            self._world.history.add(Kind.PAUSED, value=(kind, name))

        await self._ask(do)

    async def resume(self, kind: PauseKind, name: str) -> None:
        if name not in self._world.pauses.of_kind(kind):
            return
        if self._world.engine is None:
            self._world.history.add(Kind.RESUMED, value=(kind, name))
            self._world.pauses.remove(kind, name)
            return

        async def do(acts: Acts) -> None:
            self._world.history.add(Kind.RESUMED, value=(kind, name))
            await acts.resume(kind, name)

        await self._ask(do)

    async def resume_all(self) -> None:
        for kind, name, _ in list(self._world.pauses):
            await self.resume(kind, name)

    async def _ask(self, do: Callable[[Acts], Coroutine[Any, Any, None]]) -> None:
        if (engine := self._world.engine) is not None:
            await self._world.ask(do(engine.acts))
