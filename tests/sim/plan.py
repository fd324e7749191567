"""Plan: what happens in one simulated history, drawn from a seed; and the plan of a small world with all troubles.

Each kind of trouble is in a plan or not (swarm testing): a history with everything at once hides more than it shows.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flowcatalyst.core.message import DEFAULT_GROUP
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.queue import QueueFaults
from flowcatalyst.simulation.queue_kinds import KINDS
from tests.sim.draw import POOLS, Draw
from tests.sim.letters import Group, Letter, draw_letters

ALL_KINDS = (*KINDS, "mixed")
MIXTURES = (
    ("embedded", "unordered"),
    ("fifo", "unordered"),
    ("embedded", "connection"),
    ("embedded", "fifo"),
    ("unordered", "connection"),
    ("fifo", "connection"),
    ("embedded", "unordered", "fifo"),
)
TROUBLES_S = 120.0  # how long faults go on
STEP_S = 0.1
MAX_BATCHES = {"fifo": (1, 3, 10, 10)}  # SQS gives ten at most
OTHER_MAX_BATCHES = (1, 3, 10, 100, 100)
YEAR_S, HOUR_S = 365 * 86400.0, 3600.0
SMALL_PARKED_LIMIT = 12
HANDLED_HOST = "handled"  # only groups that people act on go there
ENDPOINT_TROUBLES = (
    "server errors",
    "client errors",
    "not acked",
    "rate limited",
    "resets",
    "unresolved",
    "slow",
    "timeouts",
    "outage",
    "odd statuses",
)


@dataclass(slots=True, frozen=True)
class Act:
    """Something that is done to the router or to what is around it."""

    at: float
    what: str  # reload, stop, crash, stop and crash, cut, step
    pools: dict[str, PoolLimits] = field(default_factory=dict)
    steps: int = 0  # crash after so many steps of the router
    queue: str = ""  # whose connection is cut
    seconds: float = 0.0  # for which it is cut, or by which the clock is stepped
    taken: float = 0.0  # share of its groups that another router takes meanwhile


@dataclass(slots=True, frozen=True)
class ByHand:
    """Something that somebody does by hand."""

    at: float
    what: str  # retry, skip, skip any, replay, pause, resume
    kind: PauseKind | None = None
    name: str = ""


@dataclass(slots=True, frozen=True)
class QueuePlan:
    name: str
    kind: str
    visibility_s: float = 30.0
    max_batch: int = 10


@dataclass(slots=True)
class Plan:
    seed: int
    kind: str
    theme: str
    queues: tuple[QueuePlan, ...]
    pools: dict[str, PoolLimits]
    letters: list[Letter]
    acts: list[Act] = field(default_factory=list)
    by_hand: list[ByHand] = field(default_factory=list)
    http_timeout_s: float = 30.0
    queue_faults: QueueFaults = field(default_factory=QueueFaults)
    endpoint_troubles: frozenset[str] = frozenset()
    dead_letters_fail: float = 0.0
    in_step: bool = False  # answers and acts come at whole tenths of a second: much happens at the same moment
    troubles_s: float = TROUBLES_S
    parked_limit: int | None = None  # None: the router's own, which no plan reaches


def draw_queues(draw: Draw, kind: str) -> tuple[QueuePlan, ...]:
    """One queue, now and then two, of the kind; of different kinds if it is a mixture."""
    rng = draw.rng
    kinds: tuple[str, ...] = (kind,) if draw.chance(0.8) else (kind, kind)
    if kind == "mixed":
        kinds = rng.choice(MIXTURES)
    return tuple(
        QueuePlan(name, one, rng.choice((4.0, 10.0, 30.0, 60.0)), rng.choice(MAX_BATCHES.get(one, OTHER_MAX_BATCHES)))
        for name, one in zip("qrs", kinds, strict=False)
    )


def troubles(seed: int, kind: str, draw: Draw, queues: tuple[QueuePlan, ...]) -> Plan:
    """A small world in which everything goes wrong that can."""
    rng = draw.rng
    names = tuple(queue.name for queue in queues)
    default_group, path = draw.chance(0.2), "hook" if draw.chance(0.3) else None
    groups = [
        Group(
            DEFAULT_GROUP if default_group and n == 0 else f"g{n}",
            rng.choice(POOLS),
            rng.choice(("flaky", "odd", "down", "healthy")),
            draw.mode(),
            fed_by(draw, names, n),
            path,
        )
        for n in range(rng.randint(2, 9))
    ]
    in_step = draw.chance(0.4)
    return Plan(
        seed,
        kind,
        "troubles",
        queues,
        pools=draw.pools(),
        letters=draw_letters(draw, groups, rng.randint(50, 70)),
        acts=_acts(draw, queues, in_step),
        http_timeout_s=rng.choice((5.0, 30.0, 45.0)),
        queue_faults=draw.queue_faults(),
        endpoint_troubles=frozenset(name for name in ENDPOINT_TROUBLES if draw.chance(0.5)),
        dead_letters_fail=0.3 if draw.chance(0.3) else 0.0,
        in_step=in_step,
        parked_limit=SMALL_PARKED_LIMIT if draw.chance(0.15) else None,
    )


def fed_by(draw: Draw, queues: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Two queues in six of ten groups if there are two, else one queue after the other."""
    if len(queues) > 1 and draw.chance(0.6):
        return tuple(draw.rng.sample(queues, 2))
    return (queues[number % len(queues)],)


def _acts(draw: Draw, queues: tuple[QueuePlan, ...], in_step: bool) -> list[Act]:
    rng = draw.rng
    acts = []
    if draw.chance(0.5):
        acts += [Act(rng.uniform(1.0, TROUBLES_S), "reload", draw.pools()) for _ in range(rng.randint(1, 5))]
    if draw.chance(0.5):
        what = rng.choice(("crash", "crash", "stop and crash"))
        acts += [Act(rng.uniform(0.0, TROUBLES_S), what, steps=rng.randint(1, 200)) for _ in range(rng.randint(1, 3))]
    if draw.chance(0.4):
        acts += [Act(rng.uniform(1.0, TROUBLES_S), "stop") for _ in range(rng.randint(1, 2))]
    if draw.chance(0.15):
        acts += clock_steps(draw, TROUBLES_S)
    acts += connection_cuts(draw, queues, TROUBLES_S)
    if in_step:
        acts = [replace(act, at=round(act.at / STEP_S) * STEP_S) for act in acts]
    return sorted(acts, key=lambda act: act.at)


def clock_steps(draw: Draw, until: float) -> list[Act]:
    rng = draw.rng
    return [Act(rng.uniform(1.0, until), "step", seconds=rng.choice((YEAR_S, -HOUR_S, 90.0))) for _ in range(2)]


def connection_cuts(draw: Draw, queues: tuple[QueuePlan, ...], until: float) -> list[Act]:
    """In six of ten plans each connection breaks now and then; another router takes part of what it had, or not."""
    rng = draw.rng
    acts = []
    for queue in queues:
        if queue.kind == "connection" and draw.chance(0.6):
            for _ in range(rng.randint(1, 4)):
                seconds, taken = rng.uniform(0.3, 6.0), rng.choice((0.0, 0.5, 1.0))
                acts.append(Act(rng.uniform(1.0, until), "cut", queue=queue.name, seconds=seconds, taken=taken))
    return acts


def reloads(seed: int, moments: Iterable[float]) -> list[Act]:
    """A reload with other pools and limits at each of these moments."""
    draw = Draw(random.Random(seed))
    return [Act(at, "reload", draw.pools()) for at in moments]
