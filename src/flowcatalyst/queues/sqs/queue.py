"""Amazon SQS, FIFO and standard queues, and servers that speak its protocol."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Capabilities, Delivery, Settled
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.address import SqsAddress
from flowcatalyst.queues.contract import Batching, Demand, Depth, Loss, Outgoing, Published
from flowcatalyst.queues.recent import Recent
from flowcatalyst.queues.sqs import messages as sqs_messages
from flowcatalyst.queues.sqs.connection import SqsConnection
from flowcatalyst.queues.sqs.errors import settled
from flowcatalyst.queues.sqs.memory import DepthMemory, VanishWatch
from flowcatalyst.queues.sqs.messages import MAX_ENTRIES, Entry, Receipt, chunks
from flowcatalyst.queues.sqs.sender import SqsSender

LONG_POLL_S: Final = 20.0
POLL_SLACK_S: Final = 5.0  # a poll that brought no answer so long after its wait is given up
CLOSE_LIMIT_S: Final = 2.0  # for polls that were abandoned and may still bring something to requeue
MAX_VISIBILITY_S: Final = 43_200  # from receive to the end of the last extension
CALLS_AT_ONCE: Final = 16
LEAST_RECEIVES_FIFO: Final = 100
LEAST_RECEIVES_STANDARD: Final = 5
LEAST_RETENTION_S: Final = 86_400
SETTLE_LINGER_S: Final = 0.1
MAX_REMEMBERED: Final = 100_000

ChunkWork = Callable[[Sequence[Delivery]], Coroutine[Any, Any, list[Settled]]]

log = structlog.get_logger("flowcatalyst.sqs")


class SqsQueue:
    """One queue, both ends of it."""

    def __init__(
        self,
        name: str,
        address: SqsAddress,
        clock: Clock,
        *,
        visibility_s: float = 60.0,
        endpoint_override: str | None = None,
        default_region: str | None = None,
        long_poll_s: float | None = None,
        max_batch: int = MAX_ENTRIES,
    ) -> None:
        self.name = name
        fifo = self._fifo = address.fifo
        self.capabilities = Capabilities(
            hurries=True,
            ordered_redelivery=fifo,
            locks_groups=fifo,
            ordered_receive=fifo,
            ordered_takeover=fifo,
            deduplicates=fifo,
            delayed_nack=True,
            extends=True,
            visibility_s=visibility_s,
            long_poll_s=LONG_POLL_S if long_poll_s is None else long_poll_s,
        )
        self.batching = Batching(
            max_batch, partial_pause_s=0.1, settle_linger_s=SETTLE_LINGER_S, settle_batch=MAX_ENTRIES
        )
        self._clock = clock
        self._connection = SqsConnection(address, endpoint_override=endpoint_override, default_region=default_region)
        self._tasks = Tasks()
        self._under_way: set[asyncio.Task[None]] = set()  # the same, to wait for
        self._calls_at_once = asyncio.Semaphore(CALLS_AT_ONCE)
        self._sender = SqsSender(self._connection, clock, fifo=fifo)
        self._depth = DepthMemory()
        self.losses: list[Loss] = []
        self._created_at: str | None = None  # when the queue was made, by its own word; None: never seen
        self._in_hand: dict[str, Receipt] = {}  # by broker id
        self._vanish_watch = VanishWatch()
        self._connection.on_created.append(self._note_creation)
        self._connection.on_connected.append(self._look_at_attributes)
        self._failures: Recent[str, int] = Recent(MAX_REMEMBERED)  # by broker id
        self._deleted: Recent[str, None] = Recent(MAX_REMEMBERED)  # receipt handles: not every server knows them again
        self._replaced: Recent[str, None] = Recent(MAX_REMEMBERED)  # broker ids of messages that were re-sent

    @property
    def calls(self) -> Counter[str]:
        """Requests that were sent, by operation."""
        return self._connection.calls

    @property
    def setup_warnings(self) -> Sequence[str]:
        return list(_setup_warnings(self._connection.attributes, fifo=self._fifo))

    async def open(self) -> None:
        self._connection.open()

    async def close(self) -> None:
        """What is in hand is shown again when its lease ends."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_LIMIT_S)
        await self._tasks.cancel()
        await self._connection.close()

    async def reconnect(self) -> None:
        """With new sockets; calls under way fail."""
        await self._connection.renew()

    def fit(self, capacity: int) -> None:
        """It hands out what it is asked for."""

    # Receiving

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        """Up to `limit` messages, oldest first in each group; empty when none came within `wait_s`.

        A poll goes on when its caller is cancelled: what it brings would be hidden for a whole lease otherwise, and its
        group with it. It is requeued instead.
        """
        arrived: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        self._spawn(self._poll(min(limit, MAX_ENTRIES), wait_s, arrived))
        try:
            return await arrived
        except asyncio.CancelledError:
            if not arrived.cancelled() and arrived.exception() is None:  # cancelled in the moment it was there
                self._spawn(self._requeue(arrived.result()))
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.spawn(work, f"poll {self.name}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _poll(self, limit: int, wait_s: float, arrived: "asyncio.Future[list[Delivery]]") -> None:
        try:
            deliveries = await self._receive(limit, wait_s)
        except Exception as error:
            if not arrived.done():
                arrived.set_exception(error)
        except asyncio.CancelledError:
            if not arrived.done():
                arrived.set_exception(QueueUnavailableError(f"{self._connection.where} was closed here"))
            raise
        else:
            if arrived.cancelled():
                await self._requeue(deliveries)
            else:
                arrived.set_result(deliveries)

    async def _requeue(self, deliveries: Sequence[Delivery]) -> None:
        with suppress(QueueUnavailableError):  # their leases end
            await self.nack(deliveries, 0.0)

    async def _receive(self, limit: int, wait_s: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        while True:
            poll_s = min(math.ceil(max(0.0, give_up_at - loop.time())), int(LONG_POLL_S))
            # No ReceiveRequestAttemptId. It would bring back the messages of an answer that was lost, but SQS takes it
            # only while none of them changed, and refuses it after a throttled call. Without it their lease ends.
            answer = await self._connection.call(
                "receive_message",
                poll_s + POLL_SLACK_S,
                MaxNumberOfMessages=limit,
                WaitTimeSeconds=poll_s,
                VisibilityTimeout=_seconds(self.capabilities.visibility_s),
                MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageGroupId", "SentTimestamp"],
                MessageAttributeNames=["All"],
            )
            found: list[Mapping[str, Any]] = answer.get("Messages") or []
            if found:
                self._depth.moved()
            elif poll_s:
                self._depth.polled_in_vain(self._clock.monotonic())
            ready = await self._ready(found)
            if ready or not found or loop.time() >= give_up_at:
                return ready

    async def _ready(self, found: Sequence[Mapping[str, Any]]) -> list[Delivery]:
        """Those that may be handed out. Copies that wait for their time are hidden again until then."""
        now, wall, visibility_s = self._clock.monotonic(), self._clock.wall(), self.capabilities.visibility_s
        ready: list[Delivery] = []
        replaced: list[Delivery] = []
        early: dict[Delivery, int] = {}
        for raw in found:
            delivery, note = sqs_messages.read(raw, now, visibility_s)
            # Hidden once, for no longer than it was to wait: whatever the clocks say, it is due when it comes again.
            rest_s = min(note.not_before - wall, note.delay_s) if note is not None else 0.0
            if rest_s > 0 and delivery.receive_count == 1:
                early[delivery] = _seconds(rest_s)
            elif delivery.broker_id in self._replaced:
                replaced.append(delivery)
            else:
                delivery.failures = self._failures.pop(delivery.broker_id) or delivery.failures
                self._in_hand[delivery.broker_id] = delivery.receipt
                ready.append(delivery)
        if early or replaced:
            with suppress(QueueUnavailableError):  # shown again when their leases end, and this is tried again
                await self._change_visibility(list(early), list(early.values()))
                await self._delete(replaced)
        return ready

    # Settling

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        """Remove messages for good. Acking what is already gone is OK."""
        results = await self._in_chunks(deliveries, self._delete)
        for delivery in deliveries:
            self._in_hand.pop(delivery.broker_id, None)
        self._vanish_watch.removed(len(deliveries))
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        """Show messages again after `delay_s`, but not later than twelve hours after they were received.

        With `unlock` they wait in a group of their own, as a copy.
        """
        for delivery in deliveries:
            self._in_hand.pop(delivery.broker_id, None)
            if delivery.failures:
                self._failures.put(delivery.broker_id, delivery.failures)
        work = self._unlock if unlock and self._fifo and delay_s > 0 else self._hide
        return await self._in_chunks(deliveries, partial(work, delay_s=delay_s))

    async def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """Keep messages hidden for `seconds` from now and set their `lease_until`; FAILED after twelve hours."""
        return await self._in_chunks(deliveries, partial(self._extend, seconds=seconds))

    async def _in_chunks(self, deliveries: Sequence[Delivery], work: ChunkWork) -> list[Settled]:
        """A chunk that fails leaves the others alone. Raises if all of them did."""
        if len(deliveries) <= MAX_ENTRIES:
            return await work(deliveries) if deliveries else []
        errors: list[QueueUnavailableError] = []

        async def one(chunk: Sequence[Delivery]) -> list[Settled]:
            async with self._calls_at_once:
                try:
                    return await work(chunk)
                except QueueUnavailableError as error:
                    errors.append(error)
                    return [Settled.FAILED] * len(chunk)

        parts = await asyncio.gather(*map(one, chunks(deliveries)))
        if len(errors) == len(parts):
            raise errors[0]
        if errors:
            log.warning("settle_failed", action="settle_failed", queue=self.name, error=str(errors[0]))
        return [result for part in parts for result in part]

    async def _delete(self, chunk: Sequence[Delivery]) -> list[Settled]:
        now = self._clock.monotonic()
        handles = {delivery.receipt.handle for delivery in chunk}
        asked = [handle for handle in handles if handle not in self._deleted]
        answers = await self._settle("delete_message_batch", [{"ReceiptHandle": handle} for handle in asked])
        said = dict(zip(asked, answers, strict=True))
        results: list[Settled] = []
        for delivery in chunk:
            receipt: Receipt = delivery.receipt
            result = said.get(receipt.handle)
            if result is None:
                result = Settled.OK  # was deleted before
            elif result is Settled.OK and receipt.until <= now:
                result = Settled.GONE  # SQS may say OK to a receipt that a newer one replaced, and keep the message
            elif result is Settled.OK:
                self._deleted.put(receipt.handle, None)
            results.append(result)
        return results

    async def _hide(self, chunk: Sequence[Delivery], delay_s: float) -> list[Settled]:
        now = self._clock.monotonic()
        seconds = [min(_seconds(delay_s), max(0, _left(delivery.receipt, now))) for delivery in chunk]
        return await self._change_visibility(chunk, seconds)

    async def _extend(self, chunk: Sequence[Delivery], seconds: float) -> list[Settled]:
        now = self._clock.monotonic()
        wanted = [min(_seconds(seconds), _left(delivery.receipt, now)) for delivery in chunk]
        able = [delivery for delivery, length in zip(chunk, wanted, strict=True) if length > 0]
        answers = iter(await self._change_visibility(able, [length for length in wanted if length > 0]))
        results = [next(answers) if length > 0 else Settled.FAILED for length in wanted]
        for delivery, length, result in zip(chunk, wanted, results, strict=True):
            if result is Settled.OK:
                delivery.receipt.until = delivery.lease_until = now + length
        return results

    async def _change_visibility(self, chunk: Sequence[Delivery], seconds: Sequence[int]) -> list[Settled]:
        entries = [
            {"ReceiptHandle": delivery.receipt.handle, "VisibilityTimeout": length}
            for delivery, length in zip(chunk, seconds, strict=True)
        ]
        return await self._settle("change_message_visibility_batch", entries)

    async def _settle(self, operation: str, entries: Sequence[dict[str, Any]]) -> list[Settled]:
        if not entries:
            return []
        answers = await self._connection.call_batch(operation, entries)
        return [settled(answer.failure) if answer.success is None else Settled.OK for answer in answers]

    async def _unlock(self, chunk: Sequence[Delivery], delay_s: float) -> list[Settled]:
        """Re-send those that hold their group back under a group of their own, then delete them there.

        A crash in between leaves two of a message, never none.
        """
        now, not_before = self._clock.monotonic(), self._clock.wall() + delay_s
        largest = int(self._connection.attributes.get("MaximumMessageSize", sqs_messages.MAX_REQUEST_BYTES))
        results: dict[Delivery, Settled] = {}
        copies: dict[Delivery, Entry] = {}
        hidden: list[Delivery] = []
        for delivery in chunk:
            if delivery.receipt.until <= now:
                results[delivery] = Settled.GONE  # somebody else may have it: a copy would double it
            elif copy := sqs_messages.retry_entry(delivery, not_before, delay_s, largest):
                copies[delivery] = copy
            else:
                hidden.append(delivery)  # holds nobody back, or a copy would be too large
        results |= zip(hidden, await self._hide(hidden, delay_s), strict=True)
        answers = await self._sender.send(list(copies.values()))
        sent = [delivery for delivery, answer in zip(copies, answers, strict=True) if answer.success is not None]
        for delivery in sent:
            self._failures.pop(delivery.broker_id)
            self._replaced.put(delivery.broker_id, None)
        deleted = dict(zip(sent, await self._delete(sent), strict=True))
        results |= {delivery: deleted.get(delivery, Settled.FAILED) for delivery in copies}
        return [results[delivery] for delivery in chunk]

    # Publishing

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order. They are durable when this returns."""
        published = await self._sender.publish(messages)
        self._depth.moved()
        return published

    async def hurry(self, delivery: Delivery) -> bool:
        """By the receipt that it was nacked with; what was nacked behind it comes when its own, short delay is over."""
        if delivery.receipt is None or delivery.broker_id in self._in_hand:  # SQS may take an old receipt all the same
            return False
        (result,) = await self._change_visibility([delivery], [0])
        return result is Settled.OK

    def still_ours(self, delivery: Delivery) -> bool:
        """Only its lease, which the router watches itself, can end."""
        return True

    async def depth(self) -> Depth | None:
        """How many messages the queue holds, as far as SQS can tell; up to a minute old. None if we may not ask."""
        now = self._clock.monotonic()
        depth = self._depth.known(now)
        if depth is None and (attributes := await self._connection.read_attributes()):
            depth = _depth_in(attributes)
            self._note_identity(attributes)
            self._in_hand = {one: receipt for one, receipt in self._in_hand.items() if receipt.until > now}
            if vanished := self._vanish_watch.look(depth, len(self._in_hand)):
                text = f"about {vanished} more messages are gone than this router received, although it seems "
                text += "to be the only consumer: the queue was purged, or they expired or moved to a dead-letter queue"
                self.losses.append(Loss(text, vanished))
            self._depth.told(depth, now)
        return depth

    # What became of the queue at its server

    def _note_creation(self) -> None:
        """We made it, because the server did not have it, or not any more."""
        if self._created_at is not None:
            self._note_loss()
        self._created_at = None

    def _look_at_attributes(self) -> None:
        self._note_identity(self._connection.attributes)
        if attributes := self._connection.attributes:
            self._depth.connected(_depth_in(attributes))

    def _note_identity(self, attributes: Mapping[str, str]) -> None:
        """It may have been made anew by somebody else."""
        created_at = attributes.get("CreatedTimestamp", "")
        if created_at and self._created_at and created_at != self._created_at:
            self._note_loss()
        self._created_at = created_at

    def _note_loss(self) -> None:
        held = self._depth.last
        text = f"{self._connection.where} was deleted and created again: it held {held} messages when last seen"
        self.losses.append(Loss(text, held or len(self._in_hand) or None))
        self._vanish_watch.forget()
        self._in_hand.clear()


def _depth_in(attributes: Mapping[str, str]) -> Depth:
    waiting, leased, delayed = (
        int(attributes.get(f"ApproximateNumberOfMessages{kind}", 0)) for kind in ("", "NotVisible", "Delayed")
    )
    return Depth(waiting, leased, delayed)


def _setup_warnings(attributes: Mapping[str, str], *, fifo: bool) -> Iterator[str]:
    """What asks for trouble in how the queue is set up."""
    try:
        receives: float = int(json.loads(attributes["RedrivePolicy"])["maxReceiveCount"])
    except (KeyError, ValueError, TypeError):
        receives = math.inf  # it takes no message away
    moves = f"its redrive policy moves a message to the dead-letter queue after {receives} receives"
    if fifo and receives < LEAST_RECEIVES_FIFO:
        yield (
            f"{moves}, and each failure of a message costs those behind it in its group a receive as well: "
            f"set maxReceiveCount to {LEAST_RECEIVES_FIFO} or more"
        )
    elif receives < LEAST_RECEIVES_STANDARD:
        yield (
            f"{moves}, and a restart of the router costs a message a receive as well: "
            f"set maxReceiveCount to {LEAST_RECEIVES_STANDARD} or more"
        )
    retention_s = int(attributes.get("MessageRetentionPeriod", LEAST_RETENTION_S))
    if retention_s < LEAST_RETENTION_S:
        yield (
            f"it drops messages that are {retention_s} seconds old, also those that wait behind one that fails: "
            f"set MessageRetentionPeriod to {LEAST_RETENTION_S} or more"
        )


def _seconds(seconds: float) -> int:
    """Whole seconds, as SQS counts; never fewer than asked for."""
    return min(max(math.ceil(seconds), 0), MAX_VISIBILITY_S)


def _left(receipt: Receipt, now: float) -> int:
    """How long SQS lets this receive of a message last from now on."""
    return math.floor(receipt.received_at + MAX_VISIBILITY_S - now) - 1
