"""Config sync: keeps the router's pools and queues those that its configuration sources name."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from flowcatalyst.control.config_source import Fetched
from flowcatalyst.control.router_config import RouterConfig, difference, limit_pools, merge, parse
from flowcatalyst.control.settings import SyncSettings
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, plain
from flowcatalyst.core.message import Severity
from flowcatalyst.core.tasks import uninterrupted
from flowcatalyst.core.warnings import MAX_MESSAGE_CHARS, WarningBook, WarningCode, WarningFilter

SOURCE: Final = "config_sync"  # of our warnings

log = structlog.get_logger("flowcatalyst.config_sync")


class ConfigSyncFailedError(FlowCatalystError):
    """The first config sync failed: the router does not know its pools and queues and cannot start."""


class Source(Protocol):
    """Somebody who knows a part of the configuration."""

    @property
    def label(self) -> str:
        """Its address, fit to be shown: without secrets."""

    async def fetch(self, known: str | None, timeout_s: float) -> Fetched | None:
        """What it says, or None if that is still version `known`. Raises `ConfigUnavailableError`."""


@dataclass(slots=True)
class SourceState:
    """What is known of one source. Only `ConfigSync` changes it."""

    source: Source
    part: RouterConfig | None = None  # what it said last
    version: str | None = None  # of that part: the ETag, or the state of the file
    problems: list[str] = field(default_factory=list)  # entries of that part that cannot be used
    failure: str = ""  # why it did not answer when last asked
    answered_at: float | None = None  # wall
    is_due: bool = True  # has not answered since the latest sync began

    @property
    def label(self) -> str:
        return self.source.label

    @property
    def ok(self) -> bool:
        return self.part is not None and not self.failure


@dataclass(slots=True, frozen=True)
class SyncReport:
    """What one sync did."""

    changed: bool = False
    pools_added: list[str] = field(default_factory=list)
    pools_changed: list[str] = field(default_factory=list)
    pools_removed: list[str] = field(default_factory=list)
    queues_added: list[str] = field(default_factory=list)
    queues_changed: list[str] = field(default_factory=list)
    queues_removed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)  # a sentence for each source that did not answer


class ConfigSync:
    """Fetches the configuration, merges what the sources say, and has it applied when it changed.

    A source that does not answer keeps what it said last. Sources are asked and changes are applied by one at a time;
    only the pauses between attempts are open to `sync_now`.
    """

    def __init__(
        self,
        settings: SyncSettings,
        sources: Sequence[Source],
        clock: Clock,
        warnings: WarningBook,
        apply: Callable[[RouterConfig], Coroutine[Any, Any, None]],
        existing_pools: Callable[[], Collection[str]],
        on_change: Callable[[RouterConfig | None, RouterConfig], None] = lambda before, now: None,
        usable: Callable[[RouterConfig], tuple[RouterConfig, list[str]]] = lambda config: (config, []),
    ) -> None:
        self.sources = [SourceState(source) for source in sources]
        self.in_force: RouterConfig | None = None
        self.problems: list[str] = []  # with what the sources said, as of the latest sync
        self.last_error = ""  # why the latest sync failed; empty if it did not
        self.last_attempt_at: float | None = None  # wall
        self.last_success_at: float | None = None  # wall; every source answered and what they said is in force
        self._settings = settings
        self._clock = clock
        self._warnings = warnings
        self._apply = apply
        self._existing_pools = existing_pools
        self._on_change = on_change  # told what was in force before, if anything, and what is now
        self._usable = usable  # a configuration without what nobody can make, and a sentence about each of that
        self._told: set[tuple[WarningCode, str]] = set()  # warnings about what is not mended yet
        self._one_at_a_time = asyncio.Lock()
        self._apply_failure = ""  # of the latest call; what it left behind is not known
        self._begun = 0  # calls of `sync_now` that began to ask
        self._reported = (0, SyncReport())  # the latest of them that came to its end

    async def first_sync(self) -> None:
        """Return when every source has answered and what they said is in force.

        Raises `ConfigSyncFailedError` if that is not so after all attempts: the process has to end.
        """
        if await self._sync():
            return
        text = f"first config sync failed after {self._settings.attempts} attempts: {self.last_error}"
        self._warnings.add(WarningCode.CONFIG_SYNC_FAILED, Severity.CRITICAL, text, SOURCE)
        raise ConfigSyncFailedError(text)

    async def first_sync_at_last(self) -> None:
        """The same, but for as long as it takes: for a standby, which has time."""
        while not await self._sync():
            self._warn_of_failures()
            await asyncio.sleep(self._settings.attempt_pause_s)

    async def run(self) -> None:
        """Sync again every `interval_s`, for ever. What fails leaves the configuration in force as it is."""
        began_at = self._clock.monotonic()
        while True:
            await asyncio.sleep(max(0.0, began_at + self._settings.interval_s - self._clock.monotonic()))
            began_at = self._clock.monotonic()
            try:
                if not await self._sync() and self._failures():
                    async with self._one_at_a_time:
                        await self._put_in_force()  # the news of those who answered
                        self._end_sync()
                    self._warn_of_failures()
            except Exception as error:  # a sync that died would leave the configuration as it is for ever
                log.error("config_sync_failed", action="config_sync_failed", exc_info=error)
                self.last_error = f"config sync failed: {plain(error)}"
                self._warn(WarningCode.CONFIG_SYNC_FAILED, self.last_error)

    async def sync_now(self) -> SyncReport:
        """Ask every source once, now, and apply what is new.

        Every call gets the report of a sync that began after the call: one that waits for another sync runs its own,
        and all who waited share that one.
        """
        begun_before = self._begun
        async with self._one_at_a_time:
            number, report = self._reported
            if number > begun_before:
                return report
            self._begun += 1
            number = self._begun
            self._expect_everybody()
            await self._ask_those_due()
            report = await self._put_in_force()
            self._end_sync()
            self._warn_of_failures()
            self._reported = (number, report)
            return report

    async def _sync(self) -> bool:
        """Whether every source answered within the attempts and what they said is in force."""
        for attempt in range(1, self._settings.attempts + 1):
            if attempt > 1:
                await asyncio.sleep(self._settings.attempt_pause_s)
            async with self._one_at_a_time:
                if attempt == 1:
                    self._expect_everybody()
                await self._ask_those_due(attempt)
                if not self._failures():
                    await self._put_in_force()
                if self._end_sync():
                    return True
        return False

    def _expect_everybody(self) -> None:
        for state in self.sources:
            state.is_due = True

    async def _ask_those_due(self, attempt: int = 1) -> None:
        self.last_attempt_at = self._clock.wall()
        await asyncio.gather(*(self._ask(state, attempt) for state in self.sources if state.is_due))

    async def _ask(self, state: SourceState, attempt: int) -> None:
        """Learn what a source says. It never raises: whatever goes wrong is a failure of this source."""
        try:
            fetched = await state.source.fetch(state.version, self._settings.timeout_s)
            if fetched is not None:
                # The version is kept only with the part: one of an unusable answer would let it pass as unchanged.
                state.part, state.problems = parse(fetched.text, state.label, state.part)
                state.version = fetched.version
        except FlowCatalystError as error:
            state.failure = str(error)
        except Exception as error:
            log.error("config_source_failed", action="config_source_failed", source=state.label, exc_info=error)
            state.failure = f"{state.label} cannot be read: {plain(error)}"
        else:
            state.failure, state.is_due = "", False
            state.answered_at = self._clock.wall()
            return
        attempts = self._settings.attempts
        log.warning(
            "config_attempt_failed", action="config_attempt_failed", attempt=attempt, of=attempts, error=state.failure
        )

    def _failures(self) -> list[str]:
        return [state.failure for state in self.sources if state.is_due]

    def _end_sync(self) -> bool:
        """Remember how it went. True if it succeeded."""
        failures = [*self._failures(), *filter(None, [self._apply_failure])]
        was_told = any(code is WarningCode.CONFIG_SYNC_FAILED for code, _ in self._told)
        self._forget_all_but(WarningCode.CONFIG_SYNC_FAILED, [*self._sentences(), self._apply_failure])
        self.last_error = "; ".join(failures)
        if failures:
            return False
        self.last_success_at = self._clock.wall()
        if was_told:
            text = "config sync works again: every source answered, and what can be used of it is in force"
            self._warnings.end(WarningCode.CONFIG_SYNC_FAILED, text, SOURCE)
            log.warning("config_sync_recovered", action="config_sync_recovered")
        return True

    def _warn_of_failures(self) -> None:
        self._warn(WarningCode.CONFIG_SYNC_FAILED, *self._sentences())

    def _sentences(self) -> list[str]:
        """One about each source that did not answer."""
        return [
            f"{state.failure}; its pools and queues {'are not known yet' if state.part is None else 'stay as they are'}"
            for state in self.sources
            if state.failure
        ]

    def _warn(self, code: WarningCode, *sentences: str, severity: Severity = Severity.WARN) -> None:
        for text in sentences:
            if (code, text) not in self._told:
                log.warning("config_problem", action="config_problem", code=code, text=text)
            self._told.add((code, text))
            self._warnings.add(code, severity, text, SOURCE)

    def _forget_all_but(self, code: WarningCode, sentences: Collection[str]) -> None:
        """Acknowledge warnings about what is mended: all of this code but for these."""
        mended = {one for one in self._told if one[0] is code and one[1] not in sentences}
        self._told -= mended
        for _, text in mended:
            self._warnings.acknowledge_all(WarningFilter(code=code, source=SOURCE, text=text[:MAX_MESSAGE_CHARS]))

    async def _put_in_force(self) -> SyncReport:
        """Apply what the sources said last, if it is not in force already.

        Nothing happens while a source has never answered: its pools and queues would be missing.
        """
        parts = [(state.label, state.part) for state in self.sources if state.part is not None]
        if len(parts) < len(self.sources):
            return SyncReport(unreachable=self._failures())
        wanted = self._merged(parts)
        if wanted == self.in_force and not self._apply_failure:
            return SyncReport(problems=self._new_problems(), unreachable=self._failures())
        try:
            # Whoever asked for the sync may go away meanwhile; a configuration is never applied by half because of it.
            await uninterrupted(self._apply(wanted))
        except Exception as error:
            log.error("config_not_applied", action="config_not_applied", exc_info=error)
            self._apply_failure = f"the configuration could not be applied: {error}"
            self.problems = [*self.problems, self._apply_failure]
            self._warn(WarningCode.CONFIG_SYNC_FAILED, self._apply_failure)
            return SyncReport(problems=self._new_problems(), unreachable=self._failures())
        self._apply_failure = ""
        before, self.in_force = self.in_force, wanted
        self._on_change(before, wanted)
        return self._report_of_change(before or RouterConfig(), wanted)

    def _merged(self, parts: Sequence[tuple[str, RouterConfig]]) -> RouterConfig:
        """What the router should have, with warnings about what it will not have."""
        merged, conflicts = merge(parts)
        limited, excess = limit_pools(
            merged, self._settings.max_pools, self._settings.pool_warning_threshold, self._existing_pools()
        )
        wanted, impossible = self._usable(limited)
        rejected = [*(problem for state in self.sources for problem in state.problems), *impossible]
        self.problems = [*rejected, *conflicts, *(text for _, text in excess)]
        for code in (WarningCode.CONFIG_REJECTED, WarningCode.CONFIG_CONFLICT, WarningCode.POOL_LIMIT):
            self._forget_all_but(code, self.problems)
        self._warn(WarningCode.CONFIG_REJECTED, *rejected)
        self._warn(WarningCode.CONFIG_CONFLICT, *conflicts)
        for severity, text in excess:
            self._warn(WarningCode.POOL_LIMIT, text, severity=severity)
        return wanted

    def _new_problems(self) -> list[str]:
        """Those that this sync found: not what was wrong with the document of a source that did not answer now."""
        old = {problem for state in self.sources if state.failure for problem in state.problems}
        return [problem for problem in self.problems if problem not in old]

    def _report_of_change(self, before: RouterConfig, now: RouterConfig) -> SyncReport:
        pools, queues = difference(before.pools, now.pools), difference(before.queues, now.queues)
        log.info(
            "config_applied",
            action="config_applied",
            pools=len(now.pools),
            queues=len(now.queues),
            pools_removed=len(pools.removed),
            queues_removed=len(queues.removed),
        )
        return SyncReport(
            changed=True,
            pools_added=pools.added,
            pools_changed=pools.changed,
            pools_removed=pools.removed,
            queues_added=queues.added,
            queues_changed=queues.changed,
            queues_removed=queues.removed,
            problems=self._new_problems(),
            unreachable=self._failures(),
        )
