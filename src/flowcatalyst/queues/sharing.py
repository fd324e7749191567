"""How a queue that is asked per pool divides what one receive may bring. Pure."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.contract import FreeCapacity

LANE_SHARE: Final = 20  # messages of one lane in a batch while other lanes have some: what a pool buffers per slot
MAX_POOLS: Final = 64  # that one look serves; the others have the next turn
MAX_CODES: Final = 256  # that one look finds: producers may name as many pools as they like, by mistake too


def share_out(limit: int, ready: Sequence[str], free_capacity: FreeCapacity | None) -> dict[str, int]:
    """How many messages to look for, by pool; `ready` names those that have some, longest ready first.

    The default pool divides its part among all codes that lead to it, so that however many they are, they take nothing
    from another pool.
    """
    free_capacity = free_capacity or FreeCapacity({}, limit)
    most: dict[str | None, int] = {}  # None: all codes that lead to the default pool together
    by_default: list[str] = []
    for code in ready:
        if code in free_capacity.pools and code != DEFAULT_POOL:
            most[code] = free_capacity.pools[code]
        else:
            most[None] = free_capacity.of(DEFAULT_POOL)
            by_default.append(code)
    shares = _divide(limit, most)
    part = shares.pop(None, 0)
    divided = _divide(part, dict.fromkeys(by_default, part))
    return {code: share for code, share in (shares | divided).items() if code is not None}


def _divide(total: int, most: Mapping[str | None, int]) -> dict[str | None, int]:
    """Evenly, and to nobody more than their most. If there is not enough for all, the first ones get some."""
    some = islice((name for name in most if most[name] > 0), max(0, min(total, MAX_POOLS)))
    smallest_first = sorted(some, key=most.__getitem__)  # so that what they leave goes to the others
    shares: dict[str | None, int] = {}
    for name in smallest_first:
        shares[name] = min(most[name], total // (len(smallest_first) - len(shares)))
        total -= shares[name]
    return shares
