"""A random walk over a queue in which messages can be put in front, judged by a model that is a list for each group."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from flowcatalyst.queues.front import FrontQueue, GroupInHandError

GROUPS: Final = ("a", "b")
POOLS: Final = ("A", "A", "A", "B")
STEPS: Final = {"publish": 3, "front": 4, "receive": 6, "ack": 4, "nack": 4, "end leases": 1, "wait": 3}
ALL: Final = 100  # more than the walk publishes at a time


class Front(BrokerQueue, FrontQueue, Protocol):
    """A queue with both ends, and a front."""


@dataclass(slots=True)
class Entry:
    """A message as the model knows it."""

    name: str
    pool: str
    is_front: bool
    visible_at: float = 0.0
    held: Delivery | None = None


class FrontWalk(ABC):
    """What routers and people may do to a queue, in any order. Who walks gives it the queue and its time."""

    queue: Front

    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)
        self._groups: dict[str, list[Entry]] = {group: [] for group in GROUPS}
        self._published = 0
        self._story: list[str] = []
        self.seen: set[str] = set()  # what the walk came by

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    async def wait(self, seconds: float) -> None:
        """Nothing that is in hand is lost by that."""

    @abstractmethod
    async def end_leases(self) -> None: ...

    @abstractmethod
    async def look(self) -> None:
        """Check what the storage says of itself."""

    async def go(self, steps: int) -> None:
        for _ in range(steps):
            [what] = self._luck.choices(list(STEPS), list(STEPS.values()))
            await getattr(self, f"_{what.replace(' ', '_')}")()
            await self.look()
            await self._compare_depth()
        await self._drain()

    # Steps

    async def _publish(self) -> None:
        made = [self._new(self._luck.choice(GROUPS)) for _ in range(self._luck.randint(1, 5))]
        self._tell(f"publish {[entry.name for _, entry in made]}")
        await self.queue.publish([_outgoing(group, entry) for group, entry in made])
        for group, entry in made:
            self._groups[group].append(entry)

    async def _front(self) -> None:
        group, entry = self._new(self._luck.choice(GROUPS), is_front=True)
        entries = self._groups[group]
        in_hand = any(one.held for one in entries)
        try:
            await self.queue.publish_in_front(_outgoing(group, entry))
        except GroupInHandError:
            self._tell(f"{entry.name} cannot be put in front")
            assert in_hand, self._told("nobody has messages of the group")
            self.seen.add("refused")
            return
        self._tell(f"{entry.name} in front of {[one.name for one in entries]}")
        assert not in_hand, self._told("somebody has messages of the group")
        if any(one.visible_at > self.now() for one in entries):
            self.seen.add("in front of what is delayed")
        entries.insert(0, entry)

    async def _receive(self, limit: int | None = None) -> list[Entry]:
        limit = limit or self._luck.choice((1, 2, 5, ALL))
        due = [group for group in GROUPS if self._is_ready(group)]
        batch = await self.queue.receive(limit, 0.0)
        names = [_name(delivery) for delivery in batch]
        self._tell(f"receive {limit}: {names}")
        received = []
        for group, entries in self._groups.items():
            mine = [delivery for delivery in batch if delivery.group == group]
            if mine:
                assert group in due, self._told(f"group {group} is locked")
                assert [_name(one) for one in mine] == [one.name for one in entries[: len(mine)]], self._told(
                    "disorder"
                )
                hidden = [one.name for one in entries[: len(mine)] if one.visible_at > self.now()]
                assert not hidden, self._told(f"{hidden} should wait")
            elif limit == ALL:
                assert group not in due, self._told(f"group {group} is ready, and nothing of it came")
            for delivery, entry in zip(mine, entries, strict=False):
                entry.held = delivery
                received.append(entry)
        if any(entry.is_front for entry in received):
            self.seen.add("received a front")
        return received

    async def _ack(self) -> None:
        await self._end(self._some_held())

    async def _end(self, chosen: list[Entry]) -> None:
        if held := [one.held for one in chosen if one.held is not None]:
            self._tell(f"ack {[one.name for one in chosen]}")
            assert set(await self.queue.ack(held)) == {Settled.OK}, self._told("not acked")
            for entries in self._groups.values():
                entries[:] = [one for one in entries if one not in chosen]

    async def _nack(self) -> None:
        chosen = self._some_held()
        delay_s = self._luck.choice((0.0, 0.0, 5.0, 30.0))
        if held := [one.held for one in chosen if one.held is not None]:
            self._tell(f"nack {[one.name for one in chosen]} for {delay_s}")
            assert set(await self.queue.nack(held, delay_s)) == {Settled.OK}, self._told("not nacked")
            for one in chosen:
                one.held, one.visible_at = None, self.now() + delay_s if delay_s else 0.0
                if one.is_front and delay_s:
                    self.seen.add("delayed a front")

    async def _end_leases(self) -> None:
        self._tell("end leases")
        await self.end_leases()
        for entries in self._groups.values():
            for one in entries:
                one.held = None

    async def _wait(self) -> None:
        seconds = self._luck.choice((1.0, 5.0, 12.0))
        self._tell(f"wait {seconds}")
        await self.wait(seconds)

    async def _drain(self) -> None:
        for _ in range(1000):
            if not any(self._groups.values()):
                return
            await self._receive(ALL)
            await self._end([one for entries in self._groups.values() for one in entries if one.held])
            await self.wait(5.0)
        raise AssertionError(self._told("something never comes"))

    # What is known

    def _is_ready(self, group: str) -> bool:
        """Whether something of a group can be received: what was put in front waits for its own delay only."""
        entries, now = self._groups[group], self.now()
        if not entries or any(one.held for one in entries):
            return False
        waits = entries[:1] if entries[0].is_front else entries
        return all(one.visible_at <= now for one in waits)

    async def _compare_depth(self) -> None:
        depth = await self.queue.depth()
        entries = [one for entries in self._groups.values() for one in entries]
        assert depth is not None
        found = depth.leased, depth.waiting + depth.leased + depth.delayed
        assert found == (sum(one.held is not None for one in entries), len(entries)), self._told(f"{depth}")
        assert min(depth.waiting, depth.delayed) >= 0, self._told(f"{depth}")

    def _new(self, group: str, *, is_front: bool = False) -> tuple[str, Entry]:
        self._published += 1
        return group, Entry(f"{group}{self._published}", self._luck.choice(POOLS), is_front)

    def _some_held(self) -> list[Entry]:
        held = [one for entries in self._groups.values() for one in entries if one.held]
        return self._luck.sample(held, self._luck.randint(0, len(held)))

    def _tell(self, what: str) -> None:
        self._story.append(what)

    def _told(self, what: str) -> str:
        return "\n".join([what, *self._story])


def _outgoing(group: str, entry: Entry) -> Outgoing:
    return Outgoing(f'{{"id": "{entry.name}", "poolCode": "{entry.pool}"}}', group)


def _name(delivery: Delivery) -> str:
    return str(delivery.body).split('"')[3]
