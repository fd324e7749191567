"""Rare things that come of what people do by hand, told from a history alone."""

from collections import Counter
from collections.abc import Iterator, Sequence

from flowcatalyst.core.message import Nack, Result, Retry
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Key, keys_of
from flowcatalyst.simulation.rules.people import SKIPPED

TOLD_BY_HAND = (
    "group held while an attempt is in flight",
    "held group released with messages waiting",
    "group released during a backoff",
    "pool paused with every slot busy",
    "pool paused during a backoff",
    "pool resumed with more waiting than it has slots",
    "pool resumed with more waiting than it holds",
    "endpoint paused during an attempt",
    "endpoint resumed with more groups waiting than slots",
    "origin paused with two endpoints",
    "two pauses stop one message",
    "pause outlived its router",
    "resumed while no router was up",
    "nacked head retried",
    "retry by hand in place of a backoff",
    "skip during an attempt",
    "skipped during an attempt and delivered all the same",
    "skipped during an attempt and a dead letter",
    "skip of a nacked head that comes back",
    "skip of one behind others",
    "skip in a paused pool",
    "skip in a held group",
    "skipped without ever being tried",
    "skip that could not be recorded",
    "skip forgotten by a crash",
    "dead letter replayed",
    "replay waits behind its group",
    "replay delivered",
    "replay of a skipped one",
)


