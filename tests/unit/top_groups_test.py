"""GroupSurvey: one pass over the groups of pools says what a look at each message would."""

import random
from dataclasses import dataclass, field

import pytest

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.slow_groups import IDLE_S, SlowGroups
from flowcatalyst.router.top_groups import SLICE, TOP, GroupFigures, GroupSurvey
from tests.support.deliveries import delivery

NOW, WALL = 1000.0, 50_000.0


@dataclass
class Pool:
    code: str
    scheduler: GroupScheduler = field(default_factory=GroupScheduler)
    slow_groups: SlowGroups = field(default_factory=SlowGroups)

    def __post_init__(self) -> None:
        self.all_groups = self.scheduler.all_groups

    def add(
        self,
        name: str,
        group: str,
        arrived_s: float,
        published_s: float = 0.0,
        mode: DispatchMode | None = None,
        *,
        high: bool = False,
    ) -> None:
        """One that came, and was published, so long ago."""
        one = delivery(name, group=group, mode=mode, high=high)
        one.arrived_at, one.due_at = NOW - arrived_s, WALL - published_s if published_s else 0.0
        self.scheduler.submit(one)


@dataclass
class Blocked:
    group: str
    pool: str
    since: float


def survey(*pools: Pool, blocked: list[Blocked] | None = None) -> GroupFigures:
    one = GroupSurvey(pools, blocked or [], NOW, WALL)
    for _ in one.steps():
        pass
    return one.figures


def test_the_longest_wait_of_a_pool_is_since_the_publish_or_else_since_the_arrival() -> None:
    a, b, idle = Pool("A"), Pool("B"), Pool("IDLE")
    a.add("m1", "g1", arrived_s=5, published_s=60)
    a.add("m2", "g1", arrived_s=4, published_s=59)
    a.add("m3", "g2", arrived_s=50)
    b.add("m4", "g3", arrived_s=7)
    assert survey(a, b, idle).waiting_s == {"A": 60.0, "B": 7.0, "IDLE": 0.0}


def test_an_attempt_in_flight_does_not_wait_and_what_is_behind_it_does() -> None:
    pool = Pool("A")
    pool.add("m1", "g1", arrived_s=60)
    pool.add("m2", "g1", arrived_s=40)
    pool.scheduler.take()
    assert survey(pool).waiting_s == {"A": 40.0}


def test_messages_of_a_high_tier_and_those_on_their_own_wait_too() -> None:
    pool = Pool("A")
    pool.add("m1", "g1", arrived_s=10)
    pool.add("m2", "g1", arrived_s=5, high=True)
    assert survey(pool).waiting_s == {"A": 10.0}
    pool.add("alone", "g2", arrived_s=30, mode=DispatchMode.IMMEDIATE)
    figures = survey(pool)
    assert figures.waiting_s == {"A": 30.0}
    assert [one.group for one in figures.by_age] == ["g1"]  # nobody else can be behind the other one


@pytest.mark.parametrize("seed", range(5))
def test_the_top_are_those_that_a_sort_of_all_groups_gives(seed: int) -> None:
    rng, depths, ages = random.Random(seed), {}, {}
    pools = [Pool(f"P{number}") for number in range(3)]
    for number in range(100):
        pool, name = rng.choice(pools), f"g{number}"
        messages, age = rng.randint(1, 30), rng.uniform(100, 900)
        for place in range(messages):
            pool.add(f"{name}-{place}", name, arrived_s=age - place)
        depths[name], ages[name] = messages, age
    figures = survey(*pools)
    assert [one.value for one in figures.by_depth] == sorted(depths.values(), reverse=True)[:TOP]
    assert all(depths[one.group] == one.value for one in figures.by_depth)
    assert [one.group for one in figures.by_age] == sorted(ages, key=ages.__getitem__, reverse=True)[:TOP]


def test_blocked_groups_are_counted_once_by_pool_with_the_longest() -> None:
    blocked = [Blocked("g1", "A", 900.0), Blocked("g2", "A", 700.0), Blocked("g1", "A", 950.0), Blocked("g1", "B", 1.0)]
    figures = survey(Pool("A"), blocked=blocked)
    assert figures.blocked == {"A": 2, "B": 1}
    assert figures.blocked_s == {"A": 300.0, "B": 999.0}


def test_the_slowest_groups_of_all_pools_are_named_unless_they_are_idle() -> None:
    a, b = Pool("A"), Pool("B")
    a.slow_groups.note("g1", 2.0, NOW)
    b.slow_groups.note("g1", 3.0, NOW)
    b.slow_groups.note("g2", 9.0, NOW - IDLE_S)
    assert [(one.group, one.pool, one.value, one.attempts) for one in survey(a, b).by_latency] == [
        ("g1", "B", 3.0, 1),
        ("g1", "A", 2.0, 1),
    ]


def test_others_get_a_turn_after_each_slice_of_groups() -> None:
    pool = Pool("A")
    for number in range(10 * SLICE):
        pool.add(f"m{number}", f"g{number}", arrived_s=1)
    one = GroupSurvey([pool], [Blocked(f"g{number}", "A", 0.0) for number in range(2 * SLICE)], NOW, WALL)
    assert len(list(one.steps())) == 12


def test_groups_that_go_between_two_slices_do_no_harm() -> None:
    pool = Pool("A")
    for number in range(2 * SLICE):
        pool.add(f"m{number}", f"g{number}", arrived_s=1)
    one = GroupSurvey([pool], [], NOW, WALL)
    steps = one.steps()
    next(steps)
    pool.scheduler.clear_idle()
    for _ in steps:
        pass
    assert one.figures.waiting_s == {"A": 1.0}
