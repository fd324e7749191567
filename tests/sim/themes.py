"""Themes: the plan of each seed. More than half are small worlds with all troubles; the others are larger ones, each
about a promise that a small one cannot show.

In those the healthy messages are `prompt`: nothing that is wrong stands in their way. No queue fails there, so that
every rule about time applies.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.router.limits import PoolLimits
from tests.sim.by_hand import draw_by_hand, with_handled_groups
from tests.sim.draw import POOLS, Draw
from tests.sim.letters import Group, Letter, letter
from tests.sim.plan import (
    ALL_KINDS,
    SMALL_PARKED_LIMIT,
    Plan,
    QueuePlan,
    clock_steps,
    connection_cuts,
    draw_queues,
    fed_by,
    troubles,
)

PROMPT_S = 15.0
SHARE_S = 30.0  # an endpoint that hangs may be found out first
BLOCKING = (None, DispatchMode.BLOCK_ON_ERROR)
PATIENT_TIMEOUT_S = 300.0  # the default is 900, which shows the same and takes longer

Queues = tuple[QueuePlan, ...]
Theme = Callable[[int, str, Draw, Queues], Plan]


def isolation(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """Some groups are stuck for good; the others have slots enough and must not notice."""
    rng = draw.rng
    last_error = rng.choice(("outage", "timeouts", "server errors", "rate limited", "unresolved"))
    crowded = draw.chance(0.5)  # the stuck ones have a pool of their own, and fill it
    concurrency = 20 if last_error in ("timeouts", "unresolved") else rng.choice((1, 3, 20))
    pools = {code: PoolLimits(concurrency=concurrency) for code in POOLS}
    if crowded:
        pools["A"] = PoolLimits(concurrency=concurrency, capacity=11)
    stuck_in, healthy_in = (("A",), (DEFAULT_POOL, "B")) if crowded else (POOLS, POOLS)
    names = tuple(queue.name for queue in queues)
    stuck = [Group(f"s{n}", rng.choice(stuck_in), "down", draw.mode(), fed_by(draw, names, n)) for n in range(3)]
    healthy = [Group(f"h{n}", rng.choice(healthy_in), "healthy", draw.mode(), names[:1]) for n in range(4)]
    letters = _spread(draw, stuck, 20, 0.0, 60.0) + _spread(draw, healthy, 40, 0.0, 100.0, PROMPT_S, first=20)
    stuck_by = frozenset({last_error})
    return Plan(seed, kind, "isolation", queues, pools, _in_order(letters), endpoint_troubles=stuck_by)


def burst(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """Far more than a pool has room for, all at once, while another pool gets a trickle through the same queue."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    queues = tuple(replace(one, max_batch=10 if one.kind == "fifo" else 100) for one in queues)
    pools = {
        "A": PoolLimits(concurrency=rng.randint(2, 5), capacity=rng.randint(10, 50)),
        "B": PoolLimits(concurrency=rng.randint(2, 6)),
    }
    count = rng.randint(120, 200)
    host = rng.choice(("healthy", "steady"))
    many = [
        Group(f"a{n}", "A", host, rng.choice(BLOCKING), fed_by(draw, names, n))
        for n in range(rng.choice((40, count, count)))
    ]
    few = [Group(f"b{n}", "B", "healthy", draw.mode(), fed_by(draw, names, n)) for n in range(5)]
    letters = _spread(draw, many, count, 2.0, rng.choice((2.0, 2.0, 12.0)))
    letters += _spread(draw, few, 100, 0.0, rng.choice((15.0, 40.0)), first=count)
    if draw.chance(0.3):
        letters += _spread(draw, [Group("s", "B", "down", None, names[:2])], 5, 0.0, 5.0, first=count + 100)
    stuck_by = frozenset({"server errors"})
    return Plan(seed, kind, "burst", queues, pools, _in_order(letters), endpoint_troubles=stuck_by, troubles_s=60.0)


