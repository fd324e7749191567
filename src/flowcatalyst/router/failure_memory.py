"""FailureMemory: how often messages failed that were nacked to their queues. Pure, and bounded.

Most brokers hand a message out as if nothing had happened. Without this each round would begin with the quick retries
again, and a head that fails for ever would never wait longer.
"""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from flowcatalyst.core.message import Delivery

MOST_REMEMBERED: Final = 100_000


class _Failed(NamedTuple):
    times: int
    app_id: str


class FailureMemory:
    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failed] = OrderedDict()  # by broker id

    def __len__(self) -> int:
        return len(self._failures)

    def note(self, delivery: Delivery) -> None:
        """The message is nacked, after a failure or because its endpoint asked to wait. One with terms of its own comes
        from where they are counted."""
        if (delivery.failures or delivery.tries) and delivery.broker_id and delivery.terms is None:
            self._failures[delivery.broker_id] = _Failed(delivery.failures, delivery.pointer.id)
            if len(self._failures) > MOST_REMEMBERED:
                self._failures.popitem(last=False)

    def restore(self, delivery: Delivery) -> None:
        """It came again. What its queue knows counts too, where that can tell."""
        if self._failures and (known := self._failures.pop(delivery.broker_id, None)) is not None:
            delivery.failures = max(delivery.failures, known.times)

    def find(self, app_ids: AbstractSet[str]) -> dict[str, int]:
        """How often those of these messages failed that were tried, nacked and have not come again."""
        return {known.app_id: known.times for known in self._failures.values() if known.app_id in app_ids}
