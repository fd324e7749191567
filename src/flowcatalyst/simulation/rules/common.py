"""Words that all rules share."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from flowcatalyst.core.message import DEFAULT_POOL, Capabilities
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.history import Event, Facts, Kind

LIFE_ENDS = (Kind.CRASHED, Kind.STOPPED)


@dataclass(slots=True, frozen=True)
class Promises:
    """What may be expected, given the queues the messages came from and what was done to them."""

    ordered_redelivery: bool = True  # of a queue without a name: it keeps the order of a group by itself
    queues: Mapping[str, Capabilities] = field(default_factory=dict)
    faulty: bool = True  # until the history says HEALED queues may fail in ways that only time mends
    batches: int = 0  # messages that may come along at once, whatever the pools have free capacity for
    parks_all: bool = True  # the limit is far away: no message waits because others are parked

    def keeps_order(self, facts: Facts) -> bool:
        queue = self.queues.get(facts.queue)
        return self.ordered_redelivery if queue is None else queue.ordered_redelivery


@dataclass(slots=True, frozen=True)
class Violation:
    """A promise that was broken, where, and in one sentence how."""

    at: float
    message: str
    text: str

    def __str__(self) -> str:
        return f"at {self.at:.3f} s, {self.message or 'router'}: {self.text}"


@dataclass(slots=True)
class Messages:
    """What was published, by name."""

    facts: dict[str, Facts] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Messages":
        return cls({event.message: event.value for event in events if event.kind is Kind.PUBLISHED})

    def original(self, name: str) -> str:
        """The name of the application message that `name` is, or is a copy of."""
        facts = self.facts.get(name)
        return facts.copy_of or name if facts is not None else name

    def host(self, name: str) -> str:
        return self.facts[name].host

    def ordered_group(self, name: str) -> str | None:
        facts = self.facts.get(name)
        return facts.group if facts is not None and facts.ordered else None

    def may_start(self, name: str, in_flight: Collection[str]) -> bool:
        """Neither it nor another one of its ordered group is under way."""
        group = self.ordered_group(name)
        return name not in in_flight and (group is None or group not in map(self.ordered_group, in_flight))

    def copied(self) -> set[str]:
        """Application messages that were published more than once."""
        return {facts.copy_of for facts in self.facts.values() if facts.copy_of is not None}


Key = tuple[PauseKind, str]  # of a pause


def keys_of(facts: Facts, pool: str = "") -> list[Key]:
    """The pauses that would stop a message: of the pool that it names, and of the one that it is in."""
    endpoints = {endpoint_of(facts.target), origin_of(facts.target)}
    group = [(PauseKind.GROUP, facts.group)] if facts.ordered and facts.group is not None else []
    pools = [(PauseKind.POOL, code) for code in dict.fromkeys((facts.pool, pool or facts.pool))]
    return [*group, *((PauseKind.ENDPOINT, name) for name in sorted(endpoints)), *pools]


class Stopped:
    """What people have paused or hold, event by event."""

    def __init__(self) -> None:
        self._paused: set[Key] = set()
        self._resumed_at: dict[Key, float] = {}
        self._configured: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._paused)

    def note(self, event: Event) -> None:
        if event.kind is Kind.PAUSED:
            self._paused.add(event.value)
        elif event.kind is Kind.RESUMED:
            self._paused.discard(event.value)
            self._resumed_at[event.value] = event.at
        elif event.kind is Kind.STARTED:
            self._configured.clear()
        elif event.kind is Kind.LIMITS:
            (self._configured.discard if event.value is None else self._configured.add)(event.pool)

    def what_stops(self, facts: Facts, pool: str = "") -> Key | None:
        """The pause that stops a message, in this pool or else in the one that it goes to."""
        if not self._paused:
            return None
        pool = pool or (facts.pool if facts.pool in self._configured else DEFAULT_POOL)
        return next((key for key in keys_of(facts, pool) if key in self._paused), None)

    def free_from(self, facts: Facts) -> float:
        """Since when nobody stops it; infinite: somebody does."""
        if self.what_stops(facts) is not None:
            return inf
        if not self._resumed_at:
            return 0.0
        keys = [*keys_of(facts), (PauseKind.POOL, DEFAULT_POOL)]
        return max(self._resumed_at.get(key, 0.0) for key in keys)

    def pool_free_from(self, pool: str) -> float:
        key = (PauseKind.POOL, pool)
        return inf if key in self._paused else self._resumed_at.get(key, 0.0)


def without_stale_nacks(events: Iterable[Event]) -> Iterator[Event]:
    """All events but nacks of a receipt that a newer delivery of the message replaced: that one is still held."""
    newest: dict[str, object] = {}
    for event in events:
        if event.kind is Kind.RECEIVED:
            newest[event.message] = event.value
        elif event.kind is Kind.NACK and newest.get(event.message, event.value[1]) != event.value[1]:
            continue
        yield event
