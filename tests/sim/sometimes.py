"""Rare things that must happen now and then, or the simulation is asleep.

Each is told from a history alone, or counted where it happened. A run over many seeds fails if one of them never came.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from flowcatalyst.message import DispatchMode, Nack, Result, Retry, Settled
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.queue import QueueFaults
from tests.sim.plan import ENDPOINT_TROUBLES
from tests.sim.play import Played

# What is counted where it happens.
COUNTED = (
    *(field.name for field in fields(QueueFaults) if field.name != "latency_s"),
    *(f"endpoint: {kind}" for kind in ENDPOINT_TROUBLES if kind not in ("slow", "outage")),
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
)
ALL = (*COUNTED, *TOLD)
# An ordered queue gets back at once what a removed pool has not started.
ONLY_IF_UNORDERED = {"attempt in a pool that was removed"}


def happened(played: Played) -> set[str]:
    """Names of the rare things that happened in a history."""
    return {name for name in COUNTED if played.drawn.get(name)} | set(_Story().read(played.events))


class _Story:
    """What is going on, event by event."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}
        self.in_flight: dict[str, str] = {}  # message -> pool
        self.waiting: set[str] = set()  # on hold for a retry
        self.delivered: set[str] = set()  # in this life, not removed yet
        self.buried: set[str] = set()
        self.ever_delivered: set[str] = set()
        self.attempted: set[str] = set()
        self.acking: dict[float, set[Settled | None]] = {}
        self.ack_open: set[str] = set()
        self.removed: set[str] = set()
        self.removed_pools: set[str] = set()
        self.concurrency: dict[str, int] = {}
        self.stopping = False
        self.given_back_after_failure: set[str] = set()

    def read(self, events: Sequence[Event]) -> Iterator[str]:
        readers = {
            Kind.PUBLISHED: self._published,
            Kind.LIMITS: self._limits,
            Kind.RECEIVED: self._received,
            Kind.ATTEMPT: self._attempt,
            Kind.ANSWER: self._answer,
            Kind.UNKNOWN: self._unknown,
            Kind.VERDICT: self._verdict,
            Kind.BURIED: self._buried,
            Kind.ACK: self._ack,
            Kind.ACKED: self._acked,
            Kind.REMOVED: self._removed,
            Kind.STOPPING: self._stopping,
            Kind.STOPPED: self._ended,
            Kind.CRASHED: self._crashed,
        }
        for event in events:
            reader = readers.get(event.kind)
            if reader is not None:
                yield from reader(event) or ()

    def _published(self, event: Event) -> None:
        self.facts[event.message] = event.value

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
        if before is not None and now > before:
            yield "pool grown"
        if list(self.in_flight.values()).count(pool) > now:
            yield "pool shrunk below what is in flight"

    def _received(self, event: Event) -> Iterator[str]:
        if event.message in self.in_flight:
            yield "redelivery while in flight"
        if event.message in self.ack_open:
            yield "redelivery while the ack is under way"

    def _attempt(self, event: Event) -> Iterator[str]:
        name = event.message
        facts = self.facts[name]
        self.waiting.discard(name)
        if event.pool in self.removed_pools:
            yield "attempt in a pool that was removed"
        if name in self.ever_delivered and name not in self.attempted:
            yield "delivered again after a crash"
        if name not in self.attempted:
            earlier = [other for other in self.facts if other not in self.attempted | self.buried]
            earlier = earlier[: earlier.index(name)] if name in earlier else []
            group = [other for other in earlier if self.facts[other].group == facts.group and self.facts[other].ordered]
            if facts.high_priority and facts.ordered and any(not self.facts[other].high_priority for other in group):
                yield "high priority overtook"
            if facts.mode is DispatchMode.NEXT_ON_ERROR:
                failed = self.given_back_after_failure
                if any(self.facts[other].group == facts.group for other in failed):
                    yield "failed message passed by its group"
        self.attempted.add(name)
        self.in_flight[name] = event.pool

    def _answer(self, event: Event) -> None:
        self.in_flight.pop(event.message, None)
        if event.value.result is Result.SUCCESS:
            self.delivered.add(event.message)
            self.ever_delivered.add(event.message)
            self.given_back_after_failure.discard(event.message)

    def _unknown(self, event: Event) -> Iterator[str]:
        self.in_flight.pop(event.message, None)
        yield "attempt cut off by the end of a drain"

    def _verdict(self, event: Event) -> None:
        if isinstance(event.value, Retry):
            self.waiting.add(event.message)
        elif isinstance(event.value, Nack):
            self.given_back_after_failure.add(event.message)

    def _buried(self, event: Event) -> Iterator[str]:
        self.buried.add(event.message)
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
        self.buried.discard(name)

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

    def _crashed(self, event: Event) -> Iterator[str]:
        if self.delivered:
            yield "crash between a success and its ack"
        if self.buried:
            yield "crash between a dead letter and its ack"
        if self.in_flight:
            yield "crash while an attempt is in flight"
        if self.stopping:
            yield "crash during a drain"
        self._ended(event)
