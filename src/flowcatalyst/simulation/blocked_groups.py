"""Which groups stood still, how long, behind which message, and why."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from flowcatalyst.core.message import Result
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
    nacked: int = 0
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
            facts: Facts = event.value
            if facts.ordered and facts.group is not None:
                group = self._groups.get(facts.group)
                if group is None:
                    host = facts.target.removeprefix("http://").rstrip("/")
                    group = self._groups[facts.group] = _Group(facts.group, facts.pool, host)
                if not group.unfinished:
                    self._begin(group, event.at)
                group.unfinished[event.message] = None
                self._group_of[event.message] = group
            return
        if event.kind in LIFE_ENDS:
            self._held.clear()
        group = self._group_of.get(event.message)
        if group is None:
            return
        match event.kind:
            case Kind.RECEIVED:
                self._held.add(event.message)
                group.received_at = event.at if group.received_at is None else group.received_at
            case Kind.ATTEMPT:
                group.attempt_at = event.at if group.attempt_at is None else group.attempt_at
            case Kind.NACK:
                self._held.discard(event.message)
                group.nacked += 1
            case Kind.ANSWER if event.value.result is not Result.SUCCESS:
                group.failures[event.message] += 1
                group.last_failure = event.value.detail
            case Kind.ANSWER | Kind.DEAD_LETTERED:
                self._compare(group, event.at, ended=True)
                del group.unfinished[event.message]
                del self._group_of[event.message]
                self._held.discard(event.message)
                self._begin(group, event.at)

    def longest(self, now: float) -> list[BlockedGroup]:
        for group in self._groups.values():
            if group.unfinished:
                self._compare(group, now, ended=False)
        found = [group.longest for group in self._groups.values() if group.longest is not None]
        return sorted(found, key=lambda one: (-one.seconds, one.group))[:MOST_SHOWN]

    def _begin(self, group: _Group, now: float) -> None:
        group.since, group.nacked, group.last_failure = now, 0, ""
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
        attempt_at = now if group.attempt_at is None else group.attempt_at
        received_at = attempt_at if group.received_at is None else min(group.received_at, attempt_at)
        phases = {"attempts": now - attempt_at, "pool": attempt_at - received_at, "queue": received_at - group.since}
        phase = max(phases, key=lambda phase: phases[phase])  # where the group spent most of the time
        if phase == "attempts":
            failed = group.failures.total()
            if failed:
                return f"{failed} failed attempt{'s' * (failed > 1)}, last: {group.last_failure}"
            return f"{group.host} was slow to answer"
        if any(name == group.host and _overlap(group, now, one.begin, one.end) for name, one in self._outages):
            return f"{group.host} was down, nacked {group.nacked} times"
        if any(_overlap(group, now, one.at, one.at + one.down_for) for one in self._restarts):
            return "the router was down"
        if phase == "pool":
            return f"no free slot or permit in pool {group.pool}"
        if group.nacked:
            return f"no free capacity in pool {group.pool}, nacked {group.nacked} times"
        return f"in the queue: no free capacity in pool {group.pool}"


def _overlap(group: _Group, now: float, begin: float, end: float) -> bool:
    return group.since < end and begin < now
