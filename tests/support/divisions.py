"""What a database holds of processes that divide limits: a dictionary with the rules of
`queues/postgres/migrations/0006_division.sql`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowcatalyst.queues.division import Division, Standing, Thing


@dataclass
class Row:
    beat: int = 1
    kept: Mapping[Thing, int] = field(default_factory=dict)


class Divisions:
    """Owners with their beats, and the divisions."""

    def __init__(self) -> None:
        self.owners: dict[int, Row] = {}
        self.divisions = {thing: Division() for thing in Thing}
        self._last = 0

    def register(self) -> int:
        self._last += 1
        self.owners[self._last] = Row()
        return self._last

    def renew(self, owner: int, kept: Mapping[Thing, int]) -> Standing:
        if (row := self.owners.get(owner)) is not None:
            row.beat += 1
            row.kept = kept
        takes_part = {one: row for one, row in self.owners.items() if row.kept}
        keeps_to = {thing: {one: row.kept[thing] for one, row in takes_part.items()} for thing in Thing}
        return Standing({one: row.beat for one, row in self.owners.items()}, keeps_to, dict(self.divisions))

    def divide(self, thing: Thing, old: Division, new: Division) -> None:
        if self.divisions[thing] == old:
            self.divisions[thing] = new

    def forget(self, owner: int, beat: int) -> None:
        if owner in self.owners and self.owners[owner].beat == beat:
            del self.owners[owner]
