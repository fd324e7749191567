"""What a pool works with."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Delivery, Outcome, Verdict
from flowcatalyst.core.warnings import WarningSink
from flowcatalyst.router import policy
from flowcatalyst.router.blocked import FailedMessages
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.failure_memory import FailureMemory
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import Pauses
from flowcatalyst.router.recent import RecentDeliveries
from flowcatalyst.router.skips import Skips


class Attempts(Protocol):
    """Delivers messages; never raises for what an endpoint does, only `LocalShortageError` where it could not try."""

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        """One attempt; `timeout_s` where it should end before the deadline that is set for all."""


class DeadLetterSink(Protocol):
    def record(self, delivery: Delivery, reason: str, outcome: Outcome | None) -> Coroutine[Any, Any, None]:
        """Keep a message that will never be delivered. It is durable when this returns."""


class AttemptLog(Protocol):
    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None: ...


@dataclass(slots=True, frozen=True)
class PoolTools:
    """What all pools of a router share."""

    mediator: Attempts
    breakers: Breakers
    endpoint_of: Callable[[str], str]  # target URL -> breaker key
    origin_of: Callable[[str], str]  # target URL -> scheme, host and port
    dead_letters: DeadLetterSink
    warnings: WarningSink
    log: AttemptLog
    clock: Clock
    spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    delays: policy.Delays = policy.DEFAULT_DELAYS
    fence: Fence = field(default_factory=Fence)
    failures: FailureMemory = field(default_factory=FailureMemory)
    blocked: FailedMessages = field(default_factory=FailedMessages)
    skips: Skips = field(default_factory=Skips)
    pauses: Pauses = field(default_factory=Pauses)
    delivered: RecentDeliveries = field(default_factory=RecentDeliveries)
    divide: Callable[[str, PoolLimits], PoolLimits] = lambda _, limits: (
        limits
    )  # code, limits -> what we may use of them
    several_queues: Callable[[], bool] = lambda: False  # so one group may be fed by two of them
