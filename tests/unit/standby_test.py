"""Hot standby on virtual time: who works when, what the fence says meanwhile, and what an operator sees of it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import redis.exceptions
from pydantic import SecretStr
from structlog.testing import capture_logs

from flowcatalyst.config import StandbySettings
from flowcatalyst.errors import ConfigurationError
from flowcatalyst.operations.redis_lock import Holder, LockUnavailableError, _in_words
from flowcatalyst.operations.standby import RETRY_S, SAFETY_MARGIN, Standby, StandbyState
from flowcatalyst.operations.warnings import WarningCode, WarningLog
from flowcatalyst.routing.fence import Fence
from flowcatalyst.tasks import Tasks
from tests.support.clocks import SetClock
from tests.support.virtual_loop import VirtualClock, run_virtual

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
        assert all(warning.code is WarningCode.STANDBY for warning in self.warnings.list())
        return [warning.message for warning in reversed(self.warnings.list())]


def test_without_standby_the_fence_is_always_open() -> None:
    assert Fence().allows(1e300)


def test_the_fence_closes_at_its_time_not_after_it() -> None:
    assert Fence(10.0).allows(9.999)
    assert not Fence(10.0).allows(10.0)


def test_a_standby_that_was_only_made_may_start_nothing() -> None:
    async def main() -> None:
        router = RouterOnStandby(LockServer(), "a")
        assert not router.may_start()
        assert not router.is_primary()
        assert (router.standby.fencing_number, router.standby.holder, router.standby.trouble) == (None, None, "")
        await router.stop()
        assert router.events == []

    run_virtual(main())


def test_a_free_lock_makes_a_router_primary_at_once() -> None:
    async def main() -> None:
        router = RouterOnStandby(LockServer(), "a")
        await asyncio.sleep(1)
        assert router.is_primary()
        assert router.standby.fencing_number == 1
        assert router.standby.holder == "a"
        assert router.standby.since == router.clock.wall() - 1
        assert router.standby.last_contact_at == 0.0
        assert router.events == [(0.0, "enter")]
        assert router.may_start()
        await router.stop()

    run_virtual(main())


def test_the_lease_counts_from_before_the_command_was_sent() -> None:
    async def main() -> None:
        server = LockServer()
        server.latency_s = server.answer_s = 1.0
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(2.5)
        assert router.standby.last_contact_at == 2.0
        assert router.fence.until == LEASE_S
        await asyncio.sleep(REFRESH_S + 2.0)
        assert server.calls_of("a", "refresh") == [2.0 + REFRESH_S]
        assert router.fence.until == 2.0 + REFRESH_S + LEASE_S
        await router.stop()

    run_virtual(main())


def test_a_lock_that_is_refreshed_is_held_for_ever_and_the_fence_never_closes() -> None:
    async def main() -> None:
        router = RouterOnStandby(LockServer(), "a")
        await asyncio.sleep(0.5)
        for _ in range(3600):
            await asyncio.sleep(1)
            assert router.may_start()
        assert router.events == [(0.0, "enter")]
        assert router.warned() == []
        await router.stop()

    run_virtual(main())


def test_a_standby_asks_every_refresh_period_and_does_not_work() -> None:
    async def main() -> None:
        server = LockServer()
        primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
        await asyncio.sleep(REFRESH_S * 10 + 1)
        assert server.calls_of("b", "acquire") == [REFRESH_S * n for n in range(11)]
        assert other.events == []
        assert not other.may_start()
        assert other.standby.holder == "a"
        assert other.standby.last_contact_at == REFRESH_S * 10
        await primary.stop()
        await other.stop()

    run_virtual(main())


def test_a_stopped_primary_hands_over_within_a_refresh_period() -> None:
    async def main() -> None:
        server = LockServer()
        primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
        await asyncio.sleep(15)
        await primary.stop()
        assert server.held_by() is None
        assert not primary.is_primary()
        assert not primary.may_start()
        await asyncio.sleep(REFRESH_S)
        assert other.events == [(20.0, "enter")]
        assert other.standby.fencing_number == 2
        await other.stop()

    run_virtual(main())


def test_a_stopping_primary_keeps_the_lock_until_its_work_is_drained() -> None:
    async def main() -> None:
        server = LockServer()
        primary, other = RouterOnStandby(server, "a", drain_s=65.0), RouterOnStandby(server, "b")
        await asyncio.sleep(15)
        primary.standby.stop()
        while not primary.task.done():
            assert not other.may_start()
            assert primary.is_primary()
            await asyncio.sleep(1)
        assert primary.events == [(0.0, "enter"), (15.0, "leave"), (80.0, "drained")]
        await asyncio.sleep(REFRESH_S)
        assert other.is_primary()
        await other.stop()

    run_virtual(main())


def test_cancelling_is_as_good_as_stopping() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=65.0)
        await asyncio.sleep(15)
        router.task.cancel()
        await router.ended()
        assert router.task.cancelled()
        assert router.events[1:] == [(15.0, "leave"), (80.0, "drained")]
        assert server.held_by() is None
        assert server.calls_of("a", "release") == [80.0]
        assert router.lock.closed

    run_virtual(main())


@pytest.mark.parametrize("tenths", range(0, 130, 3))
def test_cancelled_at_any_moment_it_leaves_nothing_behind(tenths: int) -> None:
    async def main() -> None:
        server = LockServer()
        server.latency_s = server.answer_s = 0.4
        router = RouterOnStandby(server, "a", entry_s=1.0, drain_s=1.0)
        await asyncio.sleep(tenths / 10)
        while not router.task.done():  # an impatient caller
            router.task.cancel()
            await asyncio.sleep(0.3)
        assert router.task.cancelled()
        assert server.held_by() is None
        assert router.lock.closed or tenths == 0  # cancelled before it began
        assert not router.may_start()
        assert len(router.standby._tasks) == 0

    run_virtual(main())


def test_a_stop_while_on_standby_takes_effect_at_once_and_may_be_repeated() -> None:
    async def main() -> None:
        server = LockServer()
        primary, other = RouterOnStandby(server, "a"), RouterOnStandby(server, "b")
        await asyncio.sleep(15)
        other.standby.stop()
        await other.stop()
        assert other.clock.monotonic() == 15.0
        assert server.calls_of("b", "release") == []
        assert other.lock.closed
        await primary.stop()

    run_virtual(main())


def test_a_stop_while_the_lock_is_asked_for_gives_it_back_without_working() -> None:
    async def main() -> None:
        server = LockServer()
        server.answer_s = 2.0
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(1)
        await router.stop()
        assert router.events == []
        assert server.held_by() is None

    run_virtual(main())


def test_a_lock_lost_to_another_router_closes_the_fence_before_the_work_drains() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=60.0)
        await asyncio.sleep(5)
        server.hold(Holder("thief", 7))
        await asyncio.sleep(6)
        assert router.events[1:] == [(REFRESH_S, "leave")]
        assert router.fence.until == 0.0
        assert not router.is_primary()
        assert router.standby.fencing_number is None
        assert router.standby.holder == "thief"
        assert router.warned() == ["another router has taken the lock of this one; it stops working"]
        await asyncio.sleep(60)
        assert server.calls_of("a", "release") == []
        assert server.calls_of("a", "acquire") == [0.0, REFRESH_S + 60.0]
        await router.stop()

    run_virtual(main())


def test_a_lock_that_redis_forgot_is_lost_and_taken_anew() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=3.0)
        await asyncio.sleep(5)
        server.forget()
        await asyncio.sleep(20)
        assert [event for _, event in router.events] == ["enter", "leave", "drained", "enter"]
        assert router.standby.fencing_number == 2
        assert router.may_start()
        await router.stop()

    run_virtual(main())


def test_with_redis_unreachable_the_primary_works_until_its_lease_ends_and_not_longer() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=60.0)
        await asyncio.sleep(15)
        server.down = "Redis refuses connections"
        await asyncio.sleep(REFRESH_S + LEASE_S - 15 - 0.01)
        assert router.is_primary()
        assert router.standby.trouble == "Redis refuses connections"
        assert router.may_start()
        await asyncio.sleep(0.02)
        assert router.events[1:] == [(REFRESH_S + LEASE_S, "leave")]
        assert not router.is_primary()
        assert router.standby.holder is None
        assert router.fence.until == 0.0
        await asyncio.sleep(600)
        assert router.task.done() is False
        assert router.standby.last_contact_at == REFRESH_S
        await router.stop()

    run_virtual(main())


def test_a_redis_that_hangs_does_not_prolong_the_lease() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=60.0)
        await asyncio.sleep(5)
        server.answer_s = 1000.0
        await asyncio.sleep(LEASE_S)
        assert router.events[1:] == [(LEASE_S, "leave")]
        assert not router.is_primary()
        server.answer_s = 0.0
        await router.stop()

    run_virtual(main())


def test_a_refresh_answered_after_the_lease_ended_does_not_open_the_fence() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=60.0)
        await asyncio.sleep(5)
        server.answer_s = 25.0  # asked at 10, answered at 35: the lock in Redis is ours until 40, but we stepped down
        await asyncio.sleep(35)
        assert not router.is_primary()
        assert router.fence.until == 0.0
        server.answer_s = 0.0
        await router.stop()

    run_virtual(main())


def test_a_refresh_that_fails_is_repeated_soon_and_costs_nothing() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(5.5)
        server.down = "Redis is still loading its data"
        await asyncio.sleep(REFRESH_S)
        server.down = ""
        await asyncio.sleep(2)
        assert server.calls_of("a", "refresh") == [REFRESH_S + RETRY_S * n for n in range(7)]
        assert router.standby.trouble == ""
        assert router.fence.until == REFRESH_S + RETRY_S * 6 + LEASE_S
        assert router.events == [(0.0, "enter")]
        await router.stop()

    run_virtual(main())


def test_a_lost_lock_that_comes_back_starts_the_work_again_with_a_higher_number() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(5)
        server.down = "Redis refuses connections"
        await asyncio.sleep(100)
        assert not router.is_primary()
        server.down = ""
        await asyncio.sleep(REFRESH_S)
        assert router.is_primary()
        assert router.standby.fencing_number == 2
        assert [event for _, event in router.events] == ["enter", "leave", "drained", "enter"]
        assert router.may_start()
        await router.stop()

    run_virtual(main())


def test_a_process_that_was_paused_past_its_lease_starts_nothing_and_steps_down_unasked() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=60.0)
        await asyncio.sleep(15)
        router.clock.slept_s = 100.0
        server.hold(Holder("b", 2))
        assert not router.may_start()  # before any task of it ran
        await asyncio.sleep(30)
        assert not router.is_primary()
        assert server.calls_of("a", "refresh") == [REFRESH_S]
        assert [event for _, event in router.events] == ["enter", "leave"]
        await router.stop()

    run_virtual(main())


def test_a_process_that_was_paused_while_it_asked_does_not_trust_the_answer() -> None:
    async def main() -> None:
        server = LockServer()
        server.answer_s = 1.0
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(0.5)
        router.clock.slept_s = LEASE_S
        await asyncio.sleep(1)
        assert router.standby.last_contact_at == 1.0 + LEASE_S
        assert not router.is_primary()
        assert router.events == []
        await asyncio.sleep(REFRESH_S + 1)
        assert router.is_primary()
        assert router.standby.fencing_number == 2
        await router.stop()

    run_virtual(main())


def test_a_lock_that_was_taken_without_an_answer_is_ours_when_asked_again() -> None:
    async def main() -> None:
        server = LockServer()
        server.answers_are_lost = True
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(1)
        assert server.held_by() == Holder("a", 1)
        assert router.events == []
        server.answers_are_lost = False
        await asyncio.sleep(REFRESH_S)
        assert router.events == [(REFRESH_S, "enter")]
        assert router.standby.fencing_number == 2
        await router.stop()

    run_virtual(main())


def test_a_lock_that_was_taken_without_an_answer_is_given_back_at_the_end() -> None:
    async def main() -> None:
        server = LockServer()
        server.answers_are_lost = True
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(1)
        await router.stop()
        assert server.held_by() is None

    run_virtual(main())


def test_a_lease_that_ends_while_a_stop_drains_makes_it_standby_and_the_drain_goes_on() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a", drain_s=65.0)
        await asyncio.sleep(15)
        router.standby.stop()
        server.hold(Holder("b", 2))
        await asyncio.sleep(10)
        assert not router.is_primary()
        assert not router.may_start()
        await router.ended()
        assert router.events[1:] == [(15.0, "leave"), (80.0, "drained")]
        assert server.calls_of("a", "release") == []

    run_virtual(main())


def test_work_that_cannot_begin_gives_the_lock_to_the_other_router() -> None:
    async def main() -> None:
        server = LockServer()
        broken = RouterOnStandby(server, "a", entry_s=35.0)
        broken.failures.on_entry = OSError("no space left on device 17")
        await asyncio.sleep(34)
        assert server.held_by() == Holder("a", 1)  # kept while it tried
        other = RouterOnStandby(server, "b")
        with capture_logs() as lines:
            await asyncio.sleep(2)
        assert server.held_by() is None
        assert not broken.is_primary()
        assert not broken.may_start()
        assert broken.warned() == ["the work of the primary failed with OSError; see the log"]
        assert [line["action"] for line in lines if line["log_level"] == "error"] == ["primary_work_failed"]
        await asyncio.sleep(REFRESH_S)
        assert other.is_primary()
        assert broken.standby.holder == "b"
        await other.stop()
        await broken.stop()

    run_virtual(main())


def test_work_that_cannot_begin_is_tried_again_after_a_refresh_period() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a")
        router.failures.on_entry = OSError("not yet")
        await asyncio.sleep(REFRESH_S + 1)
        assert server.calls_of("a", "acquire") == [0.0, REFRESH_S]
        assert router.events == [(REFRESH_S, "enter")]
        await router.stop()

    run_virtual(main())


def test_work_that_ends_badly_is_told_and_the_router_goes_on() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a")
        router.failures.on_exit = RuntimeError("left open")
        await asyncio.sleep(5)
        server.forget()
        await asyncio.sleep(REFRESH_S * 2)
        assert "the work of the primary failed with RuntimeError; see the log" in router.warned()
        assert router.is_primary()
        await router.stop()

    run_virtual(main())


def test_trouble_is_told_once_and_its_end_too() -> None:
    async def main() -> None:
        server = LockServer()
        server.down = "Redis refuses connections"
        with capture_logs() as lines:
            router = RouterOnStandby(server, "a")
            await asyncio.sleep(200)
            assert router.standby.trouble == "Redis refuses connections"
            server.down = "Redis is still loading its data"
            await asyncio.sleep(200)
            server.down = ""
            await asyncio.sleep(REFRESH_S)
        assert router.standby.trouble == ""
        assert [line["action"] for line in lines] == [
            "lock_trouble",
            "lock_trouble",
            "lock_reachable",
            "became_primary",
        ]
        assert router.warned() == [
            "the standby lock cannot be used: Redis refuses connections",
            "the standby lock cannot be used: Redis is still loading its data",
        ]
        assert [warning.count for warning in router.warnings.list()] == [1, 1]
        await router.stop()

    run_virtual(main())


def test_a_release_that_fails_does_not_keep_the_router_from_stopping() -> None:
    async def main() -> None:
        server = LockServer()
        router = RouterOnStandby(server, "a")
        await asyncio.sleep(5)
        server.down = "Redis refuses connections"
        await router.stop()
        assert router.task.exception() is None
        assert router.standby.trouble == "Redis refuses connections"
        assert router.lock.closed

    run_virtual(main())


def test_of_many_routers_that_come_and_go_only_one_may_start_work() -> None:
    async def main() -> None:
        server = LockServer()
        server.latency_s = server.answer_s = 0.3
        routers = [RouterOnStandby(server, f"r{number}", drain_s=7.0 * number) for number in range(5)]
        numbers = []
        for second in range(900):
            await asyncio.sleep(1)
            working = [router for router in routers if router.may_start()]
            assert len(working) <= 1
            numbers += [router.standby.fencing_number for router in working]
            server.down = "Redis refuses connections" if 100 < second % 300 < 180 else ""
            if second % 150 == 90:
                [primary] = working
                primary.standby.stop()
                routers.append(RouterOnStandby(server, f"r{second}"))
        assert numbers == sorted(numbers, key=lambda number: number or 0)
        assert len(set(numbers)) > 6
        for router in routers:
            await router.stop()

    run_virtual(main())


def caused_by(cause: Exception) -> Exception:
    error = redis.exceptions.ConnectionError("Error connecting to 10.0.0.1:6379")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.exceptions.AuthenticationError("WRONGPASS user operator"), "Redis refuses the credentials"),
        (redis.exceptions.NoPermissionError("User operator may not"), "the Redis user may not use EVAL"),
        (redis.exceptions.BusyLoadingError("LOADING"), "Redis is still loading its data"),
        (redis.exceptions.ReadOnlyError("READONLY"), "this Redis is a read-only replica"),
        (redis.exceptions.TimeoutError("Timeout reading from 10.0.0.1"), "Redis does not answer"),
        (TimeoutError(), "Redis does not answer"),
        (caused_by(ConnectionRefusedError(111, "refused")), "Redis refuses connections"),
        (caused_by(socket.gaierror(-2, "Name or service not known")), "the host name of Redis cannot be resolved"),
        (caused_by(ssl.SSLError(1, "certificate")), "the TLS connection to Redis failed"),
        (redis.exceptions.ConnectionError("Connection closed by server 17"), "no connection to Redis"),
        (redis.exceptions.ResponseError("MISCONF errors 17"), "Redis refuses the command (MISCONF)"),
        (redis.exceptions.ResponseError("unknown command"), "Redis refuses the command (ResponseError)"),
    ],
)
def test_what_redis_says_becomes_fixed_words_without_names_and_numbers(error: Exception, words: str) -> None:
    said = _in_words(error)
    assert said.startswith(words)
    assert not any(secret in said for secret in ("operator", "10.0.0.1", "17"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://user:secret@host",
        "redis://",
        "redis://:secret@/0",
        "redis://user:sec#ret@host",
        "redis://user:secret@host:port",
        "redis://user:secret@host:0",
        "redis://user:secret@host/zero",
        "redis://user:secret@host?no_such_option=1",
        "redis://user:secret@host?socket_timeout=soon",
        "redis://[user:secret@host",
    ],
)
def test_a_wrong_url_is_refused_in_one_sentence_that_does_not_quote_it(url: str) -> None:
    settings = StandbySettings(redis_url=SecretStr(url))
    with pytest.raises(ConfigurationError, match=r"standby\.redis_url cannot be used") as refused:
        Standby(settings, SetClock(), "a", WarningLog(SetClock()), Fence())
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_a_url_there_is_no_standby_to_make() -> None:
    with pytest.raises(ConfigurationError, match="is not set"):
        Standby(StandbySettings(), SetClock(), "a", WarningLog(SetClock()), Fence())
