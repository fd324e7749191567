"""FailureMemory: how often messages failed that were nacked to their queues. Pure, and bounded.

Most brokers hand a message out as if nothing had happened. Without this each round would begin with the quick retries
again, and a head that fails for ever would never wait longer.
"""

from collections import OrderedDict
from typing import Final

from flowcatalyst.message import Delivery

MOST_REMEMBERED: Final = 100_000


class FailureMemory:
    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()  # by broker id

    def __len__(self) -> int:
        return len(self._failures)

    def note(self, delivery: Delivery) -> None:
        """The message goes back to its queue."""
        if delivery.failures and delivery.broker_id:
            self._failures[delivery.broker_id] = delivery.failures
            if len(self._failures) > MOST_REMEMBERED:
                self._failures.popitem(last=False)

    def restore(self, delivery: Delivery) -> None:
        """It came again. What its queue knows counts too, where that can tell."""
        if self._failures:
            delivery.failures = max(delivery.failures, self._failures.pop(delivery.broker_id, 0))