def failing_groups(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """Many groups that fail again and again, far more than their pool has room for, beside a few healthy ones."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    pools = {"A": PoolLimits(concurrency=2, capacity=rng.randint(8, 12))}
    count, path = rng.randint(120, 150), rng.choice((None, "hook"))
    failing = [
        Group(f"f{n}", "A", "failing", rng.choice(BLOCKING), (names[n % len(names)],), path) for n in range(count)
    ]
    letters = [letter(f"m{n}", group, at=rng.uniform(0.0, 1.0)) for n, group in enumerate(failing)]
    healthy = [Group(f"h{n}", "A", "healthy", draw.mode(), names[:1]) for n in range(10)]
    letters += _spread(draw, healthy, 20, 5.0, 30.0, PROMPT_S, first=count)
    return Plan(seed, kind, "failing groups", queues, pools, _in_order(letters), troubles_s=45.0)


def hanging_endpoint(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """An endpoint takes requests and never answers; another one in the same pool is well."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    concurrency, path = rng.choice((2, 5, 10)), rng.choice((None, "hook"))
    pools = {"A": PoolLimits(concurrency=concurrency)}
    silent = [Group(f"s{n}", "A", "silent", rng.choice(BLOCKING), fed_by(draw, names, n), path) for n in range(20)]
    healthy = [Group(f"h{n}", "A", "healthy", draw.mode(), names[:1]) for n in range(10)]
    begin = rng.choice((0.0, 0.5, 10.0))
    letters = [letter(f"m{n}", group, at=rng.uniform(0.0, 0.5)) for n, group in enumerate(silent)]
    letters += _spread(draw, healthy, 30, begin, 40.0, SHARE_S, first=20)
    plan = Plan(seed, kind, "hanging endpoint", queues, pools, _in_order(letters), troubles_s=90.0)
    plan.http_timeout_s = PATIENT_TIMEOUT_S
    return plan


def hanging_probes(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """An endpoint refuses connections, then takes requests and is silent, then is well again."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    pools = {"A": PoolLimits(concurrency=rng.choice((5, 10, 20)))}
    groups = [Group(f"p{n}", "A", "probed", draw.mode(), fed_by(draw, names, n), "hook") for n in range(15)]
    healthy = [Group(f"h{n}", "A", "healthy", draw.mode(), names[:1]) for n in range(3)]
    letters = _spread(draw, groups, 40, 0.0, 30.0) + _spread(draw, healthy, 10, 0.0, 60.0, SHARE_S, first=40)
    plan = Plan(seed, kind, "hanging probes", queues, pools, _in_order(letters))
    plan.http_timeout_s = PATIENT_TIMEOUT_S
    return plan


def stuck_pool(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """A pool whose messages cannot be delivered gets far more than it holds; other pools share its queue."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    concurrency = rng.randint(1, 3)
    pools = {"A": PoolLimits(concurrency=concurrency, capacity=10), "B": PoolLimits(concurrency=5)}
    host = rng.choice(("refusing", "silent"))
    stuck = [Group(f"s{n}", "A", host, rng.choice(BLOCKING), names[:1]) for n in range(rng.choice((3, 30)))]
    healthy = [Group(f"h{n}", "B", "healthy", draw.mode(), names[:1]) for n in range(5)]
    count = rng.randint(290, 320)  # more than capacity and 256
    letters = _spread(draw, stuck, count, 0.0, 1.0) + _spread(draw, healthy, 20, 2.0, 40.0, PROMPT_S, first=count)
    parked_limit = None
    if kind == "embedded" and seed // len(THEMES) % 2:  # most of it may not wait in memory, and some of A's could start
        parked_limit, others = SMALL_PARKED_LIMIT, Draw(random.Random(f"others:{seed}"))
        pools["A"] = replace(pools["A"], concurrency=3)
        well = [Group(f"w{n}", "A", "healthy", others.mode(), names[:1]) for n in range(5)]
        letters += _spread(others, well, 20, 10.0, 40.0, SHARE_S, first=count + 20)
    plan = Plan(seed, kind, "stuck pool", queues, pools, _in_order(letters), troubles_s=60.0, parked_limit=parked_limit)
    plan.http_timeout_s = PATIENT_TIMEOUT_S if host == "silent" else 30.0
    return plan


def patience(seed: int, kind: str, draw: Draw, queues: Queues) -> Plan:
    """An endpoint asks for patience, a second or a few, of groups that have more messages than one."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    pools = {"A": PoolLimits(concurrency=10), "B": PoolLimits(concurrency=10)}
    groups = [Group(f"g{n}", rng.choice("AB"), "busy", draw.mode(), fed_by(draw, names, n)) for n in range(6)]
    letters = _spread(draw, groups, 50, 0.0, rng.choice((1.0, 60.0)))
    plan = Plan(seed, kind, "patience", queues, pools, _in_order(letters), troubles_s=90.0)
    plan.acts = sorted(connection_cuts(draw, queues, plan.troubles_s), key=lambda act: act.at)
    return plan


def _spread(
    draw: Draw, groups: list[Group], count: int, begin: float, end: float, prompt_s: float | None = None, first: int = 0
) -> list[Letter]:
    """So many messages over these groups, between these moments."""
    rng = draw.rng
    letters = []
    for n in range(first, first + count):
        group = rng.choice(groups)
        at, queue = rng.uniform(begin, end), rng.choice(group.queues)
        letters.append(letter(f"m{n}", group, queue=queue, at=at, prompt_s=prompt_s))
    return letters


def _in_order(letters: list[Letter]) -> list[Letter]:
    return sorted(letters, key=lambda one: one.at)


# By seed. Small worlds find most for their time.
THEMES: tuple[Theme, ...] = (
    *(troubles, troubles, isolation, troubles, burst, troubles, failing_groups, troubles),
    *(hanging_endpoint, troubles, hanging_probes, troubles, stuck_pool, troubles, patience, troubles),
)


def draw_plan(seed: int, kind: str) -> Plan:
    """The plan of a seed on queues of this kind."""
    assert kind in ALL_KINDS, kind
    draw = Draw(random.Random(f"{kind}:{seed}"))
    theme = THEMES[seed % len(THEMES)]
    plan = theme(seed, kind, draw, draw_queues(draw, kind))
    if theme is not troubles and draw.chance(0.15):
        plan.acts = sorted([*plan.acts, *clock_steps(draw, plan.troubles_s)], key=lambda act: act.at)
    people = random.Random(f"acts:{kind}:{seed}")
    if theme is not troubles:
        with_handled_groups(plan, people)
    plan.by_hand = draw_by_hand(plan, people)
    return plan
