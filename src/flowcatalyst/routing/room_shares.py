"""RoomShares: how much a queue may ask for, so that what several polls bring at once finds room in the pools.

A batch that finds no room goes back to its queue, which costs time and, at some brokers, a receive that counts. So a
poll claims the room for what it may bring. Two things keep a queue with nothing to bring from holding up the others:
only a queue whose latest poll brought something has its claims heeded by them, and only for as long as a poll takes
that finds messages. And nobody is passed for ever: those who found nothing left come first, in the order of waiting.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flowcatalyst.routing.pool import Pool

HEEDED_S: Final = 0.25


@dataclass(slots=True, eq=False)
class Claim:
    """What one poll under way may bring, and into which pools. Claims of `owner` itself never lapse."""

    owner: object
    pools: Sequence[Pool]
    messages: int
    heeded_until: float  # monotonic; by others


class RoomShares:
    """One for all queues. Nothing here suspends."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()
        self._waiting: dict[object, Sequence[Pool]] = {}  # by owner; who waits longest comes first
        self._watchers: list[asyncio.Future[None]] = []

    def left(self, owner: object, pools: Sequence[Pool], now: float) -> int:
        """What `owner` may ask for: the least that is left in one of these pools. Without pools it is one message."""
        if not pools:
            return 1 - sum(claim.messages for claim in self._claims if claim.owner is owner)
        return min(self._left_in(pool, owner, now) for pool in pools)

    def claim(self, owner: object, pools: Sequence[Pool], messages: int, heeded_until: float) -> Claim:
        """A poll begins. It ends with `release`, before what it brought is routed."""
        self._waiting.pop(owner, None)
        claim = Claim(owner, pools, messages, heeded_until)
        self._claims.add(claim)
        return claim

    def release(self, claim: Claim) -> None:
        self._claims.discard(claim)
        self._tell()

    def wait(self, owner: object, pools: Sequence[Pool]) -> None:
        """`owner` found nothing left: its turn comes before that of those who come later."""
        self._waiting.setdefault(owner, pools)

    def forget(self, owner: object) -> None:
        """It polls no more, or all of its polls hang."""
        self._claims = {claim for claim in self._claims if claim.owner is not owner}
        self._waiting.pop(owner, None)
        self._tell()

    def changed(self) -> asyncio.Future[None]:
        """Done when somebody else's claim ends."""
        future = asyncio.get_running_loop().create_future()
        self._watchers = [watcher for watcher in self._watchers if not watcher.done()]
        self._watchers.append(future)
        return future

    def _left_in(self, pool: Pool, owner: object, now: float) -> int:
        claimed = sum(
            claim.messages
            for claim in self._claims
            if pool in claim.pools and (claim.owner is owner or claim.heeded_until > now)
        )
        return pool.room - claimed - self._come_before(pool, owner)

    def _come_before(self, pool: Pool, owner: object) -> int:
        """How many others have been waiting for this pool for longer."""
        count = 0
        for other, pools in self._waiting.items():
            if other is owner:
                break
            count += pool in pools
        return count

    def _tell(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()
