"""Plan: what happens to dispatch jobs in one simulated history, drawn from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode, Terms
from flowcatalyst.dispatch.job import DEFAULT_SEQUENCE, Job, Kind
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.jobs.store import StoreFaults

TROUBLES_S = 20.0  # how long faults go on
YEAR_S, HOUR_S = 365 * 86400.0, 3600.0
NACK_DELAY_S = 4.0
ENDPOINT_TROUBLES = (
    "server error",
    "gateway",
    "refused",
    "reset",
    "hang",
    "bad request",
    "429",
    "429 bare",
    "ack=false",
)
MODES = tuple(DispatchMode)
GROUPS = tuple(f"g{n}" for n in range(5))
TWO_POOLS = (DEFAULT_POOL, "A")


@dataclass(slots=True, frozen=True)
class Order:
    """A job that somebody will ask for. Times are relative to when that is."""

    name: str
    group: str | None
    mode: DispatchMode
    host: str
    pool: str
    terms: Terms
    sequence: int = DEFAULT_SEQUENCE
    scheduled_in: float | None = None
    expires_in: float | None = None
    key: str | None = None

    def job(self, job_id: str, wall: float) -> Job:
        return Job(
            id=job_id,
            kind=Kind.TASK,
            code="simulated",
            target=f"http://{self.host}/{self.group}",
            payload=None,
            content_type="application/json",
            headers=(),
            group=self.group,
            sequence=self.sequence,
            mode=self.mode,
            pool=self.pool,
            terms=self.terms,
            scheduled_for=None if self.scheduled_in is None else wall + self.scheduled_in,
            expires_at=None if self.expires_in is None else wall + self.expires_in,
            idempotency_key=self.key,
            metadata={},
            created_at=wall,
        )


@dataclass(slots=True, frozen=True)
class Act:
    """Something that is done to a process, to the clock, or by a person."""

    at: float
    what: str
    process: str = ""
    seconds: float = 0.0
    steps: int = 0
    code: str = ""  # of a subscription


@dataclass(slots=True)
class Plan:
    seed: int
    theme: str
    processes: tuple[str, ...]
    pools: dict[str, PoolLimits]
    batches: list[tuple[float, list[Order]]]  # asked for together, at a time
    acts: list[Act]
    store_faults: StoreFaults
    endpoint_troubles: tuple[str, ...]
    visibility_s: float = 60.0
    poll_interval_s: float = 0.25
    long_poll_s: float = 5.0  # long: a wake-up that is lost is not made good by the next look
    troubles_s: float = TROUBLES_S

    @property
    def is_prompt(self) -> bool:
        return self.theme == "prompt"

    @property
    def is_divided(self) -> bool:
        return self.theme == "shares"

    @property
    def orders(self) -> Iterator[Order]:
        return (order for _, batch in self.batches for order in batch)


@dataclass(slots=True)
class Draw:
    rng: random.Random
    hosts: tuple[str, ...]
    pools: tuple[str, ...] = TWO_POOLS
    features: frozenset[str] = field(default_factory=frozenset)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def terms(self) -> Terms:
        rng = self.rng
        delays = tuple(rng.choice((0.0, 0.3, 1.0, 2.0, 5.0)) for _ in range(rng.randint(1, 3)))
        return Terms(rng.choice((1.0, 2.0, 3.0)), rng.choice((0, 1, 2, 3, 3, 8)), delays)

    def orders(self, count: int) -> list[Order]:
        rng = self.rng
        groups = GROUPS[: rng.randint(1, 5)]
        homes = {group: (rng.choice(self.pools), rng.choice(self.hosts)) for group in groups}
        modes = MODES if "mixed modes" in self.features else (rng.choice(MODES),)
        orders = []
        for n in range(count):
            group: str | None = rng.choice(groups)
            pool, host = homes[group or ""]
            mode = rng.choice(modes)
            if self.chance(0.1):
                pool = rng.choice(self.pools)
            if mode is DispatchMode.IMMEDIATE and self.chance(0.2):
                group = None
            sequence = rng.choice((1, 2, 3, DEFAULT_SEQUENCE)) if "sequences" in self.features else DEFAULT_SEQUENCE
            scheduled_in = rng.uniform(0.2, 12.0) if "scheduled" in self.features and self.chance(0.2) else None
            expires_in = None
            if "expiring" in self.features and self.chance(0.25):
                expires_in = (scheduled_in or 0.0) + rng.choice((0.3, 2.0, 8.0, 30.0))
            key = f"k{n}" if self.chance(0.6) else None
            orders.append(
                Order(f"j{n}", group, mode, host, pool, self.terms(), sequence, scheduled_in, expires_in, key)
            )
        return orders

    def batches(self, count: int, until: float) -> list[tuple[float, list[Order]]]:
        rng, orders, batches = self.rng, self.orders(count), []
        spread_s = rng.choice((0.0, until / 3, until * 0.8))
        while orders:
            size = rng.choice((1, 1, 1, 2, 4, 10))
            at = 0.0 if self.chance(0.2) else rng.uniform(0.0, spread_s)
            batches.append((at, orders[:size]))
            orders = orders[size:]
        return sorted(batches, key=lambda batch: batch[0])

    def store_faults(self) -> StoreFaults:
        faults = StoreFaults()
        if self.chance(0.35):
            return faults
        for name in ("write_fails", "answer_is_lost", "neighbour_fails", "read_fails", "is_slow"):
            if self.chance(0.4):
                setattr(faults, name, self.rng.uniform(0.01, 0.2))
        if self.chance(0.3):
            faults.latency_s = self.rng.choice((0.02, 0.3, 1.0))
        return faults

    def acts(self, processes: tuple[str, ...], visibility_s: float) -> list[Act]:
        rng, acts = self.rng, list[Act]()

        def some(most: int) -> Iterator[tuple[float, str]]:
            for _ in range(rng.randint(1, most)):
                yield rng.uniform(0.5, TROUBLES_S), rng.choice(processes)

        if self.chance(0.5):
            what = rng.choice(("crash", "crash", "stop and crash"))
            acts += [Act(at, what, name, steps=rng.randint(1, 60)) for at, name in some(4)]
        if self.chance(0.35):
            acts += [Act(at, "stop", name) for at, name in some(2)]
        if self.chance(0.4):
            acts += [
                Act(at, "pause", name, rng.choice((1.0, visibility_s + rng.uniform(0.1, 6.0)))) for at, name in some(3)
            ]
        if self.chance(0.3):
            acts += [Act(at, "cut off", name, rng.choice((0.5, 3.0, visibility_s + 2.0))) for at, name in some(3)]
        if self.chance(0.15):
            acts += [Act(at, "step", seconds=rng.choice((YEAR_S, -HOUR_S, 5.0, -5.0))) for at, _ in some(2)]
        if self.chance(0.7):
            whats = ("retry", "retry", "cancel", "change", "change", "hold", "edit")
            acts += [Act(at, rng.choice(whats), seconds=rng.uniform(0.5, 6.0)) for at, _ in some(25)]
        return acts


def draw_plan(seed: int) -> Plan:
    rng = random.Random(f"jobs:{seed}")
    if seed % 16 in (9, 12):
        return _shares(seed, rng)
    if seed % 8 == 5:
        return _lapse(seed, rng)
    if seed % 8 == 2:
        return _recalls(seed, rng)
    return _prompt(seed, rng) if seed % 4 == 3 else _troubles(seed, rng)


def _features(rng: random.Random) -> frozenset[str]:
    return frozenset(name for name in ("mixed modes", "sequences", "scheduled", "expiring") if rng.random() < 0.6)


def _troubles(seed: int, rng: random.Random) -> Plan:
    """Everything goes wrong that can."""
    draw = Draw(rng, ("flaky", "flaky", "healthy", "odd", "down"), features=_features(rng))
    processes = tuple(f"p{n}" for n in range(rng.choice((1, 2, 2, 3))))
    visibility_s = rng.choice((3.0, 3.0, 6.0, 20.0))
    pools = {
        code: PoolLimits(concurrency=rng.randint(1, 5), capacity=rng.choice((None, None, rng.randint(2, 10))))
        for code in TWO_POOLS
    }
    acts = sorted(draw.acts(processes, visibility_s), key=lambda act: act.at)
    troubles = tuple(name for name in ENDPOINT_TROUBLES if draw.chance(0.5))
    batches = draw.batches(rng.randint(16, 32), TROUBLES_S)
    return Plan(seed, "troubles", processes, pools, batches, acts, draw.store_faults(), troubles, visibility_s)


def _lapse(seed: int, rng: random.Random) -> Plan:
    """Processes stand still for longer than their leases go on, mostly in the middle of an attempt."""
    plan = _troubles(seed, rng)
    plan.theme, plan.processes, plan.visibility_s = "lapse", ("p0", "p1", "p2")[: rng.randint(2, 3)], 3.0
    plan.batches = Draw(rng, ("slow", "slow", "flaky"), features=_features(rng)).batches(
        rng.randint(16, 32), TROUBLES_S
    )
    pauses = [
        Act(rng.uniform(0.5, TROUBLES_S), "pause", rng.choice(plan.processes), rng.uniform(3.0, 7.0)) for _ in range(6)
    ]
    plan.acts = sorted([*(act for act in plan.acts if act.what != "crash"), *pauses], key=lambda act: act.at)
    return plan


def _shares(seed: int, rng: random.Random) -> Plan:
    """Processes divide the limits of a pool, while some of them come, go, die, stand still and are cut off. There is
    always more to do than they may: most jobs wait for no other, take long, and are not in one process's hands."""
    plan = _troubles(seed, rng)
    plan.theme, plan.processes = "shares", tuple(f"p{n}" for n in range(rng.choice((2, 2, 3, 4))))
    plan.visibility_s, plan.troubles_s = 20.0, 2 * TROUBLES_S  # a process is taken for dead after a fifth of it
    plan.store_faults.is_slow = 0.0
    rate = rng.choice((None, None, rng.randint(30, 60)))
    plan.pools = {DEFAULT_POOL: PoolLimits(rng.randint(1, 5), rate, capacity=rng.randint(2, 5))}
    draw = Draw(rng, ("sluggish", "sluggish", "slow"), (DEFAULT_POOL,), _features(rng) - {"scheduled"})
    patient = [
        replace(
            order,
            terms=replace(order.terms, timeout_s=20.0),
            mode=DispatchMode.IMMEDIATE if draw.chance(0.8) else order.mode,
        )
        for order in draw.orders(rng.randint(40, 60))
    ]
    late = plan.troubles_s * 0.7
    plan.batches = sorted(
        ((rng.choice((0.0, rng.uniform(0.0, late))), [order]) for order in patient), key=lambda batch: batch[0]
    )
    lives = [
        Act(
            rng.uniform(0.5, late),
            rng.choice(("crash", "stop", "pause", "cut off", "cut off", "cut off")),
            rng.choice(plan.processes),
            rng.choice((1.0, rng.uniform(7.0, 12.0), rng.uniform(12.0, 20.0))),  # some for longer than a session lives
            rng.randint(1, 60),
        )
        for _ in range(rng.randint(2, 6))
    ]
    plan.acts = sorted([*lives, *(act for act in plan.acts if draw.chance(0.2))], key=lambda act: act.at)
    return plan


