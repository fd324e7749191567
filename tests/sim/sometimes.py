"""Rare things that must happen now and then, or the simulation is asleep.

Each is told from a history alone, or counted where it happened. A run over many seeds fails if one of them never came.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields

from flowcatalyst.core.message import DEFAULT_GROUP, Ack, DispatchMode, Nack, Result, Retry, Settled
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS
from flowcatalyst.simulation.history import Event, Facts, Kind, Lost
from flowcatalyst.simulation.queue import QueueFaults
from tests.sim.by_hand_sometimes import TOLD_BY_HAND, StoryByHand
from tests.sim.plan import ENDPOINT_TROUBLES
from tests.sim.play import Played

# What is counted where it happens.
COUNTED = (
    *(field.name for field in fields(QueueFaults) if field.name != "latency_s"),
    *(f"endpoint: {kind}" for kind in ENDPOINT_TROUBLES if kind not in ("slow", "outage")),
    "endpoint: silence",
    "endpoint: probe hung",
    "endpoint: asked for patience",
    "connection cut",
    "taken by another router",
    "clock stepped ahead",
    "clock stepped back",
    "dead_letter_fails",
    "lease lost",
    "breaker opened",
    "breaker closed again",
    "rate limit waited for",
    "warning QUEUE_FULL",
    "warning ROUTING",
    "warning QUEUE_UNAVAILABLE",
    "warning CONFIGURATION",
)
# What the history tells.
TOLD = (
    "crash between a success and its ack",
    "crash between a dead letter and its ack",
    "crash while an attempt is in flight",
    "crash during a drain",
    "attempt cut off by the end of a drain",
    "drain during a backoff",
    "drain during an attempt",
    "reload during a hold",
    "pool removed during an attempt",
    "attempt in a pool that was removed",
    "pool shrunk below what is in flight",
    "pool grown",
    "redelivery while in flight",
    "redelivery while the ack is under way",
    "ack failed in part of a batch",
    "ack done but its answer lost",
    "ack with an expired receipt",
    "lost ack repeated without another attempt",
    "copy acked without an attempt",
    "gave up after the last attempt",
    "unreadable message buried",
    "high priority overtook",
    "failed message passed by its group",
    "delivered again after a crash",
    "connection lost while an attempt is in flight",
    "shown again after its connection was lost",
    "lost with its connection and delivered by another router",
    "clock stepped while an attempt is in flight",
    "group has messages of two queues at once",
    "default group has messages of two queues at once",
    "message of another queue waits behind a failed one",
    "two messages with one id at once",
    "more for a pool than it has room for",
    "a hundred groups fail at once",
    "started beside an endpoint that hangs",
    "recovered endpoint tried",
    "pool holds more than its capacity",
    "message waits until the ack before it is durable",
)
ALL = (*COUNTED, *TOLD, *TOLD_BY_HAND)
MANY_GROUPS = 100
HANGS_S = 10.0


def happened(played: Played) -> set[str]:
    """Names of the rare things that happened in a history."""
    told = {*_Story().read(played.events), *StoryByHand().read(played.events)}
    return told.union(name for name in COUNTED if played.drawn.get(name))


class _Story:
    """What is going on, event by event."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}
        self.in_flight: dict[str, str] = {}  # message -> pool
        self.waiting: set[str] = set()  # on hold for a retry
        self.delivered: set[str] = set()  # in this life, not removed yet
        self.dead_lettered: set[str] = set()
        self.ever_delivered: set[str] = set()
        self.attempted: set[str] = set()
        self.acking: dict[float, set[Settled | None]] = {}
        self.ack_open: set[str] = set()
        self.removed: set[str] = set()
        self.removed_pools: set[str] = set()
        self.concurrency: dict[str, int] = {}
        self.stopping = False
        self.given_back_after_failure: set[str] = set()
        self.failing: set[str | None] = set()  # groups whose latest attempt failed
        self.owned: dict[str | None, dict[str, None]] = {}  # by ordered group: received and not settled
        self.lost: set[str] = set()  # with their connection
        self.recovered: set[str] = set()  # hosts
        self.began: dict[str, float] = {}  # of what is in flight
        self.waiting_for: Counter[str] = Counter()  # by pool: published and never attempted
        self.capacity: dict[str, int] = {}
        self.acks_first: set[str] = set()  # pools in which a group goes on when its ack is durable
        self.awaits_ack: set[str] = set()  # delivered in such a pool

    def read(self, events: Sequence[Event]) -> Iterator[str]:
        readers = {
            Kind.PUBLISHED: self._published,
            Kind.LIMITS: self._limits,
            Kind.RECEIVED: self._received,
            Kind.ATTEMPT: self._attempt,
            Kind.ANSWER: self._answer,
            Kind.UNKNOWN: self._unknown,
            Kind.VERDICT: self._verdict,
            Kind.DEAD_LETTERED: self._buried,
            Kind.ACK: self._ack,
            Kind.ACKED: self._acked,
            Kind.REMOVED: self._removed,
            Kind.STOPPING: self._stopping,
            Kind.STOPPED: self._ended,
            Kind.CRASHED: self._crashed,
            Kind.LOST: self._lost,
            Kind.TAKEN: self._taken,
            Kind.STEPPED: self._stepped,
            Kind.RECOVERED: self._recovered,
        }
        for event in events:
            reader = readers.get(event.kind)
            if reader is not None:
                yield from reader(event) or ()

    def _published(self, event: Event) -> Iterator[str]:
        facts: Facts = event.value
        self.facts[event.message] = facts
        self.waiting_for[facts.pool] += 1
        if self.waiting_for[facts.pool] > self.capacity.get(facts.pool, DEFAULT_POOL_LIMITS.effective_capacity):
            yield "more for a pool than it has room for"

    def _limits(self, event: Event) -> Iterator[str]:
        pool = event.pool
        if self.waiting:
            yield "reload during a hold"
        if event.value is None:
            self.removed_pools.add(pool)
            if pool in self.in_flight.values():
                yield "pool removed during an attempt"
            return
        self.removed_pools.discard(pool)
        before, now = self.concurrency.get(pool), event.value.concurrency
        self.concurrency[pool] = now
        self.capacity[pool] = event.value.effective_capacity
        (self.acks_first.add if event.value.ack_before_next else self.acks_first.discard)(pool)
        if before is not None and now > before:
            yield "pool grown"
        if list(self.in_flight.values()).count(pool) > now:
            yield "pool shrunk below what is in flight"

    def _received(self, event: Event) -> Iterator[str]:
        if event.message in self.in_flight:
            yield "redelivery while in flight"
        if event.message in self.ack_open:
            yield "redelivery while the ack is under way"
        if event.message in self.lost:
            self.lost.discard(event.message)
            yield "shown again after its connection was lost"
        twin = event.message.removesuffix("~") if event.message.endswith("~") else f"{event.message}~"
        if any(twin in owned for owned in self.owned.values()):
            yield "two messages with one id at once"
        yield from self._own(event.message)

    def _own(self, name: str) -> Iterator[str]:
        facts = self.facts[name]
        if not facts.ordered or facts.copy_of is not None:
            return
        owned = self.owned.setdefault(facts.group, {})
        owned[name] = None
        others = [other for other in owned if self.facts[other].queue != facts.queue]
        if others:
            yield "group has messages of two queues at once"
            if facts.group == DEFAULT_GROUP:
                yield "default group has messages of two queues at once"
            if facts.group in self.failing:
                yield "message of another queue waits behind a failed one"

    def _settled(self, name: str) -> None:
        self.owned.get(self.facts[name].group, {}).pop(name, None)

    def _attempt(self, event: Event) -> Iterator[str]:
        name = event.message
        facts = self.facts[name]
        self.waiting.discard(name)
        if event.pool in self.removed_pools:
            yield "attempt in a pool that was removed"
        if name in self.ever_delivered and name not in self.attempted:
            yield "delivered again after a crash"
        if name not in self.attempted:
            if facts.high_priority and facts.ordered and self._passes_regular_ones(name):
                yield "high priority overtook"
            if facts.mode is DispatchMode.NEXT_ON_ERROR:
                failed = self.given_back_after_failure
                if any(self.facts[other].group == facts.group for other in failed):
                    yield "failed message passed by its group"
            self.waiting_for[facts.pool] -= 1
        if any(pool == event.pool and event.at - self.began[other] > HANGS_S for other, pool in self.in_flight.items()):
            yield "started beside an endpoint that hangs"
        if facts.host in self.recovered:
            yield "recovered endpoint tried"
        held = 0 if event.value is None else event.value.in_flight + event.value.buffered
        if held > self.capacity.get(event.pool, held):
            yield "pool holds more than its capacity"
        self.began[name] = event.at
        self.attempted.add(name)
        self.in_flight[name] = event.pool

    def _passes_regular_ones(self, name: str) -> bool:
        done, group = self.attempted | self.dead_lettered, self.facts[name].group
        for other, facts in self.facts.items():
            if other == name:
                return False
            if facts.group == group and facts.ordered and not facts.high_priority and other not in done:
                return True
        return False

    def _answer(self, event: Event) -> Iterator[str]:
        self.in_flight.pop(event.message, None)
        group = self.facts[event.message].group
        if event.value.result is not Result.SUCCESS:
            self.failing.add(group)
            if len(self.failing) >= MANY_GROUPS:
                yield "a hundred groups fail at once"
        else:
            self.failing.discard(group)
            self._settled(event.message)
            self.delivered.add(event.message)
            self.ever_delivered.add(event.message)
            self.given_back_after_failure.discard(event.message)

    def _unknown(self, event: Event) -> Iterator[str]:
        self.in_flight.pop(event.message, None)
        yield "attempt cut off by the end of a drain"

    def _verdict(self, event: Event) -> None:
        if isinstance(event.value, Retry):
            self.waiting.add(event.message)
        elif isinstance(event.value, Ack) and event.pool in self.acks_first:
            self.awaits_ack.add(event.message)
        elif isinstance(event.value, Nack):
            self.given_back_after_failure.add(event.message)

    def _buried(self, event: Event) -> Iterator[str]:
        self.dead_lettered.add(event.message)
        self._settled(event.message)
        if str(event.value).startswith("gave up"):
            yield "gave up after the last attempt"
        if not self.facts[event.message].readable:
            yield "unreadable message buried"

    def _ack(self, event: Event) -> Iterator[str]:
        name = event.message
        self.ack_open.add(name)
        if self.facts[name].copy_of is not None:
            yield "copy acked without an attempt"

    def _acked(self, event: Event) -> Iterator[str]:
        name, result = event.message, event.value
        self.ack_open.discard(name)
        if name in self.awaits_ack and self.owned.get(self.facts[name].group):
            yield "message waits until the ack before it is durable"
        together = self.acking.setdefault(event.at, set())
        together.add(result)
        if {Settled.OK, Settled.FAILED} <= together:
            yield "ack failed in part of a batch"
        if result is Settled.GONE:
            yield "ack with an expired receipt"
        if result is None and name in self.removed:
            yield "ack done but its answer lost"

    def _removed(self, event: Event) -> Iterator[str]:
        name = event.message
        self.removed.add(name)
        if name in self.ever_delivered and name not in self.delivered and name not in self.in_flight:
            yield "lost ack repeated without another attempt"
        self.delivered.discard(name)
        self.dead_lettered.discard(name)

    def _lost(self, event: Event) -> Iterator[str]:
        if event.value is Lost.CONNECTION:
            self.lost.add(event.message)
            self._settled(event.message)
            if event.message in self.in_flight:
                yield "connection lost while an attempt is in flight"

    def _taken(self, event: Event) -> Iterator[str]:
        if event.message in self.lost:
            yield "lost with its connection and delivered by another router"

    def _stepped(self, event: Event) -> Iterator[str]:
        if self.in_flight:
            yield "clock stepped while an attempt is in flight"

    def _recovered(self, event: Event) -> None:
        self.recovered.add(event.value)

    def _stopping(self, event: Event) -> Iterator[str]:
        self.stopping = True
        if self.waiting:
            yield "drain during a backoff"
        if self.in_flight:
            yield "drain during an attempt"

    def _ended(self, event: Event) -> None:
        self.stopping = False
        self.in_flight.clear()
        self.waiting.clear()
        self.ack_open.clear()
        self.attempted.clear()
        self.delivered.clear()
        self.owned.clear()
        self.lost.clear()

    def _crashed(self, event: Event) -> Iterator[str]:
        if self.delivered:
            yield "crash between a success and its ack"
        if self.dead_lettered:
            yield "crash between a dead letter and its ack"
        if self.in_flight:
            yield "crash while an attempt is in flight"
        if self.stopping:
            yield "crash during a drain"
        self._ended(event)
