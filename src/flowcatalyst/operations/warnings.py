"""Warnings for operators, kept in memory: the codes and severities of 002."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, Protocol

from flowcatalyst.clock import Clock
from flowcatalyst.message import Severity

KEEP_S: Final = 8 * 3600.0
MAX_WARNINGS: Final = 1000
MAX_MESSAGE_CHARS: Final = 2000  # an endpoint or a sender may have a hand in the text


class WarningCode(StrEnum):
    """What a warning is about: those of 002, then ours."""

    CONFIG_SYNC_FAILED = "CONFIG_SYNC_FAILED"
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
    QUEUE_BACKLOG = "QUEUE_BACKLOG"  # long, or growing
    LOCAL_SHORTAGE = "LOCAL_SHORTAGE"  # this machine lacks files, memory or ports to deliver with
    STANDBY = "STANDBY"  # primary or standby now, or the lock cannot be reached
    WATCHER_DIED = "WATCHER_DIED"
    NOTIFICATION_FAILED = "NOTIFICATION_FAILED"


class WarningSink(Protocol):
    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None: ...


_Key = tuple[WarningCode, Severity, str, str]


@dataclass(slots=True)
class Warning:  # noqa: A001 - the word operators know from 002
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


class WarningLog:
    """At most 1,000 different warnings; a repeated one counts up; one not repeated for 8 hours is forgotten.

    When there is no room, acknowledged ones go first, then the least severe, each time the oldest of them. A new one
    that is less severe than all the others is not kept.
    """

    def __init__(self, clock: Clock, on_new: Callable[[Warning], None] | None = None) -> None:
        self.on_new = on_new  # told of each new warning, and of an acknowledged one that comes back; must not raise
        self._clock = clock
        self._ids = count(1)
        self._by_key: dict[_Key, Warning] = {}
        self._acknowledged: _Shelf = OrderedDict()
        self._open: dict[Severity, _Shelf] = {severity: OrderedDict() for severity in Severity}

    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None:
        now = self._clock.wall()
        self._forget_expired(now)
        message = message[:MAX_MESSAGE_CHARS]
        known = self._by_key.get((code, severity, message, source))
        if known is not None:
            self._repeat(known, now)
        elif self._make_room_for(severity):
            warning = Warning(next(self._ids), code, severity, message, source, now, now)
            self._put(warning)
            self._tell(warning)

    def list(self, wanted: WarningFilter = ANY_WARNING) -> list[Warning]:
        """Newest first."""
        self._forget_expired(self._clock.wall())
        found = [warning for warning in self._by_key.values() if wanted.matches(warning)]
        found.sort(key=_age_order, reverse=True)
        return found

    def open_by_severity(self) -> dict[Severity, int]:
        """How many warnings of each severity nobody has acknowledged."""
        self._forget_expired(self._clock.wall())
        return {severity: len(shelf) for severity, shelf in self._open.items()}

    def acknowledge(self, warning_id: int) -> Warning | None:
        """Somebody knows of it; a repeat makes it news again. None: there is no such warning."""
        warning = self._find(warning_id)
        if warning is not None:
            self._acknowledge([warning])
        return warning

    def acknowledge_all(self, wanted: WarningFilter = ANY_WARNING) -> int:
        """Acknowledge those that are not yet; returns how many."""
        new = [warning for warning in self.list(wanted) if not warning.acknowledged]
        self._acknowledge(new)
        return len(new)

    def delete(self, warning_id: int) -> bool:
        """Forget it; a repeat is a new warning then. False: there is no such warning."""
        warning = self._find(warning_id)
        if warning is not None:
            self._remove(warning)
        return warning is not None

    def delete_all(self, wanted: WarningFilter = ANY_WARNING) -> int:
        """Forget them; returns how many."""
        found = self.list(wanted)
        for warning in found:
            self._remove(warning)
        return len(found)

    def _shelves(self) -> Iterator[_Shelf]:
        """In the order in which they lose warnings when there is no room. Severities are listed mildest first."""
        yield self._acknowledged
        yield from self._open.values()

    def _shelf_of(self, warning: Warning) -> _Shelf:
        return self._acknowledged if warning.acknowledged else self._open[warning.severity]

    def _put(self, warning: Warning) -> None:
        self._by_key[warning.key] = warning
        self._shelf_of(warning)[warning.id] = warning

    def _remove(self, warning: Warning) -> None:
        del self._by_key[warning.key]
        del self._shelf_of(warning)[warning.id]

    def _find(self, warning_id: int) -> Warning | None:
        self._forget_expired(self._clock.wall())
        return next((shelf[warning_id] for shelf in self._shelves() if warning_id in shelf), None)

    def _repeat(self, warning: Warning, now: float) -> None:
        is_back = warning.acknowledged
        del self._shelf_of(warning)[warning.id]
        warning.count += 1
        warning.last_at = now
        warning.acknowledged = False
        self._shelf_of(warning)[warning.id] = warning
        if is_back:
            self._tell(warning)

    def _tell(self, warning: Warning) -> None:
        if self.on_new is not None:
            self.on_new(warning)

    def _acknowledge(self, warnings: Iterable[Warning]) -> None:
        for warning in warnings:
            del self._shelf_of(warning)[warning.id]
            warning.acknowledged = True
            self._acknowledged[warning.id] = warning
        by_age = sorted(self._acknowledged.values(), key=_age_order)
        self._acknowledged = OrderedDict((warning.id, warning) for warning in by_age)

    def _make_room_for(self, severity: Severity) -> bool:
        """Drop a warning that matters no more than a new one of this severity. False: all that are here matter more."""
        if len(self._by_key) < MAX_WARNINGS:
            return True
        for shelf in self._shelves():
            if shelf:
                self._remove(next(iter(shelf.values())))
                return True
            if shelf is self._open[severity]:
                break
        return False

    def _forget_expired(self, now: float) -> None:
        for shelf in self._shelves():
            while shelf and (oldest := next(iter(shelf.values()))).last_at + KEEP_S <= now:
                self._remove(oldest)


def _age_order(warning: Warning) -> tuple[float, int]:
    return (warning.last_at, warning.id)
