"""G5, G6: bounds hold always, and what is stuck delays nobody else."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

from flowcatalyst.core.message import Nack, Retry
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS, PoolLimits
from flowcatalyst.router.rate import WINDOW_S
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Violation

CLOCK_GRAIN_S = 1e-6


def in_flight_within_concurrency(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """When an attempt starts, no more are in flight in its pool than the limit in force."""
    limits: dict[str, PoolLimits] = {}
    in_flight: Counter[str] = Counter()
    for event in events:
        if event.kind is Kind.LIMITS:
            _note_limits(limits, event)
        elif event.kind is Kind.ATTEMPT:
            in_flight[event.pool] += 1
            limit = limits.get(event.pool, DEFAULT_POOL_LIMITS).concurrency
            if in_flight[event.pool] > limit:
                text = f"attempt {in_flight[event.pool]} at once in pool {event.pool}, which allows {limit}"
                yield Violation(event.at, event.message, text)
        elif event.kind in (Kind.ANSWER, Kind.UNKNOWN):
            in_flight[event.pool] -= 1
        elif event.kind in LIFE_ENDS:
            in_flight.clear()


def messages_within_capacity(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A pool holds no more messages than its capacity and what may be parked; one that shrank no more than before.

    A queue that cannot be asked per pool may bring one batch more.
    """
    most: dict[str, int] = {}
    allowed: dict[str, int] = {}  # while a pool that shrank still holds more than it may
    default = DEFAULT_POOL_LIMITS.effective_capacity + DEFAULT_POOL_LIMITS.parked_limit
    for event in events:
        if event.kind is Kind.LIMITS and event.value is not None:
            now = event.value.effective_capacity + event.value.parked_limit
            before = most.get(event.pool, now)
            most[event.pool] = now
            if now < before:
                allowed[event.pool] = max(before, allowed.get(event.pool, 0))
        elif event.kind is Kind.ATTEMPT and event.value is not None:
            total = event.value.in_flight + event.value.buffered
            limit = most.get(event.pool, default)
            if total > max(limit, allowed.get(event.pool, 0)) + promises.batches:
                text = f"{total} messages in pool {event.pool}, which may hold {limit}, parked ones included"
                yield Violation(event.at, event.message, text)
            if event.pool in allowed:
                allowed[event.pool] = total
                if total <= limit:
                    del allowed[event.pool]
        elif event.kind in LIFE_ENDS:
            most.clear()
            allowed.clear()


def starts_within_the_rate(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """In any 60 s a pool starts no more attempts than its limit in force; starts before there was one do not count."""
    limits: dict[str, PoolLimits] = {}
    starts: dict[str, deque[float]] = defaultdict(deque)
    for event in events:
        if event.kind is Kind.LIMITS:
            _note_limits(limits, event)
        elif event.kind is Kind.ATTEMPT:
            limit = limits.get(event.pool, DEFAULT_POOL_LIMITS).rate_per_minute
            if limit is None:
                continue
            window = starts[event.pool]
            window.append(event.at)
            while window[0] + WINDOW_S <= event.at:
                window.popleft()
            if len(window) > limit:
                text = f"start {len(window)} within 60 s in pool {event.pool}, which allows {limit}"
                yield Violation(event.at, event.message, text)
        elif event.kind in LIFE_ENDS:
            starts.clear()


def waits_as_long_as_asked(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A message that is to be retried after a while is not attempted before; a nacked one has to come again first.

    One that was published twice waits in two places, and each has a clock of its own. A person may want it at once.
    """
    copied = Messages.of(events).copied()
    not_before: dict[str, float] = {}
    away: set[str] = set()
    for event in events:
        name = event.message
        if name in copied:
            continue
        if event.kind is Kind.VERDICT and isinstance(event.value, Retry):
            not_before[name] = event.at + event.value.after_s
        elif event.kind is Kind.VERDICT and isinstance(event.value, Nack):
            away.add(name)
        elif event.kind in (Kind.RECEIVED, Kind.NACK, Kind.UNKNOWN):  # a new delivery, or none at all
            away.discard(name)
            not_before.pop(name, None)
        elif event.kind is Kind.HURRIED:
            not_before.pop(name, None)
        elif event.kind is Kind.ATTEMPT:
            due_at = not_before.pop(name, 0.0)
            if event.at < due_at - CLOCK_GRAIN_S:
                yield Violation(event.at, name, f"attempted {due_at - event.at:.3f} s before its retry was due")
            if name in away:
                yield Violation(event.at, name, "attempted after it was nacked, without being received again")
        elif event.kind in LIFE_ENDS:
            not_before.clear()
            away.clear()


def isolation(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A message in whose way nothing stands gets its first attempt in time, whatever else is stuck."""
    due: dict[str, tuple[float, float]] = {}  # message -> published at, due at
    for event in events:
        if event.kind is Kind.PUBLISHED and event.value.prompt_s is not None:
            due[event.message] = (event.at, event.at + event.value.prompt_s)
        elif event.kind is Kind.ATTEMPT and event.message in due:
            published_at, due_at = due.pop(event.message)
            if event.at > due_at:
                text = f"waited {event.at - published_at:.1f} s for its first attempt, with nothing in its way"
                yield Violation(event.at, event.message, text)
        elif event.kind is Kind.ENDED:
            for name in due:
                yield Violation(event.at, name, "never got an attempt, with nothing in its way")


def _note_limits(limits: dict[str, PoolLimits], event: Event) -> None:
    if event.value is not None:  # a pool that is no longer configured works off the rest under its last limits
        limits[event.pool] = event.value
