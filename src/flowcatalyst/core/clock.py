"""The only place that reads a clock or rolls dice.

Everything else is handed a `Clock` and an `IdSource`, so that the whole router can run on virtual time and be
replayed from a seed.
"""

import random
import time
from pathlib import Path
from typing import Protocol

_COUNTER_BITS = 12
_RANDOM_BITS = 62


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never run backwards: for durations, holds and deadlines."""

    def wall(self) -> float:
        """Seconds since the Unix epoch: for what is stored or shown."""


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self.monotonic = time.monotonic
        self.wall = time.time


def boot_id() -> str:
    """Changes with each start of the machine, as its monotonic clock does; empty where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class IdSource:
    """Makes ids as UUIDs of version 7 (RFC 9562): as text they sort by time, and those of one source by their making.

    62 random bits in each keep sources apart, also those of two processes that start in the same millisecond.
    """

    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self.rng = rng or random.SystemRandom()
        self._clock = clock
        self._stamp = 0

    def new_id(self) -> str:
        # (milliseconds, counter) as one number that only grows: neither a clock that steps back nor a burst of more
        # than 4,096 ids in a millisecond, which borrows from the next one, leads to a place already given out.
        now = int(self._clock.wall() * 1000) << _COUNTER_BITS
        self._stamp = max(now, self._stamp + 1)
        millis, counter = f"{self._stamp >> _COUNTER_BITS:012x}", self._stamp & ((1 << _COUNTER_BITS) - 1)
        tail = f"{(0b10 << _RANDOM_BITS) | self.rng.getrandbits(_RANDOM_BITS):016x}"
        return f"{millis[:8]}-{millis[8:]}-7{counter:03x}-{tail[:4]}-{tail[4:]}"
