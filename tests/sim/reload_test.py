"""A hundred reloads in two minutes, under load and with every other trouble of a plan: nothing is lost or reordered."""

import random

import pytest

from tests.sim.plan import ALL_KINDS, TROUBLES_S, reloads
from tests.sim.play import play_plan
from tests.sim.themes import draw_plan

RELOADS = 100


@pytest.mark.parametrize("seed", range(1, 16, 2))  # the small worlds
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_hundred_reloads_at_random_lose_and_reorder_nothing(seed: int, kind: str) -> None:
    plan = draw_plan(seed, kind)
    others = [act for act in plan.acts if act.what != "reload"]
    moments = sorted(random.Random(seed).uniform(0.5, TROUBLES_S) for _ in range(RELOADS))
    plan.acts = sorted([*others, *reloads(seed, moments)], key=lambda act: act.at)
    played = play_plan(plan)
    assert [f"{rule}: {violation}" for rule, violation in played.violations] + played.errors == []
