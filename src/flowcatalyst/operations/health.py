"""How the router is, in one word and the reasons for it. Whatever hangs, the answer comes at once."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flowcatalyst.app import App
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.message import Severity
from flowcatalyst.operations.standby import StandbyState
from flowcatalyst.operations.watch import SILENT_CONSUMER_S
from flowcatalyst.queues import embedded_jobs
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.routing.breaker import BreakerState
from flowcatalyst.tasks import Tasks

ANSWER_WITHIN_S: Final = 0.05  # what a probe waits for the storage
SILENT_STORAGE_S: Final = 5.0
MAX_NAMED_BREAKERS: Final = 20  # there may be 10,000


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


def polling_consumers(app: App) -> dict[str, Consumer]:
    """The consumers that should poll. While a router stops or steps down it still has some; they are done."""
    return app.consumers if app.at_work else {}


def _consumers(app: App) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for name, consumer in polling_consumers(app).items():
        silent_s = consumer.silent_s(now)
        if silent_s >= SILENT_CONSUMER_S:
            why = f": {consumer.trouble}" if consumer.trouble else ""
            yield Reason(Level.DEGRADED, "consumer", f"queue {name} was not polled for {silent_s:.0f} s{why}")
        elif consumer.trouble:
            yield Reason(Level.WARNING, "consumer", f"the latest poll of queue {name} failed: {consumer.trouble}")


def _breakers(app: App) -> Iterator[Reason]:
    breakers = app.breakers.items() if app.at_work else ()
    not_closed = [(endpoint, breaker) for endpoint, breaker in breakers if breaker.state is not BreakerState.CLOSED]
    for endpoint, breaker in not_closed[:MAX_NAMED_BREAKERS]:
        state = breaker.state.lower().replace("_", " ")
        yield Reason(Level.WARNING, "circuit breaker", f"the circuit breaker of {endpoint} is {state}")
    if (others := len(not_closed) - MAX_NAMED_BREAKERS) > 0:
        text = f"{others} other circuit breakers are not closed: see /monitoring/circuit-breakers"
        yield Reason(Level.WARNING, "circuit breaker", text)


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
        count = "a critical warning" if len(critical) == 1 else f"{len(critical)} critical warnings, the newest"
        text = f"{count}: {newest.code}: {newest.message}"
        yield Reason(Level.WARNING, "warnings", text)


class StorageProbe:
    """Asks the files of the router whether they answer, but waits for no disk that hangs.

    A question stays open until it is answered; only how long it has been open tells that something is wrong.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self._tasks = Tasks()
        self._question: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._trouble = ""

    async def trouble(self) -> str:
        """Why the storage cannot be used; empty if it can, or did not have the time to tell."""
        clock = self.app.clock
        if self._question is None or self._question.done():
            self._question, self._asked_at = self._tasks.spawn(self._ask(), "ask storage"), clock.monotonic()
        await asyncio.wait([self._question], timeout=ANSWER_WITHIN_S)
        open_s = clock.monotonic() - self._asked_at
        if not self._question.done() and open_s >= SILENT_STORAGE_S:
            return f"no answer for {open_s:.0f} s"
        return self._trouble

    async def _ask(self) -> None:
        try:
            await self.app.store.writer.read_in_turn(embedded_jobs.data_version)
            await self.app.dead_letters.get(1)
        except FlowCatalystError as error:
            self._trouble = str(error)
        else:
            self._trouble = ""
