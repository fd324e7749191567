"""World: the real router between simulated queues and endpoints, with a life that can stop, crash and begin again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any

from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import DEFAULT_POOL, Delivery, MessagePointer, Outcome, Result, Verdict
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.http.contract import HttpClient
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS, PoolLimits, Success
from flowcatalyst.router.pauses import Pauses
from flowcatalyst.router.policy import DEFAULT_DELAYS, Delays
from flowcatalyst.router.pool import Pool
from flowcatalyst.simulation.history import Gauges, History, Kind
from flowcatalyst.simulation.loop import LIFE, SeededLoop, VirtualClock
from flowcatalyst.simulation.queue import Dice, SimulatedQueue


class SimulatedDeadLetters:
    """Durable: survives the router. Can be told to fail."""

    def __init__(self, history: History, dice: Dice, name_of: Callable[[Delivery], str]) -> None:
        self.fails = 0.0
        self.kept: list[str] = []  # names in the history
        self._history = history
        self._dice = dice
        self._name_of = name_of

    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
        await asyncio.sleep(0.005)
        name = self._name_of(delivery)
        if self._dice.hit("dead_letter_fails", self.fails):
            self._history.add(Kind.UNRECORDED, name, delivery.pool)
            raise StorageError("the disk is full")
        self._history.add(Kind.DEAD_LETTERED, name, delivery.pool, reason)
        self.kept.append(name)
        await asyncio.sleep(0.005)


def name_in_history(pointer: MessagePointer) -> str:
    """Its id; where several messages share one, their tokens tell them apart, since no rule of ours looks at those."""
    return pointer.auth_token or pointer.id


class _Witness:
    """Stands between a pool and the mediator and tells the history when attempts begin and how they end."""

    def __init__(self, mediator: Mediator, history: History) -> None:
        self._mediator = mediator
        self._history = history
        self.pool: Pool  # set right after the pool was made

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        pool, name = self.pool, name_in_history(delivery.pointer)
        gauges = Gauges(pool.in_flight, pool.buffered)
        self._history.add(Kind.ATTEMPT, name, pool.code, gauges)
        try:
            outcome = await self._mediator.attempt(delivery, timeout_s)
        except BaseException:
            self._history.add(Kind.UNKNOWN, name, pool.code)
            raise
        told = outcome  # as the pool has to take it
        if pool.limits.success is Success.ONLY_200 and outcome.status != 200 and outcome.result is Result.SUCCESS:
            told = replace(outcome, result=Result.ERROR_PROCESS)
        self._history.add(Kind.ANSWER, name, pool.code, told)
        return outcome


class _WitnessedEngine(Engine):
    """The engine, its pools under observation."""

    history: History
    mediator: Mediator
    warnings: WarningLog
    made_pools: list[Pool]

    def _make_pool(self, code: str, limits: PoolLimits) -> Pool:
        witness = _Witness(self.mediator, self.history)
        witness.pool = Pool(code, limits, replace(self._pool_tools, mediator=witness))
        self.made_pools.append(witness.pool)
        return witness.pool

    def holdings(self) -> Counter[str]:
        """Everything it has in memory that should be gone when it has nothing to do."""
        held = Counter(tracker=len(self.tracker))
        for pool in self.made_pools:
            held["in flight"] += pool.in_flight
            held["buffered"] += pool.buffered
            held["groups"] += pool.group_count
            held["holds"] += pool.held_count
            held["slots"] += len(pool.slots)
        return held


class VerdictLog:
    """Writes the pools' verdicts into the history."""

    def __init__(self, history: History) -> None:
        self._history = history

    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        self._history.add(Kind.VERDICT, name_in_history(delivery.pointer), pool, verdict)