class StoryByHand:
    """What is going on, event by event."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}
        self.in_flight: dict[str, str] = {}  # message -> pool
        self.untried: dict[str, None] = {}  # published, and neither tried nor settled
        self.here: set[str] = set()  # received and not settled
        self.backing_off: set[str] = set()
        self.away: set[str] = set()  # nacked after a failure
        self.paused: dict[Key, int] = {}  # in which life of the router
        self.skipped: dict[str, bool] = {}  # by the router that is up; whether during an attempt
        self.ever_skipped: set[str] = set()
        self.forgotten: set[str] = set()  # skipped by a router that crashed
        self.tried: set[str] = set()
        self.concurrency: dict[str, int] = {}
        self.capacity: dict[str, int] = {}
        self.life = 0
        self.up = False

    def read(self, events: Sequence[Event]) -> Iterator[str]:
        readers = {
            Kind.PUBLISHED: self._published,
            Kind.RECEIVED: self._received,
            Kind.LIMITS: self._limits,
            Kind.ATTEMPT: self._attempt,
            Kind.ANSWER: self._answer,
            Kind.UNKNOWN: self._answer,
            Kind.VERDICT: self._verdict,
            Kind.DEAD_LETTERED: self._buried,
            Kind.UNRECORDED: self._unrecorded,
            Kind.HURRIED: self._hurried,
            Kind.SKIP: self._skip,
            Kind.PAUSED: self._paused,
            Kind.RESUMED: self._resumed,
            Kind.STARTED: self._started,
            Kind.CRASHED: self._ended,
            Kind.STOPPED: self._ended,
        }
        for event in events:
            reader = readers.get(event.kind)
            if reader is not None:
                yield from reader(event) or ()

    def _published(self, event: Event) -> Iterator[str]:
        facts: Facts = event.value
        self.facts[event.message] = facts
        if event.message.endswith("+"):
            yield "dead letter replayed"
            if event.message.removesuffix("+") in self.ever_skipped:
                yield "replay of a skipped one"
            if facts.ordered and any(self.facts[one].group == facts.group for one in self.untried):
                yield "replay waits behind its group"
        self.untried[event.message] = None

    def _received(self, event: Event) -> Iterator[str]:
        self.here.add(event.message)
        if event.message in self.away and event.message in self.skipped:
            yield "skip of a nacked head that comes back"
        self.away.discard(event.message)

    def _limits(self, event: Event) -> None:
        if event.value is not None:
            self.concurrency[event.pool] = event.value.concurrency
            self.capacity[event.pool] = event.value.effective_capacity

    def _attempt(self, event: Event) -> Iterator[str]:
        name = event.message
        self.in_flight[name] = event.pool
        self.tried.add(name)
        self.untried.pop(name, None)
        self.backing_off.discard(name)
        if name in self.forgotten:
            yield "skip forgotten by a crash"

    def _answer(self, event: Event) -> Iterator[str]:
        self.in_flight.pop(event.message, None)
        if event.kind is Kind.ANSWER and event.value.result is Result.SUCCESS:
            self.here.discard(event.message)
            if event.message in self.skipped:
                yield "skipped during an attempt and delivered all the same"
            if event.message.endswith("+"):
                yield "replay delivered"

    def _verdict(self, event: Event) -> None:
        if isinstance(event.value, Retry):
            self.backing_off.add(event.message)
        elif isinstance(event.value, Nack):
            self.away.add(event.message)
            self.here.discard(event.message)

    def _buried(self, event: Event) -> Iterator[str]:
        name = event.message
        self.here.discard(name)
        self.untried.pop(name, None)
        self.backing_off.discard(name)
        if str(event.value).startswith(SKIPPED):
            if name not in self.tried:
                yield "skipped without ever being tried"
            if self.skipped.get(name):
                yield "skipped during an attempt and a dead letter"

    def _unrecorded(self, event: Event) -> Iterator[str]:
        if event.message in self.skipped:
            yield "skip that could not be recorded"

    def _hurried(self, event: Event) -> Iterator[str]:
        if event.message in self.away:
            yield "nacked head retried"
        if event.message in self.backing_off:
            self.backing_off.discard(event.message)
            yield "retry by hand in place of a backoff"

    def _skip(self, event: Event) -> Iterator[str]:
        name, told = event.message, str(event.value)
        self.ever_skipped.add(name)
        self.skipped[name] = name in self.in_flight
        if name in self.in_flight:
            yield "skip during an attempt"
        elif "when its turn comes" in told:
            yield "skip of one behind others"
        elif "is resumed" in told:
            yield "skip in a paused pool"
        if any(key[0] is PauseKind.GROUP for key in self._stops(name)):
            yield "skip in a held group"

    def _stops(self, name: str) -> list[Key]:
        return [key for key in keys_of(self.facts[name]) if key in self.paused]

    def _paused(self, event: Event) -> Iterator[str]:
        kind, name = key = event.value
        self.paused[key] = self.life
        flying = [one for one in self.in_flight if key in keys_of(self.facts[one], self.in_flight[one])]
        if any(len(self._stops(one)) > 1 for one in self.here):
            yield "two pauses stop one message"
        if kind is PauseKind.GROUP and flying:
            yield "group held while an attempt is in flight"
        if kind is PauseKind.ENDPOINT and flying:
            yield "endpoint paused during an attempt"
        if kind is PauseKind.ENDPOINT:
            targets = {self.facts[one].target for one in self.here if origin_of(self.facts[one].target) == name}
            if len({endpoint_of(target) for target in targets}) > 1:
                yield "origin paused with two endpoints"
        if kind is PauseKind.POOL and len(flying) >= self.concurrency.get(name, 1):
            yield "pool paused with every slot busy"
        if kind is PauseKind.POOL and any(self.facts[one].pool == name for one in self.backing_off):
            yield "pool paused during a backoff"

    def _resumed(self, event: Event) -> Iterator[str]:
        kind, name = key = event.value
        if self.paused.pop(key) < self.life:
            yield "pause outlived its router"
        if not self.up:
            yield "resumed while no router was up"
        waiting = [one for one in self.here if key in keys_of(self.facts[one]) and one not in self.in_flight]
        if kind is PauseKind.GROUP and waiting:
            yield "held group released with messages waiting"
            if self.backing_off.intersection(waiting):
                yield "group released during a backoff"
        groups = Counter(self.facts[one].pool for one in {self.facts[one].group: one for one in waiting}.values())
        if kind is PauseKind.ENDPOINT and any(groups[pool] > self.concurrency.get(pool, 1) for pool in groups):
            yield "endpoint resumed with more groups waiting than slots"
        backlog = sum(self.facts[one].pool == name for one in self.untried) if kind is PauseKind.POOL else 0
        if backlog > self.concurrency.get(name, 1):
            yield "pool resumed with more waiting than it has slots"
        if backlog > self.capacity.get(name, backlog):
            yield "pool resumed with more waiting than it holds"

    def _started(self, event: Event) -> None:
        self.life += 1
        self.up = True

    def _ended(self, event: Event) -> None:
        assert event.kind in LIFE_ENDS
        self.up = False
        if event.kind is Kind.CRASHED:
            self.forgotten.update(self.skipped)
        for names in (self.skipped, self.in_flight, self.backing_off, self.here, self.away):
            names.clear()
