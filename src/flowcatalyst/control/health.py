"""How the router is, in one word and the reasons for it. Whatever hangs, the answer comes at once."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Final

from flowcatalyst.control.dead_letters import MOST_NEW
from flowcatalyst.control.standby import StandbyState
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.dispatch.subscription import SubscriptionStatus
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.outages import how_to_explain, minutes
from flowcatalyst.router.watch import SILENT_CONSUMER_S

BREAKER_COUNTS_S: Final = 300.0  # after its latest attempt
ANSWER_WITHIN_S: Final = 0.05  # what a probe waits for the storage
SILENT_STORAGE_S: Final = 5.0
FAILING_CONSUMER_S: Final = 30.0  # a queue whose polls have all failed for so long delivers nothing
NAMED: Final = 5  # endpoints that are named; of the others it says how many they are
# These have reasons of their own as long as they last. When they are over nobody has to look any more.
TOLD_BY_REASONS: Final = (
    WarningCode.ENDPOINT_DOWN,
    WarningCode.GROUP_BLOCKED,
    WarningCode.JOB_GROUP_BLOCKED,
    WarningCode.JOB_PARKED,
    WarningCode.QUEUE_UNAVAILABLE,
    WarningCode.STANDBY,
    WarningCode.STORAGE_FAILED,
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


def assess(app: RouterView) -> tuple[Level, list[Reason]]:
    """The worst level of all reasons, and the reasons. No reason: healthy, also if there is nothing to do."""
    parts = (
        _switch,
        _stop,
        _storage,
        _consumers,
        _endpoints,
        _groups,
        _pauses,
        _jobs,
        _subscriptions,
        _dead_letters,
        _sync,
        _configuration,
        _standby,
        _watchers,
        _tasks,
        _warnings,
    )
    reasons = [reason for part in parts for reason in part(app)]
    levels = [reason.level for reason in reasons]
    worst = next((level for level in (Level.DEGRADED, Level.WARNING) if level in levels), Level.HEALTHY)
    return worst, reasons


def polling_consumers(app: RouterView) -> dict[str, Consumer]:
    """The consumers that should poll. While a router stops or steps down it still has some; they are done."""
    return app.consumers if app.at_work else {}


def _switch(app: RouterView) -> Iterator[Reason]:
    if not app.settings.enabled:
        yield Reason(Level.WARNING, "router", "the router is disabled (enabled is false): no queue is polled")
    elif app.at_work and not app.consumers:
        yield Reason(Level.WARNING, "router", "the configuration has no queue that can be used: nothing is polled")


def _stop(app: RouterView) -> Iterator[Reason]:
    if app.stopping:
        in_flight = sum(pool.in_flight for pool in app.router.all_pools())
        waits = f", waits for {in_flight} attempt{'' if in_flight == 1 else 's'} in flight" if in_flight else ""
        yield Reason(Level.WARNING, "router", f"the router is stopping{waits}: it takes no more messages")


def _storage(app: RouterView) -> Iterator[Reason]:
    if app.shared_file.text:
        yield Reason(Level.WARNING, "storage", app.shared_file.text)
    for text in app.storage_outages.failing.values():
        yield Reason(Level.DEGRADED, "storage", text)


def _consumers(app: RouterView) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for name, consumer in polling_consumers(app).items():
        silent_s = consumer.silent_s(now)
        if silent_s >= (FAILING_CONSUMER_S if consumer.reports.last_error else SILENT_CONSUMER_S):
            why = f": {consumer.reports.last_error}" if consumer.reports.last_error else ""
            yield Reason(Level.DEGRADED, "consumer", f"queue {name} was not polled for {silent_s:.0f} s{why}")
        elif consumer.reports.last_error:
            yield Reason(
                Level.WARNING, "consumer", f"the latest poll of queue {name} failed: {consumer.reports.last_error}"
            )


def _endpoints(app: RouterView) -> Iterator[Reason]:
    """Those that are down, and those whose circuit breaker is not closed, which may be a matter of seconds."""
    if not app.at_work:
        return
    now, down = app.clock.monotonic(), app.engine.endpoint_outages.down
    texts = [
        f"{name} {'has not accepted deliveries' if one.answers else 'has been down'} for {minutes(now - one.since)}: "
        f"{one.reason}{'' if one.tried_at is None else f'; tried last {minutes(now - one.tried_at)} ago'}"
        for name, one in islice(down.items(), NAMED)
    ]
    yield from _named("endpoint", texts, len(down), "endpoint is down", "endpoints are down")
    lately = now - BREAKER_COUNTS_S  # one that nobody calls any more says nothing about what is delivered
    broken = [
        (name, breaker)
        for name, breaker in app.breakers.items()
        if breaker.state is not BreakerState.CLOSED and name not in down and breaker.used_at > lately
    ]
    texts = [
        f"the circuit breaker of {name} is {breaker.state.lower().replace('_', ' ')}"
        for name, breaker in broken[:NAMED]
    ]
    one, several = "circuit breaker is not closed", "circuit breakers are not closed"
    yield from _named("circuit breaker", texts, len(broken), one, several)


def _named(part: str, texts: list[str], count: int, one: str, several: str) -> Iterator[Reason]:
    """A reason for each text, and one for those that have none."""
    for text in texts:
        yield Reason(Level.WARNING, part, text)
    if more := count - len(texts):
        yield Reason(Level.WARNING, part, f"{more} more {one if more == 1 else several}")


def _pauses(app: RouterView) -> Iterator[Reason]:
    """What people stopped, and may have forgotten."""
    words, wall = {"POOL": "paused", "ENDPOINT": "paused", "GROUP": "held"}, app.clock.wall()
    paused = list(app.engine.pauses)
    texts = [
        f"{kind.lower()} {name} is {words[kind]} by {pause.by} for {minutes(max(0.0, wall - pause.since))}"
        for kind, name, pause in paused[:NAMED]
    ]
    yield from _named("pause", texts, len(paused), "is paused or held", "are paused or held")


def _groups(app: RouterView) -> Iterator[Reason]:
    outages = app.engine.group_outages
    if app.at_work and (blocked := outages.blocked):
        one, limit = blocked[0], minutes(outages.limit_s)
        count = "a group is" if len(blocked) == 1 else f"{len(blocked)} groups are"
        since = minutes(app.clock.monotonic() - one.since)
        text = f"{one.group} of pool {one.pool} for {since}, behind message {one.message_id} ({one.detail}); see: "
        text += how_to_explain(one.message_id)
        yield Reason(Level.WARNING, "group", f"{count} blocked for more than {limit}, the longest: {text}")


def _jobs(app: RouterView) -> Iterator[Reason]:
    watch = app.job_watch
    if watch is None:
        return
    if blocked := watch.blocked:
        count = "a group of jobs is" if len(blocked) == 1 else f"{len(blocked)} groups of jobs are"
        since = minutes(app.clock.wall() - (blocked[0].blocked_since or 0.0))
        text = f"{count} blocked for more than {minutes(watch.blocked_s)}, the longest: {blocked[0].group} for {since}"
        yield Reason(Level.WARNING, "jobs", text)
    wall = app.clock.wall()
    texts = [
        f"group {one.group} of jobs is held by {one.held_by} for {minutes(max(0.0, wall - (one.held_since or wall)))}"
        for one in watch.held[:NAMED]
    ]
    yield from _named("jobs", texts, len(watch.held), "group of jobs is held", "groups of jobs are held")
    if watch.figures is not None and (parked := watch.figures.parked):
        one = "a dispatch job waits" if parked == 1 else f"{parked} dispatch jobs wait"
        yield Reason(Level.WARNING, "jobs", f"{one} for a person: retry, change or cancel what is parked")


def _subscriptions(app: RouterView) -> Iterator[Reason]:
    """Whose webhooks wait for a person, who may have forgotten."""
    if app.platform is None:
        return
    entries = app.platform.catalog.subscriptions.items()
    paused = [code for code, one in entries if one.document.status is SubscriptionStatus.PAUSED]
    texts = [f"subscription {code} is paused: its webhooks wait" for code in paused[:NAMED]]
    yield from _named("subscription", texts, len(paused), "subscription is paused", "subscriptions are paused")


def _dead_letters(app: RouterView) -> Iterator[Reason]:
    outages = app.dead_letter_outages
    if app.at_work and outages.recent:
        many = f"{MOST_NEW} or more" if outages.recent >= MOST_NEW else str(outages.recent)
        what = "dead letter" if outages.recent == 1 else "dead letters"
        text = f"look at {many} {what} of the last {minutes(outages.limit_s)}"
        yield Reason(Level.WARNING, "dead letters", text)


def _sync(app: RouterView) -> Iterator[Reason]:
    if app.sync is not None and app.sync.in_force is None:
        why = f": {app.sync.last_error}" if app.sync.last_error else ""
        yield Reason(Level.DEGRADED, "config sync", f"the pools and queues are not known yet{why}")
    elif app.sync is not None and app.sync.last_error:
        yield Reason(Level.WARNING, "config sync", f"the latest config sync failed: {app.sync.last_error}")


def _configuration(app: RouterView) -> Iterator[Reason]:
    """What a sync could not use, until it is corrected or somebody acknowledges the warnings."""
    if rejected := app.warnings.recent(WarningFilter(code=WarningCode.CONFIG_REJECTED, acknowledged=False)):
        count = "an entry of the configuration is" if len(rejected) == 1 else f"{len(rejected)} entries are"
        yield Reason(Level.WARNING, "configuration", f"{count} not used, or not as written: {rejected[0].message}")


def _standby(app: RouterView) -> Iterator[Reason]:
    standby = app.standby
    if standby is not None and standby.last_error:
        level = Level.WARNING if standby.state is StandbyState.PRIMARY else Level.DEGRADED
        text = f"the standby lock cannot be used: {standby.last_error}"
        if (nobody_since := standby.nobody_since) is not None:
            since = datetime.fromtimestamp(nobody_since, UTC)
            text += f"; no router is known to be at work since {since:%H:%M} UTC: unless another one reaches the lock, "
            text += "nothing is delivered"
        yield Reason(level, "standby", text)


def _watchers(app: RouterView) -> Iterator[Reason]:
    for name in app.engine.watches.late() if app.at_work else ():
        yield Reason(Level.WARNING, "watcher", f"the watcher of {name} is late")


def _tasks(app: RouterView) -> Iterator[Reason]:
    now = app.clock.monotonic()
    for death in app.supervisor.recent_deaths():
        text = f"the task '{death.task}' died {now - death.at:.0f} s ago and is started again: {death.error}"
        yield Reason(Level.DEGRADED, "task", text)


def _warnings(app: RouterView) -> Iterator[Reason]:
    """What nobody has acknowledged."""
    if lost := app.warnings.recent(WarningFilter(code=WarningCode.MESSAGES_LOST, acknowledged=False)):
        texts = {one.message for one in lost}
        known = [loss for loss in app.engine.losses if loss.text in texts]
        worst = max(known, key=lambda loss: loss.messages or 0).text if known else lost[0].message
        which = "acknowledge the warning" if len(lost) == 1 else f"acknowledge the {len(lost)} warnings, the worst"
        yield Reason(Level.WARNING, "messages", f"messages were lost; {which}: {worst}")
    counts = app.warnings.open_by_severity()
    if not counts[Severity.ERROR] and not counts[Severity.CRITICAL]:
        return
    serious = [
        one
        for one in app.warnings.recent(WarningFilter(acknowledged=False))
        if one.severity in (Severity.ERROR, Severity.CRITICAL) and one.code not in TOLD_BY_REASONS
    ]
    if serious:
        first = next((one for one in serious if one.severity is Severity.CRITICAL), serious[0])
        count = "a warning" if len(serious) == 1 else f"{len(serious)} warnings"
        text = f"{count} that nobody acknowledged: {first.severity} {first.code}: {first.message}"
        yield Reason(Level.WARNING, "warnings", text)


class StorageProbe:
    """Asks the files of the router whether they answer, but waits for no disk that hangs.

    A question stays open until it is answered; only how long it has been open tells that something is wrong.
    """

    def __init__(self, app: RouterView) -> None:
        self.app = app
        self._tasks = Tasks()
        self._question: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._last_error = ""

    async def last_error(self) -> str:
        """Why the storage cannot be used; empty if it can, or did not have the time to tell."""
        if failing := self.app.storage_outages.failing:
            return "; ".join(failing.values())
        clock = self.app.clock
        if self._question is None or self._question.done():
            self._question, self._asked_at = self._tasks.spawn(self._ask(), "ask storage"), clock.monotonic()
        await asyncio.wait([self._question], timeout=ANSWER_WITHIN_S)
        open_s = clock.monotonic() - self._asked_at
        if not self._question.done() and open_s >= SILENT_STORAGE_S:
            return f"no answer for {open_s:.0f} s"
        return self._last_error

    async def _ask(self) -> None:
        try:
            await self.app.store.writer.read_in_turn(embedded_jobs.data_version)
            await self.app.dead_letters.get(1)
        except FlowCatalystError as error:
            self._last_error = str(error)
        else:
            self._last_error = ""
