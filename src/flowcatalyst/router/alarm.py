"""Alarm: one timer for the earliest of many moments."""

import asyncio
from collections.abc import Callable
from typing import Final

SHORTEST_S: Final = 1e-6  # a loop may ring early by less than this, again and again, while its clock stands still


class Alarm:
    """Rings at the moment it was set to, or a little earlier: who hears it looks again and sets it anew."""

    def __init__(self, now: Callable[[], float], ring: Callable[[], None]) -> None:
        self._now = now
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, at: float | None) -> None:
        """None: there is nothing to wait for."""
        if self._timer is not None:
            if at is not None and self._at <= at:
                return  # it will ring in time
            self.stop()
        if at is not None:
            self._at = at
            self._timer = asyncio.get_running_loop().call_later(max(SHORTEST_S, at - self._now()), self._rings)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._ring()
