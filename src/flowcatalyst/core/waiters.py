"""Tasks that wait until something happens."""

import asyncio
import math


class Waiters:
    """Those who wait for the same thing, whenever it happens next. Unlike an `asyncio.Event` it has nothing to clear,
    and it knows a deadline without a task or an exception."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def __repr__(self) -> str:
        return f"<Waiters {len(self._waiting)}>"

    async def wait(self, until: float = math.inf) -> bool:
        """Until `wake` is called, or the time of the loop is `until`; whether it was the call."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = None
        timer = loop.call_at(until, _resolve, waiter, False) if until < math.inf else None
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiting[waiter]

    def wake(self) -> None:
        """All who wait now, in the order they came."""
        for waiter in self._waiting:
            _resolve(waiter, True)


def _resolve(waiter: "asyncio.Future[bool]", woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(woken)
