"""Endpoints that differ by target, and a router with queues of several kinds, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from flowcatalyst.core.errors import RequestTimeoutError
from flowcatalyst.core.message import Delivery, Outcome
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.http.interpret import interpret_failure
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import DEFAULT_DELAYS, Delays
from tests.support.rig import ListedDeadLetters, RecordingQueue, ScriptedEndpoint, SilentLog
from tests.support.virtual_loop import VirtualClock, until

USUAL_TIMEOUT_S: Final = 900.0

QueueKind = Literal["embedded", "ordered", "unordered"]
KINDS: Final[tuple[QueueKind, ...]] = ("embedded", "ordered", "unordered")


@dataclass(slots=True)
class Hosts(ScriptedEndpoint):
    """Answers by script, but for targets that hang: those run into the deadline."""

    hanging: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)  # target -> how long it takes, beyond the usual time
    deadlines: list[tuple[float, float]] = field(default_factory=list)  # of attempts that hung: start and deadline

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        pointer = delivery.pointer
        if pointer.mediation_target not in self.hanging:
            await asyncio.sleep(self.slow.get(pointer.mediation_target, 0.0))
            return await ScriptedEndpoint.attempt(self, delivery, timeout_s)
        deadline_s = USUAL_TIMEOUT_S if timeout_s is None else timeout_s
        now = asyncio.get_running_loop().time()
        self.starts.append((now, pointer.id))
        self.deadlines.append((now, deadline_s))
        await asyncio.sleep(deadline_s)
        return interpret_failure(RequestTimeoutError(f"{deadline_s:g} s"))

    def refuse(self, message_id: str, *outcomes: Outcome) -> None:
        """Answer with these and then for ever with the last of them."""
        self.answers(message_id, *outcomes[:-1], *[outcomes[-1]] * 10_000)


class World:
    """An engine with its queues; the endpoints are scripted."""

    def __init__(self, latency_s: float = 0.1, delays: Delays = DEFAULT_DELAYS, **pools: PoolLimits) -> None:
        self.clock = VirtualClock()
        self.hosts = Hosts(latency_s)
        self.warnings = WarningLog(self.clock)
        self.dead_letters = ListedDeadLetters()
        self.engine = Engine(self.dead_letters, self.warnings, self.clock)
        self.queues: dict[str, RecordingQueue] = {}
        self._pools: Mapping[str, PoolLimits] = {name.replace("_", "-"): limits for name, limits in pools.items()}
        self._delays = delays

    def queue(self, kind: QueueKind, max_batch: int = 10) -> RecordingQueue:
        """A queue that is named after its kind."""
        queue = RecordingQueue(
            kind, self.clock, ordered=kind != "unordered", selects_pools=kind == "embedded", max_batch=max_batch
        )
        self.queues[kind] = queue
        return queue

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.engine.start(self.queues, self._pools, self.hosts, SilentLog(), self._delays)
        try:
            yield
        finally:
            await self.engine.stop()

    async def publish(self, kind: QueueKind, *messages: Outgoing) -> None:
        await self.queues[kind].publish(messages)

    async def seconds_until_answered(self, names: set[str], limit_s: float = 2000.0) -> float:
        """How long it takes from now on until each of these had an attempt that ended; at most the limit."""
        began = self.clock.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await until(lambda: names <= {name for _, name in self.hosts.ends})
        return self.clock.monotonic() - began

    async def until_empty(self, limit_s: float = 5000.0) -> float:
        """Until nothing is left in any queue; returns the time."""
        async with asyncio.timeout(limit_s):
            await until(lambda: not any(map(len, self.queues.values())) and not len(self.engine.tracker))
        return self.clock.monotonic()

    def started(self, prefix: str = "") -> list[str]:
        return [name for name in self.hosts.started if name.startswith(prefix)]

    def starts_of(self, name: str) -> list[float]:
        return [at for at, started in self.hosts.starts if started == name]

    @property
    def warned(self) -> set[WarningCode]:
        return {warning.code for warning in self.warnings.recent()}
