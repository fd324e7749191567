"""How messages look on SQS: group and deduplication ids, the note we attach, batches. Pure.

A group name that SQS takes is the MessageGroupId. Any other is sent as its hash, with the name itself in the note: one
message attribute with a little JSON. Ids that begin with `flowcatalyst.` are ours.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

import msgspec

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.headers import TRACEPARENT, TRACESTATE, trace_context
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Outgoing, check_outgoing

ATTRIBUTE: Final = "flowcatalyst"
MAX_ATTRIBUTES: Final = 10
MAX_ENTRIES: Final = 10
MAX_REQUEST_BYTES: Final = 256 * 1024  # Amazon takes more by now, other servers do not

_OURS: Final = "flowcatalyst."
_ALONE: Final = f"{_OURS}alone."
_RETRY: Final = f"{_OURS}retry."
_HASH: Final = f"{_OURS}hash."
_SQS_ID: Final = re.compile(r"""[A-Za-z0-9!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}""")
_NO_SQS_CHARACTER: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Entry = dict[str, Any]  # of a send request
T = TypeVar("T")


class Note(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What SQS itself has no field for."""

    group: str | None = None
    failures: int = 0
    not_before: float = 0.0  # wall time; only on a message that was re-sent to wait outside its group
    delay_s: float = 43_200.0  # how long it was to wait then; the clocks of two routers may differ, or step
    first_id: str = ""  # the MessageId of what it is a copy of
    sent_at: float = 0.0  # wall time when that was sent; 0: it is not known


@dataclass(slots=True, eq=False)
class Receipt:
    """One receive of one message. Times are monotonic."""

    handle: str
    group_id: str | None
    received_at: float
    until: float  # when the lease ends
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds_others_back(self) -> bool:
        """Whether others may wait for this message while it is hidden."""
        return self.group_id is not None and not self.group_id.startswith((_ALONE, _RETRY))


_note_decoder = msgspec.json.Decoder(Note)


def check(message: Outgoing) -> None:
    """Raise `InvalidMessageError` if SQS could not take the message."""
    check_outgoing(message)
    if not message.body:
        raise InvalidMessageError("body is empty, which SQS does not accept")
    if found := _NO_SQS_CHARACTER.search(message.body):
        raise InvalidMessageError(f"body has the character {found[0]!r}, which SQS does not accept: escape it")


def entry_for(message: Outgoing, unique_id: Callable[[], str], *, fifo: bool, groups: bool) -> Entry:
    """The message in a send request, but for its number there. Without `groups` the server takes no MessageGroupId."""
    entry: Entry = {"MessageBody": message.body}
    group = message.group
    if fifo:
        entry["MessageDeduplicationId"] = _sqs_id(message.deduplication_id or f"{_OURS}{unique_id()}")
    if group is None:
        if fifo:
            entry["MessageGroupId"] = f"{_ALONE}{unique_id()}"
        return entry
    if groups:
        # A name that looks like one of ours is hashed too, so that it is not taken for one when it comes back.
        entry["MessageGroupId"] = _hashed(group) if group.startswith(_OURS) else _sqs_id(group)
    if entry.get("MessageGroupId") != group:
        entry["MessageAttributes"] = _attributes(Note(group))
    return entry


def retry_entry(delivery: Delivery, not_before: float, delay_s: float, largest: int) -> Entry | None:
    """A copy of a message that waits in a group of its own; None if it has one already, or SQS would not take the copy.

    A repeat for the same receive has the same deduplication id, so that an answer that was lost doubles nothing.
    """
    receipt: Receipt = delivery.receipt
    if not receipt.holds_others_back:
        return None
    first_id = delivery.message_id or delivery.broker_id
    note = Note(delivery.group, delivery.failures, not_before, delay_s, first_id, delivery.due_at)
    body = delivery.body if isinstance(delivery.body, str) else delivery.body.decode()
    entry: Entry = {
        "MessageBody": body,
        "MessageGroupId": f"{_RETRY}{delivery.broker_id}",
        "MessageDeduplicationId": f"{_RETRY}{delivery.broker_id}.{delivery.receive_count}",
        "MessageAttributes": {**receipt.attributes, **_attributes(note)},
    }
    if len(entry["MessageAttributes"]) > MAX_ATTRIBUTES or size_of(entry) > largest:
        return None
    return entry


