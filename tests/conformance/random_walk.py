"""A random walk: what routers may do with a queue, in any order, and what the queue may show them then.

One client after the other receives, acks, gives back, vanishes or closes while messages are published. The walk knows
what each message has come to, so it can judge every single one that is shown.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Final

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import BrokerQueue
from tests.conformance.bench import Bench, grouped, text_of

GROUPS: Final = "abcd"
LEASE_S: Final = 3.0
STEPS: Final = 40
DRAIN_S: Final = 60.0
Step = Callable[[], Awaitable[None]]


class Walk:
    """One walk with its luck."""

    def __init__(self, bench: Bench, seed: int, *, ordered: bool) -> None:
        self._bench = bench
        self._ordered = ordered  # messages of a group have to be shown in order
        self._luck = random.Random(seed)
        self._published = dict.fromkeys(GROUPS, 0)
        self._hand: dict[str, Delivery] = {}  # what the client of now has
        self._ended: set[str] = set()  # the queue confirmed the ack
        self._doubtful: set[str] = set()  # it could not confirm it: comes again or not
        self._story: list[str] = []
        self._client: BrokerQueue

    async def go(self) -> None:
        self._client = await self._bench.client(LEASE_S)
        await self._publish()
        steps = self._possible_steps()
        for _ in range(STEPS):
            step = self._luck.choices(list(steps), list(steps.values()))[0]
            await step()
            await self._keep_leases()
        await self._drain()

    def _possible_steps(self) -> dict[Step, int]:
        """With their weights."""
        steps: dict[Step, int] = {self._publish: 2, self._receive: 8, self._ack: 5, self._crash: 1, self._close: 1}
        if self._bench.capabilities.ordered_redelivery:
            steps[self._fail] = 3  # elsewhere a router keeps what failed
        return steps

    # Steps

    async def _publish(self) -> None:
        names = []
        for group in self._luck.choices(GROUPS, k=self._luck.randint(1, 12)):
            self._published[group] += 1
            names.append(f"{group}{self._published[group]}")
        self._story.append(f"publish {names}")
        await self._client.publish(grouped(*names))

    async def _receive(self) -> None:
        limit = self._luck.randint(1, min(12, self._client.batching.max_batch))
        batch = await self._client.receive(limit, self._luck.choice([0.0, 0.2]))
        self._story.append(f"receive {limit}: {[text_of(delivery) for delivery in batch]}")
        assert len(batch) <= limit
        for delivery in batch:
            self._is_shown(delivery)
        if again := [delivery for delivery in batch if text_of(delivery) in self._doubtful]:
            await self._end(again)

    async def _ack(self) -> None:
        """The first ones of some groups."""
        chosen: list[Delivery] = []
        for group in GROUPS:
            held = self._held(group)
            chosen += held[: self._luck.randint(0, len(held))]
        if chosen:
            await self._end(chosen)

    async def _fail(self) -> None:
        """The first one of a group fails, and those behind it go back with it."""
        if head_and_followers := self._held(self._luck.choice(GROUPS)):
            head, *followers = head_and_followers
            self._story.append(f"give back {[text_of(delivery) for delivery in head_and_followers]}")
            for delivery in head_and_followers:
                del self._hand[text_of(delivery)]
            await self._client.nack([head], self._luck.choice([0.0, 0.3, 1.0]))
            if followers:
                await self._client.nack(followers, self._luck.choice([0.0, 0.2]))

    async def _crash(self) -> None:
        self._story.append(f"vanish with {list(self._hand)}")
        await self._bench.crash(self._client)
        await self._begin_again()

    async def _close(self) -> None:
        self._story.append(f"close with {list(self._hand)}")
        await self._client.close()
        await self._begin_again()

    async def _begin_again(self) -> None:
        self._hand.clear()
        self._client = await self._bench.client(LEASE_S)

    async def _keep_leases(self) -> None:
        soon = self._bench.clock.monotonic() + LEASE_S * 0.7
        if ending := [delivery for delivery in self._hand.values() if delivery.lease_until < soon]:
            await self._client.extend(ending, LEASE_S)

    async def _drain(self) -> None:
        give_up_at = self._bench.clock.monotonic() + DRAIN_S
        while missing := self._all() - self._ended - self._doubtful:
            assert self._bench.clock.monotonic() < give_up_at, self._told(f"never shown: {sorted(missing)}")
            for group in GROUPS:
                if held := self._held(group):
                    await self._end(held)
            await self._receive()
        for delivery in await self._client.receive(1, LEASE_S + 1.0):
            self._is_shown(delivery)

    # What is known

    def _all(self) -> set[str]:
        return {f"{group}{number}" for group, count in self._published.items() for number in range(1, count + 1)}

    def _held(self, group: str) -> list[Delivery]:
        """In order."""
        names = [f"{group}{number}" for number in range(1, self._published[group] + 1)]
        return [self._hand[name] for name in names if name in self._hand]

    async def _end(self, deliveries: list[Delivery]) -> None:
        results = await self._client.ack(deliveries)
        for delivery, result in zip(deliveries, results, strict=True):
            name = text_of(delivery)
            self._story.append(f"ack {name}: {result}")
            self._hand.pop(name, None)
            if result is Settled.OK:
                self._doubtful.discard(name)
                self._ended.add(name)
            else:
                self._doubtful.add(name)

    def _is_shown(self, delivery: Delivery) -> None:
        name = text_of(delivery)
        assert name not in self._ended, self._told(f"{name} is shown after its ack")
        if name in self._doubtful:
            return
        if (held := self._hand.get(name)) is not None:
            assert held.lease_until <= self._bench.clock.monotonic() + 0.1, self._told(f"{name} is shown although held")
        elif self._ordered:
            settled = self._ended | self._doubtful
            before = (f"{name[0]}{number}" for number in range(1, int(name[1:])))
            passed = [one for one in before if one not in settled and one not in self._hand]
            assert not passed, self._told(f"{name} is shown before {passed}")
        self._hand[name] = delivery

    def _told(self, what: str) -> str:
        return "\n".join([what, *self._story])
