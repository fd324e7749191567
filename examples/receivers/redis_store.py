"""What a `GroupGuard` remembers, in Redis: for receivers on several machines. Needs redis-py (pip install redis).

    guard = GroupGuard(RedisGuardStore(redis.Redis(host="127.0.0.1")))

A group is a hash (last, floor) and a sorted set of webhook ids by position. A script changes both in one step.
They are forgotten `forget_after_s` after their last change; the next webhook of the group is a gap then. Redis forgets
what it had not yet written when it dies: set appendfsync to always where that matters.
"""

from redis import Redis

from flowcatalyst.receiver import Known
from flowcatalyst.receiver.guard import REMEMBERED

READ = """
local before = redis.call('HMGET', KEYS[1], 'last', 'floor')
local done_at = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or 0)
local known = {tonumber(before[1] or 0), tonumber(before[2] or 0), done_at,
               redis.call('ZCOUNT', KEYS[2], ARGV[2], ARGV[2])}
"""
# As Known.after has it.
RECORD = """
local seq, prev, remembered = tonumber(ARGV[3]), tonumber(ARGV[2]), tonumber(ARGV[4])
local floor = known[2]
if known[4] == 0 then floor = math.max(floor, prev) end
local last = math.max(known[1], seq, floor)
floor = math.max(floor, last - remembered)
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', last), 'floor', string.format('%.0f', floor))
redis.call('ZADD', KEYS[2], seq, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', last - remembered)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[5]) end
"""
RESUME = """
local before = redis.call('HMGET', KEYS[1], 'last', 'floor')
local seq = tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'last', string.format('%.0f', math.max(before[1] or 0, seq)),
           'floor', string.format('%.0f', math.max(before[2] or 0, seq)))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


class RedisGuardStore:
    def __init__(self, redis: Redis, prefix: str = "flowcatalyst:guard:", forget_after_s: float = 90 * 86_400) -> None:
        self._prefix, self._forget_after_ms = prefix, int(forget_after_s * 1000)
        self._get = redis.register_script(READ + "return known")
        self._advance = redis.register_script(READ + RECORD + "return known")
        self._resume = redis.register_script(RESUME)

    def get(self, group: str, webhook_id: str, prev: int) -> Known:
        return self._known(self._get(self._keys(group), [webhook_id, prev]))

    def advance(self, group: str, seq: int, webhook_id: str, prev: int) -> Known:
        args = [webhook_id, prev, seq, REMEMBERED, self._forget_after_ms]
        return self._known(self._advance(self._keys(group), args))

    def resume_after(self, group: str, seq: int) -> None:
        self._resume(self._keys(group), [seq, self._forget_after_ms])

    def _keys(self, group: str) -> list[str]:
        name = f"{self._prefix}{{{group}}}"  # in braces: one node of a cluster has both
        return [name, f"{name}:done"]

    @staticmethod
    def _known(found: list) -> Known:
        last, floor, done_at, prev_done = found
        return Known(last, floor, done_at, bool(prev_done))
