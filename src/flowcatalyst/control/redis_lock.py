"""The standby lock in Redis. What Redis or its client raises is translated here, into words without secrets.

The lock is a key with a time to live. Its value is the holder's identity and a number for each time it asked, so that a
command that Redis executes late, long after we gave up on it, never passes for a newer one.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import urlsplit

import redis.exceptions
from redis.asyncio import ConnectionPool, Redis

from flowcatalyst.control.standby_lock import Holder, LockUnavailableError
from flowcatalyst.core.errors import ConfigurationError

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 2.5
MAX_NUMBER: Final = 2**53  # beyond that Lua counts in steps
WRONG_URL: Final = (
    "standby.redis_url cannot be used: write redis://user:password@host:6379/0, or rediss:// for TLS, "
    "with special characters of the password percent-encoded"
)

NOT_REDIS: Final = "Redis gave an unexpected answer: is it a Redis that runs Lua scripts?"

# All three run as one step in Redis. KEYS: the lock, the fencing number. ARGV: our identity, our token, ...
# A lock that is ours already is taken again: the answer to the command that took it may have been lost. The number is
# counted first, so that a lock is never taken without one. It grows even when Redis lost its memory.
_ACQUIRE: Final = """
local held = redis.call('GET', KEYS[1])
if held and string.match(held, '^(.*)#%d+$') ~= ARGV[1] then
  return {held, tonumber(redis.call('GET', KEYS[2])) or 0}
end
local number = redis.call('INCR', KEYS[2])
local seen = tonumber(ARGV[4])
if number <= seen then number = redis.call('INCRBY', KEYS[2], seen + 1 - number) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {ARGV[2], number}
"""
_REFRESH: Final = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif not held or string.match(held, '^(.*)#%d+$') == ARGV[1] then
  return false
end
return {held, tonumber(redis.call('GET', KEYS[2])) or 0}
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[2] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class _OddAnswerError(Exception):
    """Something came that none of the scripts returns; the text says what."""


class RedisLock:
    """One lock in one Redis. A call takes a few seconds at most and raises nothing but `LockUnavailableError`."""

    def __init__(self, url: str, key: str, ttl_s: float, identity: str) -> None:
        """`identity` must differ from that of every other process and every earlier one."""
        self._timeout_s = min(CALL_TIMEOUT_S, ttl_s / 4)
        self._client = Redis(connection_pool=_connection_pool(url, self._timeout_s))
        self._keys = (key, f"{key}:fence")
        self._ttl_ms = int(ttl_s * 1000)
        self._identity = identity
        self._asked = 0
        self._highest_number = 0

    async def acquire(self) -> Holder:
        """Take the lock if it is free or ours. The answer is who has it now: if that is us, with a new number."""
        self._asked += 1
        return await self._call(_ACQUIRE, _holder, self._highest_number)

    async def refresh(self) -> Holder | None:
        """Let the lock last for its time to live from now, if it is ours. The answer is who has it now, if anybody."""
        return await self._call(_REFRESH, lambda answer: None if answer is None else _holder(answer))

    async def release(self) -> None:
        """Give the lock back, if it is ours by the last `acquire`, even one that got no answer."""
        await self._call(_RELEASE, _count)

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        with suppress(Exception):  # one that cannot be closed in time is forgotten
            await self._client.connection_pool.disconnect()

    @property
    def _token(self) -> str:
        return f"{self._identity}#{self._asked}"

    async def _call(self, script: str, read: Callable[[object], T], *more: int) -> T:
        """What `read` makes of the answer. Anything that Redis or its client comes up with else is translated."""
        answered = False
        try:
            async with asyncio.timeout(self._timeout_s):
                result = read(
                    await self._client.eval(
                        script, len(self._keys), *self._keys, self._identity, self._token, self._ttl_ms, *more
                    )
                )
            answered = True
        except Exception as error:
            raise LockUnavailableError(_in_words(error)) from None  # it may quote the user name
        finally:
            if not answered:
                # A connection that was left half way may be in the wrong database, hold an old answer, or lead to a
                # server that is no longer the right one.
                await self.close()
        if isinstance(result, Holder):
            self._highest_number = max(self._highest_number, result.number)
        return result


def _holder(answer: object) -> Holder:
    match answer:
        case [str(held), int(number)] if 0 <= number <= MAX_NUMBER:
            return Holder(held.rpartition("#")[0] or held, number)
        case [str(), int()]:
            raise _OddAnswerError("the fencing number in Redis is out of range: delete its key, which ends in :fence")
    raise _OddAnswerError(NOT_REDIS)


def _count(answer: object) -> int:
    if not isinstance(answer, int):
        raise _OddAnswerError(NOT_REDIS)
    return answer


def _connection_pool(url: str, timeout_s: float) -> ConnectionPool:
    """Connections as the URL wants them. A wrong one raises `ConfigurationError`, which does not quote it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0 and not parts.fragment
        if not usable or not re.fullmatch(r"/?\d*", parts.path):
            raise ValueError
        pool = ConnectionPool.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, decode_responses=True, protocol=2
        )
        # Does not connect, but tells of options that do not exist.
        pool.make_connection()  # type: ignore[no-untyped-call]
    except Exception:
        raise ConfigurationError(WRONG_URL) from None
    return pool


_MEANINGS: Final[tuple[tuple[type[Exception], str], ...]] = (  # the first that fits
    (redis.exceptions.AuthenticationError, "Redis refuses the credentials of standby.redis_url"),
    (redis.exceptions.AuthorizationError, "Redis refuses the credentials of standby.redis_url"),
    (redis.exceptions.NoPermissionError, "the Redis user may not use EVAL, or not the keys of the lock"),
    (redis.exceptions.BusyLoadingError, "Redis is still loading its data"),
    (redis.exceptions.ReadOnlyError, "this Redis is a read-only replica"),
    (redis.exceptions.TimeoutError, "Redis does not answer"),
    (TimeoutError, "Redis does not answer"),
    (ssl.SSLError, "the TLS connection to Redis failed"),
    (socket.gaierror, "the host name of Redis cannot be resolved"),
    (ConnectionRefusedError, "Redis refuses connections"),
    (redis.exceptions.ConnectionError, "no connection to Redis"),
    (OSError, "no connection to Redis"),
    (UnicodeDecodeError, "the lock in Redis has a holder that is not text: delete its key"),
)


def _in_words(error: Exception) -> str:
    """What is wrong, always in the same words, without addresses, names or numbers."""
    if isinstance(error, _OddAnswerError):
        return str(error)
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind) or isinstance(error.__context__, kind):
            return meaning
    code = re.match(r"[A-Z]{3,}\b", str(error))  # as MISCONF, OOM, WRONGTYPE
    return f"Redis refuses the command ({code[0]})" if code else "Redis refuses the command: see its log"
