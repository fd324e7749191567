"""An event loop on virtual time: when nothing is ready it jumps to the next timer instead of waiting."""

import asyncio
import selectors
from collections.abc import Callable


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: tells the loop how long it would have waited."""

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self.skipped_s = 0.0
        self._look = look  # whether anybody goes on now that nothing is ready

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0 and self._look():
            return []
        if timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.skipped_s += max(0.0, timeout)
        only_wake_ups = len(self.get_map()) == 1  # no socket is open but the loop's own, which tells it to look at once
        return [] if only_wake_ups else super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and passes only while everybody waits."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector(self._let_go_on)
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.skipped_s

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, at the very time; it is looked at whenever everybody waits."""
        if not condition():
            future = self.create_future()
            self._waiting[future] = condition
            try:
                await future
            finally:
                del self._waiting[future]

    def _let_go_on(self) -> bool:
        held = [future for future, condition in self._waiting.items() if not future.done() and condition()]
        for future in held:
            future.set_result(None)
        return bool(held)

    def stand_still(self, seconds: float) -> None:
        """Time passes and nobody runs, as in a process that was stopped by a signal."""
        self._jumps.skipped_s += seconds


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds: on virtual time at the very time, on real time within milliseconds."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.until(condition)
    while not condition():
        await asyncio.sleep(0.01)


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
