"""Standstill: notices that this process stood still: a SIGSTOP, a frozen container, a machine without time for it.

Nothing was tried and nothing was read in that time, so it tells nothing about endpoints, groups and queues.
"""

from math import inf
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningSink

PERIOD_S: Final = 5.0
LATE_S: Final = 30.0  # a look that comes so much later than it should

log = structlog.get_logger("flowcatalyst.standstill")


class Standstill:
    """For how long the process has been awake. It has to be looked at every `PERIOD_S` once it has begun."""

    def __init__(self, clock: Clock, warnings: WarningSink) -> None:
        self._clock = clock
        self._warnings = warnings
        self._looked_at: float | None = None  # monotonic; None: nobody looks yet
        self._awake_since = -inf

    def begin(self) -> None:
        self._looked_at = self._clock.monotonic()

    async def look(self) -> None:
        self.awake_s()

    def awake_s(self) -> float:
        """Seconds since the process went on after it had stood still; without end if it never did.

        It looks for itself: whoever asks may be the first that runs again.
        """
        now = self._clock.monotonic()
        if self._looked_at is not None:
            since_look_s, self._looked_at = now - self._looked_at, now
            if since_look_s > PERIOD_S + LATE_S:
                self._awake_since = now
                self._tell(since_look_s)
        return now - self._awake_since

    def _tell(self, seconds: float) -> None:
        log.warning("stood_still", action="stood_still", seconds=round(seconds, 1))
        text = f"this process stood still for about {seconds:.0f} s: it was paused, or its machine had no time for it. "
        text += "Leases and the standby lock may have run out meanwhile; what got no answer in that time is not blamed"
        self._warnings.add(WarningCode.STOOD_STILL, Severity.WARN, text, "process")
