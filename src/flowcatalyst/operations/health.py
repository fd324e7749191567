"""How the router is, in one word and the reasons for it. Asks no broker and no file: it answers at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from flowcatalyst.app import App
from flowcatalyst.message import Severity
from flowcatalyst.operations.standby import StandbyState
from flowcatalyst.operations.watch import SILENT_CONSUMER_S
from flowcatalyst.routing.breaker import BreakerState


class Level(StrEnum):
    HEALTHY = "HEALTHY"
    WARNING = "WARNING"  # it works; somebody should look
    DEGRADED = "DEGRADED"  # a part of it does not work


@dataclass(slots=True, frozen=True)
class Reason:
    """One thing that is not as it should be, and which part of the router it is about."""

    level: Level
    part: str
    text: str


def assess(app: App) -> tuple[Level, list[Reason]]:
    """The worst level of all reasons, and the reasons. No reason: healthy, also if there is nothing to do."""
    reasons = [*_consumers(app), *_breakers(app), *_sync(app), *_standby(app), *_watchers(app), *_warnings(app)]
    levels = [reason.level for reason in reasons]
    worst = next((level for level in (Level.DEGRADED, Level.WARNING) if level in levels), Level.HEALTHY)
    return worst, reasons


def _consumers(app: App) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for name, consumer in app.consumers.items():
        silent_s = consumer.silent_s(now)
        if silent_s >= SILENT_CONSUMER_S:
            why = f": {consumer.trouble}" if consumer.trouble else ""
            yield Reason(Level.DEGRADED, "consumer", f"queue {name} was not polled for {silent_s:.0f} s{why}")
        elif consumer.trouble:
            yield Reason(Level.WARNING, "consumer", f"the latest poll of queue {name} failed: {consumer.trouble}")


def _breakers(app: App) -> Iterator[Reason]:
    for endpoint, breaker in app.breakers.items():
        if breaker.state is not BreakerState.CLOSED:
            state = breaker.state.lower().replace("_", " ")
            yield Reason(Level.WARNING, "circuit breaker", f"the circuit breaker of {endpoint} is {state}")


def _sync(app: App) -> Iterator[Reason]:
    if app.sync is not None and app.sync.trouble:
        yield Reason(Level.WARNING, "config sync", f"the latest config sync failed: {app.sync.trouble}")


def _standby(app: App) -> Iterator[Reason]:
    standby = app.standby
    if standby is not None and standby.trouble:
        level = Level.WARNING if standby.state is StandbyState.PRIMARY else Level.DEGRADED
        yield Reason(level, "standby", f"the standby lock cannot be used: {standby.trouble}")


def _watchers(app: App) -> Iterator[Reason]:
    for name in app.engine.watches.late() if app.at_work else ():
        yield Reason(Level.WARNING, "watcher", f"the watcher of {name} is late")


def _warnings(app: App) -> Iterator[Reason]:
    critical = [one for one in app.warnings.list() if one.severity is Severity.CRITICAL and not one.acknowledged]
    if critical:
        newest = critical[0]
        text = f"{len(critical)} critical warnings, the newest: {newest.code}: {newest.message}"
        yield Reason(Level.WARNING, "warnings", text)
