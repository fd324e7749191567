"""Sends messages to an SQS queue, in order and in batches."""

import secrets
from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import Any

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.sqs import messages as sqs_messages
from flowcatalyst.queues.sqs.connection import Answer, SqsConnection
from flowcatalyst.queues.sqs.errors import SqsRefusedError, blames_the_message, failure_in_words
from flowcatalyst.queues.sqs.memory import SentIds
from flowcatalyst.queues.sqs.messages import Entry


class SqsSender:
    """The way into one queue."""

    def __init__(self, connection: SqsConnection, clock: Clock, *, fifo: bool) -> None:
        self._connection = connection
        self._clock = clock
        self._fifo = fifo
        self._takes_groups = True  # a standard queue of Amazon's does, for fairness; other servers may refuse it
        self._sent = SentIds()
        self._id, self._numbers = secrets.token_hex(8), count()
        connection.on_created.append(self._sent.forget)

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """Append messages, in order within each group. None is sent if one of them never could be."""
        for message in messages:
            sqs_messages.check(message)
        entries = [self._entry(message) for message in messages]
        published: dict[int, Published] = {}
        for batch in sqs_messages.fifo_batches(entries) if self._fifo else sqs_messages.send_batches(entries):
            part = [messages[position] for position in batch]
            sending = [entries[position] for position in batch]
            sent_at = self._clock.monotonic()
            answers = await self._send_or_tell(sending, len(published), len(messages))
            refusals = [str(answer.failure.get("Message")) for answer in answers if answer.success is None]
            if not self._fifo and any("MessageGroupId" in refusal for refusal in refusals):
                # A standard queue of a server that takes no MessageGroupId there.
                answers = await self._send_without_groups(part, answers, len(published), len(messages))
            for position, message, entry, answer in zip(batch, part, sending, answers, strict=True):
                if answer.success is not None:
                    published[position] = self._published(message, entry, answer.success, sent_at)
            failures = [failure_in_words(answer.failure) for answer in answers if answer.success is None]
            if failures:
                blamed = [words for code, words in failures if blames_the_message(code)]
                first = blamed[0] if blamed else failures[0][1]
                why = f"{self._connection.where} refused {len(failures)}: {first}"
                kind = InvalidMessageError if blamed else QueueUnavailableError
                raise kind(_how_many(len(published), len(messages), why))
        return [published[position] for position in range(len(messages))]

    async def send(self, entries: Sequence[Entry]) -> list[Answer]:
        answers: list[Answer] = []
        for batch in sqs_messages.send_batches(entries):
            sending = [entries[position] for position in batch]
            answers += await self._connection.call_batch("send_message_batch", sending)
        return answers

    def _entry(self, message: Outgoing) -> Entry:
        return sqs_messages.entry_for(
            message,
            lambda: f"{self._id}.{next(self._numbers)}",
            fifo=self._fifo,
            groups=self._fifo or self._takes_groups,
        )

    async def _send_or_tell(self, batch: Sequence[Entry], before: int, total: int) -> list[Answer]:
        try:
            return await self.send(batch)
        except SqsRefusedError as error:
            if blames_the_message(error.code):
                raise InvalidMessageError(_how_many(before, total, str(error))) from None
            raise QueueUnavailableError(_how_many(before, total, str(error))) from None
        except QueueUnavailableError as error:
            raise QueueUnavailableError(_how_many(before, total, str(error))) from None

    async def _send_without_groups(
        self, messages: Sequence[Outgoing], answers: Sequence[Answer], before: int, total: int
    ) -> list[Answer]:
        """Once more, those that failed; their groups go into notes. A standard queue has no order to lose."""
        self._takes_groups = False
        failed = [position for position, answer in enumerate(answers) if answer.success is None]
        before += len(answers) - len(failed)
        again = await self._send_or_tell([self._entry(messages[position]) for position in failed], before, total)
        result = list(answers)
        for position, answer in zip(failed, again, strict=True):
            result[position] = answer
        return result

    def _published(self, message: Outgoing, entry: Entry, success: Mapping[str, Any], sent_at: float) -> Published:
        message_id: str = success["MessageId"]
        if not self._fifo or message.deduplication_id is None:
            return Published(message_id)
        key: Hashable = entry["MessageDeduplicationId"]
        if self._connection.attributes.get("DeduplicationScope") == "messageGroup":
            key = (key, entry["MessageGroupId"])
        return self._sent.publish(key, message_id, sent_at, self._clock.monotonic())


def _how_many(published: int, total: int, why: str) -> str:
    return f"{published} of {total} messages were published: {why}" if total > 1 else why
