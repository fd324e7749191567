"""Which groups stood still, how long, behind which message, and why."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from flowcatalyst.message import Result
from flowcatalyst.simulation.history import Event, Facts, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS
from flowcatalyst.simulation.scenario import Scenario

MOST_SHOWN: Final = 10


@dataclass(slots=True, frozen=True)
class BlockedGroup:
    """The longest time in which a group had messages and none of them was delivered or became a dead letter."""

    group: str
    seconds: float
    from_s: float
    behind: str  # message
    why: str
    waiting: int  # messages of the group at the end of that time
    ended: bool  # it moved again before the simulation was over


@dataclass(slots=True)
class _Group:
    name: str
    pool: str
    host: str
    since: float = 0.0
    unfinished: dict[str, None] = field(default_factory=dict)  # in the order they were published
    failures: Counter[str] = field(default_factory=Counter)  # by message, since then
    last_failure: str = ""
    given_back: int = 0
    received_at: float | None = None  # since then: when the router got one of its messages first
    attempt_at: float | None = None  # since then: when its first attempt began
    longest: BlockedGroup | None = None


class BlockedGroups:
    """Is shown all events in order, then asked for the longest standstills, one for each group."""

    def __init__(self, scenario: Scenario) -> None:
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}  # by message, while it is unfinished
        self._held: set[str] = set()  # messages in the router
        self._outages = [(one.name, outage) for one in scenario.endpoints for outage in one.outages]
        self._restarts = scenario.restarts

    def note(self, event: Event) -> None:
        if event.kind is Kind.PUBLISHED:
            if event.value.ordered:
                self._publish(event.message, event.value, event.at)
            return
        if event.kind in LIFE_ENDS:
            self._held.clear()
        group = self._group_of.get(event.message)
        if group is not None:
            self._note_of(group, event)

    def _note_of(self, group: _Group, event: Event) -> None:
        match event.kind:
            case Kind.RECEIVED:
                self._held.add(event.message)
                group.received_at = event.at if group.received_at is None else group.received_at
            case Kind.ATTEMPT:
                group.attempt_at = event.at if group.attempt_at is None else group.attempt_at
            case Kind.NACK:
                self._held.discard(event.message)
                group.given_back += 1
            case Kind.ANSWER if event.value.result is not Result.SUCCESS:
                group.failures[event.message] += 1
                group.last_failure = event.value.detail
            case Kind.ANSWER | Kind.BURIED:
                self._move_on(group, event)

    def longest(self, now: float) -> list[BlockedGroup]:
        for group in self._groups.values():
            if group.unfinished:
                self._compare(group, now, ended=False)
        found = [group.longest for group in self._groups.values() if group.longest is not None]
        return sorted(found, key=lambda one: (-one.seconds, one.group))[:MOST_SHOWN]

    def _publish(self, name: str, facts: Facts, now: float) -> None:
        assert facts.group is not None
        group = self._groups.get(facts.group)
        if group is None:
            host = facts.target.removeprefix("http://").rstrip("/")
            group = self._groups[facts.group] = _Group(facts.group, facts.pool, host)
        if not group.unfinished:
            self._begin(group, now)
        group.unfinished[name] = None
        self._group_of[name] = group

    def _move_on(self, group: _Group, event: Event) -> None:
        self._compare(group, event.at, ended=True)
        del group.unfinished[event.message]
        del self._group_of[event.message]
        self._held.discard(event.message)
        self._begin(group, event.at)

    def _begin(self, group: _Group, now: float) -> None:
        group.since, group.given_back, group.last_failure = now, 0, ""
        group.failures.clear()
        is_held = any(name in self._held for name in islice(group.unfinished, 1))
        group.received_at, group.attempt_at = (now if is_held else None), None

    def _compare(self, group: _Group, now: float, *, ended: bool) -> None:
        seconds = round(now - group.since, 3)
        if group.longest is not None and group.longest.seconds >= seconds:
            return
        behind = group.failures.most_common(1)[0][0] if group.failures else next(iter(group.unfinished))
        group.longest = BlockedGroup(
            group.name, seconds, round(group.since, 3), behind, self._why(group, now), len(group.unfinished), ended
        )

    def _why(self, group: _Group, now: float) -> str:
        phase = _longest_phase(group, now)
        if phase == "attempts":
            failed = group.failures.total()
            if failed:
                return f"{failed} failed attempt{'s' * (failed > 1)}, last: {group.last_failure}"
            return f"{group.host} was slow to answer"
        if any(name == group.host and _overlap(group, now, one.begin, one.end) for name, one in self._outages):
            return f"{group.host} was down, given back {group.given_back} times"
        if any(_overlap(group, now, one.at, one.at + one.down_for) for one in self._restarts):
            return "the router was down"
        if phase == "pool":
            return f"no free slot or permit in pool {group.pool}"
        if group.given_back:
            return f"no room in pool {group.pool}, given back {group.given_back} times"
        return f"in the queue: no room in pool {group.pool}"


def _longest_phase(group: _Group, now: float) -> str:
    """Where the group spent most of the time."""
    attempt_at = now if group.attempt_at is None else group.attempt_at
    received_at = attempt_at if group.received_at is None else min(group.received_at, attempt_at)
    phases = {"attempts": now - attempt_at, "pool": attempt_at - received_at, "queue": received_at - group.since}
    return max(phases, key=lambda phase: phases[phase])


def _overlap(group: _Group, now: float, begin: float, end: float) -> bool:
    return group.since < end and begin < now
