"""Recalls: messages that were handed out, were not started, and are wanted back, since a person acts on them."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from flowcatalyst.core.message import Delivery
from flowcatalyst.core.waiters import Waiters

REMEMBERED_S: Final = 60.0  # longer than what was handed out can be on its way


class Lease(NamedTuple):
    """What was handed out of a lane at a time: its receipts have the same number."""

    lane: int
    epoch: int


@runtime_checkable
class RecallableQueue(Protocol):
    """A queue of which people may want back what a router has in hand."""

    recalls: "RecalledLeases"

    async def recalled(self, wait_s: float) -> Sequence[Lease]:
        """Leases of ours that somebody wants back, until `returned` is called; none if none came within `wait_s`.

        Raises `QueueUnavailableError`.
        """

    def is_recalled(self, delivery: Delivery) -> bool:
        """Whether a message is of a lease that `recalled` told of lately: it may have been on its way to us then."""

    async def returned(self, leases: Sequence[Lease]) -> None:
        """What was not started of them is nacked, and nothing more of them starts. Raises `QueueUnavailableError`."""


class RecalledLeases:
    """The leases that were recalled lately, and who waits for news of recalls."""

    def __init__(self) -> None:
        self._epochs: dict[int, tuple[int, float]] = {}  # by lane: of the newest, and when that was told
        self._waiters = Waiters()
        self._news = 0  # counted, so that none is lost between a look and the wait after it

    def __repr__(self) -> str:
        return f"<RecalledLeases {self._epochs}>"

    def __len__(self) -> int:
        return len(self._epochs)

    def note(self, leases: Iterable[Lease], now: float) -> None:
        """These are recalled; those of long ago are forgotten."""
        if self._epochs:
            self._epochs = {lane: one for lane, one in self._epochs.items() if now - one[1] < REMEMBERED_S}
        for lane, epoch in leases:
            self._epochs[lane] = epoch, now

    def have(self, lane: int, epoch: int) -> bool:
        """Receipts of older leases of a lane are worth nothing anyway."""
        return lane in self._epochs and epoch <= self._epochs[lane][0]

    @property
    def news(self) -> int:
        return self._news

    def ring(self) -> None:
        """Something was recalled, or came back."""
        self._news += 1
        self._waiters.wake()

    async def wait(self, news: int, seconds: float) -> None:
        """Until there are more news than so many, or for so long."""
        if self._news == news:
            await self._waiters.wait(asyncio.get_running_loop().time() + seconds)
