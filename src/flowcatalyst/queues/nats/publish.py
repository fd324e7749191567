"""Publishing to a stream: many messages at a time, those of one group one after the other."""

from collections.abc import Sequence
from typing import Final

from nats.aio.msg import Msg

from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.nats.format import PublishAnswer, decode_publish_answer, headers_of, size_of
from flowcatalyst.queues.nats.link import NO_RESPONDERS, Link, Request, status_of, where_of

WINDOW: Final = 256  # messages that are published at a time
WINDOW_BYTES: Final = 1 << 20
TOO_LARGE: Final = 10054  # for the stream's max_msg_size


class StreamGoneError(QueueUnavailableError):
    """Nobody takes messages of that subject any more."""


async def publish(link: Link, address: NatsAddress, subject: str, messages: Sequence[Outgoing]) -> list[PublishAnswer]:
    """Append messages, in order.

    Those of different groups are under way together, those of one group one after the other: if one fails, no later
    one of its group may be there already.
    """
    requests: list[Request] = []
    for message in messages:
        payload = message.body.encode()
        headers = headers_of(message, address.stream, address.group_header)
        if (size := size_of(headers, payload)) > link.max_payload:
            raise InvalidMessageError(
                f"message has {size} bytes with its headers, and the server accepts {link.max_payload}"
            )
        requests.append((subject, payload, headers))
    published: list[PublishAnswer] = []
    while len(published) < len(requests):
        answers = await link.ask_all(_window(messages, requests, len(published)))
        published += [_published(answer, link, address) for answer in answers]
    return published


def _published(answer: Msg | None, link: Link, address: NatsAddress) -> PublishAnswer:
    if answer is None:
        raise link.give_up("a message was not confirmed")
    if status_of(answer) == NO_RESPONDERS:
        raise StreamGoneError(f"no stream at {where_of(address.servers)} has the subject of {address.stream}")
    result = decode_publish_answer(answer.data)
    if result.error is not None:
        if result.error.err_code == TOO_LARGE:
            raise InvalidMessageError(f"stream {address.stream} refuses it: {result.error.description}")
        raise QueueUnavailableError(f"stream {address.stream} refuses it: {result.error.description}")
    return result


def _window(messages: Sequence[Outgoing], requests: Sequence[Request], start: int) -> Sequence[Request]:
    """What may be under way together: at most one message of each group."""
    groups: set[str] = set()
    size = 0
    for position in range(start, min(start + WINDOW, len(requests))):
        group = messages[position].group
        size += len(requests[position][1])
        if position > start and (group in groups or size > WINDOW_BYTES):
            return requests[start:position]
        if group is not None:
            groups.add(group)
    return requests[start : start + WINDOW]
