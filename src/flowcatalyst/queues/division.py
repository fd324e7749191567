"""Who divides a thing among how many, agreed on by the processes at work on one store. Pure: time comes in.

A *generation* is a list of members, each with its rank. The store has two: the one *in force*, and the *newest*, which
is to come in force next. Whoever notices that the owners alive are not those of the newest makes a newer one. A member
uses the smaller of what the two give it, and says that it *keeps to* the newest once it uses no more than that gives
it. When all members of the newest do, it comes in force. So at every moment nobody uses more than the generation in
force gives it, and what one generation gives to all is never more than there is. docs/adr/0019 has the proof.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

NOBODY: Final = 0  # no generation has this number


class Part(NamedTuple):
    """One of so many."""

    rank: int
    of: int


class Generation(NamedTuple):
    """Who divides: owners, in the order of their ranks."""

    number: int = NOBODY
    members: tuple[int, ...] = ()

    def part_of(self, owner: int) -> Part | None:
        return Part(self.members.index(owner), len(self.members)) if owner in self.members else None


class Division(NamedTuple):
    """What the database says of one thing that is divided."""

    in_force: Generation = Generation()
    newest: Generation = Generation()


class Thing(StrEnum):
    """What is divided. Each comes in force in its own time."""

    SLOTS = "slots"
    PERMITS = "permits"


class Standing(NamedTuple):
    """The owners alive and what they divide, as it was at one moment."""

    beats: Mapping[int, int]  # of all owners
    keeps_to: Mapping[Thing, Mapping[int, int]] = {}  # by owner, of those that take part
    divisions: Mapping[Thing, Division] = {}


class Member(Protocol):
    """Takes part in the divisions of a store, for as long as its session there lives."""

    @property
    def hurries(self) -> bool:
        """It waits for others, or they for it."""

    def keeps_to(self, owner: int) -> Mapping[Thing, int]:
        """The generations to tell the others. What it says is true from now on until `saw` is called."""

    def saw(self, owner: int, until: float, standing: Standing, now: float) -> Mapping[Thing, Division]:
        """How things stand, and until when our session lives for sure. What should be written in place of what."""

    def lost(self) -> None:
        """Our session ended."""


def next_division(division: Division, keeps_to: Mapping[int, int]) -> Division | None:
    """What has to be written in its place; None: it is as it should be.

    `keeps_to` has the owners alive that take part, each with the generation it keeps to. It was read together with the
    division, and what this says is written only if the division is still the same.
    """
    alive = tuple(sorted(keeps_to))
    if alive != division.newest.members:
        return Division(division.in_force, Generation(division.newest.number + 1, alive))
    pending = division.in_force.number != division.newest.number
    if pending and all(number == division.newest.number for number in keeps_to.values()):
        return Division(division.newest, division.newest)
    return None


class Membership:
    """One process and one thing that is divided.

    `use_lasts_s`: for how long what a process used counts after its end. An attempt ends with its process, but its
    start counts against a rate for a minute.
    """

    def __init__(self, use_lasts_s: float = 0.0) -> None:
        self.division = Division()
        self.owner = NOBODY  # our present one
        self._use_lasts_s = use_lasts_s
        self._keeps_to = NOBODY
        self._gone: dict[int, float] = {}  # of the generation in force: since when it is known that they have ended

    def __repr__(self) -> str:
        in_force, newest = self.division
        return f"<Membership {self.owner} in_force={in_force} newest={newest} keeps_to={self._keeps_to}>"

    @property
    def parts(self) -> tuple[Part, Part] | None:
        """By the generation in force and by the newest: we may use the smaller. None: nothing."""
        in_force, newest = (generation.part_of(self.owner) for generation in self.division)
        return None if in_force is None or newest is None else (in_force, newest)

    @property
    def future(self) -> Part | None:
        """By the newest generation alone: to be kept to before it comes in force."""
        return self.division.newest.part_of(self.owner)

    @property
    def is_settled(self) -> bool:
        return self.division.in_force.number == self.division.newest.number

    def saw(self, owner: int, division: Division, now: float) -> bool:
        """Our session and the division, as they were read together. Whether that changes what we may use."""
        before = self.parts
        if owner != self.owner:
            self.reset()
            self.owner = owner
        self.division = division
        ended = set(division.in_force.members) - set(division.newest.members)
        self._gone = {member: self._gone.get(member, now) for member in ended}
        return before != self.parts

    def reset(self) -> None:
        """Our session ended, or may have: we may use nothing."""
        self.division, self.owner, self._keeps_to = Division(), NOBODY, NOBODY
        self._gone.clear()

    def keeps_to(self, owner: int, *, uses_no_more: bool, now: float) -> int:
        """The generation to tell the others, given whether we use no more than the newest gives us."""
        if owner != self.owner:
            return NOBODY
        nothing_lasts = all(now - since >= self._use_lasts_s for since in self._gone.values())
        if uses_no_more and nothing_lasts and self.future is not None:
            self._keeps_to = self.division.newest.number
        return self._keeps_to
