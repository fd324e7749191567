"""What must be true at the end: nothing left in memory, true metrics, empty queues."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from flowcatalyst.core.message import Ack, Nack
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Violation


def nothing_leaks(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A router that stopped, or has nothing to do, holds nothing in memory.

    A message that could not be nacked because its queue failed may stay in the tracker of a stopped router.
    """
    healed = False
    for event in events:
        if event.kind is Kind.HEALED:
            healed = True
        elif event.kind in (Kind.STOPPED, Kind.IDLE):
            for what, count in event.value.items():
                if count and (healed or what != "tracker"):
                    yield Violation(event.at, "", f"{count} {what} left when {event.kind}")


def metrics_tell_the_truth(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """What a pool counted is what happened: attempts, deliveries, dead letters, and at least the failed nacks."""
    messages = Messages.of(events)
    seen: dict[str, Counter[str]] = defaultdict(Counter)  # by pool
    in_pool: dict[str, str] = {}  # message -> pool of its latest attempt
    told: list[Event] = []
    for event in events:
        if event.kind is Kind.ATTEMPT:
            in_pool[event.message] = event.pool
        elif event.kind is Kind.VERDICT:
            seen[event.pool]["attempts"] += 1
            seen[event.pool]["delivered"] += isinstance(event.value, Ack)
            seen[event.pool]["nacked"] += isinstance(event.value, Nack)
        elif event.kind is Kind.DEAD_LETTERED:  # one that was skipped may never have been tried
            pool = event.pool or in_pool.get(messages.original(event.message))
            if pool is not None:
                seen[pool]["dead_lettered"] += 1
        elif event.kind is Kind.STATS:
            told.append(event)
        elif event.kind in LIFE_ENDS:
            for stats in told:
                yield from _compare(stats, seen[stats.pool], crashed=event.kind is Kind.CRASHED)
            seen.clear()
            in_pool.clear()
            told.clear()


def _compare(stats: Event, seen: Counter[str], crashed: bool) -> Iterator[Violation]:
    told: Counter[str] = stats.value
    wrong = [what for what in ("attempts", "delivered") if told[what] != seen[what]]
    if told["nacked"] < seen["nacked"]:
        wrong.append("nacked")
    # What was being buried when its router died is a dead letter that nobody counted.
    if told["dead_lettered"] > seen["dead_lettered"] or (told["dead_lettered"] < seen["dead_lettered"] and not crashed):
        wrong.append("dead_lettered")
    for what in wrong:
        yield Violation(stats.at, "", f"pool {stats.pool} counted {told[what]} {what}, there were {seen[what]}")


def drains_when_faults_stop(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """When queues and endpoints behave again, everything leaves the queues in bounded time."""
    healed_at: float | None = None
    for event in events:
        if event.kind is Kind.HEALED:
            healed_at = event.at
        elif event.kind is Kind.ENDED and healed_at is not None and event.value:
            names = ", ".join(event.value[:5])
            text = (
                f"{len(event.value)} messages still in their queues {event.at - healed_at:.0f} s after the last fault: "
            )
            yield Violation(event.at, "", text + names)
