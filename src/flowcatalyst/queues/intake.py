"""What may be sent: a message as its sender writes it, and what a queue gets of it."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.headers import MAX_HEADERS
from flowcatalyst.core.message import (
    DEFAULT_GROUP,
    DEFAULT_POOL,
    MAX_BODY_BYTES,
    MAX_NAME_CHARS,
    MAX_TARGET_CHARS,
    DispatchMode,
    MediationType,
    MessagePointer,
    check_name,
    check_names,
    check_pointer,
    encode_pointer,
    refuse_nul,
)
from flowcatalyst.core.payload import MAX_CONTENT_TYPE_CHARS, given
from flowcatalyst.queues.contract import Outgoing

# `check_pointer` says more clearly what is wrong with one that is longer.
Name = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_NAME_CHARS, "pattern": r"^[^\u0000]*$"})]
TargetUrl = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_TARGET_CHARS})]


class NewMessage(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A message to deliver. Unknown fields are errors: a typo in messageGroupId would silently lose the order."""

    mediation_target: TargetUrl
    id: Name | None = None
    pool_code: Name = DEFAULT_POOL
    auth_token: str | None = None
    mediation_type: MediationType = MediationType.HTTP
    message_group_id: Name | None = None
    high_priority: bool = False
    dispatch_mode: DispatchMode | None = None
    deduplication_id: Name | None = None
    payload: Annotated[
        msgspec.Raw,
        msgspec.Meta(description="What is sent instead of the id: any JSON value, or text with its contentType"),
    ] = msgspec.field(default_factory=msgspec.Raw)
    content_type: Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_CONTENT_TYPE_CHARS})] | None = None
    headers: Annotated[dict[str, str], msgspec.Meta(extra_json_schema={"maxProperties": MAX_HEADERS})] | None = None

    def pointer(self, ids: IdSource) -> MessagePointer:
        return MessagePointer(
            id=ids.new_id() if self.id is None else self.id,
            mediation_target=self.mediation_target,
            pool_code=self.pool_code,
            auth_token=self.auth_token,
            mediation_type=self.mediation_type,
            message_group_id=self.message_group_id,
            high_priority=self.high_priority,
            dispatch_mode=self.dispatch_mode,
            payload=given(self.payload),
            content_type=self.content_type,
            headers=self.headers,
        )


@dataclass(slots=True, frozen=True)
class Ready:
    """A message that may be published."""

    id: str
    outgoing: Outgoing
    pool: str = DEFAULT_POOL


def prepare(message: NewMessage, ids: IdSource) -> Ready:
    """The message as a queue takes it, with an id of its own. Raises `InvalidMessageError` if no queue can."""
    pointer = message.pointer(ids)
    deduplication_id = message.id if message.deduplication_id is None else message.deduplication_id
    pool = message.pool_code
    return Ready(pointer.id, outgoing_of(pointer, deduplication_id), DEFAULT_POOL if not pool.strip() else pool)


def outgoing_of(pointer: MessagePointer, deduplication_id: str | None) -> Outgoing:
    """The pointer as a queue takes it. Raises `InvalidMessageError` if no queue can."""
    check_names(pointer)
    check_pointer(pointer)
    check_name("deduplicationId", deduplication_id)
    for what, name in (
        ("id", pointer.id),
        ("poolCode", pointer.pool_code),
        ("messageGroupId", pointer.message_group_id),
        ("deduplicationId", deduplication_id),
    ):
        refuse_nul(what, name)
    body = encode_pointer(pointer)
    if len(body) > MAX_BODY_BYTES:
        raise InvalidMessageError(f"the message has {len(body)} bytes, more than the {MAX_BODY_BYTES} allowed")
    if pointer.dispatch_mode is DispatchMode.IMMEDIATE:
        return Outgoing(body.decode(), None, deduplication_id)
    group = pointer.message_group_id
    return Outgoing(body.decode(), group if group and not group.isspace() else DEFAULT_GROUP, deduplication_id)
