"""OutageLog: a line when something begins to fail, one a minute while it does, and one when it works again."""

from typing import Any, Final

from flowcatalyst.core.clock import Clock

REPEAT_S: Final = 60.0


class OutageLog:
    """For work that is tried again every second or so: the log of an outage stays short, however long that is."""

    def __init__(self, clock: Clock, log: Any, failed: str, recovered: str, **about: object) -> None:
        """`failed` and `recovered` are the actions of its lines, `about` is in each."""
        self._clock = clock
        self._log = log
        self._failed = failed
        self._recovered = recovered
        self._about = about
        self._since: float | None = None  # monotonic; None: it works
        self._told_at = 0.0

    def failed(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._told_at < REPEAT_S:
            return
        self._told_at = now
        lasts_s = round(now - self._since)
        self._log.warning(self._failed, action=self._failed, **self._about, lasts_s=lasts_s, error=str(error))

    def succeeded(self) -> None:
        if self._since is None:
            return
        lasted_s = round(self._clock.monotonic() - self._since)
        self._since = None
        self._log.warning(self._recovered, action=self._recovered, **self._about, lasted_s=lasted_s)
