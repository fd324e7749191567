"""Hot standby with a real Redis: as tasks of one loop, and as processes that are stopped, killed and paused."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from flowcatalyst.control.redis_lock import RedisLock
from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import Standby, StandbyState
from flowcatalyst.control.standby_lock import LockUnavailableError
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.router.fence import Fence
from tests.servers.redis import RedisServer, redis_server
from tests.support.standby_process import REFRESH_S, TTL_S, StandbyProcess, standby_process

CLEAN_HANDOVER_S = 3.0
CRASH_HANDOVER_S = TTL_S + REFRESH_S + 3.0  # the lock runs out, the other asks, and the machine is busy
NOTICED_WITHIN_S = 20.0
KEY = "flowcatalyst:router:primary"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


class RouterInLoop:
    """A standby as a task of this loop, and what its work went through."""

    def __init__(self, url: str, identity: str) -> None:
        clock = SystemClock()
        self.fence = Fence()
        self.warnings = WarningLog(clock)
        settings = StandbySettings(redis_url=SecretStr(url), ttl_s=TTL_S, refresh_s=REFRESH_S)
        self.standby = Standby(settings, clock, identity, self.warnings, self.fence)
        self.task = Tasks().spawn(self.standby.run(self._work))

    @asynccontextmanager
    async def _work(self) -> AsyncIterator[None]:
        yield

    def is_primary(self) -> bool:
        return self.standby.state is StandbyState.PRIMARY

    async def stop(self) -> None:
        self.standby.stop()
        await self.task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(NOTICED_WITHIN_S):
        while not condition():
            await asyncio.sleep(0.01)


# The lock.


def lock_of(server: RedisServer, identity: str, ttl_s: float = TTL_S) -> RedisLock:
    return RedisLock(server.url, KEY, ttl_s, identity)


async def test_a_lock_has_one_holder_whoever_asks_refreshes_or_releases(server: RedisServer) -> None:
    ours, theirs = lock_of(server, "a", 60.0), lock_of(server, "b", 60.0)
    taken = await ours.acquire()
    assert (taken.identity, taken.number) == ("a", 1)
    assert await theirs.acquire() == taken
    assert await theirs.refresh() == taken
    await theirs.release()
    assert await ours.refresh() == taken
    await ours.release()
    assert await ours.refresh() is None
    assert (await theirs.acquire()).number == 2
    await ours.close()
    await theirs.close()


async def test_an_identity_that_begins_like_ours_is_not_ours(server: RedisServer) -> None:
    ours, theirs = lock_of(server, "a", 60.0), lock_of(server, "a#1", 60.0)
    await theirs.acquire()
    assert (await ours.acquire()).identity == "a#1"
    await ours.release()
    assert (await theirs.refresh()) is not None
    await ours.close()
    await theirs.close()


async def test_acquire_and_refresh_set_the_time_to_live(server: RedisServer) -> None:
    lock = lock_of(server, "a", 60.0)
    await lock.acquire()
    assert 50_000 < ttl_ms(server) <= 60_000
    server.command("PEXPIRE", KEY, "1000")
    await lock.refresh()
    assert 50_000 < ttl_ms(server) <= 60_000
    await lock.close()


async def test_a_refresh_by_somebody_else_does_not_let_the_lock_last_longer(server: RedisServer) -> None:
    ours, theirs = lock_of(server, "a", 60.0), lock_of(server, "b", 60.0)
    await ours.acquire()
    server.command("PEXPIRE", KEY, "40000")
    await theirs.acquire()
    await theirs.refresh()
    assert ttl_ms(server) <= 40_000
    await ours.close()
    await theirs.close()


def ttl_ms(server: RedisServer) -> int:
    return int(server.command("PTTL", KEY).strip(":\r\n"))


async def test_the_lock_is_not_taken_when_it_cannot_be_numbered(server: RedisServer) -> None:
    server.command("RPUSH", f"{KEY}:fence", "not a number")
    lock = lock_of(server, "a")
    with pytest.raises(LockUnavailableError, match="WRONGTYPE"):
        await lock.acquire()
    assert server.command("EXISTS", KEY) == ":0\r\n"
    await lock.close()


async def test_fencing_numbers_grow_even_when_redis_lost_its_memory(server: RedisServer) -> None:
    first, second = lock_of(server, "a", 60.0), lock_of(server, "b", 60.0)
    server.command("SET", f"{KEY}:fence", "41")
    assert (await first.acquire()).number == 42
    assert (await second.acquire()).number == 42  # of the holder
    server.command("FLUSHALL")
    assert (await second.acquire()).number == 43
    server.command("FLUSHALL")
    assert (await first.acquire()).number == 43
    await first.close()
    await second.close()


async def test_a_release_that_redis_executes_late_does_not_take_a_lock_acquired_since(server: RedisServer) -> None:
    lock = lock_of(server, "a", 60.0)
    await lock.acquire()
    late_release = ["EVAL", "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end", "1", KEY]
    old_value = server.command("GET", KEY).split("\r\n")[1]
    again = await lock.acquire()
    server.command(*late_release, old_value)
    assert await lock.refresh() == again
    await lock.close()


async def test_a_call_that_was_given_up_leaves_no_old_answer_for_the_next_one(server: RedisServer) -> None:
    lock, other = lock_of(server, "a", 1.0), lock_of(server, "b", 60.0)
    await lock.acquire()
    server.pause()
    with pytest.raises(LockUnavailableError, match="does not answer"):
        await lock.refresh()
    for turns in range(20):
        await cancel_after(turns, lock.refresh)
    server.resume()
    async with asyncio.timeout(NOTICED_WITHIN_S):
        while (await other.acquire()).identity != "b":
            pass
    held = await lock.refresh()
    assert held is not None
    assert held.identity == "b"
    await lock.close()
    await other.close()


async def test_after_an_error_a_call_connects_anew(server: RedisServer) -> None:
    lock = lock_of(server, "a")
    server.command("REPLICAOF", "127.0.0.1", "1")
    before = connections_so_far(server)
    for _ in range(3):
        with pytest.raises(LockUnavailableError, match="replica"):
            await lock.acquire()
    assert connections_so_far(server) == before + 3 + 1
    await lock.close()


def connections_so_far(server: RedisServer) -> int:
    found = re.search(r"total_connections_received:(\d+)", server.command("INFO", "stats"))
    assert found is not None
    return int(found[1])


async def cancel_after(turns: int, call: Callable[[], Awaitable[object]]) -> None:
    """Begin the call and cancel it when the loop has gone round so many times."""

    async def begin() -> None:
        await call()

    task = Tasks().spawn(begin())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


# Two routers in one loop.


async def test_of_two_routers_one_works_and_hands_over_when_it_stops(server: RedisServer) -> None:
    first = RouterInLoop(server.url, "first")
    await until(first.is_primary)
    second = RouterInLoop(server.url, "second")
    await until(lambda: second.standby.holder == "first")
    assert not second.is_primary()
    async with asyncio.timeout(CLEAN_HANDOVER_S):
        await first.stop()
        await until(second.is_primary)
    assert second.standby.fencing_number == 2
    await second.stop()
    assert server.command("EXISTS", KEY) == ":0\r\n"


async def test_a_redis_that_is_killed_and_comes_back_empty_has_one_primary_again(server: RedisServer) -> None:
    routers = [RouterInLoop(server.url, name) for name in ("first", "second")]
    await until(lambda: all(router.standby.holder for router in routers))
    server.kill()
    await until(lambda: not any(router.is_primary() for router in routers))
    await until(lambda: all(router.standby.last_error == "Redis refuses connections" for router in routers))
    assert server.start()
    await until(lambda: any(router.is_primary() for router in routers))
    await until(lambda: all(router.standby.last_error == "" for router in routers))
    [primary] = [router for router in routers if router.is_primary()]
    assert primary.standby.fencing_number == 2
    for router in routers:
        await router.stop()


async def test_a_primary_whose_redis_becomes_a_replica_steps_down_and_comes_back(server: RedisServer) -> None:
    router = RouterInLoop(server.url, "first")
    await until(router.is_primary)
    server.command("REPLICAOF", "127.0.0.1", "1")
    await until(lambda: router.standby.last_error == "this Redis is a read-only replica")
    await until(lambda: not router.is_primary())
    server.command("REPLICAOF", "NO", "ONE")
    await until(router.is_primary)
    assert router.standby.fencing_number == 2
    await router.stop()


@pytest.mark.parametrize("credentials", ["", "operator:hush-hush@", ":hush-hush@"])
async def test_refused_credentials_are_trouble_and_appear_nowhere(server: RedisServer, credentials: str) -> None:
    server.command("CONFIG", "SET", "requirepass", "other")
    with capture_logs() as lines:
        router = RouterInLoop(server.url_for(credentials), "first")
        await until(lambda: router.standby.last_error != "")
        await router.stop()
    assert router.standby.last_error == "Redis refuses the credentials of standby.redis_url"
    [warning] = router.warnings.recent()
    told = f"{lines} {warning} {router.standby.last_error} {router.standby.holder}"
    assert "hush" not in told
    assert "operator" not in told


async def test_right_credentials_are_used(server: RedisServer) -> None:
    server.command("CONFIG", "SET", "requirepass", "p@ss/word")
    router = RouterInLoop(server.url_for(":p%40ss%2Fword@"), "first")
    await until(router.is_primary)
    await router.stop()


async def test_a_host_that_does_not_exist_is_trouble_not_a_crash() -> None:
    router = RouterInLoop("redis://no-such-host.invalid", "first")
    await until(lambda: router.standby.last_error != "")
    await router.stop()
    assert router.standby.last_error in ("the host name of Redis cannot be resolved", "Redis does not answer")


async def test_a_server_that_does_not_speak_tls_is_trouble_not_a_crash(server: RedisServer) -> None:
    router = RouterInLoop(server.url.replace("redis://", "rediss://"), "first")
    await until(lambda: router.standby.last_error != "")
    await router.stop()
    assert router.standby.last_error == "Redis does not answer"  # it waits for the rest of a command


# Two processes.


class Units:
    """The log that the processes share: one line for each unit of work that was started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[tuple[str, int]]:
        pairs = [line.split() for line in self.path.read_text().splitlines()]
        return [(identity, int(number)) for identity, number in pairs]

    def assert_nobody_worked_beside_another(self) -> None:
        """Each fencing number is one holder's, and once a higher one worked no lower one did."""
        lines = self.lines()
        numbers = [number for _, number in lines]
        assert numbers == sorted(numbers)
        assert len(set(lines)) == len(set(numbers))


