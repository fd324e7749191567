"""Run a scenario: the real router on virtual time, between a simulated queue and simulated endpoints."""

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import exp, inf, log
from typing import Final

import structlog

from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.core.errors import ConnectError, DeliveryError
from flowcatalyst.http.contract import Response
from flowcatalyst.simulation.endpoint import Behaviour, SimulatedHttp, respond
from flowcatalyst.simulation.history import Event
from flowcatalyst.simulation.large_queue import LargeQueue
from flowcatalyst.simulation.loop import SeededLoop, run_seeded
from flowcatalyst.simulation.queue import Dice
from flowcatalyst.simulation.scenario import Endpoint, Latency, Outage, PoolChange, Restart, Scenario
from flowcatalyst.simulation.traffic import arrivals_of
from flowcatalyst.simulation.world import World

LOOK_EVERY_S: Final = 1.0  # an open breaker stays open for five times as long, so no opening is missed
SETTLE_S: Final = 1.0  # after the last message left its queue, for the router to see it
REFUSED_AFTER_S: Final = 0.005
Z_99: Final = 2.3263478740408408  # standard deviations between median and 99th percentile


@dataclass(slots=True)
class Observed:
    """What the history does not tell: looked at once a second while the router runs."""

    breaker_openings: Counter[str] = field(default_factory=Counter)  # by endpoint
    permit_waits: Counter[str] = field(default_factory=Counter)  # by pool: how often it had to wait for a permit
    permit_wait_s: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # by pool: about how long in all


@dataclass(slots=True)
class Run:
    """One simulation, from which a report is made."""

    scenario: Scenario
    seed: int
    events: list[Event]
    events_to_end: int  # those after are of the router that is stopped because the simulation is over
    observed: Observed
    ended_at: float
    drained: bool  # everything left its queue before the time was over
    errors: list[str]  # what broke inside in a way nobody planned


def run_scenario(scenario: Scenario, seed: int, tell: Callable[[float], None] = lambda now: None) -> Run:
    """Play a scenario to its end. One seed always gives one run. `tell` hears every virtual second what time it is."""
    with quiet_logs():
        return run_seeded(seed, partial(_live, scenario=scenario, seed=seed, tell=tell))


