"""Warnings for operators, kept in memory. docs/reference.md says what each code means."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, Protocol

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Severity

KEEP_S: Final = 8 * 3600.0
MAX_WARNINGS: Final = 1000
MAX_OF_A_KIND: Final = 100  # of one code from one source
MAX_MESSAGE_CHARS: Final = 2000  # an endpoint or a sender may have a hand in the text


class WarningCode(StrEnum):
    """What a warning is about."""

    CONFIG_SYNC_FAILED = "CONFIG_SYNC_FAILED"
    CONFIG_SYNC_RECOVERED = "CONFIG_SYNC_RECOVERED"  # every source answers again, and what they said is in force
    ROUTING = "ROUTING"
    QUEUE_FULL = "QUEUE_FULL"
    POOL_LIMIT = "POOL_LIMIT"
    PIPELINE_MAP_LEAK = "PIPELINE_MAP_LEAK"
    CONSUMER_RESTART = "CONSUMER_RESTART"
    CONSUMER_RESTART_FAILED = "CONSUMER_RESTART_FAILED"
    SHUTDOWN_CLEANUP_ERRORS = "SHUTDOWN_CLEANUP_ERRORS"
    # Groups have no threads here and slots no semaphore. The three are known so that a filter of an older
    # dashboard finds nothing instead of failing.
    GROUP_THREAD_RESTART = "GROUP_THREAD_RESTART"
    GROUP_THREAD_EXIT_WITH_MESSAGES = "GROUP_THREAD_EXIT_WITH_MESSAGES"
    SEMAPHORE_RELEASE_FAILED = "SEMAPHORE_RELEASE_FAILED"
    MEDIATOR_NULL_RESULT = "MEDIATOR_NULL_RESULT"
    PROCESSING = "PROCESSING"
    CONFIGURATION = "CONFIGURATION"
    CONFIG_REJECTED = "CONFIG_REJECTED"  # an entry of the router configuration that cannot be used
    CONFIG_CONFLICT = "CONFIG_CONFLICT"  # two sources define the same pool or queue differently
    QUEUE_UNAVAILABLE = "QUEUE_UNAVAILABLE"
    QUEUE_RECOVERED = "QUEUE_RECOVERED"  # it can be read again
    QUEUE_SETUP = "QUEUE_SETUP"  # the way it is set up at its broker asks for trouble
    MESSAGES_LOST = "MESSAGES_LOST"  # at the broker: what was in a queue is gone, and nobody settled it
    MESSAGES_UNREADABLE = "MESSAGES_UNREADABLE"  # they are dead letters
    QUEUE_BACKLOG = "QUEUE_BACKLOG"  # long, or growing
    QUEUE_BACKLOG_OVER = "QUEUE_BACKLOG_OVER"
    LOCAL_SHORTAGE = "LOCAL_SHORTAGE"  # this machine lacks files, memory or ports to deliver with
    LOCAL_SHORTAGE_OVER = "LOCAL_SHORTAGE_OVER"
    STORAGE_FAILED = "STORAGE_FAILED"  # a file of ours cannot be written: the disk is full or broken
    STORAGE_RECOVERED = "STORAGE_RECOVERED"
    STANDBY = "STANDBY"  # primary or standby now, or the lock cannot be reached
    STANDBY_RECOVERED = "STANDBY_RECOVERED"  # the lock can be reached again
    STOOD_STILL = "STOOD_STILL"  # this process did: it was paused, or had no time to run
    ENDPOINT_DOWN = "ENDPOINT_DOWN"  # it failed, or did not answer, for some time
    ENDPOINT_RECOVERED = "ENDPOINT_RECOVERED"  # it answers again
    GROUP_BLOCKED = "GROUP_BLOCKED"  # groups wait for a message that fails again and again
    JOB_GROUP_BLOCKED = "JOB_GROUP_BLOCKED"  # dispatch jobs wait for one of their group that failed
    JOB_GROUP_UNBLOCKED = "JOB_GROUP_UNBLOCKED"
    JOB_PARKED = "JOB_PARKED"  # dispatch jobs failed for the last time and wait for a person
    JOB_PARKED_OVER = "JOB_PARKED_OVER"  # none does any more
    DEAD_LETTERS = "DEAD_LETTERS"  # messages that will not be delivered
    DEAD_LETTERS_DROPPED = "DEAD_LETTERS_DROPPED"  # there were more than may be kept
    AUDIT_FAILED = "AUDIT_FAILED"  # what somebody did could not be recorded
    WATCHER_DIED = "WATCHER_DIED"  # one look of it failed or hung
    TASK_DIED = "TASK_DIED"  # of something that nobody expected; it is started again
    NOTIFICATION_FAILED = "NOTIFICATION_FAILED"


# Warnings that tell of a state, and those that tell that it is over.
ENDINGS: Final = {
    WarningCode.QUEUE_UNAVAILABLE: WarningCode.QUEUE_RECOVERED,
    WarningCode.QUEUE_BACKLOG: WarningCode.QUEUE_BACKLOG_OVER,
    WarningCode.ENDPOINT_DOWN: WarningCode.ENDPOINT_RECOVERED,
    WarningCode.CONFIG_SYNC_FAILED: WarningCode.CONFIG_SYNC_RECOVERED,
    WarningCode.LOCAL_SHORTAGE: WarningCode.LOCAL_SHORTAGE_OVER,
    WarningCode.STORAGE_FAILED: WarningCode.STORAGE_RECOVERED,
    WarningCode.STANDBY: WarningCode.STANDBY_RECOVERED,
    WarningCode.JOB_GROUP_BLOCKED: WarningCode.JOB_GROUP_UNBLOCKED,
    WarningCode.JOB_PARKED: WarningCode.JOB_PARKED_OVER,
}
ENDED_BY: Final = {ending: code for code, ending in ENDINGS.items()}


class WarningSink(Protocol):
    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None: ...


Kind = tuple[WarningCode, str]  # its code and its source
_Key = tuple[WarningCode, Severity, str, str]


@dataclass(slots=True)
class Warning:  # noqa: A001 - the word operators know
    id: int  # grows; never used again while the process lives
    code: WarningCode
    severity: Severity
    message: str
    source: str
    first_at: float
    last_at: float
    count: int = 1
    acknowledged: bool = False

    @property
    def key(self) -> _Key:
        """What makes another one a repeat of this."""
        return (self.code, self.severity, self.message, self.source)

    @property
    def kind(self) -> Kind:
        """What shares a bound: whoever can make up texts can do so within it."""
        return (self.code, self.source)


@dataclass(slots=True, frozen=True)
class WarningFilter:
    """Which warnings are meant; None: any."""

    severity: Severity | None = None
    code: WarningCode | None = None
    source: str | None = None
    acknowledged: bool | None = None
    text: str | None = None  # part of the message, in any case
    since: float | None = None  # wall time of the last repeat, or later

    def matches(self, warning: Warning) -> bool:
        return (
            (self.severity is None or warning.severity is self.severity)
            and (self.code is None or warning.code is self.code)
            and (self.source is None or warning.source == self.source)
            and (self.acknowledged is None or warning.acknowledged is self.acknowledged)
            and (self.text is None or self.text.casefold() in warning.message.casefold())
            and (self.since is None or warning.last_at >= self.since)
        )


ANY_WARNING: Final = WarningFilter()

_Shelf = OrderedDict[int, Warning]  # by id, the one not repeated for longest first


class WarningBook(WarningSink, Protocol):
    """A sink for somebody who also knows when a warning is over."""

    def acknowledge_all(self, wanted: WarningFilter) -> int: ...

    def end(self, code: WarningCode, message: str, source: str) -> None: ...


class WarningShelf(WarningBook, Protocol):
    """One for somebody who has to look what others told."""

    def recent(self, wanted: WarningFilter) -> list[Warning]: ...


class _Shelves:
    """The warnings of one code from one source."""

    def __init__(self) -> None:
        self.acknowledged: _Shelf = OrderedDict()
        self.open: dict[Severity, _Shelf] = {severity: OrderedDict() for severity in Severity}

    def __len__(self) -> int:
        return len(self.acknowledged) + sum(map(len, self.open.values()))

    def shelf_of(self, warning: Warning) -> _Shelf:
        return self.acknowledged if warning.acknowledged else self.open[warning.severity]

    def first_to_go(self, severity: Severity) -> Warning | None:
        """What matters least here, and no more than a new one of this severity."""
        shelves = [self.acknowledged, *(self.open[one] for one in Severity)]  # mildest first
        for shelf in shelves[: list(Severity).index(severity) + 2]:
            if shelf:
                return next(iter(shelf.values()))
        return None

    def acknowledge(self, warning: Warning) -> None:
        del self.shelf_of(warning)[warning.id]
        warning.acknowledged = True
        self.acknowledged[warning.id] = warning
        by_age = sorted(self.acknowledged.values(), key=_age_order)
        self.acknowledged = OrderedDict((one.id, one) for one in by_age)


class WarningLog:
    """At most 1,000 different warnings, 100 of them of one code from one source: whoever can make up texts, a sender
    for one, pushes out only others like them. A repeated one counts up; one not repeated for 8 hours is forgotten.

    When there is no room, acknowledged ones go first, then the least severe, each time the oldest of them. A new one
    that is less severe than all the others is not kept.
    """

    def __init__(
        self,
        clock: Clock,
        on_new: Callable[[Warning], None] | None = None,
        record: Callable[[Warning], None] = lambda _: None,
    ) -> None:
        self.on_new = on_new  # told of each new warning, and of an acknowledged one that comes back; must not raise
        self._record = record  # the same, for what stays when the process is gone
        self._clock = clock
        self._ids = count(1)
        self._by_key: OrderedDict[_Key, Warning] = OrderedDict()  # the one not repeated for longest first
        self._kinds: defaultdict[Kind, _Shelves] = defaultdict(_Shelves)  # none of them empty

    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None:
        now = self._clock.wall()
        self._forget_expired(now)
        message = message[:MAX_MESSAGE_CHARS]
        known = self._by_key.get((code, severity, message, source))
        if known is not None:
            is_back, shelves = known.acknowledged, self._kinds[known.kind]
            del shelves.shelf_of(known)[known.id]
            known.count += 1
            known.last_at = now
            known.acknowledged = False
            shelves.shelf_of(known)[known.id] = known
            self._by_key.move_to_end(known.key)
            if is_back:
                self._tell(known)
        elif self._make_capacity_for(code, severity, source):
            warning = Warning(next(self._ids), code, severity, message, source, now, now)
            self._by_key[warning.key] = warning
            self._kinds[warning.kind].shelf_of(warning)[warning.id] = warning
            self._tell(warning)

    def end(self, code: WarningCode, message: str, source: str) -> None:
        """The state that the warnings of this code and source tell of is over: they are acknowledged, and whoever was
        told of them is told that. Nobody has to do anything about good news: it is acknowledged from the start."""
        self.acknowledge_all(WarningFilter(code=code, source=source))
        self.add(ENDINGS[code], Severity.WARN, message, source)
        self.acknowledge_all(WarningFilter(code=ENDINGS[code], source=source))

    def recent(self, wanted: WarningFilter = ANY_WARNING) -> list[Warning]:
        """Newest first."""
        self._forget_expired(self._clock.wall())
        found = [warning for warning in self._by_key.values() if wanted.matches(warning)]
        found.sort(key=_age_order, reverse=True)
        return found

    def open_by_severity(self) -> dict[Severity, int]:
        """How many warnings of each severity nobody has acknowledged."""
        self._forget_expired(self._clock.wall())
        return {severity: sum(len(kind.open[severity]) for kind in self._kinds.values()) for severity in Severity}

    def acknowledge(self, warning_id: int) -> Warning | None:
        """Somebody knows of it; a repeat makes it news again. None: there is no such warning."""
        warning = self._find(warning_id)
        if warning is not None and not warning.acknowledged:
            self._kinds[warning.kind].acknowledge(warning)
        return warning

    def acknowledge_all(self, wanted: WarningFilter = ANY_WARNING) -> int:
        """Acknowledge those that are not yet; returns how many."""
        new = [warning for warning in self.recent(wanted) if not warning.acknowledged]
        for warning in new:
            self._kinds[warning.kind].acknowledge(warning)
        return len(new)

    def delete(self, warning_id: int) -> bool:
        """Forget it; a repeat is a new warning then. False: there is no such warning."""
        warning = self._find(warning_id)
        if warning is not None:
            self._remove(warning)
        return warning is not None

    def delete_all(self, wanted: WarningFilter = ANY_WARNING) -> int:
        """Forget them; returns how many."""
        found = self.recent(wanted)
        for warning in found:
            self._remove(warning)
        return len(found)

    def _remove(self, warning: Warning) -> None:
        del self._by_key[warning.key]
        shelves = self._kinds[warning.kind]
        del shelves.shelf_of(warning)[warning.id]
        if not shelves:
            del self._kinds[warning.kind]

    def _find(self, warning_id: int) -> Warning | None:
        self._forget_expired(self._clock.wall())
        return next((warning for warning in self._by_key.values() if warning.id == warning_id), None)

    def _tell(self, warning: Warning) -> None:
        if warning.code in ENDINGS:  # it is not over any more
            self.acknowledge_all(WarningFilter(code=ENDINGS[warning.code], source=warning.source))
        self._record(warning)
        if self.on_new is not None:
            self.on_new(warning)

    def _make_capacity_for(self, code: WarningCode, severity: Severity, source: str) -> bool:
        """Drop a warning that matters no more than a new one of this severity. False: all that are here matter more."""
        kind = self._kinds.get((code, source))
        if kind is not None and len(kind) >= MAX_OF_A_KIND:
            rivals = [kind.first_to_go(severity)]
        elif len(self._by_key) >= MAX_WARNINGS:
            rivals = [one.first_to_go(severity) for one in self._kinds.values()]
        else:
            return True
        candidates = [one for one in rivals if one is not None]
        if not candidates:
            return False
        self._remove(min(candidates, key=_importance))
        return True

    def _forget_expired(self, now: float) -> None:
        while self._by_key and (oldest := next(iter(self._by_key.values()))).last_at + KEEP_S <= now:
            self._remove(oldest)


def _importance(warning: Warning) -> tuple[bool, int, tuple[float, int]]:
    """What is acknowledged matters least, then what is mild, then what is old."""
    rank = 0 if warning.acknowledged else list(Severity).index(warning.severity)
    return (not warning.acknowledged, rank, _age_order(warning))


def _age_order(warning: Warning) -> tuple[float, int]:
    return (warning.last_at, warning.id)
