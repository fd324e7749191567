"""Recaller: returns what was not started to a queue where somebody wants it back. One for each queue that can ask."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.recalls import Lease, RecallableQueue
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler

WAIT_S: Final = 30.0
PAUSE_S: Final = 0.5  # after a failure

log = structlog.get_logger("flowcatalyst.recall")


class Recaller:
    """Waits for recalls and answers them."""

    def __init__(self, queue: RecallableQueue, settler: Settler, router: Router) -> None:
        self._queue = queue
        self._settler = settler
        self._router = router

    async def run(self) -> None:
        """Answer recalls until cancelled."""
        while True:
            try:
                leases = await self._queue.recalled(WAIT_S)
                if leases:
                    await self._answer(leases)
            except QueueUnavailableError as error:
                log.warning("recall_failed", action="recall_failed", queue=self._settler.name, error=str(error))
                await asyncio.sleep(PAUSE_S)

    async def _answer(self, leases: Sequence[Lease]) -> None:
        """It is answered when the queue knows of all that came back: until then nobody can act on it."""
        back = asyncio.Event()
        left = 0

        def told() -> None:
            nonlocal left
            left -= 1
            if not left:
                back.set()

        left = self._router.recall(self._recalled(self._router.tracker), told)
        log.info("recalled", action="recalled", queue=self._settler.name, leases=len(leases), messages=left)
        if left:
            await back.wait()
        await self._queue.returned(leases)

    def return_late(self, batch: Iterable[Delivery]) -> None:
        """What was on its way to us when it was recalled; in the step in which it is routed, so nothing has started."""
        if not self._queue.recalls:
            return
        owned = (self._router.tracker.owned(delivery.broker_id) for delivery in batch)
        self._router.recall(self._recalled(delivery for delivery in owned if delivery is not None))

    def _recalled(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        is_recalled = self._queue.is_recalled
        return [one for one in deliveries if one.source is self._settler and is_recalled(one)]
