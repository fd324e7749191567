"""The only place that reads a clock or rolls dice.

Everything else is handed a `Clock` and an `IdSource`, so that the whole router can run on virtual time and be
replayed from a seed.
"""

import random
import time
from typing import Protocol

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TSID_EPOCH_MS = 1_577_836_800_000  # 2020-01-01T00:00:00Z
_COUNTER_BITS = 12
_NODE_BITS = 10


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


class IdSource:
    """Makes TSIDs: 13 characters, sortable by time, unique per process and very likely across processes."""

    def __init__(self, clock: Clock, rng: random.Random | None = None) -> None:
        self.rng = rng or random.SystemRandom()
        self._clock = clock
        self._node = self.rng.getrandbits(_NODE_BITS)
        self._stamp = 0

    def tsid(self) -> str:
        # (milliseconds, counter) as one number that only grows: a burst of more than 4,096 ids in a millisecond
        # borrows from the next one instead of wrapping round to ids already given out.
        now = (int(self._clock.wall() * 1000) - _TSID_EPOCH_MS) << _COUNTER_BITS
        self._stamp = max(now, self._stamp + 1)
        millis, counter = self._stamp >> _COUNTER_BITS, self._stamp & ((1 << _COUNTER_BITS) - 1)
        value = (millis << (_NODE_BITS + _COUNTER_BITS)) | (self._node << _COUNTER_BITS) | counter
        return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(60, -1, -5))
