"""InFlightTracker: every message the router owns, from routing until its queue confirmed the end. Pure."""

from collections.abc import Iterator
from enum import Enum

from flowcatalyst.message import Delivery


class Duplicate(Enum):
    REDELIVERED = "the queue showed the same message again"
    REQUEUED = "the same application message under another broker id"


class InFlightTracker:
    """Owns the pipeline map and its index by application id; the two always change together."""

    def __init__(self) -> None:
        self._by_key: dict[str, Delivery] = {}
        self._key_by_app_id: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._by_key.values()))

    def __repr__(self) -> str:
        return f"<InFlightTracker {' '.join(self._by_key) or 'empty'}>"

    def find_duplicate(self, delivery: Delivery) -> tuple[Duplicate, Delivery] | None:
        """The message this delivery doubles, if the router owns one."""
        owned = self._by_key.get(delivery.key)
        if owned is not None:
            return Duplicate.REDELIVERED, owned
        key = self._key_by_app_id.get(delivery.pointer.id)
        if key is None:
            return None
        owned = self._by_key[key]
        if owned.rejected:
            return None  # it is a dead letter by now; this one was replayed
        if delivery.broker_id and owned.broker_id:
            return Duplicate.REQUEUED, owned
        return Duplicate.REDELIVERED, owned  # one of them has no broker id: nothing tells them apart

    def track(self, delivery: Delivery) -> bool:
        """Take ownership. False, and nothing changes, if the message or its application id is owned already."""
        key, app_id = delivery.key, delivery.pointer.id
        if key in self._by_key:
            return False
        other = self._key_by_app_id.get(app_id)
        if other is not None and not self._by_key[other].rejected:
            return False
        self._by_key[key] = delivery
        self._key_by_app_id[app_id] = key
        return True

    def remove(self, delivery: Delivery) -> bool:
        """End ownership. False if this very delivery is not owned (any more)."""
        key = delivery.key
        if self._by_key.get(key) is not delivery:
            return False
        del self._by_key[key]
        if self._key_by_app_id.get(delivery.pointer.id) == key:
            del self._key_by_app_id[delivery.pointer.id]
        if not self._by_key:  # an emptied dict keeps its table, a cleared one does not
            self._by_key.clear()
            self._key_by_app_id.clear()
        return True

    def owned(self, broker_id: str) -> Delivery | None:
        """The message with this broker id, if the router owns it."""
        return self._by_key.get(broker_id)

    def get(self, app_id: str) -> Delivery | None:
        key = self._key_by_app_id.get(app_id)
        return None if key is None else self._by_key[key]
