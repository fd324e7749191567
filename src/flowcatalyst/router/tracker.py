"""InFlightTracker: every message the router owns, from routing until its queue confirmed the end. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from flowcatalyst.core.message import Delivery, named_group

MOST_COPIES: Final = 1000  # ids of which dropped copies are remembered


class Duplicate(Enum):
    REDELIVERED = "the queue showed the same message again"
    COPY = "the same application message under another broker id"


# Where a message comes from and goes to: queue, target and group. Applications choose their ids, and two of them may
# choose the same, so only a message with the same id on the same way is a copy.
Way = tuple[str, str, str]


class Double(NamedTuple):
    """A delivery of a batch that is no new message."""

    kind: Duplicate
    delivery: Delivery
    first: Delivery  # the one we own


class InFlightTracker:
    """Owns the pipeline map and its index by application id; the two always change together."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()  # copies that were not delivered, by queue
        self._copies: OrderedDict[str, int] = OrderedDict()  # the same by application id, of the latest
        self._by_key: dict[str | tuple[str, Way], Delivery] = {}
        self._by_app_id: dict[str, Delivery] = {}  # the one owned longest
        self._namesakes: dict[str, dict[Way, Delivery]] = {}  # all that have an id, where there are several

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(list(self._by_key.values()))

    def __repr__(self) -> str:
        owned = (delivery.broker_id or delivery.pointer.id for delivery in self._by_key.values())
        return f"<InFlightTracker {' '.join(owned) or 'empty'}>"

    def sort_out(self, batch: Iterable[Delivery]) -> tuple[list[Delivery], list[Double]]:
        """Take ownership of the new messages of a batch; returns them, and those that double one we own.

        A requeued copy is counted as dropped: whoever asks has to remove it from its queue.
        """
        new: list[Delivery] = []
        doubles: list[Double] = []
        for delivery in batch:
            if self.track(delivery):
                new.append(delivery)
            elif (found := self.find_duplicate(delivery)) is not None:
                doubles.append(Double(found[0], delivery, found[1]))
                if found[0] is Duplicate.COPY:
                    self.dropped[delivery.source.name] += 1
                    self._note_copy(delivery.pointer.id)
        return new, doubles

    def _note_copy(self, app_id: str) -> None:
        self._copies[app_id] = self._copies.get(app_id, 0) + 1
        self._copies.move_to_end(app_id)
        if len(self._copies) > MOST_COPIES:
            self._copies.popitem(last=False)

    def copies_of(self, app_id: str) -> int:
        """How many copies of a message were dropped, as far as that is remembered."""
        return self._copies.get(app_id, 0)

    def find_duplicate(self, delivery: Delivery) -> tuple[Duplicate, Delivery] | None:
        """The message this delivery doubles, if the router owns one."""
        owned = self._by_key.get(delivery.broker_id or _key_of(delivery))
        if owned is None and (first := self._by_app_id.get(delivery.pointer.id)) is not None:
            namesakes = self._namesakes.get(delivery.pointer.id) or {_way_of(first): first}
            owned = namesakes.get(_way_of(delivery))
            if owned is not None and owned.rejected:
                owned = None  # one that is a dead letter by now is no hindrance: the other one was replayed
        if owned is None:
            return None
        if owned.broker_id and delivery.broker_id and owned.broker_id != delivery.broker_id:
            return Duplicate.COPY, owned
        return Duplicate.REDELIVERED, owned  # if one of them has no broker id, nothing tells them apart

    def track(self, delivery: Delivery) -> bool:
        """Take ownership. False, and nothing changes, if the message or a copy of it is owned already."""
        key, app_id = delivery.broker_id or _key_of(delivery), delivery.pointer.id
        if key not in self._by_key and app_id not in self._by_app_id:  # as nearly always
            self._by_key[key] = self._by_app_id[app_id] = delivery
            return True
        if self.find_duplicate(delivery) is not None:
            return False
        self._by_key[key] = delivery
        first = self._by_app_id.setdefault(app_id, delivery)
        if first is not delivery:
            self._namesakes.setdefault(app_id, {_way_of(first): first})[_way_of(delivery)] = delivery
        return True

    def remove(self, delivery: Delivery) -> bool:
        """End ownership. False if this very delivery is not owned (any more)."""
        key = delivery.broker_id or _key_of(delivery)
        if self._by_key.get(key) is not delivery:
            return False  # perhaps one that could not be read: it has no pointer
        del self._by_key[key]
        app_id = delivery.pointer.id
        if self._namesakes and (namesakes := self._namesakes.get(app_id)) is not None:
            if namesakes.get(way := _way_of(delivery)) is delivery:
                del namesakes[way]
            if namesakes:
                self._by_app_id[app_id] = next(iter(namesakes.values()))
            else:
                del self._by_app_id[app_id]
            if len(namesakes) < 2:
                del self._namesakes[app_id]
        elif self._by_app_id.get(app_id) is delivery:
            del self._by_app_id[app_id]
        if not self._by_key:  # an emptied dict keeps its table, a cleared one does not
            self._by_key.clear()
            self._by_app_id.clear()
        return True

    def owned_among(self, batch: Iterable[Delivery]) -> Iterator[tuple[Delivery, Delivery]]:
        """Those of a batch that the router owns by their broker ids, each with the one it owns by then."""
        owned_by = self._by_key.get
        for delivery in batch:
            if (owned := owned_by(delivery.broker_id)) is not None:
                yield delivery, owned

    def owned(self, broker_id: str) -> Delivery | None:
        """The message with this broker id, if the router owns it."""
        return self._by_key.get(broker_id)

    def get(self, app_id: str) -> Delivery | None:
        """A message with this application id; the one owned longest, if several have it."""
        return self._by_app_id.get(app_id)


def _key_of(delivery: Delivery) -> str | tuple[str, Way]:
    """Its broker id, or where it comes from and goes to if the broker gives none."""
    return delivery.broker_id or (delivery.pointer.id, _way_of(delivery))


def _way_of(delivery: Delivery) -> Way:
    return delivery.source.name, delivery.pointer.mediation_target, delivery.group or named_group(delivery)
