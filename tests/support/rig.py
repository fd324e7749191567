"""The real router (consumer, router, pools, settler) on a memory queue and scripted endpoints, in virtual time."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import (
    DEFAULT_POOL,
    Delivery,
    DispatchMode,
    ErrorKind,
    MessagePointer,
    Outcome,
    Result,
    Settled,
    Verdict,
    encode_pointer,
)
from flowcatalyst.core.targets import origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Demand, Outgoing
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.acting import Acts
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.pool_tools import PoolTools
from flowcatalyst.router.router import Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import InFlightTracker
from tests.support.virtual_loop import VirtualClock, until

OK = interpret(200, None, b"", 0.0)
ERROR_500 = interpret(500, None, b"oops", 0.0)
ERROR_400 = interpret(400, None, b"bad", 0.0)
NOT_YET = interpret(200, None, b'{"ack":false}', 0.0)
UNREACHABLE = Outcome(Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, retryable=True, trips_breaker=True)


@dataclass(slots=True)
class ScriptedEndpoint:
    """Answers each message from its own script, or raises; then with OK. Remembers when attempts began and ended."""

    latency_s: float = 0.1
    starts: list[tuple[float, str]] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    timeouts_s: dict[str, float | None] = field(default_factory=dict)  # how long the latest attempt at each could take
    _scripts: dict[str, deque[Outcome | Exception]] = field(default_factory=lambda: defaultdict(deque))

    def answers(self, message_id: str, *outcomes: Outcome | Exception) -> None:
        self._scripts[message_id].extend(outcomes)

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        loop, pointer = asyncio.get_running_loop(), delivery.pointer
        self.starts.append((loop.time(), pointer.id))
        if len(self.timeouts_s) < 1000:  # no test that counts memory has so few
            self.timeouts_s[pointer.id] = timeout_s
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency_s)
        finally:
            self.in_flight -= 1
        self.ends.append((loop.time(), pointer.id))
        script = self._scripts.get(pointer.id)
        outcome = script.popleft() if script else OK
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def started(self) -> list[str]:
        return [message_id for _, message_id in self.starts]


class RecordingQueue(MemoryQueue):
    """A memory queue that remembers how messages were settled, and can be told to fail."""

    def __init__(
        self, name: str, clock: Clock, *, ordered: bool = True, selects_pools: bool = False, max_batch: int = 10
    ) -> None:
        super().__init__(name, clock, ordered=ordered, selects_pools=selects_pools, max_batch=max_batch)
        self.acked: list[str] = []
        self.nacked: list[tuple[str, float]] = []
        self.next_acks: deque[Settled] = deque()
        self.polls = 0

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        self.polls += 1
        return await super().receive(limit, wait_s, demand)

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        results: list[Settled] = []
        for delivery in deliveries:
            planned = self.next_acks.popleft() if self.next_acks else None
            results += [planned] if planned else await super().ack([delivery])
            if planned is None:
                self.acked.append(_name(delivery))
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        self.nacked += [(_name(delivery), delay_s) for delivery in deliveries]
        return await super().nack(deliveries, delay_s, unlock=unlock)


def _name(delivery: Delivery) -> str:
    return delivery.pointer.id if delivery.pointer else delivery.broker_id


@dataclass(slots=True)
class ListedDeadLetters:
    letters: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False

    async def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise StorageError("the disk is full")
        self.letters.append((_name(delivery), reason))


class SilentLog:
    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        """Nobody listens."""


class Rig:
    """Everything of a router but brokers and sockets."""

    outliving: frozenset[str] = frozenset()  # names of tasks of a queue that is closed later

    def __init__(
        self, *, ordered: bool = True, max_batch: int = 10, latency_s: float = 0.1, **pools: PoolLimits
    ) -> None:
        self.clock = VirtualClock()
        self.endpoint = ScriptedEndpoint(latency_s)
        self.queue = RecordingQueue("q", self.clock, ordered=ordered, max_batch=max_batch)
        self.tracker = InFlightTracker()
        self.warnings = WarningLog(self.clock)
        self.dead_letters = ListedDeadLetters()
        self.breakers = Breakers()
        self.tasks = Tasks()
        self.slots = Tasks()
        self.tools = PoolTools(
            mediator=self.endpoint,
            breakers=self.breakers,
            endpoint_of=lambda url: url,
            origin_of=origin_of,
            dead_letters=self.dead_letters,
            warnings=self.warnings,
            log=SilentLog(),
            clock=self.clock,
            spawn=self.slots.spawn,
        )
        tools = self.tools
        self.router = Router(
            self.tracker, self.warnings, lambda code, limits: Pool(code, limits, self.tools), tools.pauses.pools
        )
        self.acts = Acts(
            self.tracker,
            self.router.all_pools,
            {"q": self.queue},
            tools.blocked,
            tools.skips,
            tools.pauses,
            self.clock,
        )
        self._limits = pools or {"default": PoolLimits(concurrency=10)}

    async def __aenter__(self) -> Self:
        for name, limits in self._limits.items():
            self.router.add_pool(DEFAULT_POOL if name == "default" else name, limits)
        self.settler = Settler(self.queue, self.tracker)
        self.consumer = Consumer(self.queue, self.settler, self.router, self.dead_letters, self.warnings, self.clock)
        self.tasks.spawn(self.settler.run())
        self.consuming = self.tasks.spawn(self.consumer.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.consumer.stop()  # first: nothing may be routed while the pools go
        self.consuming.cancel()
        await asyncio.wait([self.consuming])
        for pool in self.router.pools.values():
            pool.drain()
        await self.slots.cancel()
        await self.tasks.cancel()
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert set(left) <= self.outliving, f"a task outlived its router: {left}"

    @property
    def pool(self) -> Pool:
        return self.router.pools[DEFAULT_POOL]

    async def publish(self, *messages: Outgoing) -> None:
        await self.queue.publish(messages)

    async def until_empty(self) -> float:
        """Wait until the queue holds nothing and the router owns nothing; returns the time."""
        await until(lambda: not len(self.queue) and not len(self.tracker))
        return self.clock.monotonic()

    async def until_started(self, count: int) -> None:
        await until(lambda: len(self.endpoint.starts) >= count)


def outgoing(
    message_id: str,
    group: str | None = "g",
    *,
    pool: str = DEFAULT_POOL,
    mode: DispatchMode | None = None,
    high: bool = False,
    target: str = "http://endpoint.test/hook",
) -> Outgoing:
    pointer = MessagePointer(
        id=message_id,
        mediation_target=target,
        pool_code=pool,
        message_group_id=group,
        dispatch_mode=mode,
        high_priority=high,
    )
    lane = None if mode is DispatchMode.IMMEDIATE else group
    return Outgoing(encode_pointer(pointer).decode(), lane)


def outgoings(ids: Iterable[str], group: str = "g") -> list[Outgoing]:
    return [outgoing(message_id, group) for message_id in ids]