@pytest.fixture
def units(tmp_path: Path) -> Units:
    return Units(tmp_path / "units.log")


@asynccontextmanager
async def primary_and_standby(
    server: RedisServer, units: Units
) -> AsyncIterator[tuple[StandbyProcess, StandbyProcess]]:
    async with standby_process(server.url, "first", units.path) as first:
        assert await first.until_working() == 1
        async with standby_process(server.url, "second", units.path) as second:
            await first.until_printed("unit")
            yield first, second


async def test_a_process_that_is_stopped_hands_over_within_seconds(server: RedisServer, units: Units) -> None:
    async with primary_and_standby(server, units) as (first, second):
        first.send(signal.SIGTERM)
        async with asyncio.timeout(CLEAN_HANDOVER_S):
            assert await second.until_working() == 2
        assert await first.until_ended() == 0
        await second.until_printed("unit")
        second.send(signal.SIGTERM)
        assert await second.until_ended() == 0
    units.assert_nobody_worked_beside_another()
    assert {identity for identity, _ in units.lines()} == {"first", "second"}


async def test_a_process_that_is_killed_is_replaced_within_the_time_to_live(server: RedisServer, units: Units) -> None:
    async with primary_and_standby(server, units) as (first, second):
        first.send(signal.SIGKILL)
        async with asyncio.timeout(CRASH_HANDOVER_S):
            assert await second.until_working() == 2
        await second.until_printed("unit")
    units.assert_nobody_worked_beside_another()