def read(raw: Mapping[str, Any], now: float, visibility_s: float) -> tuple[Delivery, Note | None]:
    """A received message, and the note on it."""
    system, attributes = raw.get("Attributes") or {}, raw.get("MessageAttributes") or {}
    group_id = system.get("MessageGroupId")
    note = None
    if attributes:
        with suppress(KeyError, msgspec.DecodeError):  # somebody else may use our attribute's name for their own
            note = _note_decoder.decode(attributes[ATTRIBUTE]["StringValue"])
    alone = group_id is None or group_id.startswith(_ALONE)
    delivery = Delivery(
        broker_id=raw["MessageId"],
        receipt=Receipt(raw["ReceiptHandle"], group_id, now, now + visibility_s, attributes),
        body=raw["Body"],
        group=note.group if note is not None else None if alone else group_id,
        receive_count=int(system.get("ApproximateReceiveCount", 1)),
        lease_until=now + visibility_s,
        failures=note.failures if note is not None else 0,
        message_id=note.first_id if note is not None else "",
        due_at=(note.sent_at if note is not None else 0.0) or int(system.get("SentTimestamp", 0)) / 1000,
    )
    if TRACEPARENT in attributes:
        said = {name: attributes[name].get("StringValue") for name in (TRACEPARENT, TRACESTATE) if name in attributes}
        delivery.trace_context = trace_context(said)
    return delivery, note


def size_of(entry: Entry) -> int:
    """As SQS counts it: the body, and name, type and value of each attribute."""
    size = len(entry["MessageBody"].encode())
    for name, value in entry.get("MessageAttributes", {}).items():
        size += len(name) + len(value["DataType"])
        size += len(value.get("StringValue", "").encode()) + len(value.get("BinaryValue", b""))
    return size


def send_batches(entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Their positions, in order, no batch larger than a request may be."""
    batch: list[int] = []
    size = 0
    for position, entry in enumerate(entries):
        bytes_more = size_of(entry)
        if batch and (len(batch) == MAX_ENTRIES or size + bytes_more > MAX_REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(position)
        size += bytes_more
    if batch:
        yield batch


def fifo_batches(entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Their positions, in order within each group, and no group twice in a batch.

    SQS may refuse one entry of a request and take those behind it. If they were of the same group, the refused one,
    sent again, would come after them. Groups with most to send come first: that takes the fewest requests.
    """
    lanes: dict[str, deque[int]] = {}
    for position, entry in enumerate(entries):
        lanes.setdefault(entry["MessageGroupId"], deque()).append(position)
    longest = [(-len(lane), lane[0], lane) for lane in lanes.values()]
    heapify(longest)
    while longest:
        batch: list[int] = []
        size = 0
        taken: list[deque[int]] = []
        while longest and len(batch) < MAX_ENTRIES:
            bytes_more = size_of(entries[longest[0][2][0]])
            if batch and size + bytes_more > MAX_REQUEST_BYTES:
                break
            size += bytes_more
            lane = heappop(longest)[2]
            batch.append(lane.popleft())
            taken.append(lane)
        for lane in taken:
            if lane:
                heappush(longest, (-len(lane), lane[0], lane))
        yield batch


def chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + MAX_ENTRIES] for start in range(0, len(items), MAX_ENTRIES)]


def _sqs_id(text: str) -> str:
    return text if _SQS_ID.fullmatch(text) else _hashed(text)


def _hashed(text: str) -> str:
    return f"{_HASH}{hashlib.sha256(text.encode()).hexdigest()}"


def _attributes(note: Note) -> dict[str, Any]:
    # Plain ASCII: SQS refuses some characters that a group name may have.
    return {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(msgspec.to_builtins(note))}}
