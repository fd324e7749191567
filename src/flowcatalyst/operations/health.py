"""How the router is, in one word and the reasons for it. Whatever hangs, the answer comes at once."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from flowcatalyst.app import App
from flowcatalyst.errors import FlowCatalystError
from flowcatalyst.message import Severity
from flowcatalyst.operations.dead_letters import MOST_NEW
from flowcatalyst.operations.outages import minutes
from flowcatalyst.operations.standby import StandbyState
from flowcatalyst.operations.warnings import WarningCode, WarningFilter
from flowcatalyst.operations.watch import SILENT_CONSUMER_S
from flowcatalyst.queues import embedded_jobs
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.routing.breaker import Breaker, BreakerState
from flowcatalyst.tasks import Tasks

ANSWER_WITHIN_S: Final = 0.05  # what a probe waits for the storage
SILENT_STORAGE_S: Final = 5.0
NAMED: Final = 5  # endpoints that are named; of the others it says how many they are
# These have reasons of their own as long as they last. When they are over nobody has to look any more.
TOLD_BY_REASONS: Final = (
    WarningCode.ENDPOINT_DOWN,
    WarningCode.GROUP_BLOCKED,
    WarningCode.QUEUE_UNAVAILABLE,
    WarningCode.STANDBY,
    WarningCode.MESSAGES_LOST,
)


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
    parts = (_switch, _consumers, _endpoints, _groups, _dead_letters, _sync, _standby, _watchers, _tasks, _warnings)
    reasons = [reason for part in parts for reason in part(app)]
    levels = [reason.level for reason in reasons]
    worst = next((level for level in (Level.DEGRADED, Level.WARNING) if level in levels), Level.HEALTHY)
    return worst, reasons


def polling_consumers(app: App) -> dict[str, Consumer]:
    """The consumers that should poll. While a router stops or steps down it still has some; they are done."""
    return app.consumers if app.at_work else {}


def _switch(app: App) -> Iterator[Reason]:
    if not app.settings.enabled:
        yield Reason(Level.WARNING, "router", "the router is disabled (enabled is false): no queue is polled")


def _consumers(app: App) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for name, consumer in polling_consumers(app).items():
        silent_s = consumer.silent_s(now)
        if silent_s >= SILENT_CONSUMER_S:
            why = f": {consumer.trouble}" if consumer.trouble else ""
            yield Reason(Level.DEGRADED, "consumer", f"queue {name} was not polled for {silent_s:.0f} s{why}")
        elif consumer.trouble:
            yield Reason(Level.WARNING, "consumer", f"the latest poll of queue {name} failed: {consumer.trouble}")


def _endpoints(app: App) -> Iterator[Reason]:
    """Those that are down, and those whose circuit breaker is not closed, which may be a matter of seconds."""
    if not app.at_work:
        return
    now, down = app.clock.monotonic(), app.engine.endpoint_outages.down
    texts = [
        f"{name} has been down for {minutes(now - one.since)}: {one.why}" for name, one in islice(down.items(), NAMED)
    ]
    yield from _named("endpoint", texts, len(down), "endpoints are down")
    broken = [one for one in app.breakers.items() if one[1].state is not BreakerState.CLOSED and one[0] not in down]
    texts = [f"the circuit breaker of {name} is {_in_words(breaker)}" for name, breaker in broken[:NAMED]]
    yield from _named("circuit breaker", texts, len(broken), "circuit breakers are not closed")


def _in_words(breaker: Breaker) -> str:
    return breaker.state.lower().replace("_", " ")


def _named(part: str, texts: list[str], count: int, what: str) -> Iterator[Reason]:
    """A reason for each text, and one for those that have none."""
    for text in texts:
        yield Reason(Level.WARNING, part, text)
    if count > len(texts):
        yield Reason(Level.WARNING, part, f"{count - len(texts)} more {what}")


def _groups(app: App) -> Iterator[Reason]:
    outages = app.engine.group_outages
    if app.at_work and (blocked := outages.blocked):
        one, limit = blocked[0], minutes(outages.limit_s)
        count = "a group is" if len(blocked) == 1 else f"{len(blocked)} groups are"
        since = minutes(app.clock.monotonic() - one.since)
        text = f"{one.group} of pool {one.pool} for {since}, behind message {one.message_id} ({one.detail})"
        yield Reason(Level.WARNING, "group", f"{count} blocked for more than {limit}, the longest: {text}")


def _dead_letters(app: App) -> Iterator[Reason]:
    outages = app.dead_letter_outages
    if app.at_work and outages.recent:
        many = f"{MOST_NEW} or more" if outages.recent >= MOST_NEW else str(outages.recent)
        text = f"{many} dead letters of the last {minutes(outages.limit_s)} are there to be looked at"
        yield Reason(Level.WARNING, "dead letters", text)


def _sync(app: App) -> Iterator[Reason]:
    if app.sync is not None and app.sync.in_force is None:
        why = f": {app.sync.trouble}" if app.sync.trouble else ""
        yield Reason(Level.DEGRADED, "config sync", f"the pools and queues are not known yet{why}")
    elif app.sync is not None and app.sync.trouble:
        yield Reason(Level.WARNING, "config sync", f"the latest config sync failed: {app.sync.trouble}")


def _standby(app: App) -> Iterator[Reason]:
    standby = app.standby
    if standby is not None and standby.trouble:
        level = Level.WARNING if standby.state is StandbyState.PRIMARY else Level.DEGRADED
        yield Reason(level, "standby", f"the standby lock cannot be used: {standby.trouble}")


def _watchers(app: App) -> Iterator[Reason]:
    for name in app.engine.watches.late() if app.at_work else ():
        yield Reason(Level.WARNING, "watcher", f"the watcher of {name} is late")


def _tasks(app: App) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for death in app.supervisor.recent_deaths():
        text = f"the task '{death.task}' died {now - death.at:.0f} s ago and is started again: {death.error}"
        yield Reason(Level.DEGRADED, "task", text)


def _warnings(app: App) -> Iterator[Reason]:
    """What nobody has acknowledged."""
    if lost := app.warnings.list(WarningFilter(code=WarningCode.MESSAGES_LOST, acknowledged=False)):
        yield Reason(Level.WARNING, "messages", f"messages were lost; acknowledge the warning: {lost[0].message}")
    counts = app.warnings.open_by_severity()
    if not counts[Severity.ERROR] and not counts[Severity.CRITICAL]:
        return
    serious = [
        one
        for one in app.warnings.list(WarningFilter(acknowledged=False))
        if one.severity in (Severity.ERROR, Severity.CRITICAL) and one.code not in TOLD_BY_REASONS
    ]
    if serious:
        worst = next((one for one in serious if one.severity is Severity.CRITICAL), serious[0])
        count = "a warning" if len(serious) == 1 else f"{len(serious)} warnings"
        text = f"{count} that nobody acknowledged: {worst.severity} {worst.code}: {worst.message}"
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
