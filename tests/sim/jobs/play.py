"""Play one history of jobs from its seed and judge it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.job import JobState
from flowcatalyst.dispatch.store.contract import (
    Action,
    Cancel,
    Change,
    GroupState,
    InHandError,
    JobStore,
    Recall,
    Retry,
)
from flowcatalyst.router.policy import Delays
from flowcatalyst.simulation.endpoint import SimulatedHttp
from flowcatalyst.simulation.jobs.checker import check
from flowcatalyst.simulation.jobs.history import Counts, Event, Final, Kind, Refusal
from flowcatalyst.simulation.jobs.store import Disk
from flowcatalyst.simulation.jobs.world import JobsWorld, NoAnswerError, Process
from flowcatalyst.simulation.loop import SeededLoop, run_seeded
from flowcatalyst.simulation.queue import Dice
from flowcatalyst.simulation.rules.common import Violation
from tests.sim.jobs.divided import DividedWorld
from tests.sim.jobs.endpoints import Endpoints
from tests.sim.jobs.plan import GROUPS, NACK_DELAY_S, Act, Order, Plan, draw_plan
from tests.sim.jobs.sometimes import happened
from tests.sim.play import quiet_logs

DRAIN_LIMIT_S = 300.0
STEPS_LIMIT = 300_000
CREATE_TRIES = 12
UNFINISHED = "finished_at IS NULL"
PARKED = f"{UNFINISHED} AND status = 'ERROR' AND next_attempt_at IS NULL"


@dataclass(slots=True)
class Played:
    """One history and what was found in it."""

    plan: Plan
    events: list[Event]
    violations: list[tuple[str, Violation]]
    drawn: dict[str, int]  # what happened, by name, as far as the history does not tell
    trace: int
    steps: int
    errors: list[str]  # what broke in a way nobody planned
    rare: Callable[[Sequence[Event], dict[str, int]], set[str]] = happened

    @property
    def theme(self) -> str:
        return f"jobs: {self.plan.theme}"

    @property
    def messages(self) -> int:
        return sum(event.kind is Kind.CREATED for event in self.events)

    @property
    def attempts(self) -> int:
        return sum(event.kind is Kind.ATTEMPT for event in self.events)

    def happened(self) -> set[str]:
        return self.rare(self.events, self.drawn)


def play(seed: int) -> Played:
    """The history of a seed; the same one each time."""
    return play_plan(draw_plan(seed))


def play_plan(plan: Plan, stage: "type[Stage] | None" = None) -> Played:
    errors: list[str] = []
    quiet_logs(errors)
    world = run_seeded(plan.seed, lambda loop: (stage or Stage)(loop, plan, errors).live())
    events = world.history.events
    violations = check(events, nack_delay_s=NACK_DELAY_S, prompt=plan.is_prompt)
    return Played(plan, events, violations, world.dice.drawn, world.loop.trace, world.loop.steps, errors)


class _Asked:
    """The store of a process as one person uses it, who remembers whether routers answered that had jobs in hand."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.answered: bool | None = None  # nobody was asked

    async def returned(self, recall: Recall[Any], wait_s: float) -> bool:
        self.answered = await self._store.returned(recall, wait_s)
        return self.answered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Stage:
    """Does what the plan says, to the end of the history."""

    def __init__(self, loop: SeededLoop, plan: Plan, errors: list[str]) -> None:
        loop.steps_limit = STEPS_LIMIT
        loop.set_exception_handler(
            lambda _, context: errors.append(str(context.get("exception") or context["message"]))
        )
        self.loop, self.plan = loop, plan
        self.rng = random.Random(plan.seed + 1)
        self.dice = Dice(random.Random(plan.seed + 2))
        self.people = random.Random(plan.seed + 3)
        self.endpoints = Endpoints(plan.endpoint_troubles, self.rng, self.dice)
        self.world = self._new_world()
        self.stepped_s = self.latest_s = 0.0  # how far the wall clock is ahead, and ever was
        self._under_way: set[asyncio.Task[None]] = set()

    def _new_world(self) -> JobsWorld:
        http = SimulatedHttp(self.endpoints.behaviours(), 30.0)
        world = DividedWorld if self.plan.is_divided else JobsWorld
        return world(self.loop, http, self.dice, self.plan.pools, **self._settings())

    def _settings(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "faults": plan.store_faults,
            "delays": Delays(nack_delay_s=NACK_DELAY_S, follower_s=1.0),
            "visibility_s": plan.visibility_s,
            "poll_interval_s": plan.poll_interval_s,
            "long_poll_s": plan.long_poll_s,
        }

    async def live(self) -> JobsWorld:
        loop, plan, world = self.loop, self.plan, self.world
        for name in plan.processes:
            world.start(name)
        for at, batch in plan.batches:
            loop.call_at(at, self.spawn, self._create, batch)
        for act in plan.acts:
            loop.call_at(act.at, self.spawn, self.do, act)
        looking_after = loop.create_task(self._start_again())
        await asyncio.sleep(plan.troubles_s)
        while self._under_way:
            await asyncio.wait(self._under_way)
        looking_after.cancel()
        self._heal()
        await self._drain()
        for name in list(world.processes):
            await world.stop(name)
        await self._look_at_the_end()
        world.disk.close()
        return world

    def spawn(self, work: Callable[[Any], Coroutine[Any, Any, None]], what: object) -> None:
        task = self.loop.create_task(work(what))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    # Clients

    async def _create(self, batch: list[Order]) -> None:
        """Who gave his jobs keys asks again until he is told that they are kept; others hope for the best."""
        keyed = all(order.key is not None for order in batch)
        for number in range(CREATE_TRIES if keyed else 1):
            process = await self.somebody()
            suffix = f".{number}" if number else ""
            jobs = [order.job(order.name + suffix, self.world.clock.wall()) for order in batch]
            try:
                await self.world.create(process, jobs)
                return
            except (FlowCatalystError, NoAnswerError):
                await asyncio.sleep(self.people.uniform(0.1, 1.0))

    async def somebody(self) -> Process:
        while not (reachable := self.world.reachable()):
            await asyncio.sleep(0.2)
        return self.people.choice(reachable)

    # What the plan does

    async def do(self, act: Act) -> None:
        world = self.world
        match act.what:
            case "stop":
                await world.stop(act.process)
            case "crash":
                world.crash_after(act.process, act.steps)
            case "stop and crash":
                world.crash_after(act.process, act.steps)
                await world.stop(act.process)
            case "pause":
                world.pause(act.process, act.seconds)
            case "cut off":
                world.cut_off(act.process, act.seconds)
            case "step":
                self.stepped_s += act.seconds
                self.latest_s = max(self.latest_s, self.stepped_s)
                world.step_clock(act.seconds)
            case "hold":
                await self.hold(act.seconds)
            case _:
                await self._act(act.what)

    async def _start_again(self) -> None:
        """Somebody looks after the processes that ended."""
        while True:
            await asyncio.sleep(0.5)
            for name in self.plan.processes:
                if name not in self.world.processes and self.people.random() < 0.3:
                    self.world.start(name)

    # People

    async def _act(self, what: str, job: str | None = None) -> None:
        world, people = self.world, self.people
        failed = [row[0] for row in world.disk.rows(f"SELECT id FROM jobs WHERE {UNFINISHED} AND status = 'ERROR'")]
        waiting = [row[0] for row in world.disk.rows(f"SELECT id FROM jobs WHERE {UNFINISHED} AND grp IS NOT NULL")]
        choice = failed if failed and people.random() < 0.7 and what != "change" else waiting
        if job is None and not choice:
            return
        job = job or people.choice(choice)
        kind, action = self._action(what)
        process = await self.somebody()
        asked = _Asked(process.store)

        def tell(result: object) -> None:
            recalled = asked.answered is not None
            if isinstance(result, InHandError) and not recalled:
                return  # it is recalled now
            if isinstance(result, Exception):
                in_hand = isinstance(result, InHandError) and asked.answered is True
                refusal = Refusal(kind, isinstance(result, InHandError) and self.plan.is_prompt)
                self.dice.note("refused: being delivered", in_hand)
                world.history.add(Kind.REFUSED, job, process.owner, refusal)
            elif isinstance(result, JobState):
                self.dice.note("acted on what was in hand", recalled)
                world.history.add(kind, job, process.owner, action)

        with suppress(FlowCatalystError, NoAnswerError):  # he is refused, or does not know, and leaves it at that
            await world.ask(process, lambda _: acting.act(asked, job, action, "somebody"), tell)

    def _action(self, what: str) -> tuple[Kind, Action]:
        match what:
            case "retry":
                return Kind.RETRIED, Retry()
            case "cancel":
                return Kind.CANCELLED, Cancel()
            case "edit":
                return Kind.CHANGED, Change(target=f"http://healthy/edited-{self.people.randint(1, 99)}")
        return Kind.CHANGED, Change(mode=self.people.choice(tuple(DispatchMode)))

    def groups(self) -> Sequence[str]:
        return GROUPS

    async def hold(self, seconds: float) -> None:
        """Hold a group for a while."""
        group = self.people.choice(self.groups())
        if await self._hold_or_release(group, Kind.HELD):
            await asyncio.sleep(seconds)
            while not await self._hold_or_release(group, Kind.RELEASED):
                await asyncio.sleep(0.5)

    async def _hold_or_release(self, group: str, kind: Kind) -> bool:
        process, history, place = await self.somebody(), self.world.history, 0
        asked = _Asked(process.store)

        def tell(result: object) -> None:
            nonlocal place
            if isinstance(result, GroupState):
                place = len(history)
                history.add(kind, group, process.owner)

        def call(_: object) -> Awaitable[GroupState]:
            return acting.hold(asked, group, "somebody") if kind is Kind.HELD else asked.release(group, "somebody")

        try:
            await self.world.ask(process, call, tell)
        except (FlowCatalystError, NoAnswerError):
            return kind is Kind.HELD  # it may be held all the same
        if kind is Kind.HELD:
            self.dice.note("a hold reached what was in hand", asked.answered is True)
            history.add(Kind.HOLD_TOLD, group, process.owner, place)
        return True

    # The end

    def _heal(self) -> None:
        world = self.world
        world.faults.heal()
        self.endpoints.heal()
        self.loop.before_step = None
        if self.stepped_s < self.latest_s:  # else what is scheduled by a clock that was ahead waits for a year
            world.step_clock(self.latest_s - self.stepped_s)
        world.history.add(Kind.HEALED)
        for process in world.processes.values():
            process.file.writer.unreachable_until = 0.0
        for name in self.plan.processes:
            if name not in world.processes:
                world.start(name)

    async def _drain(self) -> None:
        """Until nothing is left but what waits for a person, who lets go what holds up others."""
        world, limit = self.world, self.loop.time() + DRAIN_LIMIT_S
        left_alone: set[str] = set()
        while self.loop.time() < limit:
            for job, mode in world.disk.rows(f"SELECT id, mode FROM jobs WHERE {PARKED}"):
                if mode == DispatchMode.BLOCK_ON_ERROR:
                    left_alone.discard(job)
                elif job in left_alone or self.people.random() < 0.3:
                    left_alone.add(job)
                    continue
                await self._act(self.people.choice(("retry", "retry", "cancel")), job)
            await self.let_go()
            for (group,) in world.disk.rows("SELECT json_extract(name, '$') FROM groups WHERE held_since IS NOT NULL"):
                await self._hold_or_release(group, Kind.RELEASED)
            left = {job for (job,) in world.disk.rows(f"SELECT id FROM jobs WHERE {UNFINISHED}")}
            if left <= left_alone and not any(one.paused for one in world.processes.values()):
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(1.5)

    async def let_go(self) -> None:
        """What people hold up besides is let go."""

    async def _look_at_the_end(self) -> None:
        """How every job ended, as the store tells it to somebody who opens it afterwards."""
        world = self.world
        store = world.new_store("p9/0")
        await store.open()
        lanes: dict[int, list[str | None]] = {}
        for number, name in world.disk.rows(LANES):
            lanes.setdefault(number, []).append(name)
        jobs = world.disk.rows("SELECT number, id FROM jobs")
        for number, job in jobs:
            state, attempts = await store.find(job), await store.attempts_of(job)
            final = Final(state, tuple(attempts), tuple(lanes.get(number, ())))
            world.history.add(Kind.FINAL, job, value=final)
        figures = await store.figures()
        depth = await store.queue.depth()
        kept: dict[str, Any] = {"waiting": depth.waiting, "leased": depth.leased, "delayed": depth.delayed}
        kept |= {"parked": figures.parked, "scheduled": figures.scheduled, "groups": figures.groups}
        kept |= {"blocked": figures.blocked, "not parked": figures.waiting}
        world.history.add(Kind.COUNTED, value=Counts(kept, {**_scan(world.disk), "jobs": {job for _, job in jobs}}))
        await store.close()


