"""G2, G3, G4: order, and one attempt at a time."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowcatalyst.core.message import DEFAULT_POOL, Ack, DispatchMode, Nack, Reject, Result, Settled
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.history import Event, Facts, Kind, Lost
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Violation, without_stale_nacks


def one_attempt_per_group(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """While an attempt of an ordered group is in flight, no other one of the group is."""
    messages = Messages.of(events)
    in_flight: dict[str, str] = {}
    for event in events:
        if event.kind is Kind.ATTEMPT:
            group = messages.ordered_group(event.message)
            if group is None:
                continue
            if (other := in_flight.get(group)) is not None and other != event.message:
                yield Violation(event.at, event.message, f"started while {other} of group {group} was in flight")
            in_flight[group] = event.message
        elif event.kind in (Kind.ANSWER, Kind.UNKNOWN):
            group = messages.ordered_group(event.message)
            if group is not None and in_flight.get(group) == event.message:
                del in_flight[group]
        elif event.kind in LIFE_ENDS:
            in_flight.clear()


def one_attempt_per_message(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """The same message is never attempted twice at once, whatever its mode."""
    in_flight: set[str] = set()
    for event in events:
        if event.kind is Kind.ATTEMPT:
            if event.message in in_flight:
                yield Violation(event.at, event.message, "started while an attempt of the same message was in flight")
            in_flight.add(event.message)
        elif event.kind in (Kind.ANSWER, Kind.UNKNOWN):
            in_flight.discard(event.message)
        elif event.kind in LIFE_ENDS:
            in_flight.clear()


def ack_before_next(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """Where a pool is told so, a group goes on only when its queue confirmed that it removed what was delivered."""
    messages = Messages.of(events)
    limits: dict[str, PoolLimits | None] = {}
    unconfirmed: dict[tuple[str, str], str] = {}  # by pool and group
    copied = messages.copied()
    for event in events:
        if event.kind is Kind.LIMITS:
            limits[event.pool] = event.value
            continue
        group = messages.ordered_group(event.message)
        if event.kind in LIFE_ENDS:
            unconfirmed.clear()
        elif group is None:
            continue
        elif event.kind is Kind.VERDICT and isinstance(event.value, Ack) and event.message not in copied:
            if (pool := limits.get(event.pool)) is not None and pool.ack_before_next:
                unconfirmed[event.pool, group] = event.message
        elif event.kind is Kind.ATTEMPT:
            other = unconfirmed.get((event.pool, group), event.message)
            if other != event.message:
                yield Violation(event.at, event.message, f"started before the ack was confirmed of {other}")
        elif event.kind is Kind.ACKED and event.value in (Settled.OK, Settled.GONE):
            for place in [place for place, name in unconfirmed.items() if name == event.message]:
                del unconfirmed[place]


@dataclass(slots=True)
class _Line:
    """The messages of one ordered group and tier, in the order they were published."""

    places: dict[str, int] = field(default_factory=dict)
    unsettled: dict[str, None] = field(default_factory=dict)

    def add(self, name: str) -> None:
        self.places[name] = len(self.places)
        self.unsettled[name] = None

    def before(self, name: str) -> Iterator[str]:
        """Those before it that are not settled."""
        place = self.places[name]
        for other in self.unsettled:
            if self.places[other] >= place:
                return
            yield other


class _Holdings:
    """Which messages the router holds, and which it nacked, as numbers of events."""

    def __init__(self) -> None:
        self.since: dict[str, int] = {}
        self.nacked: dict[str, tuple[int, int, float]] = {}  # held since, nacked at, delay asked for

    def note(self, number: int, event: Event) -> None:
        if event.kind is Kind.RECEIVED:
            self.since.setdefault(event.message, number)
        elif event.kind is Kind.NACK:
            if (since := self.since.pop(event.message, None)) is not None:
                self.nacked[event.message] = (since, number, event.value[0])
        elif event.kind is Kind.LOST and event.value is Lost.CONNECTION:
            self.since.pop(event.message, None)
        elif event.kind in LIFE_ENDS:
            self.since.clear()

    def let_pass(self, earlier: str, later: str) -> str | None:
        """In what way the router, and not its queue, let `later` pass `earlier`; None if it did not."""
        accepted = self.since.get(later, -1)
        if earlier in self.since:
            return "is still in the router" if self.since[earlier] < accepted else None
        if earlier not in self.nacked:
            return None  # the queue has not shown it
        since, number, delay_s = self.nacked[earlier]
        if delay_s > 0:
            return f"was nacked for {delay_s:g} s to a queue that does not keep order"
        return "was nacked without it" if since < accepted < number else None


def first_attempts_in_order(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """In an ordered group the first attempt of a message starts when every earlier one is settled.

    Earlier are those of its queue and tier. Settled is what was delivered or buried; where a failure lets the others
    pass, also what failed for good. On a queue that does not keep order by itself, what the queue showed late or not at
    all is not the router's doing. A message that was published twice has no one place in the order.
    """
    messages = Messages.of(events)
    copied = messages.copied()
    loose = pools_with_batch_scope(events)
    lines: dict[tuple[str, str | None, bool], _Line] = defaultdict(_Line)
    attempted: set[str] = set()
    holdings = _Holdings()
    for number, event in enumerate(without_stale_nacks(events)):
        name, kind = event.message, event.kind
        holdings.note(number, event)
        facts = messages.facts.get(name)
        if facts is None or not facts.ordered:
            continue
        if loose & {facts.pool, DEFAULT_POOL} and _fails(event) and promises.keeps_order(facts):
            for tier in (True, False):
                lines[facts.queue, facts.group, tier].unsettled.clear()
        if facts.copy_of is not None or name in copied:
            continue
        line = lines[facts.queue, facts.group, facts.high_priority]
        if kind is Kind.PUBLISHED:
            line.add(name)
        elif kind is Kind.ATTEMPT and name not in attempted:
            attempted.add(name)
            for earlier in line.before(name):
                how = "is not settled" if promises.keeps_order(facts) else holdings.let_pass(earlier, name)
                if how is not None:
                    yield Violation(event.at, name, f"first attempt although {earlier} of group {facts.group} {how}")
        elif settles(event, facts):
            line.unsettled.pop(name, None)


def settles(event: Event, facts: Facts) -> bool:
    """Whether the ones behind it in its group may go on."""
    match event.kind:
        case Kind.DEAD_LETTERED | Kind.TAKEN:
            return True
        case Kind.ANSWER:
            return bool(event.value.result is Result.SUCCESS)
        case Kind.VERDICT | Kind.UNRECORDED if facts.mode is DispatchMode.NEXT_ON_ERROR:
            return _fails(event)
        case _:
            return False


def _fails(event: Event) -> bool:
    """A message that cannot be dead-lettered is nacked like any failed one."""
    return event.kind is Kind.UNRECORDED or (event.kind is Kind.VERDICT and isinstance(event.value, Nack | Reject))


def pools_with_batch_scope(events: Sequence[Event]) -> set[str]:
    """There a failure nacks the same batch only, and all others may pass what was nacked."""
    limits = [event for event in events if event.kind is Kind.LIMITS and event.value is not None]
    return {event.pool for event in limits if event.value.failure_scope is FailureScope.BATCH}
