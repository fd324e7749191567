"""SeededLoop: an event loop on virtual time whose order of steps is drawn from a seed.

asyncio promises that plain callbacks run in the order they were scheduled in, and says nothing about the order in which
tasks that are ready take their steps. So does this loop: callbacks first in, first out; among the ready tasks and the
next callback, the seed decides. Time stands still while anything is ready and then jumps to the next timer. There are
no threads, no sockets and no signals, so one seed always gives one run.
"""

# An event loop cannot be made without looking into asyncio's handles:
# mypy: disable-error-code="attr-defined,union-attr,override"

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary
from zlib import crc32

T = TypeVar("T")

# Which life of a router a task or callback belongs to; 0 is the world around it, which never dies.
LIFE: ContextVar[int] = ContextVar("life", default=0)
_LIMBO = -1  # in which dead tasks are closed


class DeadlockError(RuntimeError):
    """Every task waits for another one and no timer is set."""


class ThreadsForbiddenError(RuntimeError):
    """A simulation has one thread: what happens in another one could not be replayed."""


class EndlessError(RuntimeError):
    """The limit of steps was reached: the history goes round in circles."""


class SeededLoop(asyncio.BaseEventLoop):
    """Runs one history. `steps` counts what ran; `trace` is a running checksum of it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.steps = 0
        self.steps_limit: int | None = None
        self.trace = 0
        self.before_step: Callable[[int], None] | None = None  # called with the life whose step comes next
        self._now = 0.0
        self._choose = random.Random(seed).random
        self._callbacks: deque[asyncio.Handle] = deque()
        self._task_steps: list[asyncio.Handle] = []
        self._dead: set[int] = set()
        self._paused: dict[int, list[asyncio.Handle]] = {}  # by life: what waits until it goes on
        self._life_of: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._graveyard: list[asyncio.Task[Any]] = []  # else the collector would end them, and run their clean-up

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        life = handle._context.get(LIFE, 0)
        if life in self._paused:
            self._paused[life].append(handle)
        elif life not in self._dead:
            self._make_ready(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's, but a pair in the heap: its numbers are compared without a call of Python for each."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._scheduled, (when, timer))
        timer._scheduled = True
        return timer

    def _make_ready(self, handle: asyncio.Handle) -> None:
        steps_a_task = isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)
        (self._task_steps if steps_a_task else self._callbacks).append(handle)

    def pause_life(self, life: int) -> None:
        """Nothing that belongs to this life runs until it is resumed; what is due meanwhile waits (SIGSTOP)."""
        ready = [*self._callbacks, *self._task_steps]
        self._paused[life] = [handle for handle in ready if handle._context.get(LIFE, 0) == life]
        self._drop_ready(life)

    def resume_life(self, life: int) -> None:
        for handle in self._paused.pop(life, ()):
            self._make_ready(handle)

    def end_life(self, life: int) -> None:
        """From now on nothing that belongs to this life runs: no step, no callback, no timer, no clean-up."""
        self._dead.add(life)
        self._graveyard += self.tasks_of(life)
        self._paused.pop(life, None)
        self._drop_ready(life)
        for _, timer in self._scheduled:
            if timer._context.get(LIFE, 0) == life:
                timer.cancel()

    def _drop_ready(self, life: int) -> None:
        self._task_steps = [handle for handle in self._task_steps if handle._context.get(LIFE, 0) != life]
        self._callbacks = deque(handle for handle in self._callbacks if handle._context.get(LIFE, 0) != life)

    def timers_of(self, life: int) -> int:
        return sum(not timer.cancelled() and timer._context.get(LIFE, 0) == life for _, timer in self._scheduled)

    def tasks_of(self, life: int) -> list["asyncio.Task[Any]"]:
        return [task for task, its_life in self._life_of.items() if its_life == life and not task.done()]

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[T]":
        task = super().create_task(coro, name=name, context=context)
        self._life_of[task] = LIFE.get() if context is None else context.get(LIFE, 0)
        return task

    def create_task_in_life(self, life: int, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        context = copy_context()
        context.run(LIFE.set, life)
        return self.create_task(work, context=context)

    async def close_the_dead(self) -> None:
        """End the coroutines of tasks that never will. Their clean-up finds a loop, but nothing comes of it."""
        self._dead.add(_LIMBO)
        limbo = copy_context()
        limbo.run(LIFE.set, _LIMBO)
        for task in self._graveyard:
            task._log_destroy_pending = False
            limbo.run(task.get_coro().close)

    def _run_once(self) -> None:
        """One step, or if nothing is ready one jump in time."""
        timers = self._scheduled
        if not self._callbacks and not self._task_steps:
            while timers and timers[0][1]._cancelled:
                heappop(timers)[1]._scheduled = False
            if not timers:
                raise DeadlockError
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            timer = heappop(timers)[1]
            timer._scheduled = False
            if not timer._cancelled:
                self._paused.get(timer._context.get(LIFE, 0), self._callbacks).append(timer)
        steps = self._task_steps
        choices = len(steps) + bool(self._callbacks)
        if not choices:
            return
        chosen = int(self._choose() * choices) if choices > 1 else 0
        self.trace = crc32(b"%d/%d@%f" % (chosen, choices, self._now), self.trace)
        if chosen == len(steps):
            handle = self._callbacks.popleft()
        else:
            steps[chosen], steps[-1] = steps[-1], steps[chosen]
            handle = steps.pop()
        if not handle._cancelled:
            if self.before_step is not None:
                life = handle._context.get(LIFE, 0)
                self.before_step(life)
                if life in self._dead:
                    return
            self.steps += 1
            if self.steps == self.steps_limit:
                raise EndlessError
            handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files and sockets to have events."""

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """One that the collector finds is of a life that ended: nothing of it runs any more, not even its clean-up."""
        self._asyncgens.discard(agen)

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ThreadsForbiddenError

    def run_in_executor(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ThreadsForbiddenError


class VirtualClock:
    """A `Clock` on the time of the running loop. Its wall can be stepped, as an operator or NTP steps a real one."""

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self._epoch = epoch

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.monotonic()

    def step_wall(self, seconds: float) -> None:
        self._epoch += seconds


def run_seeded(seed: int, main: Callable[[SeededLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end on a loop of its own."""
    loop = SeededLoop(seed)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.before_step = None
        loop.run_until_complete(loop.close_the_dead())
        loop.close()