@contextmanager
def quiet_logs() -> Iterator[None]:
    """No log lines: a simulation makes hundreds of thousands of attempts."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


async def _live(loop: SeededLoop, scenario: Scenario, seed: int, tell: Callable[[float], None]) -> Run:
    errors: list[str] = []
    loop.set_exception_handler(lambda _, context: errors.append(str(context.get("exception") or context["message"])))
    behaviours = {
        endpoint.name: _behaviour(endpoint, random.Random(f"{seed}/{endpoint.name}")) for endpoint in scenario.endpoints
    }
    http = SimulatedHttp(behaviours, scenario.request_timeout)
    world = World(loop, http, Dice(random.Random(seed)), scenario.retry.delays())
    queue = world.queues["queue"] = LargeQueue(
        "queue",
        world.clock,
        world.history,
        ordered=scenario.queue.ordered,
        visibility_s=scenario.queue.visibility_s,
        max_batch=scenario.queue.max_batch,
    )
    operator = _Operator(world, scenario, tell)
    looking = loop.create_task(operator.look())
    publishing = loop.create_task(_publish(queue, scenario, seed))
    await operator.work()
    await publishing
    latest = scenario.duration + scenario.drain_limit
    while not world.is_done and loop.time() < latest:  # noqa: ASYNC110 - a look on virtual time costs nothing
        await asyncio.sleep(LOOK_EVERY_S)
    drained = world.is_done
    await asyncio.sleep(SETTLE_S)
    looking.cancel()
    if drained:
        world.note_idle()
    ended_at, events_to_end = loop.time(), len(world.history)
    await operator.end_router("stop")
    world.note_end()
    return Run(scenario, seed, world.history.events, events_to_end, operator.observed, ended_at, drained, errors)


async def _publish(queue: LargeQueue, scenario: Scenario, seed: int) -> None:
    loop = asyncio.get_running_loop()
    for arrival in arrivals_of(scenario, seed):
        if arrival.at > loop.time():
            await asyncio.sleep(arrival.at - loop.time())
        queue.append(arrival.name, arrival.outgoing, arrival.facts)


class _Operator:
    """Starts the router, does to it what the scenario says, and looks at it once a second."""

    def __init__(self, world: World, scenario: Scenario, tell: Callable[[float], None]) -> None:
        self.observed = Observed()
        self._tell = tell
        self._world = world
        self._scenario = scenario
        self._pools: dict[str, PoolSettings] = {pool.code: pool for pool in scenario.pools}
        self._openings: set[tuple[int, str, float]] = set()

    async def work(self) -> None:
        """Through all restarts and changes, in the order of their times, to the end of the arrivals."""
        self._start()
        acts: list[Restart | PoolChange] = [*self._scenario.restarts, *self._scenario.changes]
        ups: list[float] = []  # when the router is to be started again; one at most
        for act in sorted(acts, key=lambda act: act.at):
            await self._start_when_due(ups, act.at)
            await self._wait_until(act.at)
            if isinstance(act, PoolChange):
                # To the running router at once, to one that is down at its next start.
                self._pools[act.pool] = act.applied_to(self._pools[act.pool])
                if self._world.engine is not None:
                    self._world.reload({code: pool.limits() for code, pool in self._pools.items()})
            else:
                await self.end_router(act.kind)
                ups.append(act.at + act.down_for)
        await self._start_when_due(ups, inf)
        await self._wait_until(self._scenario.duration)

    async def end_router(self, kind: str) -> None:
        """Stop it in order or let it crash."""
        engine = self._world.engine
        if kind == "crash":
            self._world.crash()
        else:
            await self._world.stop()
        if engine is not None:
            for pool in engine.made_pools:
                self.observed.permit_waits[pool.code] += pool.stats.rate_limit_waits

    async def look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._tell(self._world.loop.time())
            engine = self._world.engine
            if engine is None:
                continue
            for endpoint, breaker in engine.breakers.items():
                opening = (self._world.life, endpoint, breaker.opened_at)
                if breaker.opened_at and opening not in self._openings:
                    self._openings.add(opening)
                    self.observed.breaker_openings[endpoint] += 1
            now = self._world.loop.time()
            for pool in engine.made_pools:
                # The pool has no word of its own for this yet.
                scheduler, rate = pool._scheduler, pool.rate  # noqa: SLF001
                if rate.per_minute is not None and scheduler.has_ready and rate.next_permit_at(now) > now:
                    self.observed.permit_wait_s[pool.code] += LOOK_EVERY_S

    def _start(self) -> None:
        self._world.start({code: pool.limits() for code, pool in self._pools.items()})

    async def _start_when_due(self, ups: list[float], until: float) -> None:
        if ups and ups[0] <= until:
            await self._wait_until(ups.pop())
            self._start()

    async def _wait_until(self, time: float) -> None:
        await asyncio.sleep(max(0.0, time - self._world.loop.time()))


def _behaviour(endpoint: Endpoint, rng: random.Random) -> Behaviour:
    """How an endpoint answers, as the simulated HTTP client asks it."""
    failure, success = respond(endpoint.error_status), respond(200)
    outages = [(outage, _outage_behaviour(outage)) for outage in endpoint.outages]

    def answer(now: float, message_id: str) -> tuple[float, Response | DeliveryError]:
        for outage, fail in outages:
            if outage.begin <= now < outage.end:
                return fail(now, message_id)
        failed = endpoint.error_rate > 0 and rng.random() < endpoint.error_rate
        return _latency_s(endpoint.latency, rng), failure if failed else success

    return answer


def _outage_behaviour(outage: Outage) -> Behaviour:
    retry_after = {} if outage.retry_after is None else {"retry_after": f"{outage.retry_after:.0f}"}
    match outage.kind:
        case "refuse":
            return lambda now, message_id: (REFUSED_AFTER_S, ConnectError("connection refused"))
        case "hang":
            return lambda now, message_id: (inf, ConnectError("never answers"))
        case _:
            return lambda now, message_id: (REFUSED_AFTER_S, respond(int(outage.kind), b"", **retry_after))


def _latency_s(latency: Latency, rng: random.Random) -> float:
    if latency.fixed is not None:
        return latency.fixed
    if latency.uniform is not None:
        return rng.uniform(*latency.uniform)
    assert latency.median is not None
    assert latency.p99 is not None
    return latency.median * exp(rng.gauss(0.0, 1.0) * log(latency.p99 / latency.median) / Z_99)
