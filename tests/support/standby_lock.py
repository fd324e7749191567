"""Routers on standby that share a lock, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import SecretStr

from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import SAFETY_MARGIN, Standby, StandbyState
from flowcatalyst.control.standby_lock import Holder, LockUnavailableError
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.router.fence import Fence
from tests.support.virtual_loop import VirtualClock

TTL_S, REFRESH_S = 30.0, 10.0
LEASE_S = TTL_S * (1 - SAFETY_MARGIN)
SETTINGS = StandbySettings(redis_url=SecretStr("redis://127.0.0.1"), ttl_s=TTL_S, refresh_s=REFRESH_S)


class PausedClock(VirtualClock):
    """The clock of a process that can be stopped: afterwards it is later, and nothing ran meanwhile."""

    slept_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_s


class LockServer:
    """The lock as Redis keeps it, on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.number = 0
        self.latency_s = 0.0  # before a command is executed
        self.answer_s = 0.0  # after that
        self.down = ""  # what is wrong with it
        self.answers_are_lost = False
        self.calls: list[tuple[float, str, str]] = []
        self._holder: Holder | None = None
        self._expires_at = 0.0

    def held_by(self) -> Holder | None:
        return self._holder if self.clock.monotonic() < self._expires_at else None

    def hold(self, holder: Holder) -> None:
        self._holder = holder
        self.extend()

    def extend(self) -> None:
        self._expires_at = self.clock.monotonic() + TTL_S

    def forget(self) -> None:
        self._holder = None

    def calls_of(self, identity: str, command: str) -> list[float]:
        return [at for at, who, what in self.calls if (who, what) == (identity, command)]

    async def execute(self, identity: str, command: str, change: Callable[[], None]) -> Holder | None:
        self.calls.append((self.clock.monotonic(), identity, command))
        await asyncio.sleep(self.latency_s)
        if self.down:
            raise LockUnavailableError(self.down)
        change()
        holder = self.held_by()
        await asyncio.sleep(self.answer_s)
        if self.answers_are_lost:
            raise LockUnavailableError("Redis does not answer")
        return holder


class FakeLock:
    """A client of the `LockServer`."""

    def __init__(self, server: LockServer, identity: str) -> None:
        self.closed = False
        self._server = server
        self._identity = identity

    async def acquire(self) -> Holder:
        holder = await self._server.execute(self._identity, "acquire", self._take_if_free_or_ours)
        assert holder is not None
        return holder

    async def refresh(self) -> Holder | None:
        return await self._server.execute(self._identity, "refresh", self._extend_if_ours)

    async def release(self) -> None:
        await self._server.execute(self._identity, "release", self._forget_if_ours)

    async def close(self) -> None:
        self.closed = True

    def _take_if_free_or_ours(self) -> None:
        if self._server.held_by() is None or self._is_ours():
            self._server.number += 1
            self._server.hold(Holder(self._identity, self._server.number))

    def _extend_if_ours(self) -> None:
        if self._is_ours():
            self._server.extend()

    def _forget_if_ours(self) -> None:
        if self._is_ours():
            self._server.forget()

    def _is_ours(self) -> bool:
        holder = self._server.held_by()
        return holder is not None and holder.identity == self._identity


@dataclass(slots=True)
class Failures:
    """What the work of a router raises, once each."""

    on_entry: Exception | None = None
    on_exit: Exception | None = None


class RouterOnStandby:
    """One router as far as standby sees it: a fence, and work that takes its time to drain."""

    def __init__(self, server: LockServer, identity: str, entry_s: float = 0.0, drain_s: float = 0.0) -> None:
        self.clock = PausedClock()
        self.fence = Fence()
        self.warnings = WarningLog(self.clock)
        self.lock = FakeLock(server, identity)
        self.standby = Standby(SETTINGS, self.clock, identity, self.warnings, self.fence, self.lock)
        self.events: list[tuple[float, str]] = []
        self.failures = Failures()
        self._entry_s = entry_s
        self._drain_s = drain_s
        self.task = Tasks().spawn(self.standby.run(self._work), identity)

    def may_start(self) -> bool:
        return self.fence.allows(self.clock.monotonic())

    def is_primary(self) -> bool:
        return self.standby.state is StandbyState.PRIMARY

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        await asyncio.sleep(self._entry_s)
        if (error := self.failures.on_entry) is not None:
            self.failures.on_entry = None
            raise error
        self._note("enter")
        try:
            yield
        finally:
            self._note("leave")
            await asyncio.sleep(self._drain_s)
            self._note("drained")
        if (error := self.failures.on_exit) is not None:
            self.failures.on_exit = None
            raise error

    def _note(self, event: str) -> None:
        self.events.append((self.clock.monotonic(), event))

    async def ended(self) -> None:
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        self.standby.stop()
        await self.ended()

    def warned(self) -> list[str]:
        codes = (WarningCode.STANDBY, WarningCode.STANDBY_RECOVERED)
        assert all(warning.code in codes for warning in self.warnings.recent())
        return [warning.message for warning in reversed(self.warnings.recent())]
