"""Words that all rules share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowcatalyst.simulation.history import Event, Facts, Kind

LIFE_ENDS = (Kind.CRASHED, Kind.STOPPED)


@dataclass(slots=True, frozen=True)
class Promises:
    """What may be expected, given the queue the messages came from."""

    ordered_redelivery: bool = True  # the queue keeps the order of a group by itself


@dataclass(slots=True, frozen=True)
class Violation:
    """A promise that was broken, where, and in one sentence how."""

    at: float
    message: str
    text: str

    def __str__(self) -> str:
        return f"at {self.at:.3f} s, {self.message or 'router'}: {self.text}"


@dataclass(slots=True)
class Messages:
    """What was published, by name."""

    facts: dict[str, Facts] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Messages":
        return cls({event.message: event.value for event in events if event.kind is Kind.PUBLISHED})

    def original(self, name: str) -> str:
        """The name of the application message that `name` is, or is a copy of."""
        facts = self.facts.get(name)
        return facts.copy_of or name if facts is not None else name

    def ordered_group(self, name: str) -> str | None:
        facts = self.facts.get(name)
        return facts.group if facts is not None and facts.ordered else None

    def copied(self) -> set[str]:
        """Application messages that were published more than once."""
        return {facts.copy_of for facts in self.facts.values() if facts.copy_of is not None}
