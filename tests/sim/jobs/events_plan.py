"""Plan of a history with events: who subscribes to what, who sends what, and what people do to subscriptions."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.subscription import EventTypeBinding, Subscription
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.jobs.store import StoreFaults
from tests.sim.jobs.plan import ENDPOINT_TROUBLES, MODES, TROUBLES_S, TWO_POOLS, Act, Draw, Plan

CODES = tuple(f"s{n}" for n in range(4))
TYPES = ("order.created", "order.paid", "user.created", "user.address.changed")
PATTERNS = (("order.*",), ("**",), ("order.created", "user.**"), ("user.created",), ("order.paid", "*.created"))
EVENT_GROUPS = ("e0", "e1", "e2")
SLOW, MIXED, WELL = ("slow", "healthy"), ("flaky", "healthy", "odd", "down", "slow"), ("healthy",)


@dataclass(slots=True)
class EventsPlan(Plan):
    subscriptions: list[Subscription] = field(default_factory=list)
    sends: list[tuple[float, list[NewEvent]]] = field(default_factory=list)  # together, at a time
    hosts: tuple[str, ...] = MIXED

    @property
    def is_prompt(self) -> bool:
        return self.theme == "events, prompt"


def draw_subscription(rng: random.Random, code: str, hosts: tuple[str, ...], mode: DispatchMode | None) -> Subscription:
    return Subscription(
        code=code,
        target_url=f"http://{rng.choice(hosts)}/{code}",
        event_types=_bindings(rng),
        mode=mode or rng.choice(MODES),
        sequence=rng.choice((1, 1, 1, 2)),
        dispatch_pool_code=rng.choice(TWO_POOLS),
        timeout_seconds=rng.choice((1.0, 2.0)),
        max_retries=rng.choice((0, 1, 3, 8)),
        retry_delays_seconds=tuple(rng.choice((0.3, 1.0, 2.0)) for _ in range(rng.randint(1, 2))),
        delay_seconds=rng.choice((0.0, 0.0, 0.0, 0.0, 1.5)),
        max_age_seconds=rng.choice((None, None, None, None, 12.0)),
        data_only=rng.random() < 0.2,
    )


def _bindings(rng: random.Random) -> tuple[EventTypeBinding, ...]:
    return tuple(map(EventTypeBinding, rng.choice(PATTERNS)))


def edited(rng: random.Random, before: Subscription, hosts: tuple[str, ...]) -> dict[str, object]:
    """What somebody changes about a subscription."""
    match rng.choice(("types", "types", "mode", "target")):
        case "types":
            return {"event_types": _bindings(rng)}
        case "mode":
            return {"mode": rng.choice(MODES)}
    return {"target_url": f"http://{rng.choice(hosts)}/{before.code}/{rng.randint(1, 99)}"}


def draw_events_plan(seed: int) -> EventsPlan:
    rng = random.Random(f"events:{seed}")
    if seed % 4 == 3:
        return _prompt(seed, rng)
    return _people(seed, rng) if seed % 4 == 1 else _troubles(seed, rng)


def _subscriptions(rng: random.Random, hosts: tuple[str, ...]) -> list[Subscription]:
    """All three modes are among them."""
    codes = CODES[: rng.randint(3, 4)]
    modes = [*rng.sample(MODES, len(MODES)), None]
    return [draw_subscription(rng, code, hosts, mode) for code, mode in zip(codes, modes, strict=False)]


def _sends(rng: random.Random, count: int, until: float) -> list[tuple[float, list[NewEvent]]]:
    events = [
        NewEvent(
            type=rng.choice(TYPES),
            source="simulation",
            data=msgspec.Raw(b"%d" % number),
            message_group=None if rng.random() < 0.1 else rng.choice(EVENT_GROUPS),
            extensions={"sequence": rng.choice((1, 3, 5))} if rng.random() < 0.2 else {},
            deduplication_id=None if rng.random() < 0.1 else f"d{number}",
        )
        for number in range(count)
    ]
    spread_s, sends = rng.choice((until / 4, until / 2, until * 0.9)), []
    while events:
        size = rng.choice((1, 1, 1, 2, 5))
        sends.append((rng.uniform(0.3, spread_s), events[:size]))
        events = events[size:]
    return sorted(sends, key=lambda send: send[0])


def _done_to_subscriptions(rng: random.Random, most: int, until: float) -> Iterator[Act]:
    whats = ("pause", "pause", "pause", "edit", "edit", "rotate", "rotate", "replay", "remove")
    for _ in range(rng.randint(2, most)):
        what = f"{rng.choice(whats)} subscription"
        yield Act(rng.uniform(0.5, until), what, seconds=rng.choice((0.3, 1.0, 4.0)), code=rng.choice(CODES))


def _troubles(seed: int, rng: random.Random) -> EventsPlan:
    """Everything goes wrong that can."""
    draw = Draw(rng, MIXED)
    processes = tuple(f"p{n}" for n in range(rng.choice((1, 2, 2, 3))))
    visibility_s = rng.choice((3.0, 6.0, 20.0))
    acts = [act for act in draw.acts(processes, visibility_s) if act.what != "step"]
    acts += _done_to_subscriptions(rng, 12, TROUBLES_S)
    return EventsPlan(
        seed,
        "events",
        processes,
        {code: PoolLimits(concurrency=rng.randint(1, 4)) for code in TWO_POOLS},
        [],
        sorted(acts, key=lambda act: act.at),
        draw.store_faults(),
        tuple(name for name in ENDPOINT_TROUBLES if draw.chance(0.5)),
        visibility_s,
        subscriptions=_subscriptions(rng, MIXED),
        sends=_sends(rng, rng.randint(8, 16), TROUBLES_S),
    )


def _people(seed: int, rng: random.Random) -> EventsPlan:
    """People do much to subscriptions whose jobs are in hand: endpoints are slow, processes come and go."""
    plan = _troubles(seed, rng)
    plan.theme, plan.hosts = "events, people", SLOW
    plan.subscriptions = _subscriptions(rng, SLOW)
    plan.sends = _sends(rng, rng.randint(8, 16), TROUBLES_S / 2)
    plan.acts = [act for act in plan.acts if rng.random() < 0.3]
    plan.acts += _done_to_subscriptions(rng, 25, TROUBLES_S)
    plan.acts += [Act(rng.uniform(0.5, TROUBLES_S), "hold", seconds=rng.uniform(0.5, 3.0)) for _ in range(3)]
    if rng.random() < 0.5:
        plan.store_faults = StoreFaults()
    plan.acts.sort(key=lambda act: act.at)
    return plan


def _prompt(seed: int, rng: random.Random) -> EventsPlan:
    """The database is well and so are the processes: what can start has to start at once."""
    until = 14.0
    acts = [*_done_to_subscriptions(rng, 10, until)]
    acts += [
        Act(rng.uniform(0.5, until), rng.choice(("retry", "cancel", "hold")), seconds=rng.uniform(0.5, 3.0))
        for _ in range(rng.randint(0, 8))
    ]
    return EventsPlan(
        seed,
        "events, prompt",
        tuple(f"p{n}" for n in range(rng.choice((1, 2, 3)))),
        {code: PoolLimits(concurrency=rng.randint(1, 4)) for code in TWO_POOLS},
        [],
        sorted(acts, key=lambda act: act.at),
        StoreFaults(),
        tuple(name for name in ("server error", "bad request", "429", "ack=false") if rng.random() < 0.5),
        troubles_s=until,
        subscriptions=_subscriptions(rng, WELL),
        sends=_sends(rng, rng.randint(8, 16), until),
        hosts=WELL,
    )
