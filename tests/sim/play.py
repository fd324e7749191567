"""Play one history from its seed and judge it."""

import asyncio
import logging
import random
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog

from flowcatalyst.simulation.checker import RULES, check
from flowcatalyst.simulation.endpoint import SimulatedHttp
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.loop import SeededLoop, run_seeded
from flowcatalyst.simulation.queue import Dice, SimulatedQueue
from flowcatalyst.simulation.rules.common import Promises, Violation
from flowcatalyst.simulation.world import World
from tests.sim.endpoints import Endpoints
from tests.sim.plan import TROUBLES_S, Act, Plan, draw_plan

DRAIN_LIMIT_S = 3 * 3600.0
QUIET_S = 60.0  # after the last message: also a poll that hung when the faults stopped has ended by then
STEPS_LIMIT = 300_000  # a history has a few thousand; one that goes round in circles is a failure


@dataclass(slots=True)
class Played:
    """One history and what was found in it."""

    plan: Plan
    events: list[Event]
    violations: list[tuple[str, Violation]]
    drawn: dict[str, int]  # faults that happened, by name
    trace: int
    steps: int
    errors: list[str]  # what broke in a way nobody planned


def play(seed: int, *, ordered: bool, rules: tuple[str, ...] = tuple(RULES)) -> Played:
    """The history of a seed; the same one each time."""
    plan = draw_plan(seed, ordered=ordered)
    return play_plan(plan, rules)


def play_plan(plan: Plan, rules: tuple[str, ...] = tuple(RULES)) -> Played:
    errors: list[str] = []
    quiet_logs(errors)
    world = run_seeded(plan.seed, lambda loop: _live(loop, plan, errors))
    events = world.history.events
    violations = check(events, Promises(ordered_redelivery=plan.ordered), rules)
    return Played(plan, events, violations, world.dice.drawn, world.loop.trace, world.loop.steps, errors)


def quiet_logs(errors: list[str] | None = None) -> None:
    """Nothing is logged. What the router would log as an error, a bug of ours, is noted."""

    def note(logger: object, name: str, event: MutableMapping[str, Any]) -> str:
        if errors is not None:
            errors.append(f"{event.get('event')}: {event.get('exc_info')!r}")
        raise structlog.DropEvent

    structlog.configure(
        processors=[note],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        cache_logger_on_first_use=False,
    )


async def _live(loop: SeededLoop, plan: Plan, errors: list[str]) -> World:
    loop.steps_limit = STEPS_LIMIT
    loop.set_exception_handler(lambda _, context: errors.append(str(context.get("exception") or context["message"])))
    rng = random.Random(plan.seed + 1)
    dice = Dice(rng)
    endpoints = Endpoints(plan, rng)
    world = World(loop, SimulatedHttp(endpoints.behaviours(), plan.http_timeout_s), dice)
    world.dead_letters.fails = plan.dead_letters_fail
    for name in plan.queues:
        world.queues[name] = SimulatedQueue(
            name,
            world.clock,
            world.history,
            plan.queue_faults,
            dice,
            ordered=plan.ordered,
            visibility_s=plan.visibility_s,
            max_batch=plan.max_batch,
        )
    publishing = loop.create_task(_publish(world, plan))
    world.start(plan.pools)
    for act in plan.acts:
        await asyncio.sleep(max(0.0, act.at - loop.time()))
        await _do(world, act)
    await asyncio.sleep(max(0.0, TROUBLES_S - loop.time()))
    await publishing
    plan.queue_faults.heal()
    endpoints.heal()
    world.dead_letters.fails = 0.0
    loop.before_step = None
    world.history.add(Kind.HEALED)
    if world.engine is None:
        world.start(world.pools)
    await _drain(world)
    for what, count in {
        **{f"endpoint: {kind}": count for kind, count in endpoints.seen.items()},
        **world.noted,
    }.items():
        dice.note(what, count)
    return world


async def _publish(world: World, plan: Plan) -> None:
    for letter in plan.letters:
        if letter.at > world.loop.time():
            await asyncio.sleep(letter.at - world.loop.time())
        world.queues[letter.queue].append(letter.name, letter.outgoing, letter.facts)


async def _do(world: World, act: Act) -> None:
    match act.what:
        case "reload":
            world.reload(act.pools)
        case "stop":
            await world.stop()
        case "crash":
            world.crash_after(act.steps)
            await asyncio.sleep(0.5)
        case "stop and crash":
            world.crash_after(act.steps)
            await world.stop()
    if world.engine is None:
        await asyncio.sleep(world.dice.rng.uniform(0.0, 20.0))
        world.start(world.pools)


async def _drain(world: World) -> None:
    limit = world.loop.time() + DRAIN_LIMIT_S
    while any(map(len, world.queues.values())) and world.loop.time() < limit:
        await asyncio.sleep(1.0)
    await asyncio.sleep(QUIET_S)
    if not any(map(len, world.queues.values())):
        world.note_idle()
    await world.stop()
    world.note_end()
