"""Judge: what an attempt means for its message, told to everybody who has to know."""

from collections import OrderedDict
from typing import Final

import structlog

from flowcatalyst.core.errors import LocalShortageError, plain
from flowcatalyst.core.logs import debug_is_on
from flowcatalyst.core.message import ACK, Attempt, Delivery, Outcome, Reject, Severity, Verdict
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
        self._stats = stats
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
            verdict = policy.decide(outcome, delivery, capabilities, limits, tools.delays)
            if verdict is ACK and delivery.stamp is not None:
                delivery.stamp.delivered(delivery)
            if (verdict is not ACK or tools.blocked.by_message) and delivery.terms is None:
                tools.blocked.note(delivery, outcome, verdict, self._code, tools.clock.monotonic())
            is_expected = outcome.status in limits.retry_statuses  # whoever set the pool up knows of it
            if (outcome.warning is not None and not is_expected) or outcome.note:
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
        try:
            await uninterrupted(self._tools.dead_letters.record(delivery, verdict.reason, outcome))
        except Exception as error:
            self.warn(Severity.CRITICAL, f"dead letter not recorded: {error}")
            delay_s = self._tools.delays.nack_delay_s
            return policy.wait_before_next_attempt(delay_s, delivery, delivery.source.capabilities)
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
