"""Judge: what an attempt means for its message, told to everybody who has to know."""

from collections import OrderedDict
from typing import Final

import structlog

from flowcatalyst.core.errors import LocalShortageError, plain
from flowcatalyst.core.logs import debug_is_on
from flowcatalyst.core.message import ACK, Attempt, Delivery, Nack, Outcome, Reject, Result, Retry, Severity, Verdict
from flowcatalyst.core.tasks import uninterrupted
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.http.interpret import interpret_failure
from flowcatalyst.router import policy
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool_tools import PoolTools
from flowcatalyst.router.stats import PoolStats

MOST_NOTED: Final = 1000

log = structlog.get_logger("flowcatalyst.judge")


class Judge:
    """The judge of one pool. Whatever breaks here, the attempt was made and its message gets a verdict."""

    def __init__(self, code: str, stats: PoolStats, tools: PoolTools) -> None:
        self._code = code
        self._stats, self._slow = stats, stats.slow_groups
        self._tools = tools
        self._debugs = debug_is_on()
        self._noted: OrderedDict[tuple[str, int | None], None] = OrderedDict()  # endpoints and statuses warned about

    def note_start(self, delivery: Delivery) -> None:
        """An attempt begins; its end has a line of its own."""
        if self._debugs:
            log.debug(
                "attempt_started",
                action="attempt_started",
                message=delivery.pointer.id,
                group=delivery.group,
                pool=self._code,
                attempt=delivery.number,
            )

    def judge(self, delivery: Delivery, outcome: Outcome, limits: PoolLimits, duration_s: float) -> Verdict:
        """Count the attempt, report it, and say what follows from it."""
        tools, capabilities = self._tools, delivery.source.capabilities
        delivery.failures += outcome.counts
        if delivery.terms is not None:
            delivery.attempt = Attempt(tools.clock.wall() - duration_s, duration_s, outcome)
        try:
            self._stats.attempt(outcome.result, duration_s)
            if duration_s > self._slow.least_s or delivery.group in self._slow.by_name:
                self._slow.note(delivery.group, duration_s, delivery.attempt_at)
            verdict = policy.decide(outcome, delivery, capabilities, limits, tools.delays)
            if delivery.skip and isinstance(verdict, Retry | Nack):  # somebody gave it up meanwhile
                verdict = Reject(delivery.skip)
            if verdict is ACK:
                if delivery.stamp is not None:
                    delivery.stamp.delivered(delivery)
                if delivery.terms is None:
                    tools.delivered.note(delivery.pointer.id, delivery.attempt_at + duration_s)
                if delivery.due_at:
                    self._stats.lag(tools.clock.wall() - delivery.due_at)
            if (verdict is not ACK or tools.blocked.by_message) and delivery.terms is None:
                tools.blocked.note(delivery, outcome, verdict, self._code, tools.clock.monotonic())
            # Of a status that is retried whoever set the pool up knows.
            if (outcome.warning is not None and outcome.status not in limits.retry_statuses) or outcome.note:
                self._warn_about(tools.endpoint_of(delivery.pointer.mediation_target), outcome)
        except Exception as error:  # a bug of ours: the next attempt has to wait all the same
            log.error("verdict_failed", action="verdict_failed", pool=self._code, exc_info=error)
            self.warn(Severity.CRITICAL, f"an attempt could not be judged and is repeated later: {plain(error)}")
            return policy.wait_before_next_attempt(tools.delays.nack_delay_s, delivery, capabilities)
        try:
            tools.log.attempt(self._code, delivery, outcome, verdict, duration_s)
        except Exception as error:  # what cannot be told has happened all the same
            log.error("attempt_not_logged", action="attempt_not_logged", pool=self._code, exc_info=error)
            self.warn(Severity.WARN, f"attempt not logged: {plain(error)}")
        return verdict

    def crashed(self, error: Exception) -> Outcome:
        """An attempt ended in a way that nobody expected; what it meant."""
        log.error("attempt_crashed", action="attempt_crashed", pool=self._code, exc_info=error)
        self.warn(Severity.WARN, f"attempt failed unexpectedly: {plain(error)}")
        return interpret_failure(error)

    async def dead_letter(self, delivery: Delivery, verdict: Reject, outcome: Outcome) -> Verdict:
        """Record the dead letter before its message may be acked. If that fails the message stays in its queue."""
        tools = self._tools
        try:
            await uninterrupted(tools.dead_letters.record(delivery, verdict.reason, outcome))
        except Exception as error:
            self.warn(Severity.CRITICAL, f"dead letter not recorded: {error}")
            delay_s = tools.delays.nack_delay_s
            later = policy.wait_before_next_attempt(delay_s, delivery, delivery.source.capabilities)
            if delivery.terms is None:  # its group stands still, and what its latest attempt got is still to be told
                tools.blocked.note(delivery, outcome, later, self._code, tools.clock.monotonic())
            return later
        tools.blocked.forget(delivery)
        return verdict

    async def skip(self, delivery: Delivery) -> Verdict:
        """A person gave a message up: record it with what its latest attempt got. If that fails it stays."""
        known, outcome = self._tools.blocked.of(delivery), Outcome(Result.ERROR_PROCESS, detail="never tried")
        answered_at = None if known is None else known.answered_at
        if known is not None:
            outcome = Outcome(Result.ERROR_PROCESS, status=known.status, detail=known.detail, excerpt=known.excerpt)
        about = {"message": delivery.pointer.id, "group": delivery.group, "pool": self._code, "reason": delivery.skip}
        log.info("message_skipped", action="message_skipped", **about)
        verdict = await self.dead_letter(delivery, Reject(delivery.skip), outcome)
        if (unrecorded := self._tools.blocked.of(delivery)) is not None:
            unrecorded.answered_at = answered_at  # there was no attempt
        return verdict

    def no_attempt(self, delivery: Delivery, shortage: LocalShortageError) -> str:
        """This machine could not make the attempt: nothing counts. Warns once for all; says what the message awaits."""
        delivery.tries -= 1
        self._tools.warnings.add(WarningCode.LOCAL_SHORTAGE, Severity.CRITICAL, str(shortage), "mediator")
        return str(shortage)

    def warn(self, severity: Severity, text: str) -> None:
        self._tools.warnings.add(WarningCode.PROCESSING, severity, text, f"pool {self._code}")

    def _warn_about(self, endpoint: str, outcome: Outcome) -> None:
        """Name the endpoint without its query, which may hold secrets. What is only odd is told once."""
        if outcome.warning is not None:
            text = f"{outcome.detail} from {endpoint}"
            self._tools.warnings.add(WarningCode.CONFIGURATION, outcome.warning, text, "mediator")
        elif (odd := (endpoint, outcome.status)) not in self._noted:
            self._noted[odd] = None
            if len(self._noted) > MOST_NOTED:
                self._noted.popitem(last=False)
            text = f"{endpoint}: {outcome.note}"
            self._tools.warnings.add(WarningCode.CONFIGURATION, Severity.WARN, text, "mediator")
