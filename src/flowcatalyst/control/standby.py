"""Hot standby: of several routers only the one that holds a lock works; the others wait to take over.

The lock is held as a lease. It ends by our own clock, counted from before the command that took or refreshed it was
sent, so it has ended here before it ends in Redis. The fence closes with it, whether or not anything of us still runs.
A Redis that forgets the lock (a restart without its data, a failover to a replica that lags) can give it to another
router up to one refresh before this one notices; the fencing number tells the two apart.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Protocol

import structlog

from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby_lock import Holder, LockUnavailableError
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError, plain
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.core.message import Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks, uninterrupted
from flowcatalyst.core.warnings import WarningBook, WarningCode, WarningFilter
from flowcatalyst.router.fence import Fence

SAFETY_MARGIN: Final = 0.02  # part of the time to live that we do not use: clocks differ in speed
RETRY_S: Final = 1.0  # pause of the primary after a refresh that failed
SOURCE: Final = "standby"  # of warnings about who is primary
LOCK_SOURCE: Final = "standby lock"  # of those about the lock that decides it

Work = Callable[[], AbstractAsyncContextManager[None]]

log = structlog.get_logger("flowcatalyst.standby")


class StandbyState(StrEnum):
    STANDBY = "STANDBY"
    PRIMARY = "PRIMARY"


class Lock(Protocol):
    """What a standby needs of a lock. Its calls raise `LockUnavailableError` only, and then may have worked or not."""

    async def acquire(self) -> Holder:
        """Take the lock if it is free or ours; who has it now."""

    async def refresh(self) -> Holder | None:
        """Start its time to live anew if it is ours; who has it now, if anybody."""

    async def release(self) -> None:
        """Release it if it is ours."""

    async def close(self) -> None: ...


class Standby:
    """Waits for the lock and works while it holds it. Its public attributes are for the status; read them only."""

    def __init__(
        self,
        settings: StandbySettings,
        clock: Clock,
        identity: str,
        warnings: WarningBook,
        fence: Fence,
        lock: Lock | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`identity` must be new at each start of a process: two that share one would both be primary.

        Closes the fence until the lock is held. Raises `ConfigurationError` if `redis_url` cannot be used.
        """
        self.identity = identity
        self.state = StandbyState.STANDBY
        self.since = clock.wall()
        self.fencing_number: int | None = None  # of the lock we hold
        self.last_contact_at: float | None = None  # when Redis last did what it was asked, on the monotonic clock
        self.last_error = ""
        self._settings = settings
        self._clock = clock
        self._warnings = warnings
        self._fence = fence
        self._lock = lock or _redis_lock(settings, identity)
        self._supervisor = supervisor or Supervisor(clock, warnings)
        self._holder: str | None = None  # who had the lock at the last contact
        self._may_hold = False  # the lock may be ours in Redis, whatever we know of it
        self._primary_before: tuple[str, float] | None = None  # who else had the lock, and when that was seen last
        self._lost_at: float | None = None  # wall; our own lock, since we had it last
        self._stop_asked = asyncio.Event()
        self._session_over = asyncio.Event()
        self._tasks = Tasks()
        fence.until = 0.0

    @property
    def holder(self) -> str | None:
        """Who has the lock, as far as we know: nobody whose lock must have run out since we heard of it."""
        if self._holder is None or self.last_contact_at is None:
            return None
        is_recent = self._clock.monotonic() - self.last_contact_at <= self._settings.ttl_s
        return self._holder if is_recent else None

    @property
    def nobody_since(self) -> float | None:
        """Since when no router is known to be at work, if the lock cannot be asked; wall time."""
        if not self.last_error or self.state is StandbyState.PRIMARY or self.holder is not None:
            return None
        if self.last_contact_at is None:
            return self.since
        contact_at = self._clock.wall() - (self._clock.monotonic() - self.last_contact_at)
        return self.since if self.since > contact_at else contact_at + self._settings.ttl_s

    async def run(self, work: Work) -> None:
        """Wait for the lock; while we hold it be inside `work()`; leave it when the lock is lost; start over.

        Until `stop()`, or until cancelled, which does the same: leave the work, release the lock, close the client.
        """
        try:
            while not self._stop_asked.is_set():
                if not await self._supervisor.survives("standby", self._take_turn(work)):
                    await self._pause()
        finally:
            await uninterrupted(self._close())

    def stop(self) -> None:
        """Make `run` leave its work, however long that takes, then release the lock and return.

        The lock is kept until the work has ended, so that nobody takes over before. A work that is still being
        entered is left once it is entered.
        """
        self._stop_asked.set()
        self._session_over.set()

    async def _take_turn(self, work: Work) -> None:
        if not (await self._acquire() and await self._serve(work)):
            await self._pause()

    async def _acquire(self) -> bool:
        """Ask for the lock; whether we are primary now."""
        asked_at = self._clock.monotonic()
        self._may_hold = True  # from now on, even if no answer comes
        try:
            holder = await self._lock.acquire()
        except LockUnavailableError as error:
            self._note_error(str(error))
            return False
        self._note_contact(holder)
        self._may_hold = holder.identity == self.identity
        lease_until = self._lease_from(asked_at)
        # An answer that took longer than the lease is worth nothing. The next one will be in time, or somebody else's.
        if not self._may_hold or self._stop_asked.is_set() or lease_until <= self._clock.monotonic():
            return False
        self.state = StandbyState.PRIMARY
        self.since = self._clock.wall()
        self.fencing_number = holder.number
        self._session_over.clear()
        self._fence.until = lease_until
        log.info("became_primary", action="became_primary", fencing_number=holder.number, identity=self.identity)
        self._tell_of_failover()
        return True

    async def _serve(self, work: Work) -> bool:
        """Be inside the work until the lock is lost or a stop is asked for; whether the work began and ended well."""
        self._tasks.spawn(self._refresh_regularly(), "refresh standby lock")
        self._tasks.spawn(self._watch_lease(), "watch standby lease")
        try:
            async with work():
                await self._session_over.wait()
        except Exception as error:
            text = f"the work of the primary failed: {plain(error)}"
            self._warnings.add(WarningCode.STANDBY, Severity.ERROR, text, SOURCE)
            log.error("primary_work_failed", action="primary_work_failed", exc_info=error)
            return False
        finally:
            await uninterrupted(self._end_session())
        return True

    async def _refresh_regularly(self) -> None:
        while self.state is StandbyState.PRIMARY:
            await asyncio.sleep(min(RETRY_S, self._settings.refresh_s) if self.last_error else self._settings.refresh_s)
            if self._lease_left_s() > 0:
                await self._supervisor.survives("refresh standby lock", self._refresh())

    async def _refresh(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            holder = await self._lock.refresh()
        except LockUnavailableError as error:
            self._note_error(str(error))
            return
        self._note_contact(holder)
        if self.state is StandbyState.STANDBY:
            return  # the lease ended before the answer came
        if holder is None:
            self._lose("Redis has lost its lock")
        elif holder.identity != self.identity:
            self._lose(f"{holder.identity} has taken its lock")
        elif self._lease_left_s() <= 0:  # a session that was over once is not taken up again
            self._lose("its lock could not be refreshed before it ran out")
        else:
            self._fence.until = self._lease_from(asked_at)

    async def _watch_lease(self) -> None:
        """Step down when the lease ends, also while Redis hangs. Dies with that, or with the session."""
        try:
            left_s = self._lease_left_s()
            while left_s > 0:
                await asyncio.sleep(left_s)
                left_s = self._lease_left_s()  # more than before, if the lock was refreshed meanwhile
            if self.state is StandbyState.PRIMARY:
                why = f" ({self.last_error})" if self.last_error else ""
                self._lose(f"its lock could not be refreshed before it ran out{why}")
        finally:
            self._step_down()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.refresh_s):
                await self._stop_asked.wait()

    async def _end_session(self) -> None:
        await self._tasks.cancel()
        self._step_down()
        await self._release()

    async def _release(self) -> None:
        if not self._may_hold:
            return
        self._may_hold = False
        try:
            await self._lock.release()
        except LockUnavailableError as error:
            self._note_error(str(error))
        else:
            self._note_contact(None)

    async def _close(self) -> None:
        await self._release()
        await self._lock.close()

    # Changes of state. None of them can be interrupted.

    def _lease_from(self, asked_at: float) -> float:
        return asked_at + self._settings.ttl_s * (1 - SAFETY_MARGIN)

    def _lease_left_s(self) -> float:
        return self._fence.until - self._clock.monotonic()

    def _tell_of_failover(self) -> None:
        """Nobody has to know of a start, nor of a turn that follows our own; but of one that another router had."""
        if self._primary_before is not None:
            who, seen_at = self._primary_before
            text = f"it took over from {who}, which had the lock until {_time(seen_at)} at least and then released it "
            text += "or did not refresh it"
        elif self._lost_at is not None:
            text = f"it has its lock again, which it lost at {_time(self._lost_at)}"
        else:
            return
        self._primary_before = self._lost_at = None
        text = (
            f"{self.identity} is primary since {_time(self.since)}, with fencing number {self.fencing_number}: {text}"
        )
        # What it was told of losing the lock before is over now that it has it again.
        self._warnings.acknowledge_all(WarningFilter(code=WarningCode.STANDBY, source=SOURCE))
        self._warnings.add(WarningCode.STANDBY, Severity.WARN, text, SOURCE)

    def _lose(self, reason: str) -> None:
        """The lock is not ours any more, although nobody here released it."""
        self._may_hold = False
        self._lost_at = self._clock.wall()
        text = f"{self.identity} stopped working at {_time(self._lost_at)}: {reason}; it had been primary since "
        text += f"{_time(self.since)}, with fencing number {self.fencing_number}"
        self._warnings.add(WarningCode.STANDBY, Severity.ERROR, text, SOURCE)
        log.error("lock_lost", action="lock_lost", reason=reason, fencing_number=self.fencing_number)
        self._step_down()

    def _step_down(self) -> None:
        """Nothing more is started from here on; what is in flight may end."""
        self._fence.until = 0.0
        self._session_over.set()
        if self.state is StandbyState.PRIMARY:
            self.state = StandbyState.STANDBY
            self.since = self._clock.wall()
            self.fencing_number = None
            if self._holder == self.identity:
                self._holder = None
            log.info("became_standby", action="became_standby", identity=self.identity)

    def _note_contact(self, holder: Holder | None) -> None:
        self.last_contact_at = self._clock.monotonic()
        self._holder = None if holder is None else holder.identity
        if self._holder is not None and self._holder != self.identity:
            self._primary_before = (self._holder, self._clock.wall())
        if self.last_error:
            self.last_error = ""
            log.info("lock_reachable", action="lock_reachable")
            self._warnings.end(WarningCode.STANDBY, "the standby lock can be used again", LOCK_SOURCE)

    def _note_error(self, last_error: str) -> None:
        if last_error == self.last_error:
            return
        self.last_error = last_error
        severity = Severity.ERROR if self.state is StandbyState.PRIMARY else Severity.WARN
        self._warnings.add(WarningCode.STANDBY, severity, f"the standby lock cannot be used: {last_error}", LOCK_SOURCE)
        log.warning("lock_unavailable", action="lock_unavailable", last_error=last_error, state=self.state)


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="seconds")


def _redis_lock(settings: StandbySettings, identity: str) -> Lock:
    if settings.redis_url is None:
        raise ConfigurationError("standby.redis_url is not set: without it there is no standby")
    with needs_extra("redis", "redis", what="standby.redis_url", package="redis"):
        from flowcatalyst.control.redis_lock import RedisLock
    return RedisLock(settings.redis_url.get_secret_value(), settings.lock_key, settings.ttl_s, identity)
