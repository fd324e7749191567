"""Letters: messages of a plan, when they are published and what is known of them."""

from dataclasses import dataclass, replace

from flowcatalyst.core.message import DEFAULT_GROUP, DEFAULT_POOL, DispatchMode, MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.simulation.history import Facts
from tests.sim.draw import Draw


@dataclass(slots=True, frozen=True)
class Letter:
    """A message and when it is published."""

    at: float
    queue: str
    name: str
    outgoing: Outgoing
    facts: Facts


@dataclass(slots=True, frozen=True)
class Group:
    """Where its messages come from and go to."""

    name: str
    pool: str = DEFAULT_POOL
    host: str = "healthy"
    mode: DispatchMode | None = None
    queues: tuple[str, ...] = ("q",)
    path: str | None = None  # of its target; None: one of its own, and with it a circuit breaker of its own


def letter(
    name: str,
    group: Group,
    *,
    queue: str | None = None,
    high: bool = False,
    at: float = 0.0,
    readable: bool = True,
    prompt_s: float | None = None,
    message_id: str | None = None,
    path: str = "",
) -> Letter:
    """A message for a group. One that shares its id with another has a token, so that the history knows it."""
    queue = queue or group.queues[0]
    target = f"http://{group.host}/{group.path or group.name}{path}"
    pointer = MessagePointer(
        id=message_id or name,
        mediation_target=target,
        pool_code=group.pool,
        auth_token=None if message_id is None else name,
        message_group_id=None if group.name == DEFAULT_GROUP else group.name,
        high_priority=high,
        dispatch_mode=group.mode,
    )
    body = encode_pointer(pointer).decode() if readable else f'{{"id": "{name}"'
    lane = None if group.mode is DispatchMode.IMMEDIATE else group.name
    facts = Facts(group.name, group.mode, high, group.pool, target, readable, prompt_s=prompt_s, queue=queue)
    return Letter(at, queue, name, Outgoing(body, lane), facts)


def draw_letters(draw: Draw, groups: list[Group], count: int) -> list[Letter]:
    """Most of them for the first groups; some urgent, unreadable, published twice, or with the id of another one."""
    rng = draw.rng
    weights = [1.0 / (n + 1) for n in range(len(groups))]
    high, poison, copies, twins = (draw.chance(share) for share in (0.3, 0.3, 0.25, 0.2))
    spread_s = rng.choice((0.0, 30.0, 90.0))
    letters = []
    for n, group in enumerate(rng.choices(groups, weights, k=count)):
        at = 0.0 if draw.chance(0.3) else rng.uniform(0.0, spread_s)
        readable = not (poison and draw.chance(0.05))
        urgent, queue = high and draw.chance(0.15), rng.choice(group.queues)
        letters.append(letter(f"m{n}", group, queue=queue, high=urgent, at=at, readable=readable))
    sound = [one for one in letters if one.facts.readable]
    if copies:
        letters += [_copy(original, original.at + rng.uniform(0.0, 10.0)) for original in rng.sample(sound, 3)]
    if twins:
        letters += [_twin(draw, original, groups) for original in rng.sample(sound, 3)]
    return sorted(letters, key=lambda one: one.at)


def _copy(original: Letter, at: float) -> Letter:
    """The same application message once more, under another broker id."""
    return replace(
        original, at=at, name=f"{original.name}#2", facts=replace(original.facts, copy_of=original.name, prompt_s=None)
    )


def _twin(draw: Draw, original: Letter, groups: list[Group]) -> Letter:
    """A different message with the same application id: in another queue or group, or for another target."""
    home = next(group for group in groups if group.name == original.facts.group)
    other_queues = [name for name in home.queues if name != original.queue]
    other_groups = [group for group in groups if group is not home]
    where = draw.rng.choice(("queue", "group", "target"))
    group, path = home, "/other"
    queue = original.queue
    if where == "queue" and other_queues:
        queue, path = draw.rng.choice(other_queues), ""
    elif where == "group" and other_groups:
        group, path = draw.rng.choice(other_groups), ""
        queue = draw.rng.choice(group.queues)
    at = original.at + draw.rng.choice((0.0, draw.rng.uniform(0.0, 10.0)))
    return letter(f"{original.name}~", group, queue=queue, at=at, message_id=original.name, path=path)
