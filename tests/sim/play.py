"""Play one history from its seed and judge it."""

import asyncio
import logging
import random
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.checker import RULES, check
from flowcatalyst.simulation.endpoint import SimulatedHttp
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.loop import SeededLoop, run_seeded
from flowcatalyst.simulation.queue import Dice, QueueFaults
from flowcatalyst.simulation.queue_kinds import ConnectionQueue, make_queue
from flowcatalyst.simulation.rules.common import Promises, Violation
from flowcatalyst.simulation.world import World
from tests.sim.by_hand import Hands
from tests.sim.endpoints import PROBED_ANSWERS_FROM, Endpoints
from tests.sim.plan import Act, Plan
from tests.sim.themes import draw_plan

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


def play(seed: int, kind: str, rules: tuple[str, ...] = tuple(RULES)) -> Played:
    """The history of a seed on queues of a kind; the same one each time."""
    return play_plan(draw_plan(seed, kind), rules)


def play_plan(plan: Plan, rules: tuple[str, ...] = tuple(RULES)) -> Played:
    errors: list[str] = []
    quiet_logs(errors)
    world = run_seeded(plan.seed, lambda loop: _live(loop, plan, errors))
    events = world.history.events
    violations = check(events, promises_of(plan, world), rules)
    return Played(plan, events, violations, world.dice.drawn, world.loop.trace, world.loop.steps, errors)


def promises_of(plan: Plan, world: World) -> Promises:
    return Promises(
        queues={name: queue.capabilities for name, queue in world.queues.items()},
        faulty=plan.queue_faults != QueueFaults(),
        batches=sum(queue.batching.max_batch for queue in world.queues.values()),
        parks_all=plan.parked_limit is None,
    )


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
    for one in plan.queues:
        world.queues[one.name] = make_queue(
            one.kind,
            one.name,
            world.clock,
            world.history,
            plan.queue_faults,
            dice,
            visibility_s=one.visibility_s,
            max_batch=one.max_batch,
        )
    if any(letter.facts.host == "probed" for letter in plan.letters):
        loop.call_at(PROBED_ANSWERS_FROM, lambda: world.history.add(Kind.RECOVERED, value="probed"))
    publishing = loop.create_task(_publish(world, plan))
    hands = Hands(world, plan, random.Random(f"people:{plan.kind}:{plan.seed}"))
    acting = loop.create_task(hands.act(plan.by_hand))
    world.start(_with_parked_limit(plan, plan.pools))
    for act in plan.acts:
        await asyncio.sleep(max(0.0, act.at - loop.time()))
        await _do(world, replace(act, pools=_with_parked_limit(plan, act.pools)))
    await asyncio.sleep(max(0.0, plan.troubles_s - loop.time()))
    await publishing
    await acting
    loop.before_step = None
    await hands.people.resume_all()
    for queue in world.queues.values():
        queue.faults.heal()
    endpoints.heal()
    world.dead_letters.fails = 0.0
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


def _with_parked_limit(plan: Plan, pools: Mapping[str, PoolLimits]) -> dict[str, PoolLimits]:
    if plan.parked_limit is None:
        return dict(pools)
    return {code: replace(limits, parked_limit=plan.parked_limit) for code, limits in pools.items()}


async def _publish(world: World, plan: Plan) -> None:
    for letter in plan.letters:
        if letter.at > world.loop.time():
            await asyncio.sleep(letter.at - world.loop.time())
        world.queues[letter.queue].append(letter.name, letter.outgoing, letter.facts)


async def _do(world: World, act: Act) -> None:
    match act.what:
        case "reload":
            world.reload(act.pools)
        case "cut":
            queue = world.queues[act.queue]
            assert isinstance(queue, ConnectionQueue)
            queue.cut(act.seconds, act.taken)
        case "step":
            world.step_clock(act.seconds)
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
