"""By hand: what people do to messages, groups, endpoints and pools in a history, drawn from a source of its own.

When is planned; to whom is drawn when it is done, among what the router has then. What has to start in time whatever
else is stuck, and all that shares a group, an endpoint or a pool with it, is left alone.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from flowcatalyst.core.message import DispatchMode, encode_pointer, parse_pointer
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router.acting import Acts, Found
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import PauseKind
from flowcatalyst.simulation.people import People
from flowcatalyst.simulation.world import World
from tests.sim.letters import Group, Letter, letter
from tests.sim.plan import HANDLED_HOST, STEP_S, ByHand, Plan

HANDLED_POOL = "H"
MANY = 6


@dataclass(slots=True, frozen=True)
class Leeway:
    """What people may act on."""

    groups: list[str]
    endpoints: list[str]
    origins: list[str]
    pools: list[str]
    messages: frozenset[str]

    @classmethod
    def of(cls, plan: Plan) -> "Leeway":
        sound = [one.facts for one in plan.letters if one.facts.readable]
        prompt = [facts for facts in sound if facts.prompt_s is not None]
        groups = _without({facts.group or "" for facts in prompt}, (facts.group or "" for facts in sound))
        return cls(
            groups,
            _without({endpoint_of(facts.target) for facts in prompt}, (endpoint_of(facts.target) for facts in sound)),
            _without({origin_of(facts.target) for facts in prompt}, (origin_of(facts.target) for facts in sound)),
            _without({facts.pool for facts in prompt}, (facts.pool for facts in sound)),
            frozenset(one.name for one in plan.letters if one.facts.group in groups and one.facts.copy_of is None),
        )


def _without(taken: set[str], names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name not in taken]


def with_handled_groups(plan: Plan, rng: random.Random) -> None:
    """Where most groups are stuck or left alone: some healthy ones, with a pool of their own, to act on."""
    plan.pools[HANDLED_POOL] = PoolLimits(concurrency=rng.randint(1, 3), capacity=rng.choice((None, 4)))
    queues = [queue.name for queue in plan.queues]
    modes = (None, DispatchMode.BLOCK_ON_ERROR, DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE)
    groups = [
        Group(f"x{n}", HANDLED_POOL, HANDLED_HOST, rng.choice(modes) if n > 1 else None, (rng.choice(queues),))
        for n in range(rng.randint(2, MANY))
    ]
    begin, end = rng.choice((0.0, plan.troubles_s / 3)), plan.troubles_s * 0.8
    letters = [letter(f"x{n}", rng.choice(groups), at=rng.uniform(begin, end)) for n in range(rng.randint(10, 25))]
    plan.letters = sorted([*plan.letters, *letters], key=lambda one: one.at)


def draw_by_hand(plan: Plan, rng: random.Random) -> list[ByHand]:
    """Some of everything, in most plans."""
    leeway, last = Leeway.of(plan), plan.troubles_s - 1.0
    acts = []
    for what, most in (("retry", 6), ("skip", 4), ("skip any", 4), ("replay", 4)):
        if rng.random() < 0.75:
            acts += [ByHand(rng.uniform(0.5, last), what) for _ in range(rng.randint(1, most))]
    for kind, names, most in (
        (PauseKind.GROUP, leeway.groups, 4),
        (PauseKind.ENDPOINT, leeway.endpoints, 2),
        (PauseKind.ENDPOINT, leeway.origins, 1),
        (PauseKind.POOL, leeway.pools, 2),
    ):
        if not names or rng.random() < 0.3:
            continue
        for _ in range(rng.randint(1, most)):
            name, at = rng.choice(names), rng.uniform(0.0, last * 0.9)
            until = at + rng.choice((rng.uniform(0.1, 5.0), rng.uniform(5.0, 40.0), last))  # some until all is healed
            acts.append(ByHand(at, "pause", kind, name))
            if until < last:
                acts.append(ByHand(until, "resume", kind, name))
    if plan.in_step:
        acts = [replace(act, at=round(act.at / STEP_S) * STEP_S) for act in acts]
    return sorted(acts, key=lambda act: act.at)


class Hands:
    """Does what was drawn, when its time comes."""

    def __init__(self, world: World, plan: Plan, rng: random.Random) -> None:
        self.people = People(world)
        self._world = world
        self._rng = rng
        self._leeway = Leeway.of(plan)
        copied = {one.facts.copy_of for one in plan.letters}
        self._letters = {one.name: one for one in plan.letters if one.facts.readable and one.name not in copied}
        self._replayed: set[str] = set()

    async def act(self, acts: Iterable[ByHand]) -> None:
        for act in acts:
            await asyncio.sleep(max(0.0, act.at - self._world.loop.time()))
            match act.what:
                case "retry":
                    await self.people.retry(self._some_head)
                case "skip":
                    await self.people.skip(self._some_head)
                case "skip any":
                    await self.people.skip(self._any_message)
                case "replay":
                    self._replay()
                case "pause":
                    assert act.kind is not None
                    await self.people.pause(act.kind, act.name)
                case "resume":
                    assert act.kind is not None
                    await self.people.resume(act.kind, act.name)

    def _some_head(self, acts: Acts) -> Found | None:
        """Of a group that waits in its queue, if there is one, or of any."""
        heads = [head for group in self._leeway.groups if (head := acts.head(group)) is not None]
        away = [head for head in heads if isinstance(head, FailedMessage)]
        return self._one_of(away if away and self._rng.random() < 0.7 else heads)

    def _any_message(self, acts: Acts) -> Found | None:
        assert self._world.engine is not None
        ids = [one.broker_id for one in self._world.engine.tracker]
        ids += [one.broker_id for one in self._world.engine.failed.by_message.values()]
        return self._one_of([found for broker_id in dict.fromkeys(ids) if (found := acts.find(broker_id)) is not None])

    def _one_of(self, found: Sequence[Found]) -> Found | None:
        free = [one for one in found if self.people.name_of(one) in self._leeway.messages]
        return self._rng.choice(free) if free else None

    def _replay(self) -> None:
        """Publish a dead letter once more, as a new message behind its group."""
        kept = [name for name in self._world.dead_letters.kept if name in self._letters and name not in self._replayed]
        if not kept:
            return
        original = self._letters[name := self._rng.choice(kept)]
        self._replayed.add(name)
        again = f"{name}+"
        pointer = msgspec.structs.replace(parse_pointer(original.outgoing.body), id=again, auth_token=None)
        outgoing = Outgoing(encode_pointer(pointer).decode(), original.outgoing.group)
        facts = replace(original.facts, prompt_s=None)
        self._letters[again] = Letter(self._world.loop.time(), original.queue, again, outgoing, facts)
        self._world.queues[original.queue].append(again, outgoing, facts)
