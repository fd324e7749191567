"""RoomShares: how much a queue may ask for, so that what several polls bring at once finds room in the pools.

A batch that finds no room goes back to its queue, which costs time and, at some brokers, a receive that counts. So a
poll claims the room for what it may bring. Two things keep a queue with little to bring from holding up the others:
they heed its claim only up to what its latest poll brought, and only for as long as a poll takes that finds messages.
And nobody is passed for ever: those who found too little left come first, in the order of waiting.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flowcatalyst.routing.pool import Pool

HEEDED_S: Final = 0.25


@dataclass(slots=True, eq=False)
class Claim:
    """What one poll under way may bring, and into which pools. For its owner all of it counts until it ends."""

    owner: object
    pools: frozenset[Pool]
    messages: int
    heeded: int  # how many of them count for others,
    heeded_until: float  # and until when (monotonic)


@dataclass(slots=True, frozen=True)
class _Wish:
    """What somebody waits for."""

    pools: frozenset[Pool]
    messages: int
    heeded_until: float


class RoomShares:
    """One for all queues. Nothing here suspends."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()
        self._waiting: dict[object, _Wish] = {}  # by owner; who waits longest comes first
        self._watchers: list[asyncio.Future[None]] = []

    def left(self, owner: object, pools: Sequence[Pool], now: float) -> list[int]:
        """The room that nobody else has claimed or waited for longer, in each of these pools. May be negative."""
        claimed = [
            (claim.pools, claim.messages if claim.owner is owner else claim.heeded)
            for claim in self._claims
            if claim.owner is owner or claim.heeded_until > now
        ]
        claimed += self._wishes_before(owner, now)
        return [pool.room - sum(count for where, count in claimed if pool in where) for pool in pools]

    def has_claim(self, owner: object) -> bool:
        return any(claim.owner is owner for claim in self._claims)

    def claim(self, owner: object, pools: Iterable[Pool], messages: int, brought: float, now: float) -> Claim:
        """A poll begins; the one before it brought so many. It ends with `release`, before the batch is routed."""
        self._waiting.pop(owner, None)
        claim = Claim(owner, frozenset(pools), messages, int(min(messages, brought)), now + HEEDED_S)
        self._claims.add(claim)
        return claim

    def release(self, claim: Claim) -> None:
        if claim in self._claims:
            self._claims.remove(claim)
            self._tell()

    def wait(self, owner: object, pools: Iterable[Pool], messages: int = 1, heeded_until: float = math.inf) -> None:
        """`owner` found too little left: its turn comes before that of those who come later.

        Who has a poll under way has had its turn.
        """
        if not self.has_claim(owner):
            self._waiting[owner] = _Wish(frozenset(pools), messages, heeded_until)  # one that waits keeps its place

    def forget(self, owner: object) -> None:
        """It polls no more, or its poll loops were given up."""
        self._claims = {claim for claim in self._claims if claim.owner is not owner}
        self._waiting.pop(owner, None)
        self._tell()

    def changed(self) -> asyncio.Future[None]:
        """Done when a claim ends."""
        future = asyncio.get_running_loop().create_future()
        self._watchers = [watcher for watcher in self._watchers if not watcher.done()]
        self._watchers.append(future)
        return future

    def _wishes_before(self, owner: object, now: float) -> Iterable[tuple[frozenset[Pool], int]]:
        for other, wish in self._waiting.items():
            if other is owner:
                return
            if wish.heeded_until > now:
                yield wish.pools, wish.messages

    def _tell(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()
