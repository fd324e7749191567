"""Bugs in how processes divide the limits of their pools."""

from collections.abc import Mapping
from typing import Any, Final

from flowcatalyst.queues import division
from flowcatalyst.queues.division import Division, Generation, Membership, Part
from flowcatalyst.router import division as router_division
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.process_share import ProcessShare
from tests.mutants.mutant import Bugs, Hunter, instead_of

BUGS: Final = Bugs()
OF_JOBS: Final = Bugs(Hunter.JOBS)  # that histories of processes at work on one store show
UNIT: Final = "tests/unit/division_test.py"


@BUGS.add(
    "a limit counts for each process",
    test=f"{UNIT}::test_all_shares_together_are_the_limit_and_permits_go_where_slots_are",
)
def _() -> None:
    @instead_of(router_division, "share")
    def share(original: Any, limit: int, part: Part) -> int:
        return limit


@BUGS.add(
    "permits go to processes that have no slot to use them",
    test=f"{UNIT}::test_all_shares_together_are_the_limit_and_permits_go_where_slots_are",
)
def _() -> None:
    @instead_of(router_division, "permits_of")
    def permits_of(original: Any, code: str, limits: Any, part: Part) -> int | None:
        rate = limits.rate_per_minute
        return None if rate is None else router_division.share(rate, part)


@BUGS.add(
    "a newcomer takes its share before the others have come down to theirs",
    test=f"{UNIT}::test_a_newcomer_may_use_nothing_before_its_generation_is_in_force",
)
def _() -> None:
    @instead_of(Membership, "parts")
    def parts(original: Any, self: Any) -> tuple[Part, Part] | None:
        return None if self.future is None else (self.future, self.future)


@BUGS.add(
    "a process that keeps to a smaller share goes back to the larger one until it hears more",
    test=f"{UNIT}::test_a_member_uses_the_smaller_of_what_is_in_force_and_what_comes",
)
def _() -> None:
    @instead_of(Membership, "parts")
    def parts(original: Any, self: Any) -> tuple[Part, Part] | None:
        part = self.division.in_force.part_of(self.owner)
        return None if part is None else (part, part)


@BUGS.add(
    "a process says that it keeps to its share while it uses more",
    test=f"{UNIT}::test_a_member_that_uses_too_much_does_not_say_that_it_keeps_to_the_newest",
)
def _() -> None:
    @instead_of(Membership, "keeps_to")
    def keeps_to(original: Any, self: Any, owner: int, *, uses_no_more: bool, now: float) -> int:
        return int(original(self, owner, uses_no_more=True, now=now))


@BUGS.add(
    "permits of a process that died are used again before a minute is over",
    test=f"{UNIT}::test_what_an_ended_member_used_counts_for_a_while",
)
def _() -> None:
    @instead_of(Membership, "keeps_to")
    def keeps_to(original: Any, self: Any, owner: int, *, uses_no_more: bool, now: float) -> int:
        self._gone.clear()
        return int(original(self, owner, uses_no_more=uses_no_more, now=now))


@BUGS.add(
    "a new session of a process goes on with the share of the old one",
    test=f"{UNIT}::test_a_new_session_is_a_newcomer",
)
def _() -> None:
    @instead_of(Membership, "saw")
    def saw(original: Any, self: Any, owner: int, division: Division, now: float) -> bool:
        return bool(original(self, self.owner or owner, division, now))


@BUGS.add(
    "a generation comes in force when one of its members keeps to it",
    test=f"{UNIT}::test_a_generation_comes_in_force_when_all_of_it_keep_to_it",
)
def _() -> None:
    @instead_of(division, "next_division")
    def next_division(original: Any, division: Division, keeps_to: Mapping[int, int]) -> Division | None:
        highest = max(keeps_to.values(), default=0)
        found: Division | None = original(division, dict.fromkeys(keeps_to, highest))
        return found


@BUGS.add(
    "a member that died stays in the newest generation",
    test=f"{UNIT}::test_whoever_sees_other_owners_than_the_newest_has_makes_a_newer_generation",
)
def _() -> None:
    @instead_of(division, "next_division")
    def next_division(original: Any, division: Division, keeps_to: Mapping[int, int]) -> Division | None:
        found: Division | None = original(division, keeps_to)
        if found is None or set(found.newest.members) >= set(division.newest.members):
            return found
        return Division(found.in_force, Generation(found.newest.number, division.newest.members))


@BUGS.add(
    "a process without a session starts attempts",
    test=f"{UNIT}::test_a_process_starts_nothing_when_its_session_may_have_ended",
)
def _() -> None:
    @instead_of(Fence, "allows")
    def allows(original: Any, self: Any, now: float) -> bool:
        return bool(now < self.until)


@BUGS.add(
    "what waits in a pool whose slots are another process's stays there",
    test="tests/integration/processes_test.py::"
    "test_what_waits_in_a_process_that_lost_its_only_slot_is_delivered_by_the_one_that_has_it",
)
def _() -> None:
    @instead_of(Pool, "_leaves")
    def leaves(original: Any, self: Any, delivery: Any) -> bool:
        return bool(self.draining or (self.retiring and delivery.returns_in_order))


@BUGS.add(
    "a process that is cut off keeps what it has in flight",
    test="tests/integration/processes_test.py::"
    "test_a_router_that_is_cut_off_from_the_database_stops_before_others_take_its_share",
)
def _() -> None:
    @instead_of(Pool, "cancel")
    def cancel(original: Any, self: Any) -> None:
        if self.draining:
            original(self)


# In what a process does with its share


@OF_JOBS.add("a process uses the limits of its pools as if it were alone")
def _() -> None:
    @instead_of(ProcessShare, "divide")
    def divide(original: Any, self: Any, code: str, limits: PoolLimits) -> PoolLimits:
        return limits


@OF_JOBS.add("a new division is in force before those of the one before came down to it")
def _() -> None:
    @instead_of(division, "next_division")
    def next_division(original: Any, of: Division, keeps_to: Mapping[int, int]) -> Division | None:
        found: Division | None = original(of, keeps_to)
        return None if found is None else Division(found.newest, found.newest)


@OF_JOBS.add("who says that it keeps to its share does not look at what it has in flight")
def _() -> None:
    @instead_of(Membership, "keeps_to")
    def keeps_to(original: Any, self: Any, owner: int, *, uses_no_more: bool, now: float) -> int:
        number: int = original(self, owner, uses_no_more=True, now=now)
        return number


@OF_JOBS.add("a process uses its share for as long as nobody tells it that it is dead")
def _() -> None:
    @instead_of(ProcessShare, "_look_at_session")
    def look_at_session(original: Any, self: Any) -> None:
        """Nobody did."""

    @instead_of(Fence, "allows")
    def allows(original: Any, self: Any, now: float) -> bool:
        return True
