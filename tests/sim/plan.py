"""Plan: what happens in one simulated history, drawn from a seed.

Each kind of trouble is in a plan or not (swarm testing): a history with everything at once hides more than it shows.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from flowcatalyst.message import DEFAULT_POOL, DispatchMode, MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.routing.groups import FailureScope
from flowcatalyst.routing.limits import PoolLimits
from flowcatalyst.simulation.history import Facts
from flowcatalyst.simulation.queue import QueueFaults

POOLS = (DEFAULT_POOL, "A", "B")
TROUBLES_S = 120.0  # how long faults go on
PROMPT_S = 15.0
STEP_S = 0.1


@dataclass(slots=True, frozen=True)
class Letter:
    """A message and when it is published."""

    at: float
    queue: str
    name: str
    outgoing: Outgoing
    facts: Facts


@dataclass(slots=True, frozen=True)
class Act:
    """Something that is done to the router."""

    at: float
    what: str  # reload, stop, crash, stop and crash
    pools: dict[str, PoolLimits] = field(default_factory=dict)
    steps: int = 0  # crash after so many steps of the router


@dataclass(slots=True)
class Plan:
    seed: int
    ordered: bool
    visibility_s: float
    http_timeout_s: float
    max_batch: int
    pools: dict[str, PoolLimits]
    letters: list[Letter]
    acts: list[Act]
    queue_faults: QueueFaults
    endpoint_troubles: frozenset[str]
    dead_letters_fail: float
    queues: tuple[str, ...]
    in_step: bool = False  # answers and acts come at whole tenths of a second: much happens at the same moment


@dataclass(slots=True, frozen=True)
class _Group:
    name: str
    pool: str
    host: str
    mode: DispatchMode | None
    queue: str


class _Draw:
    """Choices from the seed, in words."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chance: Callable[[float], bool] = lambda share: rng.random() < share

    def limits(self) -> PoolLimits:
        rng = self.rng
        return PoolLimits(
            concurrency=rng.randint(1, 6),
            rate_per_minute=rng.choice((None, None, None, rng.randint(20, 120))),
            failure_scope=FailureScope.BATCH if self.chance(0.05) else FailureScope.GROUP,
            max_delivery_attempts=rng.choice((None, None, rng.randint(2, 8))),
            capacity=rng.choice((None, None, rng.randint(3, 20))),
        )

    def pools(self) -> dict[str, PoolLimits]:
        """Sometimes without the default pool, which is then made on demand."""
        wanted = [code for code in POOLS if self.chance(0.75)]
        return {code: self.limits() for code in wanted or [DEFAULT_POOL]}

    def queue_faults(self) -> QueueFaults:
        faults = QueueFaults()
        if self.chance(0.35):
            return faults
        for name in QueueFaults.__slots__:
            if self.chance(0.4):
                longest = 3.0 if name == "latency_s" else 0.25
                setattr(faults, name, self.rng.uniform(0.02, longest))
        return faults

    def mode(self) -> DispatchMode | None:
        modes = (None, None, DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE)
        return self.rng.choice(modes)


def draw_plan(seed: int, *, ordered: bool) -> Plan:
    """The plan of a seed; one in eight is about isolation alone."""
    rng = random.Random(seed * 2 + ordered)
    draw = _Draw(rng)
    if seed % 8 == 7:
        return _isolation_plan(seed, ordered, draw)
    queues = ("q",) if draw.chance(0.8) else ("q", "r")
    groups = [
        _Group(
            f"g{n}",
            rng.choice(POOLS),
            rng.choice(("flaky", "odd", "down", "healthy")),
            draw.mode(),
            queues[n % len(queues)],
        )
        for n in range(rng.randint(2, 9))
    ]
    in_step = draw.chance(0.4)
    troubles = frozenset(name for name in ENDPOINT_TROUBLES if draw.chance(0.5))
    return Plan(
        seed=seed,
        ordered=ordered,
        visibility_s=rng.choice((4.0, 10.0, 30.0, 60.0)),
        http_timeout_s=rng.choice((5.0, 30.0, 45.0)),
        max_batch=rng.choice((1, 3, 10, 10)),
        pools=draw.pools(),
        letters=_letters(draw, groups, rng.randint(50, 70)),
        acts=_acts(draw, in_step),
        queue_faults=draw.queue_faults(),
        endpoint_troubles=troubles,
        dead_letters_fail=0.3 if draw.chance(0.3) else 0.0,
        queues=queues,
        in_step=in_step,
    )


ENDPOINT_TROUBLES = (
    "server errors",
    "client errors",
    "not acked",
    "rate limited",
    "resets",
    "slow",
    "timeouts",
    "outage",
    "odd statuses",
)


