"""World: processes at work on one job store, each with a life that can stop, crash, pause and begin again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.message import Delivery, Outcome, Verdict
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.store.contract import Created
from flowcatalyst.http.contract import HttpClient
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import Delays
from flowcatalyst.router.pool import Pool
from flowcatalyst.simulation.jobs.history import History, Kind, Sent
from flowcatalyst.simulation.jobs.store import (
    WITNESS,
    Disk,
    SimulatedFile,
    StoreFaults,
    Witness,
    WitnessedJobQueue,
    WitnessedJobStore,
)
from flowcatalyst.simulation.loop import SeededLoop, VirtualClock
from flowcatalyst.simulation.queue import Dice

T = TypeVar("T")
AnyStore = TypeVar("AnyStore", bound=WitnessedJobStore)
QUEUE = "jobs"
OPEN_AGAIN_S = 0.5
HOUSEKEEPING_S = 1.5
CALL_TIMEOUT_S = 8.0  # after which a client hangs up; what it asked for may happen all the same
REQUEST = "request"  # a task of whoever asks a process: the API ends those with its connections


# Which process sends the request that this task makes.
SENDER: ContextVar[str] = ContextVar("sender", default="")


class NoAnswerError(Exception):
    """The process that was asked is gone, or did not answer in time. What was asked may have been done or not."""


class _Witness:
    """Stands between a pool and the mediator and tells the history when attempts begin and how they end."""

    def __init__(self, mediator: Mediator, history: History, process: str) -> None:
        self._mediator, self._history, self._process = mediator, history, process

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        name = delivery.pointer.id
        sent = Sent(delivery.pool, delivery.pointer.mediation_target)
        self._history.add(Kind.ATTEMPT, name, self._process, sent)
        SENDER.set(self._process)
        try:
            outcome = await self._mediator.attempt(delivery, timeout_s)
        except BaseException:
            self._history.add(Kind.CUT_OFF, name, self._process)
            raise
        self._history.add(Kind.ANSWER, name, self._process, outcome)
        return outcome


class _WitnessedEngine(Engine):
    witness: _Witness
    made_pools: list[Pool]

    def _make_pool(self, code: str, limits: PoolLimits) -> Pool:
        pool = Pool(code, limits, replace(self._pool_tools, mediator=self.witness))
        self.made_pools.append(pool)
        return pool

    def holdings(self) -> Counter[str]:
        """What should be gone when it has ended."""
        held = Counter(tracker=len(self.tracker))
        for pool in self.made_pools:
            held["in flight"] += pool.in_flight
            held["buffered"] += pool.buffered
            held["slots"] += len(pool.slots)
        return held


class _NoDeadLetters:
    """A job is never given up: it waits for a person."""

    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
        raise AssertionError(f"job {delivery.pointer.id} became a dead letter: {reason}")


class _NoLog:
    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        """The history knows."""


class Process:
    """One life of a process, and what others can do with it."""

    def __init__(
        self, name: str, life: int, store: WitnessedJobStore, file: SimulatedFile, engine: _WitnessedEngine
    ) -> None:
        self.name, self.life, self.owner = name, life, f"{name}/{life}"
        self.store, self.file, self.engine = store, file, engine
        self.is_up = False  # its store is open and its engine runs
        self.stopping = False
        self.paused = False
        self.tasks: list[asyncio.Task[None]] = []  # what it does besides delivering
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class JobsWorld:
    """One history. The tasks of a process belong to its life; the world itself is life 0."""

    divided = False  # whether processes use only a share of the limits of their pools each

    def __init__(
        self,
        loop: SeededLoop,
        http: HttpClient,
        dice: Dice,
        pools: Mapping[str, PoolLimits],
        *,
        faults: StoreFaults,
        delays: Delays,
        visibility_s: float,
        poll_interval_s: float,
        long_poll_s: float,
    ) -> None:
        self.loop, self.dice, self.pools, self.faults = loop, dice, dict(pools), faults
        self.clock = VirtualClock()
        self.history = History(loop.time, self.clock.wall)
        self.disk = Disk(self.history)
        self.processes: dict[str, Process] = {}  # those that live
        self._delays, self._visibility_s = delays, visibility_s
        self._poll_interval_s, self._long_poll_s = poll_interval_s, long_poll_s
        self._mediator = Mediator(http, http, self.clock)
        self._lives, self._leases = count(1), count(1)
        self._past: list[Process] = []  # a collector that ends their coroutines would run their clean-up

    # The lives of processes

    def start(self, name: str) -> None:
        assert name not in self.processes, "one process of a name at a time"
        life = next(self._lives)
        process = self.processes[name] = self._new_process(name, life)
        self.loop.create_task_in_life(life, self._begin(process))

    async def _begin(self, process: Process) -> None:
        while not process.is_up:
            try:
                await process.store.open()
            except (StorageError, QueueUnavailableError):
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                process.is_up = True
        queues = {QUEUE: process.store.queue}
        process.engine.start(queues, self.pools, process.engine.witness, _NoLog(), self._delays)
        limits = {code: limits.concurrency for code, limits in self.pools.items()}
        self.history.add(Kind.STARTED, process=process.owner, value=limits)
        process.tasks.append(self.loop.create_task(self._keep_house(process)))
        await self._work(process)

    async def _work(self, process: Process) -> None:
        """What a process does besides, from now on."""

    async def _keep_house(self, process: Process) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            with suppress(QueueUnavailableError):
                if await process.store.lead():
                    await process.store.queue.expire(process.store)

    async def stop(self, name: str) -> None:
        """Ask a process to stop and wait until it did, or crashed while it tried."""
        process = self.processes.get(name)
        if process is None or process.stopping or not process.is_up:
            return
        process.stopping = True
        self.history.add(Kind.STOPPING, process=process.owner)
        stopping = self.loop.create_task_in_life(process.life, self._stop(process))
        await asyncio.wait([stopping, process.ended], return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done() or self.processes.get(name) is not process:
            return
        stopping.result()
        held = process.engine.holdings()
        held["tasks"] = sum(task.get_name() != REQUEST for task in self.loop.tasks_of(process.life))
        self.history.add(Kind.STOPPED, process=process.owner, value=+held)
        self._bury(process)

    async def _stop(self, process: Process) -> None:
        await process.engine.stop()
        for task in process.tasks:
            task.cancel()
        if process.tasks:
            await asyncio.wait(process.tasks)
        await process.store.close()

    def crash(self, name: str) -> None:
        """The end without a farewell: nothing of it runs any more, not even its clean-up."""
        process = self.processes.get(name)
        if process is None:
            return
        self.history.add(Kind.CRASHED, process=process.owner)
        self._bury(process)

    def crash_after(self, name: str, steps: int) -> None:
        """Crash when the process has taken so many more steps."""
        process, left = self.processes.get(name), steps

        def count_down(stepping: int) -> None:
            nonlocal left
            if process is not None and stepping == process.life:
                left -= 1
                if left <= 0:
                    self.loop.before_step = None
                    if self.processes.get(name) is process:
                        self.crash(name)

        self.loop.before_step = count_down

    def _bury(self, process: Process) -> None:
        del self.processes[process.name]
        self._past.append(process)
        self.loop.end_life(process.life)
        process.file.writer.drop()
        self.disk.sign_off(process.owner)
        process.ended.set_result(None)

    def pause(self, name: str, seconds: float) -> None:
        """It stands still for so long and knows nothing of it (SIGSTOP, a machine that sleeps)."""
        process = self.processes.get(name)
        if process is None or process.paused:
            return
        process.paused = True
        self.loop.pause_life(process.life)
        self.history.add(Kind.PAUSED, process=process.owner)
        self.loop.call_later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        process.paused = False
        if self.processes.get(process.name) is process:
            self.history.add(Kind.RESUMED, process=process.owner)
            self.loop.resume_life(process.life)

    def cut_off(self, name: str, seconds: float) -> None:
        """It cannot reach the database for so long."""
        if (process := self.processes.get(name)) is not None:
            self.dice.note("database cannot be reached")
            process.file.writer.unreachable_until = self.loop.time() + seconds

    def step_clock(self, seconds: float) -> None:
        self.dice.note("clock stepped ahead" if seconds > 0 else "clock stepped back")
        self.clock.step_wall(seconds)
        self.history.add(Kind.STEPPED, value=seconds)

    # What clients and people do, through one of the processes

    def reachable(self) -> list[Process]:
        return [process for process in self.processes.values() if process.is_up and not process.stopping]

    async def ask(
        self, process: Process, call: Callable[[WitnessedJobStore], Awaitable[T]], tell: Witness | None = None
    ) -> T:
        """The answer of a process. `tell` learns of the result when it is committed, whoever hears the answer."""

        async def asking() -> T:
            WITNESS.set(tell)
            return await call(process.store)

        asked = self.loop.create_task_in_life(process.life, asking())
        asked.set_name(REQUEST)
        waiting: list[asyncio.Future[Any]] = [asked, process.ended]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=CALL_TIMEOUT_S)
        if not asked.done():
            asked.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise NoAnswerError
        return asked.result()

    async def create(self, process: Process, jobs: Sequence[Job]) -> list[Created]:
        def tell(results: list[Created]) -> None:
            for job, created in zip(jobs, results, strict=True):
                if not created.repeated:
                    self.history.add(Kind.CREATED, created.state.job.id, process.owner, job)

        created = await self.ask(process, lambda store: store.create(jobs), tell)
        for one in created:
            self.dice.note("asked again with the same key", one.repeated)
            self.history.add(Kind.ANSWERED, one.state.job.id, process.owner)
        return created

    def _new_process(self, name: str, life: int) -> Process:
        owner = f"{name}/{life}"
        store = self.new_store(owner)
        engine = _WitnessedEngine(_NoDeadLetters(), WarningLog(self.clock), self.clock, divided=self.divided)
        engine.witness = _Witness(self._mediator, self.history, owner)
        engine.made_pools = []
        return Process(name, life, store, store.queue.store, engine)

    def new_store(self, owner: str) -> WitnessedJobStore:
        """The store as a process opens it."""
        return self._open_store(WitnessedJobStore, owner)

    def _open_store(self, kind: type[AnyStore], owner: str) -> AnyStore:
        make_file = partial(SimulatedFile, disk=self.disk, owner=owner, faults=self.faults, dice=self.dice)
        store = kind(self.disk.path, self.clock, make_file=make_file)
        store.queue = WitnessedJobQueue(
            store.queue.store,
            self.disk,
            self.history,
            self._leases,
            poll_interval_s=self._poll_interval_s,
            visibility_s=self._visibility_s,
            long_poll_s=self._long_poll_s,
        )
        return store
