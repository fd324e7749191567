"""What one of several processes may use of the limits of a pool. Pure.

What does not divide evenly goes to the first ranks, and which process is the first differs from pool to pool: of many
pools with one slot each, every process has some. Permits go to those only who have slots to use them.
"""

from zlib import crc32

from flowcatalyst.queues.division import Membership, Part
from flowcatalyst.router.limits import PoolLimits, PoolShare


def share(limit: int, part: Part) -> int:
    """Of a limit: 10 among three are 4, 3 and 3; 1 among three is 1, 0 and 0."""
    return limit // part.of + (part.rank < limit % part.of)


def slots_of(code: str, limits: PoolLimits, part: Part) -> int:
    return share(limits.concurrency, _turned(part, code))


def permits_of(code: str, limits: PoolLimits, part: Part) -> int | None:
    """A minute; None: any number."""
    if limits.rate_per_minute is None:
        return None
    rank, of = _turned(part, code)
    users = min(of, limits.concurrency)
    return share(limits.rate_per_minute, Part(rank, users)) if rank < users else 0


def share_of(code: str, limits: PoolLimits, slots: Membership, rates: Membership) -> PoolShare:
    """What we may use of a pool now."""
    most_slots = min(slots_of(code, limits, part) for part in slots.parts) if slots.parts else 0
    most_permits = None
    if limits.rate_per_minute is not None:
        most_permits = min(permits_of(code, limits, part) or 0 for part in rates.parts) if rates.parts else 0
    return PoolShare.of(limits, most_slots, most_permits)


def _turned(part: Part, code: str) -> Part:
    return Part((part.rank + crc32(code.encode())) % part.of, part.of)
