"""What PostgreSQL can take of what is published, and how much of it in one statement."""

from collections.abc import Iterator, Sequence
from typing import Final

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.postgres.lanes import Entry

MAX_GROUP_BYTES: Final = 2000  # what fits into an index
PUBLISH_MESSAGES: Final = 1000  # of one statement
PUBLISH_CHARACTERS: Final = 8 << 20


def check_storable(message: Outgoing) -> None:
    if any("\0" in text for text in (message.body, message.group or "", message.deduplication_id or "")):
        raise InvalidMessageError("body, group and deduplication id cannot have a NUL character on PostgreSQL")
    for what, text in (("group", message.group), ("deduplication id", message.deduplication_id)):
        if text is not None and len(text.encode()) > MAX_GROUP_BYTES:
            raise InvalidMessageError(f"{what} has {len(text.encode())} bytes, and PostgreSQL takes {MAX_GROUP_BYTES}")


def parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """What goes into one statement each."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) == PUBLISH_MESSAGES or size + len(entry.body) > PUBLISH_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry.body)
    if part:
        yield part
