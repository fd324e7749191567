"""What a client of an SQS queue remembers because SQS does not: all of it bounded, none of it needed for order."""

from collections.abc import Hashable
from typing import Final

from flowcatalyst.queues.contract import Depth, Published
from flowcatalyst.queues.recent import Recent

DEDUPLICATION_S: Final = 300.0
DEPTH_CACHE_S: Final = 60.0
EMPTY: Final = Depth(0, 0, 0)


class SentIds:
    """Which deduplication ids this client sent, so that it can tell a duplicate.

    SQS accepts a duplicate like any other message. Amazon answers with the id of the first one, which is not documented
    and which not every server does. So a duplicate of what another client sent is not recognised.
    """

    def __init__(self, most: int = 50_000) -> None:
        self._sent: Recent[Hashable, tuple[str, float]] = Recent(most)

    def publish(self, key: Hashable, message_id: str, sent_at: float, answered_at: float) -> Published:
        """What became of a message, by the answer to it. Times are monotonic."""
        known = self._sent.get(key)
        if known is not None:
            first_id, first_sent_at = known
            # SQS promises to deliver none of them in these minutes, counted from when it took the first.
            if message_id == first_id or answered_at - first_sent_at < DEDUPLICATION_S:
                return Published(first_id, duplicate=True)
        self._sent.put(key, (message_id, sent_at))
        return Published(message_id)

    def forget(self) -> None:
        """The server lost the queue, and what it knew."""
        self._sent.clear()


class VanishWatch:
    """Notices when a queue became shorter by far more than its only consumer took: most likely somebody purged it.

    The counts that SQS gives are up to a minute old and include what others do. So nothing is said if somebody else
    had messages in hand at the look before, and what we removed since the one before that is left out.
    """

    def __init__(self) -> None:
        self._held: int | None = None  # in the queue at the last look; None: we were not alone, or never looked
        self._removed = 0  # by us since the last look
        self._removed_before = 0  # and between the two before

    def removed(self, count: int) -> None:
        self._removed += count

    def look(self, depth: Depth, in_hand: int) -> int:
        """How many messages vanished; 0 if nothing can be said."""
        holds = depth.waiting + depth.leased + depth.delayed
        held, self._held = self._held, holds if depth.leased <= in_hand else None
        removed, self._removed_before, self._removed = self._removed + self._removed_before, self._removed, 0
        if held is None:
            return 0
        vanished = held - removed - holds
        return vanished if vanished > 0 and (holds == 0 or vanished > held / 2) else 0

    def forget(self) -> None:
        """It is another queue now."""
        self._held, self._removed, self._removed_before = None, 0, 0


class DepthMemory:
    """When a depth that was told still holds, so that an idle queue costs nothing but its long polls."""

    def __init__(self) -> None:
        self._depth = EMPTY
        self._told_at = -DEPTH_CACHE_S
        self._moved = True  # messages came or went since
        self._empty_poll_at = -DEPTH_CACHE_S

    def told(self, depth: Depth, now: float) -> None:
        self._depth, self._told_at, self._moved = depth, now, False

    def connected(self, depth: Depth) -> None:
        """Known from the look at the queue that connecting takes; too old to be told to anybody unless it is idle."""
        self._depth, self._moved = depth, False

    @property
    def last(self) -> int:
        """How many messages the queue had when it was last looked at."""
        return self._depth.waiting + self._depth.leased + self._depth.delayed

    def moved(self) -> None:
        self._moved = True
        self._empty_poll_at = -DEPTH_CACHE_S

    def polled_in_vain(self, now: float) -> None:
        self._empty_poll_at = now

    def known(self, now: float) -> Depth | None:
        if now - self._told_at < DEPTH_CACHE_S:
            return self._depth
        idle = not self._moved and self._depth == EMPTY and now - self._empty_poll_at < DEPTH_CACHE_S
        return EMPTY if idle else None
