"""What the suite of job stores needs of a database under test, and what its tests share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import Any, cast

import msgspec

from flowcatalyst.core.message import (
    DEFAULT_POOL,
    Attempt,
    Delivery,
    DispatchMode,
    ErrorKind,
    Outcome,
    Result,
    Settled,
    Terms,
)
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import DEFAULT_SEQUENCE, Job, Kind, as_time
from flowcatalyst.dispatch.store.contract import Created, JobStore
from flowcatalyst.dispatch.store.platform_contract import PlatformStore

IMMEDIATE = DispatchMode.IMMEDIATE
NEXT = DispatchMode.NEXT_ON_ERROR
BLOCK = DispatchMode.BLOCK_ON_ERROR
PARKED = inf  # the delay of one that waits for a person


class JobBench(ABC):
    """One database without jobs. Stores on it come and go, each as a process of its own would have it."""

    delay_s = 1.0  # a short wait; a bench whose clock is set by hand may have a longer one

    def __init__(self) -> None:
        self._stores: list[JobStore] = []

    @abstractmethod
    def make(self) -> JobStore:
        """One more store on the same data, not open yet."""

    @abstractmethod
    def wall(self) -> float:
        """The time by which jobs are scheduled and expire."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time go by: set the clock, or wait."""

    @abstractmethod
    async def cut(self, store: JobStore) -> None:
        """The process of this store vanishes without a word. Returns when what it had in hand is free again."""

    @abstractmethod
    async def lose(self, store: JobStore) -> None:
        """What this store has in hand is free for others, as if its process had been paused for too long.

        It does not know, and goes on.
        """

    async def audit(self, store: JobStore) -> None:  # noqa: B027 - a database may count nothing
        """Compare what the database counts with what it holds, where it counts."""

    async def store(self) -> JobStore:
        """One more store on the same data, open."""
        store = self.make()
        await store.open()
        self._stores.append(store)
        return store

    async def platform(self) -> PlatformStore:
        """The same, for those that keep events and a catalog too."""
        return cast(PlatformStore, await self.store())

    async def crash(self, store: JobStore) -> None:
        self._stores.remove(store)
        await self.cut(store)

    async def shut(self, store: JobStore) -> None:
        """Close it as a process does that is stopped."""
        self._stores.remove(store)
        await store.close()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    def job(self, name: str, group: str | None = None, mode: DispatchMode = IMMEDIATE, **more: Any) -> Job:
        """A job whose id is `name`, made now."""
        given: dict[str, Any] = {
            "kind": Kind.TASK,
            "code": "test",
            "target": "http://127.0.0.1:9/hook",
            "payload": b'{"n":1}',
            "content_type": "application/json",
            "headers": (),
            "sequence": DEFAULT_SEQUENCE,
            "pool": DEFAULT_POOL,
            "terms": Terms(30.0, 3, (1.0, 5.0)),
            "scheduled_for": None,
            "expires_at": None,
            "idempotency_key": None,
            "metadata": {},
            "created_at": self.wall(),
        }
        return Job(id=name, group=group, mode=mode, **(given | more))

    def event(self, name: str, **more: Any) -> Event:
        """An event whose id is `name`, that happened now."""
        time = as_time(self.wall())
        assert time is not None
        given: dict[str, Any] = {"type": "order.created", "source": "shop", "time": time, "data": msgspec.Raw(b"{}")}
        return Event(id=name, **(given | more))

    async def create(self, store: JobStore, *names: str, mode: DispatchMode = IMMEDIATE, **more: Any) -> list[Created]:
        """Jobs whose group is the first character of their name."""
        return await store.create([self.job(name, name[0], mode, **more) for name in names])

    def attempt(self, *, counts: bool = True) -> Attempt:
        """One that failed, or was refused with a plea for patience."""
        if counts:
            failed = Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, status=500, detail="it broke", excerpt="oh")
            return Attempt(self.wall() - 0.25, 0.25, failed)
        return Attempt(
            self.wall(), 0.0, Outcome(Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED, status=429, detail="slow")
        )

    async def fail(self, store: JobStore, deliveries: Sequence[Delivery], delay_s: float) -> list[Settled]:
        """Their attempts failed, as a router tells it. It has given those behind them back before."""
        results = []
        for delivery in deliveries:
            delivery.failures += 1
            delivery.attempt = self.attempt()
            unlock = delivery.pointer.dispatch_mode is not BLOCK
            results += await store.queue.nack([delivery], delay_s, unlock=unlock)
        return results

    async def succeed(self, store: JobStore, deliveries: Sequence[Delivery]) -> list[Settled]:
        for delivery in deliveries:
            delivery.attempt = Attempt(self.wall() - 0.5, 0.5, Outcome(Result.SUCCESS, status=200))
        return await store.queue.ack(deliveries)

    async def fail_first(self, store: JobStore, name: str, delay_s: float) -> None:
        """Take the first job that can be had, which has to be this one, and let its attempt fail."""
        (delivery,) = await take(store, 1)
        assert delivery.pointer.id == name
        assert await self.fail(store, [delivery], delay_s) == [Settled.OK]

    async def finish(self, store: JobStore) -> list[str]:
        """Deliver all that can be had, one after the other; their names in that order."""
        seen = []
        while deliveries := await take(store, 1):
            seen += names(deliveries)
            assert await self.succeed(store, deliveries) == [Settled.OK]
        return seen


async def take(store: JobStore, limit: int = 100) -> list[Delivery]:
    """What can be had without waiting."""
    return await store.queue.receive(limit, 0)


def names(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.pointer.id for delivery in deliveries]