def _recalls(seed: int, rng: random.Random) -> Plan:
    """People act on jobs that routers have in hand: endpoints are slow, and some processes stand still for a while."""
    plan = _troubles(seed, rng)
    plan.theme, plan.visibility_s = "recalls", rng.choice((3.0, 3.0, 20.0))
    plan.pools = {code: PoolLimits(concurrency=rng.randint(1, 3)) for code in TWO_POOLS}
    draw = Draw(rng, ("slow", "slow", "healthy"), features=_features(rng))
    plan.batches = draw.batches(rng.randint(16, 32), TROUBLES_S / 2)
    whats = ("cancel", "edit", "edit", "edit", "hold", "hold", "change", "retry")
    people = [
        Act(rng.uniform(0.5, TROUBLES_S), rng.choice(whats), seconds=rng.uniform(0.5, 4.0))
        for _ in range(rng.randint(10, 40))
    ]
    pauses = [
        Act(rng.uniform(0.5, TROUBLES_S), "pause", rng.choice(plan.processes), rng.uniform(0.2, 6.0))
        for _ in range(rng.randint(0, 4))
    ]
    others = [act for act in plan.acts if draw.chance(0.3)]
    plan.acts = sorted([*people, *pauses, *others], key=lambda act: act.at)
    return plan


def _prompt(seed: int, rng: random.Random) -> Plan:
    """The database is well and so are the processes: what can start has to start at once."""
    draw = Draw(rng, ("healthy", "healthy", "odd"), features=_features(rng))
    processes = tuple(f"p{n}" for n in range(rng.choice((1, 2, 3))))
    pools = {code: PoolLimits(concurrency=rng.randint(1, 4)) for code in TWO_POOLS}
    whats = ("retry", "retry", "cancel", "change", "hold")
    acts = [
        Act(rng.uniform(0.5, 16.0), rng.choice(whats), seconds=rng.uniform(0.5, 4.0)) for _ in range(rng.randint(0, 20))
    ]
    batches = draw.batches(rng.randint(16, 32), 16.0)
    troubles = tuple(name for name in ("server error", "bad request", "429", "ack=false") if draw.chance(0.5))
    acts.sort(key=lambda act: act.at)
    return Plan(seed, "prompt", processes, pools, batches, acts, StoreFaults(), troubles, troubles_s=16.0)