def _letters(draw: _Draw, groups: list[_Group], count: int) -> list[Letter]:
    rng = draw.rng
    weights = [1.0 / (n + 1) for n in range(len(groups))]
    high, poison, copies = (draw.chance(share) for share in (0.3, 0.3, 0.25))
    spread_s = rng.choice((0.0, 30.0, 90.0))
    letters = []
    for n, group in enumerate(rng.choices(groups, weights, k=count)):
        at = 0.0 if draw.chance(0.3) else rng.uniform(0.0, spread_s)
        readable = not (poison and draw.chance(0.05))
        letters.append(_letter_for(f"m{n}", group, high=high and draw.chance(0.15), at=at, readable=readable))
    letters.sort(key=lambda one: one.at)
    if copies:
        for original in rng.sample([one for one in letters if one.facts.readable], 3):
            letters.append(_copy(original, original.at + rng.uniform(0.0, 10.0)))
        letters.sort(key=lambda one: one.at)
    return letters


def letter(
    name: str,
    group: str,
    *,
    pool: str = DEFAULT_POOL,
    host: str = "healthy",
    mode: DispatchMode | None = None,
    queue: str = "q",
    high: bool = False,
    at: float = 0.0,
    readable: bool = True,
    prompt_s: float | None = None,
) -> Letter:
    """A message for a group, and what is known of it."""
    target = f"http://{host}/{group}"
    pointer = MessagePointer(
        id=name,
        mediation_target=target,
        pool_code=pool,
        message_group_id=group,
        high_priority=high,
        dispatch_mode=mode,
    )
    body = encode_pointer(pointer).decode() if readable else f'{{"id": "{name}"'
    lane = None if mode is DispatchMode.IMMEDIATE else group
    facts = Facts(group, mode, high, pool, target, readable, prompt_s=prompt_s)
    return Letter(at, queue, name, Outgoing(body, lane), facts)


def _letter_for(
    name: str,
    group: _Group,
    *,
    high: bool = False,
    at: float = 0.0,
    readable: bool = True,
    prompt_s: float | None = None,
) -> Letter:
    return letter(
        name,
        group.name,
        pool=group.pool,
        host=group.host,
        mode=group.mode,
        queue=group.queue,
        high=high,
        at=at,
        readable=readable,
        prompt_s=prompt_s,
    )


def _copy(original: Letter, at: float) -> Letter:
    facts = original.facts
    copied = Facts(facts.group, facts.mode, facts.high_priority, facts.pool, facts.target, True, copy_of=original.name)
    return Letter(at, original.queue, f"{original.name}#2", original.outgoing, copied)


def _acts(draw: _Draw, in_step: bool) -> list[Act]:
    rng = draw.rng
    acts = []
    if draw.chance(0.5):
        acts += [Act(rng.uniform(1.0, TROUBLES_S), "reload", draw.pools()) for _ in range(rng.randint(1, 5))]
    if draw.chance(0.5):
        what = rng.choice(("crash", "crash", "stop and crash"))
        acts += [Act(rng.uniform(0.0, TROUBLES_S), what, steps=rng.randint(1, 200)) for _ in range(rng.randint(1, 3))]
    if draw.chance(0.4):
        acts += [Act(rng.uniform(1.0, TROUBLES_S), "stop") for _ in range(rng.randint(1, 2))]
    if in_step:
        acts = [replace(act, at=round(act.at / STEP_S) * STEP_S) for act in acts]
    return sorted(acts, key=lambda act: act.at)


def reloads(seed: int, moments: Iterable[float]) -> list[Act]:
    """A reload with other pools and limits at each of these moments."""
    draw = _Draw(random.Random(seed))
    return [Act(at, "reload", draw.pools()) for at in moments]


def _isolation_plan(seed: int, ordered: bool, draw: _Draw) -> Plan:
    """Some groups are stuck for good; the others have slots enough and must not notice."""
    rng = draw.rng
    trouble = rng.choice(("outage", "timeouts", "server errors", "rate limited"))
    crowded = draw.chance(0.5)  # the stuck ones have a pool of their own, and fill it
    concurrency = 20 if trouble == "timeouts" else rng.choice((1, 3, 20))
    pools = {code: PoolLimits(concurrency=concurrency) for code in POOLS}
    if crowded:
        pools["A"] = PoolLimits(concurrency=concurrency, capacity=11)
    stuck_in, healthy_in = (("A",), (DEFAULT_POOL, "B")) if crowded else (POOLS, POOLS)
    stuck = [_Group(f"s{n}", rng.choice(stuck_in), "down", draw.mode(), "q") for n in range(3)]
    healthy = [_Group(f"h{n}", rng.choice(healthy_in), "healthy", draw.mode(), "q") for n in range(4)]
    letters = [_letter_for(f"m{n}", rng.choice(stuck), at=rng.uniform(0.0, 60.0)) for n in range(20)]
    letters += [
        _letter_for(f"m{n}", rng.choice(healthy), at=rng.uniform(0.0, 100.0), prompt_s=PROMPT_S) for n in range(20, 60)
    ]
    return Plan(
        seed=seed,
        ordered=ordered,
        visibility_s=30.0,
        http_timeout_s=30.0,
        max_batch=10,
        pools=pools,
        letters=sorted(letters, key=lambda one: one.at),
        acts=[],
        queue_faults=QueueFaults(),
        endpoint_troubles=frozenset({trouble}),
        dead_letters_fail=0.0,
        queues=("q",),
    )
