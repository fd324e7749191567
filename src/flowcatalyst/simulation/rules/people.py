"""What people do by hand: what they stop starts nothing, and what they skip, and only that, becomes a dead letter."""

from collections.abc import Iterator, Sequence
from math import inf

from flowcatalyst.core.message import Reject, Result
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Stopped, Violation
from flowcatalyst.simulation.rules.progress import DISTURBANCES, DUE_GRACE_S
from flowcatalyst.simulation.rules.stretches import RECOVERY_S, Pools

SKIPPED = "skipped by "
NOW = "becomes a dead letter now"


def nothing_paused_starts(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """No attempt begins of a pool or endpoint that is paused, or of a group that is held, also across restarts."""
    messages, stopped = Messages.of(events), Stopped()
    for event in events:
        stopped.note(event)
        if event.kind is Kind.ATTEMPT:
            stop = stopped.what_stops(messages.facts[event.message], event.pool)
            if stop is not None:
                text = f"started although somebody stopped {stop[0].lower()} {stop[1]}"
                yield Violation(event.at, event.message, text)


def what_is_skipped_is_not_tried_again(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """What somebody skipped becomes a dead letter that says so, unless an attempt was in flight; and nothing else does.

    A skip is remembered by the router that was told, and goes with it.
    """
    copied = Messages.of(events).copied()
    skipped: dict[str, bool] = {}  # message -> whether an attempt was in flight then; until it ended
    wanted: set[str] = set()  # all that somebody skipped
    in_flight: set[str] = set()
    leaving: set[str] = set()  # dead letters whose ack is under way: a skip has nothing left to do
    for event in events:
        name = event.message
        if event.kind in LIFE_ENDS:
            skipped.clear()
            wanted.clear()
            in_flight.clear()
            leaving.clear()
        elif not name or name.partition("#")[0] in copied:
            continue
        elif event.kind is Kind.SKIP:
            wanted.add(name)
            if name not in leaving:
                skipped[name] = name in in_flight
        elif event.kind is Kind.ATTEMPT:
            in_flight.add(name)
            if name in skipped:
                yield Violation(event.at, name, "tried although it had been skipped")
        elif event.kind is Kind.UNKNOWN:
            in_flight.discard(name)
        elif event.kind is Kind.ANSWER:
            in_flight.discard(name)
            if event.value.result is Result.SUCCESS:
                skipped.pop(name, None)
        elif event.kind is Kind.VERDICT and isinstance(event.value, Reject):
            in_flight.add(name)  # it is on its way to the dead letters: a skip comes too late to be their reason
        elif event.kind is Kind.DEAD_LETTERED:
            says_so = str(event.value).startswith(SKIPPED)
            if says_so and name not in wanted:
                yield Violation(event.at, name, "skipped although nobody wanted it")
            elif not says_so and not skipped.pop(name, True):
                yield Violation(event.at, name, f"skipped, and a dead letter because of: {event.value}")
            skipped.pop(name, None)
            in_flight.discard(name)
            leaving.add(name)
        elif event.kind is Kind.TAKEN:
            skipped.pop(name, None)
        elif event.kind is Kind.REMOVED and name in skipped:
            yield Violation(event.at, name, "skipped, and left its queue without becoming a dead letter")


def a_skip_takes_effect(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """Who is told that a message becomes a dead letter now finds it there, as soon as a slot of its pool is free."""
    pools = Pools()
    due: dict[str, tuple[float, str]] = {}  # message -> skipped at, in pool
    lost: set[str] = set()  # with their connection, and not shown again yet
    messages, stopped = Messages.of(events), Stopped()
    judged_from = inf if promises.faulty else 0.0
    for event in events:
        stopped.note(event)
        pools.note(event, messages)
        if event.kind in DISTURBANCES:
            due.clear()
        elif event.kind is Kind.HEALED:
            judged_from = event.at + RECOVERY_S if promises.faulty else judged_from
        elif event.kind is Kind.SKIP and str(event.value).endswith(NOW) and event.at >= judged_from:
            if event.message not in lost:
                due[event.message] = (event.at, event.pool)
        elif event.kind in (Kind.LOST, Kind.RECEIVED):
            (lost.add if event.kind is Kind.LOST else lost.discard)(event.message)
            due.pop(event.message, None)
        elif event.kind is Kind.UNRECORDED:
            due.pop(event.message, None)
        elif event.kind is Kind.DEAD_LETTERED and event.message in due:
            skipped_at, pool = due.pop(event.message)
            late_s = event.at - max(skipped_at, pools[pool].free_from, stopped.pool_free_from(pool))
            if late_s > DUE_GRACE_S:
                text = f"skipped at {skipped_at:.1f} s and a dead letter {late_s:.1f} s later than it could have been"
                yield Violation(event.at, event.message, text)
