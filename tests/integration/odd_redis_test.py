"""Whatever Redis answers, the lock cannot be used or it can: no answer ends the standby for good."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

from flowcatalyst.control.redis_lock import RedisLock
from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import Standby, StandbyState
from flowcatalyst.control.standby_lock import LockUnavailableError
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.router.fence import Fence
from tests.servers.redis import redis_server
from tests.support.odd_redis import LOCKED_AS_ASKED, OddRedis, odd_redis

KEY: Final = "flowcatalyst:router:primary"
TTL_S, REFRESH_S = 1.0, 0.1
NOTICED_WITHIN_S: Final = 20.0

# None of these is an answer to any of the three scripts.
ODD_ANSWERS: Final = {
    "status": b"+OK\r\n",
    "text": b"$5\r\nhello\r\n",
    "empty array": b"*0\r\n",
    "null array": b"*-1\r\n",
    "array of one": b"*1\r\n$3\r\na#1\r\n",
    "array of three": b"*3\r\n$3\r\na#1\r\n:1\r\n:2\r\n",
    "number where the holder should be": b"*2\r\n:1\r\n:1\r\n",
    "text where the number should be": b"*2\r\n$3\r\na#1\r\n$1\r\n1\r\n",
    "null where the number should be": b"*2\r\n$3\r\na#1\r\n$-1\r\n",
    "null where the holder should be": b"*2\r\n$-1\r\n:1\r\n",
    "array in an array": b"*2\r\n*1\r\n$3\r\na#1\r\n:1\r\n",
    "number out of range": b"*2\r\n$3\r\na#1\r\n:9223372036854775807\r\n",
    "negative number": b"*2\r\n$3\r\na#1\r\n:-5\r\n",
    "holder that is no text": b"*2\r\n$4\r\n\xff\xfe#1\r\n:1\r\n",
    "error": b"-ERR something\r\n",
    "error without words": b"-\r\n",
    "error in an array": b"*2\r\n-WRONGTYPE no\r\n:1\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "replica": b"-READONLY You can't write against a read only replica.\r\n",
    "moved": b"-MOVED 3999 127.0.0.1:6381\r\n",
    "moved to nowhere": b"-MOVED\r\n",
    "ask": b"-ASK 3999 127.0.0.1:6381\r\n",
    "try again": b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
    "cluster down": b"-CLUSTERDOWN The cluster is down\r\n",
    "no memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "busy": b"-BUSY Redis is busy running a script.\r\n",
    "garbage": b"\x00\x01\x02garbage\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "number that is none": b":one\r\n",
    "length that is none": b"$x\r\n",
}


@pytest.fixture
async def redis() -> AsyncIterator[OddRedis]:
    async with odd_redis() as server:
        yield server


@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
@pytest.mark.parametrize("hangs_up", [False, True])
async def test_an_odd_answer_says_nothing_about_the_lock(redis: OddRedis, answer: bytes, hangs_up: bool) -> None:
    lock = RedisLock(redis.url, KEY, TTL_S, "a")
    redis.answer, redis.hangs_up = answer, hangs_up
    calls: list[Callable[[], Awaitable[object]]] = [lock.acquire, lock.refresh, lock.release]
    if answer == ODD_ANSWERS["null array"]:
        calls.remove(lock.refresh)  # there it says that nobody has the lock
    for call in calls:
        with pytest.raises(LockUnavailableError) as raised:
            await call()
        assert "127.0.0.1" not in str(raised.value)
    redis.answer, redis.hangs_up = LOCKED_AS_ASKED, False
    holder = await lock.acquire()
    assert (holder.identity, holder.number) == ("a", 1)
    await lock.close()


@pytest.mark.parametrize("answer", [b"*2\r\n$3\r\na#", b"$400\r\nhalf of it", b""])
async def test_a_connection_that_is_cut_in_an_answer_says_nothing_about_the_lock(answer: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    lock = RedisLock(f"redis://127.0.0.1:{port}", KEY, TTL_S, "a")
    for call in (lock.acquire, lock.refresh, lock.release):
        with pytest.raises(LockUnavailableError):
            await call()
    await lock.close()
    server.close()


@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_a_standby_goes_on_after_an_odd_answer_and_takes_the_lock_later(redis: OddRedis, answer: bytes) -> None:
    redis.answer = answer
    async with standing_by(redis.url) as standby:
        await until(lambda: redis.asked >= 2)
        assert standby.last_error
        assert standby.state is StandbyState.STANDBY
        redis.answer = LOCKED_AS_ASKED
        await until(lambda: standby.state is StandbyState.PRIMARY)
        assert not standby.last_error


@pytest.mark.parametrize("kind", ["status", "null array", "array of one", "negative number", "moved", "garbage"])
async def test_a_primary_steps_down_when_only_odd_answers_come_and_works_again_later(
    redis: OddRedis, kind: str
) -> None:
    async with standing_by(redis.url) as standby:
        await until(lambda: standby.state is StandbyState.PRIMARY)
        redis.answer = ODD_ANSWERS[kind]
        await until(lambda: standby.state is StandbyState.STANDBY)
        asked = redis.asked
        await until(lambda: redis.asked >= asked + 2)
        redis.answer = LOCKED_AS_ASKED
        await until(lambda: standby.state is StandbyState.PRIMARY)


@pytest.mark.parametrize(
    ("command", "undo"),
    [
        (["SET", KEY, "\u00ff"], ["DEL", KEY]),
        (["RPUSH", KEY, "x"], ["DEL", KEY]),
        (["SET", f"{KEY}:fence", "9223372036854775806"], ["DEL", f"{KEY}:fence"]),
        (["SET", f"{KEY}:fence", "9223372036854775807"], ["DEL", f"{KEY}:fence"]),
        (["SET", f"{KEY}:fence", "one"], ["DEL", f"{KEY}:fence"]),
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
    ],
    ids=lambda words: words[-1],
)
async def test_a_real_redis_with_something_else_in_the_keys_of_the_lock_does_not_end_the_standby(
    tmp_path: Path, command: list[str], undo: list[str]
) -> None:
    with redis_server(tmp_path) as server:
        server.command(*command)
        async with standing_by(server.url) as standby:
            await until(lambda: bool(standby.last_error or standby.holder))
            assert standby.state is StandbyState.STANDBY
            server.command(*undo)
            await until(lambda: standby.state is StandbyState.PRIMARY)


@asynccontextmanager
async def standing_by(url: str) -> AsyncIterator[Standby]:
    settings = StandbySettings(redis_url=SecretStr(url), ttl_s=TTL_S, refresh_s=REFRESH_S)
    clock = SystemClock()
    standby = Standby(settings, clock, "a", WarningLog(clock), Fence())
    task = Tasks().spawn(standby.run(nothing_to_do), "standby")
    try:
        yield standby
        assert not task.done()
    finally:
        standby.stop()
        await asyncio.wait([task])


@asynccontextmanager
async def nothing_to_do() -> AsyncIterator[None]:
    yield


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(NOTICED_WITHIN_S):
        while not condition():
            await asyncio.sleep(0.01)
