"""Skips: messages that people gave up, wherever they are now. Pure, and bounded.

One that waits in its queue is skipped when that shows it again. They outlive an engine: the one of the next primary
session gets them too, and who keeps them across a restart is told of each that is over.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from flowcatalyst.core.message import Delivery

MOST_REMEMBERED: Final = 10_000

log = structlog.get_logger("flowcatalyst.skips")


class Skips:
    def __init__(self) -> None:
        self.on_over: Callable[[str], None] = lambda broker_id: None  # told of each that is forgotten
        self._reasons: OrderedDict[str, str] = OrderedDict()  # by broker id

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, broker_id: str, reason: str) -> None:
        self._reasons[broker_id] = reason
        self._reasons.move_to_end(broker_id)
        if len(self._reasons) > MOST_REMEMBERED:
            oldest, its_reason = self._reasons.popitem(last=False)
            log.warning("skip_forgotten", action="skip_forgotten", broker_id=oldest, reason=its_reason)
            self.on_over(oldest)

    def replace(self, reasons: Mapping[str, str]) -> None:
        """These are skipped, and no others."""
        self._reasons = OrderedDict(reasons)

    def find(self, broker_id: str) -> str:
        """Why it is skipped; empty: it is not."""
        return self._reasons.get(broker_id, "")

    def restore(self, delivery: Delivery) -> None:
        """It came, perhaps again."""
        delivery.skip = self.find(delivery.broker_id)

    def forget(self, delivery: Delivery) -> None:
        """It is settled."""
        if self._reasons.pop(delivery.broker_id, None) is not None:
            self.on_over(delivery.broker_id)
