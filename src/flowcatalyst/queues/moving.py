"""Messages from one queue into another, in the order of each group.

A message is published first and acked when that is durable, and of each group one message at a time is between the two.
Whatever ends the process there, the message is in both queues then, never in none and never behind a later one of its
group. The next move publishes it again, under the same deduplication id: a target that deduplicates has it once.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.contract import Depth, Outgoing, Publisher, Queue
from flowcatalyst.queues.raw import POINTERS, Reader

BATCH: Final = 256
LOOK_S: Final = 2.0  # how long one receive waits; also how long a stop may have to wait for it
ACK_ATTEMPTS: Final = 3


@dataclass(slots=True, eq=False)
class _Message:
    delivery: Delivery
    group: str | None  # None: it is ordered with nothing
    acked: bool = False


class Move:
    """One run. It can always say how far it came."""

    def __init__(
        self,
        source: Queue,
        target: Publisher,
        clock: Clock,
        *,
        read: Reader = POINTERS,  # how the bodies of the source are read, for groups that only they name
        limit: int | None = None,  # most messages to move
        patience_s: float = 0.0,  # how long to wait for messages that the source has and does not show
        depth: Callable[[], Awaitable[Depth | None]]
        | None = None,  # what the source holds now; None: as it tells itself
        obstacle: Callable[[], str] = str,  # asked before each batch: why it cannot go on; empty if it can
    ) -> None:
        self.moved = 0
        self.doubles = 0  # of these: the target had them already
        self._source = source
        self._target = target
        self._clock = clock
        self._read = read
        self._limit = limit
        self._patience_s = patience_s
        self._depth = depth or source.depth
        self._obstacle = obstacle
        self._stopped = False

    def stop(self) -> None:
        """What is published meanwhile is still acked; then `run` ends."""
        self._stopped = True

    async def run(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Until the source has nothing more to show, the limit is reached, or it was stopped.

        Raises `QueueUnavailableError` or `InvalidMessageError`; what was not moved is in the source then, in its order.
        """
        while not self._stopped and self._left != 0 and (batch := await self._receive()):
            in_hand = [_Message(one, self._group_of(one)) for one in batch]
            try:
                while in_hand and not self._stopped:
                    await self._keep(in_hand)
                    first, later = _one_of_each_group(in_hand)
                    await self._transfer(first)
                    in_hand = later
                    on_progress()
            finally:
                if requeued := [one.delivery for one in in_hand if not one.acked]:
                    with suppress(QueueUnavailableError):  # shown again when their leases end, then
                        await self._source.nack(requeued, 0.0)

    @property
    def _left(self) -> int | None:
        return None if self._limit is None else self._limit - self.moved

    async def _receive(self) -> list[Delivery]:
        """Empty: nothing more comes, or it was stopped."""
        give_up_at = self._clock.monotonic() + self._patience_s
        wait_s = 0.0 if self._source.capabilities.selects_pools else LOOK_S  # a broker may count late, our storage not
        while not self._stopped:
            if problem := self._obstacle():
                raise QueueUnavailableError(problem)
            most = min(BATCH, self._source.batching.max_batch, BATCH if self._left is None else self._left)
            if batch := await self._source.receive(most, wait_s):
                return batch
            if self._clock.monotonic() >= give_up_at or not held(await self._depth()):
                break
            wait_s = LOOK_S
        return []

    def _group_of(self, delivery: Delivery) -> str | None:
        """As its queue names it, else as its body does."""
        with suppress(InvalidMessageError):  # a router will make a dead letter of it, wherever it is
            pointer = self._read(delivery)
            return delivery.group or pointer.message_group_id or None
        return delivery.group

    async def _keep(self, messages: Sequence[_Message]) -> None:
        """Make sure that nobody else has them. A lease that is half over is extended."""
        capabilities, now = self._source.capabilities, self._clock.monotonic()
        deliveries = [one.delivery for one in messages]
        results = [Settled.OK if self._source.still_ours(one) else Settled.GONE for one in deliveries]
        if capabilities.extends:
            aging = [one for one in deliveries if one.lease_until - now < capabilities.visibility_s / 2]
            results += await self._source.extend(aging, capabilities.visibility_s) if aging else []
        if any(result is not Settled.OK for result in results):
            raise QueueUnavailableError(f"leases of queue {self._source.name} were lost, perhaps to another receiver")

    async def _transfer(self, messages: Sequence[_Message]) -> None:
        """Publish, then ack. If one of them can never be published, those before it are moved."""
        try:
            published = await self._target.publish([_outgoing(one) for one in messages])
        except InvalidMessageError as error:
            if len(messages) == 1:
                broker_id = messages[0].delivery.broker_id
                raise InvalidMessageError(f"message {broker_id} cannot be moved: {error}") from None
            for one in messages:
                await self._transfer([one])
            return
        self.doubles += sum(one.duplicate for one in published)
        await self._ack(messages)

    async def _ack(self, messages: Sequence[_Message]) -> None:
        """All of them: before that, no later one of their groups may be published."""
        unsettled = list(messages)
        for _ in range(ACK_ATTEMPTS):
            results = await self._source.ack([one.delivery for one in unsettled])
            for one, result in zip(unsettled, results, strict=True):
                one.acked = result is Settled.OK
            self.moved += results.count(Settled.OK)
            unsettled = [one for one in unsettled if not one.acked]
            if not unsettled:
                return
            if Settled.GONE in results:
                break
        raise QueueUnavailableError(
            f"{len(unsettled)} messages are published, but queue {self._source.name} did not take their acks"
        )


def held(depth: Depth | None) -> int | None:
    """How many messages a queue holds; None: it cannot tell."""
    return None if depth is None else depth.waiting + depth.leased + depth.delayed


def _one_of_each_group(messages: Sequence[_Message]) -> tuple[list[_Message], list[_Message]]:
    """The first of each group, and the others."""
    seen: set[str] = set()
    first: list[_Message] = []
    later: list[_Message] = []
    for one in messages:
        (later if one.group in seen else first).append(one)
        if one.group is not None:
            seen.add(one.group)
    return first, later


def _outgoing(message: _Message) -> Outgoing:
    body = message.delivery.body
    try:
        text = body if isinstance(body, str) else body.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessageError(f"its body is not text: {error}") from None
    return Outgoing(text, message.group, f"moved-{message.delivery.broker_id}")