async def test_a_process_that_slept_through_its_lease_starts_nothing_when_it_wakes(
    server: RedisServer, units: Units
) -> None:
    async with primary_and_standby(server, units) as (first, second):
        await first.until_printed("unit")
        first.send(signal.SIGSTOP)
        assert await second.until_working() == 2
        await second.until_printed("unit")
        first.send(signal.SIGCONT)
        await first.until_printed("idle")
        for _ in range(50):
            await second.until_printed("unit")
        assert units.lines()[-1] == ("second", 2)
        second.send(signal.SIGTERM)
        assert await first.until_working() == 3
        await first.until_printed("unit")
    units.assert_nobody_worked_beside_another()
    assert {number for _, number in units.lines()} == {1, 2, 3}


async def test_a_process_that_slept_alone_through_its_lease_works_again_under_a_new_number(
    server: RedisServer, units: Units
) -> None:
    async with standby_process(server.url, "first", units.path) as first:
        assert await first.until_working() == 1
        await first.until_printed("unit")
        first.send(signal.SIGSTOP)
        await asyncio.sleep(TTL_S * 1.5)
        before = len(units.lines())
        first.send(signal.SIGCONT)
        assert await first.until_working() == 2
        assert {number for _, number in units.lines()[before:]} <= {2}
        await first.until_printed("unit")
    units.assert_nobody_worked_beside_another()


async def test_while_redis_hangs_longer_than_the_lease_nobody_works_and_then_one_does(
    server: RedisServer, units: Units
) -> None:
    async with primary_and_standby(server, units) as (first, second):
        hung_at = time.monotonic()
        server.pause()
        await first.until_printed("idle")
        assert time.monotonic() - hung_at < TTL_S + 2.0
        before = len(units.lines())
        await asyncio.sleep(TTL_S)
        assert len(units.lines()) == before
        server.resume()
        new_number = await first_to_work(first, second)
        assert new_number > 1
        await until(lambda: units.lines()[-1][1] >= new_number)
    units.assert_nobody_worked_beside_another()


async def first_to_work(*processes: StandbyProcess) -> int:
    numbers: list[int] = []

    async def wait_for(process: StandbyProcess) -> None:
        numbers.append(await process.until_working())

    tasks = Tasks()
    for process in processes:
        tasks.spawn(wait_for(process))
    await until(lambda: numbers != [])
    await tasks.cancel()
    return numbers[0]
