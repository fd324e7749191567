"""Play one history of events from its seed and judge it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.store.platform_contract import CodeTakenError, UnknownEntryError
from flowcatalyst.dispatch.subscription import Subscription
from flowcatalyst.simulation.jobs.history import Replay
from flowcatalyst.simulation.jobs.platform import PlatformWorld
from flowcatalyst.simulation.jobs.receiver import Receivers
from flowcatalyst.simulation.jobs.world import JobsWorld, NoAnswerError, Process
from tests.sim.jobs.events_plan import EVENT_GROUPS, EventsPlan, draw_events_plan, draw_subscription, edited
from tests.sim.jobs.events_sometimes import happened
from tests.sim.jobs.plan import Act
from tests.sim.jobs.play import Played, Stage, play_plan

TRIES = 12
MOST_TRIES = 60  # of what has to come to an end
PAUSED = "SELECT code FROM catalog WHERE kind = 'subscription' AND document ->> '$.status' = 'PAUSED' ORDER BY code"


def play_events(seed: int) -> Played:
    """The history of a seed; the same one each time."""
    played = play_plan(draw_events_plan(seed), EventsStage)
    played.rare = happened
    return played


class EventsStage(Stage):
    """Sends events and does what people do to subscriptions."""

    plan: EventsPlan
    world: PlatformWorld

    def _new_world(self) -> JobsWorld:
        secrets: dict[str, list[str]] = {}
        http = Receivers(self.endpoints.behaviours(), 30.0, secrets, self.dice)
        world = PlatformWorld(self.loop, http, self.dice, self.plan.pools, **self._settings())
        world.secrets = secrets
        http.history, http.wall = world.history, world.clock.wall
        self._removing: dict[str, asyncio.Lock] = {}
        self._replays = 0
        return world

    async def live(self) -> JobsWorld:
        self.spawn(self._subscribe_all, self.plan.subscriptions)
        for at, events in self.plan.sends:
            self.loop.call_at(at, self.spawn, self._send, events)
        return await super().live()

    def groups(self) -> Sequence[str]:
        return [f"{one.code}:{group}" for one in self.plan.subscriptions for group in EVENT_GROUPS]

    # Clients

    async def _send(self, events: list[NewEvent]) -> None:
        """Who gave his events keys asks again until he is told that they are kept."""
        keyed = all(event.deduplication_id is not None for event in events)
        await self._until_told(lambda process: self.world.publish(process, events), TRIES if keyed else 1)

    async def _until_told(self, call: Callable[[Process], Awaitable[object]], tries: int) -> bool:
        for _ in range(tries):
            process = await self.somebody()
            try:
                await call(process)
                return True
            except (CodeTakenError, UnknownEntryError):
                return True
            except (FlowCatalystError, NoAnswerError):
                await asyncio.sleep(self.people.uniform(0.1, 1.0))
        return False

    # People

    async def _subscribe_all(self, subscriptions: list[Subscription]) -> None:
        for one in subscriptions:
            await self._subscribe(one)

    async def _subscribe(self, one: Subscription) -> None:
        await self._until_told(lambda process: self.world.subscribe(process, one), MOST_TRIES)

    async def do(self, act: Act) -> None:
        code, world, people = act.code, self.world, self.people
        match act.what:
            case "pause subscription":
                await self._until_told(lambda process: world.pause_subscription(process, code), 3)
                await asyncio.sleep(act.seconds)
                await self._until_told(lambda process: world.resume_subscription(process, code), MOST_TRIES)
            case "edit subscription":

                def edit(before: StoredSubscription) -> StoredSubscription:
                    return msgspec.structs.replace(before, **edited(people, before, self.plan.hosts))

                await self._until_told(lambda process: world.edit(process, code, edit), 1)
            case "rotate subscription":
                overlap_s = people.choice((0.0, 1.0, 5.0, 60.0))
                await self._until_told(lambda process: world.rotate(process, code, overlap_s), 1)
            case "replay subscription":
                await self._replay(code)
            case "remove subscription":
                await self._remove(code, act.seconds)
            case _:
                await super().do(act)

    async def _replay(self, code: str) -> None:
        self._replays += 1
        now = self.world.clock.wall()
        asked = Replay(f"r{self._replays}", (now - self.people.choice((2.0, 30.0)), now))
        await self._until_told(lambda process: self.world.replay(process, code, asked), 4)

    async def _remove(self, code: str, seconds: float) -> None:
        """For good, or to come back as another one."""
        async with self._removing.setdefault(code, asyncio.Lock()):
            for _ in range(MOST_TRIES):
                process = await self.somebody()
                with suppress(FlowCatalystError, NoAnswerError):
                    try:
                        if not (await self.world.unsubscribe(process, code)).in_flight:
                            break
                    except UnknownEntryError:
                        break
                await asyncio.sleep(0.5)
            await asyncio.sleep(seconds)
            if self.people.random() < 0.7:
                await self._subscribe(draw_subscription(self.people, code, self.plan.hosts, None))

    async def let_go(self) -> None:
        for (code,) in self.world.disk.rows(PAUSED):
            await self._until_told(lambda process, code=code: self.world.resume_subscription(process, code), 3)  # type: ignore[misc]
