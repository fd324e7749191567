"""Stretches of time in which a pool could have started something, and groups that waited meanwhile.

Only groups are judged in whose way nothing stands: each message of theirs that was answered so far was delivered at
once. What failed, was slow or was nacked after an attempt may wait for reasons that a history does not tell.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from flowcatalyst.core.message import DEFAULT_POOL, Result
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS, PoolLimits
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.router.policy import DEFAULT_DELAYS
from flowcatalyst.router.rate import WINDOW_S
from flowcatalyst.router.shares import FEWEST_TO_SPARE
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Stopped, keys_of

RECOVERY_S = 90.0  # a poll that hung when the faults stopped, and the longest pause after it, are over by then
SHORTEST_S = 1.0  # nobody has less patience
SLOW_S = 1.0  # an endpoint that takes longer may be kept from taking all slots


@dataclass(slots=True)
class PoolState:
    """What a pool does now, and since when."""

    limits: PoolLimits = DEFAULT_POOL_LIMITS
    in_flight: dict[str, str] = field(default_factory=dict)  # message -> host
    starts: deque[float] = field(default_factory=deque)  # in the last minute, where the rate is limited
    free_from: float = 0.0  # it has had a slot and a permit since; infinite: it has none
    sole_from: float = inf  # since then one endpoint has all slots of a pool that could spare one

    def look(self, now: float) -> None:
        """Something started or ended."""
        rate = self.limits.rate_per_minute
        permit_at = now
        if rate is not None:
            while self.starts and self.starts[0] + WINDOW_S <= now:
                self.starts.popleft()
            permit_at = self.starts[-rate] + WINDOW_S if len(self.starts) >= rate else now
        full = len(self.in_flight) >= self.limits.concurrency
        if full:
            self.free_from = inf
        elif permit_at > now:
            self.free_from = permit_at
        elif self.free_from > now:
            self.free_from = now
        alone = full and self.limits.concurrency >= FEWEST_TO_SPARE and len(set(self.in_flight.values())) == 1
        self.sole_from = now if alone else inf


class Pools(defaultdict[str, PoolState]):
    """What all pools do, event by event."""

    def __init__(self) -> None:
        super().__init__(PoolState)

    def note(self, event: Event, messages: Messages) -> None:
        if event.kind is Kind.LIMITS and event.value is not None:
            self[event.pool].limits = event.value
            self[event.pool].look(event.at)  # with fewer slots, those in flight may have them all
        elif event.kind in LIFE_ENDS:
            for state in self.values():
                state.in_flight.clear()
                state.starts.clear()
                state.look(event.at)
        elif event.kind is Kind.ATTEMPT:
            self[event.pool].in_flight[event.message] = messages.host(event.message)
            self[event.pool].starts.append(event.at)
            self[event.pool].look(event.at)
        elif event.kind in (Kind.ANSWER, Kind.UNKNOWN):
            self[event.pool].in_flight.pop(event.message, None)
            self[event.pool].look(event.at)

    def in_flight(self) -> set[str]:
        return {name for state in self.values() for name in state.in_flight}

    def are_tight_for(self, host: str) -> bool:
        """A pool that has attempts at it under way has no slot free, or the last one, which is for somebody else."""
        return any(
            len(state.in_flight) + 1 >= state.limits.concurrency and host in state.in_flight.values()
            for state in self.values()
        )


@dataclass(slots=True)
class Waiting:
    """A group whose messages are in their queue, and for how long none of them was started."""

    pool: str
    host: str
    pending: dict[str, None] = field(default_factory=dict)
    idle_from: float = 0.0
    released_at: float = -inf  # by a person
    in_flight: int = 0
    patience_s: float = 0.0


@dataclass(slots=True, frozen=True)
class Wait:
    """A group that could have been served and was not."""

    at: float
    message: str
    seconds: float
    pool: str
    holder: str  # the endpoint that had all slots; empty: a slot was free
    released: bool = False  # somebody had paused it or held it until then


class Watch:
    """Reads a history and finds the groups that waited although their pool could have served them."""

    def __init__(self, events: Sequence[Event], promises: Promises, sole_patience_s: float) -> None:
        self._events = events
        self._promises = promises
        self._sole_patience_s = sole_patience_s
        self._messages = Messages.of(events)
        self._copied = self._messages.copied()
        self._stopped = Stopped()
        self._pools: dict[str, PoolState] = defaultdict(PoolState)
        self._configured: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        # Pool -> stretches that are over and lasted longer than anybody may wait: from, to, who had all slots.
        self._free: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        self._began: dict[str, float] = {}  # of what is in flight
        self._dirty: set[str] = set()  # hosts that failed or were slow
        self._judged_from = inf if promises.faulty else 0.0
        self._up = False
        self._crashed = False

    def waits(self) -> Iterator[Wait]:
        if not self._promises.parks_all:
            return
        readers: dict[Kind, Callable[[Event], Iterator[Wait] | None]] = {
            Kind.PUBLISHED: self._published,
            Kind.LIMITS: self._limits,
            Kind.STARTED: self._started,
            Kind.ATTEMPT: self._attempt,
            Kind.ANSWER: self._ended_attempt,
            Kind.UNKNOWN: self._ended_attempt,
            Kind.REMOVED: self._left_queue,
            Kind.NACK: self._nacked,
            Kind.UNRECORDED: self._unrecorded,
            Kind.PAUSED: self._paused,
            Kind.RESUMED: self._resumed,
            Kind.CUT: self._cut,
            Kind.HEALED: self._healed,
            Kind.STOPPING: self._down,
            Kind.CRASHED: self._down,
            Kind.STOPPED: self._down,
            Kind.ENDED: self._down,
        }
        for event in self._events:
            reader = readers.get(event.kind)
            if reader is not None:
                yield from reader(event) or ()
            self._stopped.note(event)

    # Time

    def _started(self, event: Event) -> None:
        at, self._up = event.at, True
        self._configured.clear()
        leases = [queue.visibility_s for queue in self._promises.queues.values() if queue.visibility_s < inf]
        hidden_s = max(leases, default=0.0) if self._crashed else 0.0  # what the router before had leased
        self._judged_from = max(at + hidden_s, self._judged_from)
        for state in self._pools.values():
            state.in_flight.clear()
            state.starts.clear()
            state.free_from, state.sole_from = at, inf
        self._free.clear()
        self._began.clear()
        for waiting in self._waiting.values():
            waiting.in_flight = 0

    def _healed(self, event: Event) -> None:
        if self._promises.faulty:
            self._judged_from = event.at + RECOVERY_S

    def _cut(self, event: Event) -> Iterator[Wait]:
        """What waits for a connection, or with another router, waits for no fault of ours."""
        yield from self._judge_all(event.at)
        self._judged_from = max(self._judged_from, event.value + RECOVERY_S)

    def _down(self, event: Event) -> Iterator[Wait]:
        if self._up:
            yield from self._judge_all(event.at)
        self._up = False
        self._crashed = event.kind is Kind.CRASHED

    def _limits(self, event: Event) -> Iterator[Wait]:
        """A reload. Until the next start it is not known which pool a group is in."""
        if event.value is None or event.pool in self._configured:
            yield from self._judge_all(event.at)
            self._up = False
            return
        self._configured.add(event.pool)
        self._pools[event.pool].limits = event.value
        self._pools[event.pool].look(event.at)

    # Messages

    def _key(self, name: str, facts: Facts) -> str:
        return f"group {facts.group}" if facts.ordered else name

    def _published(self, event: Event) -> None:
        facts: Facts = event.value
        if not facts.readable or facts.copy_of is not None or event.message in self._copied:
            return
        key = self._key(event.message, facts)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = Waiting(facts.pool, facts.host)
        # 1 s where the storage is ours, one long poll elsewhere, and a little.
        queue, patience_s = self._promises.queues.get(facts.queue), 25.0
        if queue is not None:
            patience_s = 1.5 if queue.selects_pools else queue.long_poll_s + 5.0
        waiting.patience_s = max(waiting.patience_s, patience_s)
        if not waiting.pending:
            waiting.idle_from = max(event.at, waiting.idle_from)
        waiting.pending[event.message] = None

    def _attempt(self, event: Event) -> Iterator[Wait]:
        facts = self._messages.facts[event.message]
        waiting = self._waiting.get(self._key(event.message, facts))
        if waiting is not None:
            yield from self._judge(waiting, event.at)
            waiting.pending.pop(event.message, None)
            waiting.in_flight += 1
        state = self._pools[event.pool]
        if state.limits.rate_per_minute is not None:
            state.starts.append(event.at)
        state.in_flight[event.message] = facts.host
        self._began[event.message] = event.at
        self._look(event.pool, state, event.at)

    def _ended_attempt(self, event: Event) -> None:
        facts = self._messages.facts[event.message]
        waiting = self._waiting.get(self._key(event.message, facts))
        if waiting is not None:
            waiting.in_flight = max(0, waiting.in_flight - 1)
            waiting.idle_from = max(waiting.idle_from, event.at)
        state = self._pools[event.pool]
        host = state.in_flight.pop(event.message, facts.host)
        self._look(event.pool, state, event.at, host)
        slow = event.at - self._began.pop(event.message, event.at) > SLOW_S
        if slow or event.kind is Kind.UNKNOWN or event.value.result is not Result.SUCCESS:
            self._dirty.add(facts.host)

    def _left_queue(self, event: Event) -> None:
        """Its queue locked its group until now."""
        facts = self._messages.facts[event.message]
        waiting = self._waiting.get(self._key(event.message, facts))
        if waiting is not None:
            waiting.pending.pop(event.message, None)  # another router, or a dead letter
            waiting.idle_from = max(waiting.idle_from, event.at)

    def _nacked(self, event: Event) -> None:
        """One that could neither be read nor buried locks its group; that others were refused is no excuse."""
        facts = self._messages.facts[event.message]
        if not facts.readable:
            waiting = self._waiting.setdefault(f"group {facts.group}", Waiting(facts.pool, facts.host))
            waiting.idle_from = max(waiting.idle_from, event.at + event.value[0])

    def _unrecorded(self, event: Event) -> None:
        """One that was skipped and could not be recorded waits like one that failed, and its group with it."""
        facts = self._messages.facts[event.message]
        waiting = self._waiting.get(self._key(event.message, facts))
        if waiting is not None:
            waiting.idle_from = max(waiting.idle_from, event.at + DEFAULT_DELAYS.nack_delay_s)

    # People

    def _paused(self, event: Event) -> Iterator[Wait]:
        """What it stops is judged until now."""
        for waiting in self._waiting.values():
            stops = any(event.value in keys_of(self._messages.facts[name]) for name in waiting.pending)
            if stops or event.value == (PauseKind.POOL, DEFAULT_POOL):  # where also others end up
                yield from self._judge(waiting, event.at)

    def _resumed(self, event: Event) -> None:
        for waiting in self._waiting.values():
            if self._is_stopped(waiting):
                waiting.idle_from = waiting.released_at = max(waiting.idle_from, event.at)

    def _is_stopped(self, waiting: Waiting) -> bool:
        """One that is stopped stops those behind it."""
        if not self._stopped:
            return False
        return any(self._stopped.what_stops(self._messages.facts[name]) for name in waiting.pending)

    # Judgement

    def _look(self, pool: str, state: PoolState, at: float, ended: str = "") -> None:
        """The pool changed. Keep the stretch that ends here if it was long enough for anybody to complain."""
        free_from, sole_from = state.free_from, state.sole_from
        state.look(at)
        if at - free_from > SHORTEST_S and state.free_from > free_from:
            self._free[pool].append((free_from, at, ""))
        elif at - sole_from > self._sole_patience_s:
            self._free[pool].append((sole_from, at, ended))

    def _judge_all(self, at: float) -> Iterator[Wait]:
        for waiting in self._waiting.values():
            yield from self._judge(waiting, at)

    def _judge(self, waiting: Waiting, at: float) -> Iterator[Wait]:
        begin = max(waiting.idle_from, self._judged_from)
        if not self._up or not waiting.pending or waiting.in_flight or at - begin <= waiting.patience_s:
            return
        if self._is_stopped(waiting):
            return
        code = waiting.pool if waiting.pool in self._configured else DEFAULT_POOL
        state = self._pools[code]
        slow = (name for name, host in state.in_flight.items() if host == waiting.host)
        if waiting.host in self._dirty or any(at - self._began[name] > SLOW_S for name in slow):
            return
        stretches = [*self._free.get(code, ()), (state.free_from, at, "")]
        if state.sole_from < inf:
            stretches.append((state.sole_from, at, next(iter(state.in_flight.values()))))
        name = next(iter(waiting.pending))
        for since, until, holder in stretches:
            seconds = min(until, at) - max(since, begin)
            if holder and holder == waiting.host:
                continue
            if seconds > (max(self._sole_patience_s, waiting.patience_s) if holder else waiting.patience_s):
                yield Wait(at, name, seconds, code, holder, begin == waiting.released_at)
                return