class World:
    """One history. The router's tasks belong to its life; the world itself is life 0."""

    def __init__(self, loop: SeededLoop, http: HttpClient, dice: Dice, delays: Delays = DEFAULT_DELAYS) -> None:
        self.loop = loop
        self.clock = VirtualClock()
        self.history = History(loop.time)
        self.dice = dice
        self.queues: dict[str, SimulatedQueue] = {}
        self.dead_letters = SimulatedDeadLetters(self.history, dice, self._name_of)
        self.pools: dict[str, PoolLimits] = {}
        self.pauses = Pauses()  # of all lives
        self.life = 0
        self.engine: _WitnessedEngine | None = None
        self.noted: Counter[str] = Counter()  # rare things that only the router itself can tell
        self._delays = delays
        self._mediator = Mediator(http, http, self.clock)
        self._context: Context | None = None
        self._crashed: asyncio.Future[None] | None = None
        self._asked: set[asyncio.Task[None]] = set()  # what people asked of the router and have no answer to
        self._past: list[Engine] = []

    # The life of the router

    def start(self, pools: Mapping[str, PoolLimits]) -> None:
        assert self.engine is None, "one router at a time"
        self.life += 1
        self._crashed = self.loop.create_future()
        self._context = copy_context()
        self._context.run(LIFE.set, self.life)
        self.history.add(Kind.STARTED)
        engine = self._context.run(self._new_engine)
        self._note_limits(pools)
        self._context.run(engine.start, self.queues, pools, self._mediator, VerdictLog(self.history), self._delays)
        self.engine = engine

    def reload(self, pools: Mapping[str, PoolLimits]) -> None:
        """Apply a new configuration to the running router."""
        if self.engine is None or self.engine.stopping:
            self.pools = dict(pools)
            return
        assert self._context is not None
        self._note_limits(pools)
        self._context.run(self.engine.router.apply, pools)

    async def stop(self) -> None:
        """Ask the router to stop and wait until it did, or crashed while it tried."""
        engine = self.engine
        if engine is None:
            return
        self.history.add(Kind.STOPPING)
        if not await self._in_life(self.loop.create_task_in_life(self.life, engine.stop())):
            return
        held = engine.holdings()
        held["tasks"] = len(self.loop.tasks_of(self.life)) - len(self._asked)
        held["timers"] = max(0, self.loop.timers_of(self.life) - len(self._asked))
        self._end_life()
        self.history.add(Kind.STOPPED, value=dict(held))

    async def ask(self, work: Coroutine[Any, Any, None]) -> None:
        """Have the router do something for a person, and wait until it did or crashed."""
        task = self.loop.create_task_in_life(self.life, work)
        self._asked.add(task)
        await self._in_life(task)
        self._asked.discard(task)

    async def _in_life(self, task: "asyncio.Task[None]") -> bool:
        """Whether it came to its end before the router crashed."""
        assert self._crashed is not None
        await asyncio.wait([task, self._crashed], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True

    def crash(self) -> None:
        """The end without a farewell: nothing of the router runs any more, not even its clean-up."""
        if self.engine is None or self._crashed is None:
            return
        self.loop.end_life(self.life)
        self._end_life()
        self.history.add(Kind.CRASHED)
        if not self._crashed.done():
            self._crashed.set_result(None)

    def crash_after(self, steps: int) -> None:
        """Crash when the router has taken so many more steps."""
        life, left = self.life, steps

        def count(stepping: int) -> None:
            nonlocal left
            if stepping == life:
                left -= 1
                if left <= 0:
                    self.loop.before_step = None
                    if self.life == life:
                        self.crash()

        self.loop.before_step = count

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock to another time; what lasts goes on as before."""
        self.dice.note("clock stepped ahead" if seconds > 0 else "clock stepped back")
        self.clock.step_wall(seconds)
        self.history.add(Kind.STEPPED, value=seconds)

    # What the router holds

    @property
    def is_done(self) -> bool:
        """The queues are empty and the router owns nothing."""
        return not any(map(len, self.queues.values())) and (self.engine is None or not len(self.engine.tracker))

    def note_idle(self) -> None:
        """Tell the history what an idle router still holds."""
        assert self.engine is not None
        held = self.engine.holdings()
        standing = 2 * len(self.queues) + len(self.engine.watches.all)  # consumers, settlers, watchers
        held["tasks"] = len(self.loop.tasks_of(self.life)) - standing
        self.history.add(Kind.IDLE, value=dict(held))

    def note_end(self) -> None:
        left = [name for queue in self.queues.values() for name in queue.left]
        self.history.add(Kind.ENDED, value=left)

    def _new_engine(self) -> _WitnessedEngine:
        warnings = WarningLog(self.clock)
        engine = _WitnessedEngine(self.dead_letters, warnings, self.clock, pauses=self.pauses)
        engine.warnings = warnings
        engine.history = self.history
        engine.mediator = self._mediator
        engine.made_pools = []
        return engine

    def _end_life(self) -> None:
        assert self.engine is not None
        counted: dict[str, Counter[str]] = {}
        for pool in self.engine.made_pools:
            counts = counted.setdefault(pool.code, Counter())
            counts["attempts"] += sum(pool.stats.attempts.values())
            counts["delivered"] += pool.stats.delivered
            counts["dead_lettered"] += pool.stats.dead_lettered
            counts["nacked"] += pool.stats.nacked
            counts["retried"] += pool.stats.retried
        for code, counts in counted.items():
            self.history.add(Kind.STATS, pool=code, value=counts)
        for _, breaker in self.engine.breakers.items():
            if breaker.opened_at:
                self.noted["breaker opened"] += 1
                self.noted["breaker closed again"] += breaker.state is BreakerState.CLOSED
        self.noted["rate limit waited for"] += sum(pool.stats.rate_limit_waits > 0 for pool in self.engine.made_pools)
        for warning in self.engine.warnings.recent():
            self.noted[f"warning {warning.code}"] += warning.count
        for queue in self.queues.values():
            queue.router_left()
        self._past.append(self.engine)  # a collector that ends its coroutines would run their clean-up
        self.engine = None

    def _note_limits(self, pools: Mapping[str, PoolLimits]) -> None:
        for code in sorted(self.pools.keys() - pools.keys()):
            self.history.add(Kind.LIMITS, pool=code)
        for code, limits in {DEFAULT_POOL: DEFAULT_POOL_LIMITS, **pools}.items():
            self.history.add(Kind.LIMITS, pool=code, value=limits)
        self.pools = dict(pools)

    def _name_of(self, delivery: Delivery) -> str:
        queue = self.queues[delivery.source.name]
        return queue.name_of(delivery)
