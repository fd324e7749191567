"""What the conformance suite needs of a broker under test."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from flowcatalyst.core.clock import Clock, SystemClock
from flowcatalyst.core.message import Capabilities, Delivery
from flowcatalyst.queues.contract import BrokerQueue, Outgoing

SHORT_LEASE_S = 2.0  # long enough that a busy machine does not lose a lease by accident


class Bench(ABC):
    """One broker with one queue that nobody used before. Clients of the queue come and go through it."""

    has_server = True  # there is a process that can be killed
    counts_calls = False  # `calls` tells how many requests its clients have made

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self._clients: list[BrokerQueue] = []

    @property
    def capabilities(self) -> Capabilities:
        """Of the queue, with leases of a minute."""
        return self.make(60.0).capabilities

    @abstractmethod
    def make(self, visibility_s: float) -> BrokerQueue:
        """One more client of the queue, not open yet: as another process would have it."""

    async def client(self, visibility_s: float = 60.0) -> BrokerQueue:
        """One more client of the queue, open."""
        queue = self.make(visibility_s)
        await queue.open()
        self._clients.append(queue)
        return queue

    async def crash(self, client: BrokerQueue) -> None:
        """The process of this client vanishes without a word: nothing is settled or given back."""
        self._clients.remove(client)
        await self.cut(client)

    @abstractmethod
    async def cut(self, client: BrokerQueue) -> None:
        """Close the sockets of a client without a word, and release what the test process would leak."""

    @abstractmethod
    def spoil(self, delivery: Delivery) -> None:
        """Replace its receipt by one that the broker never gave."""

    def kill_server(self) -> None:
        """End the broker's process without a farewell."""
        raise NotImplementedError

    def start_server(self) -> None:
        """Start it again, at the same address and with what it kept; returns when it answers."""
        raise NotImplementedError

    def calls(self, client: BrokerQueue) -> int:
        """Requests that this client has made so far."""
        raise NotImplementedError

    async def publish_foreign(self, body: bytes, group: str) -> None:
        """Publish a body that our publisher might refuse, with the broker's own client."""
        client = await self.client()
        await client.publish([Outgoing(body.decode(errors="replace"), group)])

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def grouped(*names: str) -> list[Outgoing]:
    """Messages whose group is the first character of their body."""
    return [Outgoing(name, name[0]) for name in names]


def for_pool(pool: str, *names: str) -> list[Outgoing]:
    """Messages that name a pool. Their group is the first character of their id."""
    return [Outgoing(f'{{"id": "{name}", "poolCode": "{pool}"}}', name[0]) for name in names]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Of messages made by `for_pool`."""
    return [text_of(delivery).split('"')[3] for delivery in deliveries]


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [text_of(delivery) for delivery in deliveries]


def text_of(delivery: Delivery) -> str:
    body = delivery.body
    return body if isinstance(body, str) else body.decode()


async def take(client: BrokerQueue, count: int, within_s: float = 15.0) -> list[Delivery]:
    """Receive until `count` messages have come, or the time is over."""
    taken: list[Delivery] = []
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while len(taken) < count and (left := give_up_at - loop.time()) > 0:
        limit = min(count - len(taken), client.batching.max_batch)
        taken += await client.receive(limit, min(left, 1.0))
    return taken


async def nothing_comes(client: BrokerQueue, within_s: float) -> bool:
    return await client.receive(10, within_s) == []


def in_order(names: Sequence[str]) -> bool:
    """Whether those of each group (first character) are in the order of their numbers."""
    groups: dict[str, list[int]] = {}
    for name in names:
        groups.setdefault(name[0], []).append(int(name[1:]))
    return all(numbers == sorted(numbers) for numbers in groups.values())
