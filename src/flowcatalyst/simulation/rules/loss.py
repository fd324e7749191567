"""G1: nothing is lost, nothing is done twice without a cause, and a message is settled once."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from flowcatalyst.core.message import Ack, Reject, Result, Settled
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Violation


def leaves_its_queue_for_a_reason(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A message is removed only after it was delivered or buried, or as a copy of one that stays."""
    messages = Messages.of(events)
    finished: set[str] = set()
    in_queue: dict[str, set[str]] = defaultdict(set)  # application message -> its copies
    for event in events:
        original = messages.original(event.message)
        if event.kind is Kind.PUBLISHED:
            in_queue[original].add(event.message)
        elif _finishes(event):
            finished.add(original)
        elif event.kind is Kind.REMOVED:
            in_queue[original].discard(event.message)
            if original not in finished and not in_queue[original]:
                yield Violation(event.at, event.message, "left its queue, neither delivered nor dead-lettered")


def nothing_lost(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """In the end every message was delivered, was buried, or is still in its queue."""
    messages = Messages.of(events)
    finished: set[str] = set()
    for event in events:
        if _finishes(event):
            finished.add(messages.original(event.message))
        elif event.kind is Kind.ENDED:
            accounted = finished | {messages.original(name) for name in event.value}
            for name in messages.facts:
                if messages.original(name) not in accounted:
                    yield Violation(event.at, name, "neither delivered nor dead-lettered nor in its queue")


def _finishes(event: Event) -> bool:
    if event.kind is Kind.ANSWER:
        return bool(event.value.result is Result.SUCCESS)
    return event.kind in (Kind.DEAD_LETTERED, Kind.TAKEN)


def another_attempt_has_a_cause(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A second attempt follows a failure, an unknown outcome, or an ack that a stop or crash overtook."""
    messages = Messages.of(events)
    copied = messages.copied()
    ending: dict[str, str] = {}  # how the latest attempt ended, as far as the router knows
    removed: set[str] = set()
    for event in events:
        name = event.message
        if event.kind is Kind.ATTEMPT:
            how = ending.get(name)
            if how in ("in flight", "delivered", "buried") and name not in copied:
                yield Violation(event.at, name, f"attempted again although it was {how}")
            elif name in removed and name not in copied:
                yield Violation(event.at, name, "attempted although it had left its queue")
            ending[name] = "in flight"
        elif event.kind is Kind.UNKNOWN:
            ending[name] = "unknown"
        elif event.kind is Kind.ANSWER:
            ending[name] = "delivered" if event.value.result is Result.SUCCESS else "failed"
        elif event.kind is Kind.VERDICT and not isinstance(event.value, Ack | Reject):
            ending[name] = "failed"
        elif event.kind is Kind.DEAD_LETTERED:
            ending[name] = "buried"
        elif event.kind is Kind.REMOVED:
            removed.add(name)
        elif event.kind in LIFE_ENDS:
            ending = dict.fromkeys(ending, "unknown to the next life")


def acked_once(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """An ack that the queue confirmed is not repeated, unless the queue shows the message again."""
    confirmed: set[str] = set()
    for event in events:
        if event.kind is Kind.ACK and event.message in confirmed:
            yield Violation(event.at, event.message, "acked again although the queue had confirmed it")
        elif event.kind is Kind.ACKED and event.value is Settled.OK:
            confirmed.add(event.message)
        elif event.kind is Kind.RECEIVED:
            confirmed.discard(event.message)


def newest_receipt(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """An ack carries the newest receipt the router was given for its message."""
    newest: dict[str, object] = {}
    for event in events:
        if event.kind is Kind.RECEIVED:
            newest[event.message] = event.value
        elif event.kind is Kind.ACK and newest.get(event.message) != event.value:
            text = f"acked with receipt {event.value} although {newest.get(event.message)} is newer"
            yield Violation(event.at, event.message, text)
        elif event.kind in LIFE_ENDS:
            newest.clear()