LANES = """
    SELECT m.seq & ((1 << 41) - 1), json_extract(l.name, '$')
    FROM messages AS m CROSS JOIN lanes AS l ON l.id = m.lane"""
SCANS = {
    "waiting": "SELECT count(*) - count(visible_at) FROM messages",
    "leased": "SELECT 0",  # by nobody: all processes have ended
    "delayed": "SELECT count(visible_at) FROM messages",
    "parked": f"SELECT count(*) FROM jobs WHERE {PARKED}",
    "not parked": f"SELECT count(*) FROM jobs WHERE {UNFINISHED} AND entered = 1 AND NOT ({PARKED})",
    "scheduled": f"SELECT count(*) FROM jobs WHERE {UNFINISHED} AND entered = 0",
    "groups": "SELECT count(DISTINCT l.name) FROM messages AS m CROSS JOIN lanes AS l ON l.id = m.lane",
    "blocked": """
        SELECT count(*) FROM lanes AS l CROSS JOIN jobs AS j ON j.number = (
          SELECT seq FROM messages WHERE lane = l.id ORDER BY seq LIMIT 1) & ((1 << 41) - 1)
        WHERE l.name IS NOT NULL AND j.status = 'ERROR'""",
}


def _scan(disk: Disk) -> dict[str, Any]:
    """The figures of a store, by looking at every row."""
    return {name: disk.rows(query)[0][0] for name, query in SCANS.items()}
