"""InFlightTracker: every message the router owns, from routing until its queue confirmed the end. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from flowcatalyst.message import Delivery, named_group


class Duplicate(Enum):
    REDELIVERED = "the queue showed the same message again"
    REQUEUED = "the same application message under another broker id"


# Where a message comes from and goes to: queue, target and group. Applications choose their ids, and two of them may
# choose the same, so only a message with the same id on the same way is a copy.
Way = tuple[str, str, str]


class Double(NamedTuple):
    """A delivery of a batch that is no new message."""

    kind: Duplicate
    delivery: Delivery
    first: Delivery  # what it doubles: owned by the router, or earlier in the same batch


class InFlightTracker:
    """Owns the pipeline map and its index by application id; the two always change together."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()  # copies that were not delivered, by queue
        self._by_key: dict[str | tuple[str, Way], Delivery] = {}
        self._by_app_id: dict[str, dict[Way, Delivery]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._by_key.values()))

    def __repr__(self) -> str:
        owned = (delivery.broker_id or delivery.pointer.id for delivery in self._by_key.values())
        return f"<InFlightTracker {' '.join(owned) or 'empty'}>"

    def sort_out(self, batch: Iterable[Delivery]) -> tuple[list[Delivery], list[Double]]:
        """The new messages of a batch, and those that double an owned one or one before them in the batch.

        A requeued copy is counted as dropped: whoever asks has to remove it from its queue.
        """
        new: list[Delivery] = []
        doubles: list[Double] = []
        firsts: dict[str | tuple[str, Way], Delivery] = {}
        for delivery in batch:
            found = self.find_duplicate(delivery)
            if found is None:
                way = (delivery.pointer.id, _way_of(delivery))
                first = firsts.get(delivery.broker_id or way) or firsts.setdefault(way, delivery)
                if first is delivery:
                    firsts[delivery.broker_id or way] = delivery
                    new.append(delivery)
                    continue
                found = _compare(first, delivery), first
            doubles.append(Double(found[0], delivery, found[1]))
            if found[0] is Duplicate.REQUEUED:
                self.dropped[delivery.source.name] += 1
        return new, doubles

    def find_duplicate(self, delivery: Delivery) -> tuple[Duplicate, Delivery] | None:
        """The message this delivery doubles, if the router owns one."""
        owned = self._by_key.get(_key_of(delivery)) or self._copy_of(delivery)
        return None if owned is None else (_compare(owned, delivery), owned)

    def track(self, delivery: Delivery) -> bool:
        """Take ownership. False, and nothing changes, if the message or a copy of it is owned already."""
        key = _key_of(delivery)
        if key in self._by_key or self._copy_of(delivery) is not None:
            return False
        self._by_key[key] = delivery
        self._by_app_id.setdefault(delivery.pointer.id, {})[_way_of(delivery)] = delivery
        return True

    def remove(self, delivery: Delivery) -> bool:
        """End ownership. False if this very delivery is not owned (any more)."""
        key = _key_of(delivery)
        if self._by_key.get(key) is not delivery:
            return False
        del self._by_key[key]
        namesakes, way = self._by_app_id.get(delivery.pointer.id, {}), _way_of(delivery)
        if namesakes.get(way) is delivery:
            del namesakes[way]
            if not namesakes:
                del self._by_app_id[delivery.pointer.id]
        if not self._by_key:  # an emptied dict keeps its table, a cleared one does not
            self._by_key.clear()
            self._by_app_id.clear()
        return True

    def owned(self, broker_id: str) -> Delivery | None:
        """The message with this broker id, if the router owns it."""
        return self._by_key.get(broker_id)

    def get(self, app_id: str) -> Delivery | None:
        """A message with this application id; the one owned longest, if several have it."""
        return next(iter(self._by_app_id.get(app_id, {}).values()), None)

    def _copy_of(self, delivery: Delivery) -> Delivery | None:
        namesakes = self._by_app_id.get(delivery.pointer.id)
        owned = None if namesakes is None else namesakes.get(_way_of(delivery))
        # One that is a dead letter by now is no hindrance: the other one was replayed.
        return None if owned is None or owned.rejected else owned


def _compare(first: Delivery, copy: Delivery) -> Duplicate:
    """What a delivery is that has the key of the first one, or its application id on the same way."""
    if first.broker_id and copy.broker_id and first.broker_id != copy.broker_id:
        return Duplicate.REQUEUED
    return Duplicate.REDELIVERED  # if one of them has no broker id, nothing tells them apart


def _key_of(delivery: Delivery) -> str | tuple[str, Way]:
    """The pipeline key of 002."""
    return delivery.broker_id or (delivery.pointer.id, _way_of(delivery))


def _way_of(delivery: Delivery) -> Way:
    return delivery.source.name, delivery.pointer.mediation_target, named_group(delivery)
