"""Warnings for operators, kept in memory: the codes and severities of 002."""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from flowcatalyst.clock import Clock
from flowcatalyst.message import Severity

KEEP_S = 8 * 3600.0
MAX_WARNINGS = 1000


class WarningCode(StrEnum):
    """What a warning is about. Those of 002, as far as the thing can happen here, then ours."""

    CONFIG_SYNC_FAILED = "CONFIG_SYNC_FAILED"
    ROUTING = "ROUTING"
    QUEUE_FULL = "QUEUE_FULL"
    POOL_LIMIT = "POOL_LIMIT"
    PIPELINE_MAP_LEAK = "PIPELINE_MAP_LEAK"
    CONSUMER_RESTART = "CONSUMER_RESTART"
    CONSUMER_RESTART_FAILED = "CONSUMER_RESTART_FAILED"
    SHUTDOWN_CLEANUP_ERRORS = "SHUTDOWN_CLEANUP_ERRORS"
    MEDIATOR_NULL_RESULT = "MEDIATOR_NULL_RESULT"
    PROCESSING = "PROCESSING"
    CONFIGURATION = "CONFIGURATION"
    CONFIG_REJECTED = "CONFIG_REJECTED"  # an entry of the router configuration that cannot be used
    CONFIG_CONFLICT = "CONFIG_CONFLICT"  # two sources define the same pool or queue differently
    QUEUE_UNAVAILABLE = "QUEUE_UNAVAILABLE"
    QUEUE_BACKLOG = "QUEUE_BACKLOG"  # long, or growing
    STANDBY = "STANDBY"  # primary or standby now, or the lock cannot be reached
    WATCHER_DIED = "WATCHER_DIED"
    NOTIFICATION_FAILED = "NOTIFICATION_FAILED"


class WarningSink(Protocol):
    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None: ...


@dataclass(slots=True)
class Warning:  # noqa: A001 - the word operators know from 002
    code: WarningCode
    severity: Severity
    message: str
    source: str
    first_at: float
    last_at: float
    count: int = 1


class WarningLog:
    """At most 1,000 different warnings; a repeated one counts up; one not repeated for 8 hours is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warnings: OrderedDict[tuple[WarningCode, Severity, str, str], Warning] = OrderedDict()

    def add(self, code: WarningCode, severity: Severity, message: str, source: str) -> None:
        now = self._clock.wall()
        key = (code, severity, message, source)
        known = self._warnings.get(key)
        if known is not None and known.last_at + KEEP_S > now:
            known.count += 1
            known.last_at = now
        else:
            self._warnings[key] = Warning(code, severity, message, source, now, now)
        self._warnings.move_to_end(key)
        if len(self._warnings) > MAX_WARNINGS:
            self._warnings.popitem(last=False)

    def list(self) -> list[Warning]:
        """Newest first."""
        oldest = self._clock.wall() - KEEP_S
        return [warning for warning in reversed(self._warnings.values()) if warning.last_at > oldest]
