"""G3, G4 across routers and queues: what is started is ours, and what is ours is kept."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from flowcatalyst.core.message import DEFAULT_POOL, Nack, Reject
from flowcatalyst.simulation.history import Event, Facts, Kind, Lost
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Violation, without_stale_nacks
from flowcatalyst.simulation.rules.order import pools_with_batch_scope, settles
from flowcatalyst.simulation.rules.stretches import RECOVERY_S


def only_what_is_ours_is_started(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A message whose connection is gone is not started: another router may have it. Shown again it is ours again."""
    copied = Messages.of(events).copied()
    lost: set[str] = set()
    for event in events:
        if event.kind is Kind.LOST and event.value is Lost.CONNECTION:
            lost.add(event.message)
        elif event.kind is Kind.RECEIVED:
            lost.discard(event.message)
        elif event.kind is Kind.ATTEMPT and event.message in lost and event.message not in copied:
            yield Violation(event.at, event.message, "started although the connection it came over is gone")
        elif event.kind in LIFE_ENDS:
            lost.clear()


def leases_are_kept(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """Where nothing fails, no queue shows a message again that the router still has."""
    copied = Messages.of(events).copied()
    held: set[str] = set()
    judged_from = inf if promises.faulty else 0.0
    for event in without_stale_nacks(events):
        if event.kind is Kind.RECEIVED:
            if event.message in held and event.at >= judged_from and event.message not in copied:
                yield Violation(event.at, event.message, "shown again although the router still had it")
            held.add(event.message)
        elif event.kind in (Kind.NACK, Kind.REMOVED, Kind.LOST):
            held.discard(event.message)
        elif event.kind is Kind.HEALED:
            judged_from = event.at + RECOVERY_S if promises.faulty else judged_from
        elif event.kind is Kind.STARTED or event.kind in LIFE_ENDS:
            held.clear()


@dataclass(slots=True)
class _Owed:
    """A message the router received and has not settled."""

    facts: Facts
    first_at: float  # received
    latest_at: float  # later if it was lost, shown twice, or came back too late: its place may be either
    due_back_at: float = inf  # it was nacked, and its queue will show it again by then
    pool: str = ""  # of its latest attempt


class _LetGo:
    """What the router may have let go before its queue was told: that call waits for others, and may take its time."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._next: dict[str, deque[Kind]] = defaultdict(deque)  # what happens to each message from now on
        for event in events:
            if event.kind in (Kind.RECEIVED, Kind.ATTEMPT, Kind.NACK, Kind.LOST):
                self._next[event.message].append(event.kind)
        self._given_up_at: dict[str | None, float] = {}  # by group: when one of it took the others along
        self._removed: set[str] = set()  # pools
        self._pool_removed_at = -inf

    def note(self, event: Event, group: str | None) -> None:
        if event.kind is Kind.LIMITS and event.value is None:
            self._pool_removed_at = event.at
            self._removed.add(event.pool)
        elif event.kind is Kind.LIMITS:
            self._removed.discard(event.pool)
        elif event.kind is Kind.VERDICT and (isinstance(event.value, Nack | Reject) or event.pool in self._removed):
            # A dead letter that cannot be recorded is nacked in the end.
            self._given_up_at[group] = event.at
        elif event.kind is Kind.UNRECORDED:
            self._given_up_at[group] = event.at
        elif event.kind in (Kind.RECEIVED, Kind.ATTEMPT, Kind.NACK, Kind.LOST):
            self._next[event.message].popleft()
            if event.kind is Kind.LOST:  # those of its queue behind it go too
                self._given_up_at[group] = event.at

    def has(self, name: str, owed: _Owed, at: float, *, tried: bool) -> bool:
        """A message that was tried is nacked without having failed only if its pool is removed."""
        if tried:
            return owed.pool in self._removed and next(iter(self._next[name]), None) is Kind.NACK
        cause_at = max(self._given_up_at.get(owed.facts.group, -inf), self._pool_removed_at)
        return owed.latest_at <= cause_at <= at and next(iter(self._next[name]), None) is not Kind.ATTEMPT


def order_across_queues(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A group that two queues feed is one group: what was received later does not pass what was received earlier.

    A message that failed and was nacked is still owed until its time is over and its queue had one long poll to
    show it again; one that was never tried, or whose pool was removed, and was nacked is not owed until it comes,
    also if its queue is told later. One of high priority is not owed either once its queue shows regular ones again
    that it had passed. What came at the same moment has no order. What a lost connection or lease took away is not
    owed. What is not owed and comes again may have its old place or a new one.
    """
    events = list(without_stale_nacks(events))
    messages = Messages.of(events)
    copied = messages.copied()
    loose = pools_with_batch_scope(events)
    let_go = _LetGo(events)
    owed: dict[tuple[str, str | None, bool], dict[str, _Owed]] = defaultdict(dict)
    attempted: set[str] = set()
    done: set[str] = set()
    first_at: dict[str, float] = {}
    tried: set[str] = set()  # by the router that is at work, since they came
    for event in events:
        name, facts = event.message, messages.facts.get(event.message)
        let_go.note(event, facts.group if facts is not None else None)
        if event.kind in LIFE_ENDS:
            owed.clear()
            first_at.clear()
            tried.clear()
            continue
        if event.kind is Kind.LIMITS and event.value is None:  # with the pool goes what it waited for
            for group in owed.values():
                for other in [other for other, one in group.items() if one.due_back_at < inf]:
                    del group[other]
                    tried.discard(other)
        if facts is None or not facts.ordered or facts.copy_of is not None or name in copied:
            continue
        if loose & {facts.pool, DEFAULT_POOL}:
            continue
        group = owed[facts.pool, facts.group, facts.high_priority]
        if event.kind is Kind.RECEIVED and name not in done:
            _put_back_in_line(owed[facts.pool, facts.group, True], facts)
            _receive(event, facts, group, first_at.setdefault(name, event.at), tried)
        elif event.kind is Kind.NACK and name not in tried:
            group.pop(name, None)  # nobody has to wait for it, but whoever does may let it have its old place
        elif event.kind is Kind.NACK and name in group:
            queue, delay_s = promises.queues.get(facts.queue), event.value[0]
            group[name].due_back_at = event.at + delay_s + (queue.long_poll_s if queue is not None else 0.0)
            if not delay_s:
                group.pop(name)  # it did not fail: its pool was removed
        elif event.kind is Kind.ATTEMPT:
            tried.add(name)
            if name not in attempted:
                attempted.add(name)
                untold = {one for one in group if let_go.has(one, group[one], event.at, tried=one in tried)}
                yield from _passed(event, facts, {one: group[one] for one in group if one not in untold})
            if name in group:
                group[name].pool = event.pool
        elif event.kind in (Kind.LOST, Kind.REMOVED):
            group.pop(name, None)
        elif settles(event, facts):
            done.add(name)
            group.pop(name, None)


def _put_back_in_line(urgent: dict[str, _Owed], shown: Facts) -> None:
    """A queue shows a group from its beginning: what passed there by its priority, and failed, is where it was."""
    if not shown.high_priority:
        for name in [name for name, one in urgent.items() if one.facts.queue == shown.queue and one.due_back_at < inf]:
            del urgent[name]


def _receive(event: Event, facts: Facts, group: dict[str, _Owed], first_at: float, tried: set[str]) -> None:
    owed = group.get(event.message)
    if owed is not None and owed.due_back_at < inf:
        tried.discard(event.message)  # as long as it is not, it may be nacked behind another one that failed
        if event.at <= owed.due_back_at:
            owed.due_back_at = inf
            return
    group[event.message] = _Owed(facts, first_at, event.at)


def _passed(event: Event, facts: Facts, group: dict[str, _Owed]) -> Iterator[Violation]:
    mine = group.get(event.message)
    if mine is None:
        return  # how it came to be started is a question for other rules
    for other, owed in group.items():
        if owed.due_back_at < inf and owed.pool != event.pool:
            continue  # a reload sent the group to another pool meanwhile
        if owed.facts.queue != facts.queue and owed.latest_at < mine.first_at and event.at < owed.due_back_at:
            where = "is in the router" if owed.due_back_at == inf else f"is due back by {owed.due_back_at:.1f} s"
            text = f"first attempt although {other} of queue {owed.facts.queue} came before and {where}"
            yield Violation(event.at, event.message, text)
