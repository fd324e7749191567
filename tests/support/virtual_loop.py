"""An event loop on virtual time: when nothing is ready it jumps to the next timer instead of waiting."""

import asyncio
import selectors


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: tells the loop how long it would have waited."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.skipped_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and passes only while everybody waits."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.skipped_s

    def stand_still(self, seconds: float) -> None:
        """Time passes and nobody runs, as in a process that was stopped by a signal."""
        self._jumps.skipped_s += seconds


def stand_still(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stand_still(seconds)


class VirtualClock:
    """A `Clock` on the time of the running virtual loop."""

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self._epoch = epoch

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.monotonic()
