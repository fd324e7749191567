"""How limits are divided, and when a process may use more or has to use less."""

from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.queues.division import Division, Generation, Membership, Part, next_division
from flowcatalyst.router.division import permits_of, share, share_of, slots_of
from flowcatalyst.router.limits import PoolLimits

ALONE, BOTH = Generation(1, (7,)), Generation(2, (7, 8))
codes = st.text(max_size=8)


def test_what_does_not_divide_evenly_goes_to_the_first_ranks() -> None:
    assert [share(10, Part(rank, 3)) for rank in range(3)] == [4, 3, 3]
    assert [share(1, Part(rank, 3)) for rank in range(3)] == [1, 0, 0]


@given(codes, st.integers(1, 50), st.integers(1, 50), st.integers(1, 12))
def test_all_shares_together_are_the_limit_and_permits_go_where_slots_are(
    code: str, concurrency: int, rate: int, processes: int
) -> None:
    limits, parts = PoolLimits(concurrency, rate), [Part(rank, processes) for rank in range(processes)]
    slots, permits = (
        [slots_of(code, limits, part) for part in parts],
        [permits_of(code, limits, part) for part in parts],
    )
    assert sum(slots) == concurrency
    assert sum(one or 0 for one in permits) == rate
    assert all(one or not several for one, several in zip(slots, permits, strict=True))


def test_of_many_pools_with_one_slot_every_process_has_some() -> None:
    limits, parts = PoolLimits(1), [Part(rank, 3) for rank in range(3)]
    counts = [sum(slots_of(f"pool-{number}", limits, part) for number in range(60)) for part in parts]
    assert sum(counts) == 60
    assert min(counts) > 10


def test_a_pool_without_a_rate_limit_stays_without_one() -> None:
    member = joined(Division(BOTH, BOTH))
    assert share_of("A", PoolLimits(4), member, member).rate_per_minute is None


def test_a_newcomer_may_use_nothing_before_its_generation_is_in_force() -> None:
    newcomer = joined(Division(ALONE, BOTH), owner=8)
    assert newcomer.parts is None
    assert share_of("A", PoolLimits(4, 4), newcomer, newcomer).concurrency == 0
    newcomer.saw(8, Division(BOTH, BOTH), 1.0)
    assert newcomer.parts == (Part(1, 2), Part(1, 2))


def test_a_member_uses_the_smaller_of_what_is_in_force_and_what_comes() -> None:
    """Also once it keeps to what comes: that may be in force before it hears of it."""
    member = joined(Division(ALONE, BOTH))
    assert member.keeps_to(7, uses_no_more=True, now=0.0) == BOTH.number
    assert share_of("A", PoolLimits(10), member, member).concurrency == 5
    leaving = joined(Division(BOTH, Generation(3, (7,))))
    assert share_of("A", PoolLimits(10), leaving, leaving).concurrency == 5


def test_a_member_that_uses_too_much_does_not_say_that_it_keeps_to_the_newest() -> None:
    member = joined(Division(ALONE, BOTH))
    assert member.keeps_to(7, uses_no_more=False, now=0.0) != BOTH.number


def test_what_an_ended_member_used_counts_for_a_while() -> None:
    member = joined(Division(BOTH, Generation(3, (7,))), use_lasts_s=60.0)
    assert member.keeps_to(7, uses_no_more=True, now=59.9) == 0
    assert member.keeps_to(7, uses_no_more=True, now=60.0) == 3


def test_a_new_session_is_a_newcomer() -> None:
    member = joined(Division(BOTH, BOTH))
    assert member.keeps_to(9, uses_no_more=True, now=0.0) == 0
    member.saw(9, Division(BOTH, BOTH), 1.0)
    assert member.parts is None


def test_whoever_sees_other_owners_than_the_newest_has_makes_a_newer_generation() -> None:
    assert next_division(Division(ALONE, ALONE), {8: 0, 7: 1}) == Division(ALONE, BOTH)
    assert next_division(Division(ALONE, BOTH), {7: 1}) == Division(ALONE, Generation(3, (7,)))


def test_a_generation_comes_in_force_when_all_of_it_keep_to_it() -> None:
    assert next_division(Division(ALONE, BOTH), {7: 1, 8: 2}) is None
    assert next_division(Division(ALONE, BOTH), {7: 2, 8: 2}) == Division(BOTH, BOTH)
    assert next_division(Division(BOTH, BOTH), {7: 2, 8: 2}) is None


def joined(division: Division, owner: int = 7, use_lasts_s: float = 0.0) -> Membership:
    member = Membership(use_lasts_s)
    member.saw(owner, division, 0.0)
    return member
