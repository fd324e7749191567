"""OrderJudge: tells from what a receiver saw and answered whether messages came in order. Pure."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple, Self

MAX_GROUPS = 100_000
SHOWN_VIOLATIONS = 20


class SeededId(NamedTuple):
    """A message id that carries its place: `{run}.{group}.{position}`."""

    run: str
    group: str
    position: int

    def __str__(self) -> str:
        return f"{self.run}.{self.group}.{self.position}"

    @classmethod
    def parse(cls, message_id: str) -> Self | None:
        run, _, rest = message_id.partition(".")
        group, _, position = rest.rpartition(".")
        if not (run and group and position.isascii() and position.isdecimal() and len(position) <= 18):
            return None
        return cls(run, group, int(position))


@dataclass(slots=True)
class _Progress:
    """How far a group came: the first position seen, and the highest one that was answered for good."""

    first: int
    settled: int


@dataclass(slots=True)
class ReceiverCounts:
    """What one receiver saw and answered."""

    requests: int = 0
    order_violations: int = 0
    statuses: Counter[int] = field(default_factory=Counter)


class OrderJudge:
    """Judges each arrival against the answers given before it. Ids without a place are counted but not judged.

    A message is overdue to arrive only when its predecessor was answered for good. So an arrival beyond the next
    position was overtaken or runs beside its predecessor, and one before the first position came late. A position
    that comes again after it was settled is a duplicate, which at-least-once delivery allows.
    """

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._max_groups = max_groups
        self.reset()

    def reset(self) -> None:
        self.duplicates = 0
        self.by_receiver: dict[str, ReceiverCounts] = {}
        self.last_violations: deque[str] = deque(maxlen=SHOWN_VIOLATIONS)
        self._groups: OrderedDict[tuple[str, str], _Progress] = OrderedDict()

    @property
    def groups(self) -> int:
        return len(self._groups)

    @property
    def requests(self) -> int:
        return sum(counts.requests for counts in self.by_receiver.values())

    @property
    def order_violations(self) -> int:
        return sum(counts.order_violations for counts in self.by_receiver.values())

    def arrived(self, receiver: str, message_id: str) -> None:
        """A request began."""
        counts = self._counts_of(receiver)
        counts.requests += 1
        place = SeededId.parse(message_id)
        if place is None:
            return
        key = (place.run, place.group)
        progress = self._groups.get(key)
        if progress is None:
            progress = self._groups[key] = _Progress(first=place.position, settled=place.position - 1)
            if len(self._groups) > self._max_groups:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end(key)
        if place.position < progress.first:
            wrong = f"came late: position {progress.first} was seen before it"
        elif place.position > progress.settled + 1:
            wrong = f"came before position {place.position - 1} was settled"
        else:
            self.duplicates += place.position <= progress.settled
            return
        counts.order_violations += 1
        self.last_violations.append(f"{place} {wrong} ({receiver})")

    def answered(self, receiver: str, message_id: str, status: int, *, for_good: bool) -> None:
        """A request ended. `for_good`: the answer settles the message, so that the next one may come."""
        self._counts_of(receiver).statuses[status] += 1
        place = SeededId.parse(message_id)
        progress = None if place is None else self._groups.get((place.run, place.group))
        if place is not None and progress is not None and for_good:
            progress.settled = max(progress.settled, place.position)

    def settled_in(self, run: str, group: str) -> int | None:
        """The highest position of a group that was answered for good; None if nothing of it came yet."""
        progress = self._groups.get((run, group))
        return None if progress is None else progress.settled

    def _counts_of(self, receiver: str) -> ReceiverCounts:
        return self.by_receiver.setdefault(receiver, ReceiverCounts())
