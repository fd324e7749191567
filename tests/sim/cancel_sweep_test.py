"""Interrupt a small history at every single step of the router: it ends clean each time, and nothing is lost.

Other histories draw the moment of a stop from a seed. Here no moment is left out.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from flowcatalyst.core.errors import ConnectionBrokenError, DeliveryError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.http.contract import Response
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.checker import check
from flowcatalyst.simulation.endpoint import SimulatedHttp, respond
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.loop import SeededLoop, run_seeded
from flowcatalyst.simulation.queue import Dice, QueueFaults
from flowcatalyst.simulation.queue_kinds import KINDS, make_queue
from flowcatalyst.simulation.rules.common import Promises
from flowcatalyst.simulation.world import World
from tests.sim.letters import Group, letter
from tests.sim.play import quiet_logs

POOLS = {"A": PoolLimits(concurrency=2, capacity=6), "B": PoolLimits(concurrency=1, rate_per_minute=30)}
HARD = {"m1": [500], "m2": [404], "m4": [0, 0, 0], "m5": [429]}  # the first answers to some; 0: the connection breaks
Interruption = Callable[[World], asyncio.Task[None] | None]


@dataclass(slots=True)
class Scripted:
    """Answers each message from its own script, then with 200."""

    scripts: dict[str, list[int]]

    def __call__(self, now: float, message_id: str) -> tuple[float, Response | DeliveryError]:
        script = self.scripts.get(message_id)
        status = script.pop(0) if script else 200
        return 0.3, respond(status) if status else ConnectionBrokenError("reset by peer")


async def small_history(loop: SeededLoop, *, kind: str, interrupt: Interruption | None, at_step: int) -> World:
    """Sixteen messages in two pools; the interruption comes when the router has taken so many steps."""
    endpoint = Scripted({name: list(script) for name, script in HARD.items()})
    world = World(loop, SimulatedHttp({"endpoint": endpoint}, 5.0), Dice(random.Random(1)))
    faults = QueueFaults(latency_s=0.05)
    queue = world.queues["q"] = make_queue(kind, "q", world.clock, world.history, faults, world.dice)
    modes = (None, DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE)
    for n in range(16):
        group = Group(f"g{n % 3}", "AAB"[n % 3], "endpoint", modes[n % 3])
        one = letter(f"m{n}", group, readable=n != 7)
        queue.append(one.name, one.outgoing, one.facts)
    world.start(POOLS)
    interrupting: list[asyncio.Task[None]] = []
    if interrupt is not None:
        _when_it_took(world, at_step, interrupt, interrupting)
    for _ in range(600):
        await asyncio.sleep(1.0)
        if interrupting:
            await asyncio.wait(interrupting)
        if world.engine is None:
            world.start(POOLS)
        elif world.is_done:
            break
    loop.before_step = None
    world.history.add(Kind.HEALED)
    await asyncio.sleep(5.0)
    world.note_idle()
    await world.stop()
    world.note_end()
    return world


def _when_it_took(world: World, steps: int, interrupt: Interruption, interrupting: list[asyncio.Task[None]]) -> None:
    taken = 0

    def count(life: int) -> None:
        nonlocal taken, interrupting
        if life == 1:
            taken += 1
            if taken == steps:
                world.loop.before_step = None
                task = interrupt(world)
                interrupting += [] if task is None else [task]

    world.loop.before_step = count


def stop(world: World) -> asyncio.Task[None]:
    """SIGTERM."""
    return world.loop.create_task(world.stop())


def cancel_attempts(world: World) -> None:
    """Every attempt under way is cancelled; the router goes on."""
    assert world.engine is not None
    for pool in world.engine.router.all_pools():
        pool.cancel()


def stop_interrupted_by_a_second_stop(world: World) -> asyncio.Task[None]:
    """A stop that is itself cancelled in the middle, and asked for once more."""
    return world.loop.create_task(_stop_twice(world))


async def _stop_twice(world: World) -> None:
    assert world.engine is not None
    first = world.loop.create_task_in_life(world.life, world.engine.stop())
    await asyncio.sleep(world.dice.rng.uniform(0.0, 1.0))
    first.cancel()
    await asyncio.wait([first])
    await world.stop()


def crash(world: World) -> None:
    world.crash()


def steps_of_an_undisturbed_history(seed: int, kind: str) -> int:
    taken = 0

    async def main(loop: SeededLoop) -> World:
        def count(life: int) -> None:
            nonlocal taken
            taken += life == 1

        loop.before_step = count
        return await small_history(loop, kind=kind, interrupt=None, at_step=0)

    run_seeded(seed, main)
    return taken


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("interrupt", [stop, cancel_attempts, stop_interrupted_by_a_second_stop, crash])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupted_at_any_step_the_router_ends_clean_and_loses_nothing(
    kind: str, interrupt: Interruption, seed: int
) -> None:
    quiet_logs()
    steps = steps_of_an_undisturbed_history(seed, kind)
    assert steps > 200
    for at_step in range(1, steps):
        errors: list[str] = []

        async def main(loop: SeededLoop, at_step: int = at_step, errors: list[str] = errors) -> list[Event]:
            loop.set_exception_handler(lambda _, context: errors.append(repr(context.get("exception") or context)))
            world = await small_history(loop, kind=kind, interrupt=interrupt, at_step=at_step)
            return world.history.events

        events = run_seeded(seed, main)
        ordered = kind in ("embedded", "fifo")
        promises = Promises(ordered_redelivery=ordered)
        problems = [f"{rule}: {violation}" for rule, violation in check(events, promises)]
        assert problems + errors == [], f"interrupted at step {at_step} of {steps}"
