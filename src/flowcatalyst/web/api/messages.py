"""POST /api/messages: the way in."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, post
from litestar.openapi import ResponseSpec
from litestar.params import QueryParameter

from flowcatalyst.clock import IdSource
from flowcatalyst.errors import InvalidMessageError
from flowcatalyst.message import (
    DEFAULT_GROUP,
    DEFAULT_POOL,
    MAX_BODY_BYTES,
    DispatchMode,
    MediationType,
    MessagePointer,
    check_pointer,
    encode_pointer,
)
from flowcatalyst.queues.contract import Outgoing, Published, Publisher
from flowcatalyst.web.bodies import decode_json, read_json
from flowcatalyst.web.dependencies import TheApp
from flowcatalyst.web.openapi import with_json_body
from flowcatalyst.web.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemError

MAX_MESSAGES: Final = 1000


class NewMessage(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A message to deliver. Unknown fields are errors: a typo in messageGroupId would silently lose the order."""

    mediation_target: str
    id: str | None = None
    pool_code: str = DEFAULT_POOL
    auth_token: str | None = None
    mediation_type: MediationType = MediationType.HTTP
    message_group_id: str | None = None
    high_priority: bool = False
    dispatch_mode: DispatchMode | None = None
    deduplication_id: str | None = None

    def pointer(self, ids: IdSource) -> MessagePointer:
        return MessagePointer(
            id=ids.tsid() if self.id is None else self.id,
            mediation_target=self.mediation_target,
            pool_code=self.pool_code,
            auth_token=self.auth_token,
            mediation_type=self.mediation_type,
            message_group_id=self.message_group_id,
            high_priority=self.high_priority,
            dispatch_mode=self.dispatch_mode,
        )


class PublishStatus(StrEnum):
    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"
    REJECTED = "REJECTED"


class MessageResult(msgspec.Struct, rename="camel", omit_defaults=True):
    """What became of one message of the request."""

    id: str | None
    status: PublishStatus
    broker_id: str | None = None
    error: str | None = None


class PublishResults(msgspec.Struct, rename="camel"):
    """One result for each message, in the order of the request."""

    results: list[MessageResult]
    accepted: int
    duplicates: int
    rejected: int


class NoneAccepted(Problem, rename="camel", kw_only=True):
    """A problem, with the result of each message if they came in a list."""

    results: list[MessageResult] | msgspec.UnsetType = msgspec.UNSET
    accepted: int | msgspec.UnsetType = msgspec.UNSET
    duplicates: int | msgspec.UnsetType = msgspec.UNSET
    rejected: int | msgspec.UnsetType = msgspec.UNSET


class NoneAcceptedError(ProblemError):
    """Not one message of a list can be accepted."""

    def __init__(self, results: list[MessageResult]) -> None:
        detail = f"none of the {len(results)} messages can be accepted; the first one: {results[0].error}"
        super().__init__(HTTPStatus.BAD_REQUEST, detail)
        self.results = results

    def body(self) -> NoneAccepted:
        problem = super().body()
        return NoneAccepted(
            title=problem.title,
            status=problem.status,
            detail=problem.detail,
            results=self.results,
            accepted=0,
            duplicates=0,
            rejected=len(self.results),
        )


@dataclass(slots=True, frozen=True)
class _Ready:
    """A message that may be published."""

    id: str
    outgoing: Outgoing


class _JustId(msgspec.Struct):
    id: str | None = None


_body_decoder = msgspec.json.Decoder(NewMessage | list[msgspec.Raw])
_item_decoder = msgspec.json.Decoder(NewMessage)
_id_decoder = msgspec.json.Decoder(_JustId)


_NOT_ACCEPTED: Final = ResponseSpec(
    NoneAccepted, generate_examples=False, media_type=PROBLEM_MEDIA_TYPE, description="No message is acceptable"
)


@post(
    "/api/messages",
    status_code=HTTPStatus.ACCEPTED,
    tags=["Messages"],
    summary="Send messages",
    operation_class=with_json_body(NewMessage | list[NewMessage], f"One message, or a list of at most {MAX_MESSAGES}"),
    responses={400: _NOT_ACCEPTED},
    response_description="At least one message is in the queue, now or since an earlier request",
)
async def send_messages(
    request: Request[Any, Any, Any],
    app: TheApp,
    queue: Annotated[str, QueryParameter(description="Name of the queue")] = "default",
) -> PublishResults:
    """Put one message or a list of messages into a queue, in order.

    Accepted messages are durable when the response comes. In a list each message is judged on its own: good ones are
    published although others are rejected. A message whose deduplicationId (by default its id, if the sender gave one)
    was sent less than five minutes ago is a duplicate and not published again.
    """
    publisher = app.queues.get(queue)
    if publisher is None:
        names = ", ".join(app.queues)
        raise ProblemError(HTTPStatus.NOT_FOUND, f"there is no queue {queue!r}; the queues are: {names}")
    asked = await read_json(request, _body_decoder)
    if isinstance(asked, NewMessage):
        return await _publish(publisher, [_prepare(asked, app.ids)])
    if not 1 <= len(asked) <= MAX_MESSAGES:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST, f"a list has to have 1 to {MAX_MESSAGES} messages, and this one has {len(asked)}"
        )
    items = [_prepare_item(raw, app.ids) for raw in asked]
    rejected = [item for item in items if isinstance(item, MessageResult)]
    if len(rejected) == len(items):
        raise NoneAcceptedError(rejected)
    return await _publish(publisher, items)


def outgoing_of(pointer: MessagePointer, deduplication_id: str | None) -> Outgoing:
    """The pointer as a queue takes it. Raises `InvalidMessageError` if no queue can."""
    check_pointer(pointer)
    body = encode_pointer(pointer)
    if len(body) > MAX_BODY_BYTES:
        raise InvalidMessageError(f"the message has {len(body)} bytes, more than the {MAX_BODY_BYTES} allowed")
    if pointer.dispatch_mode is DispatchMode.IMMEDIATE:
        return Outgoing(body.decode(), None, deduplication_id)
    group = pointer.message_group_id
    return Outgoing(body.decode(), group if group and not group.isspace() else DEFAULT_GROUP, deduplication_id)


def _prepare(message: NewMessage, ids: IdSource) -> _Ready:
    pointer = message.pointer(ids)
    deduplication_id = message.id if message.deduplication_id is None else message.deduplication_id
    return _Ready(pointer.id, outgoing_of(pointer, deduplication_id))


def _prepare_item(raw: msgspec.Raw, ids: IdSource) -> _Ready | MessageResult:
    try:
        return _prepare(decode_json(bytes(raw), _item_decoder), ids)
    except (ProblemError, InvalidMessageError) as error:
        text = error.detail if isinstance(error, ProblemError) else str(error)
        return MessageResult(_id_in(bytes(raw)), PublishStatus.REJECTED, error=text)


def _id_in(item: bytes) -> str | None:
    """The id of an item that is wrong otherwise, so that its sender can tell which one it was."""
    try:
        return _id_decoder.decode(item).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _publish(publisher: Publisher, items: Sequence[_Ready | MessageResult]) -> PublishResults:
    """Publish what is ready in one call and put the results where the messages were."""
    ready = [item for item in items if isinstance(item, _Ready)]
    published = iter(await publisher.publish([item.outgoing for item in ready]))
    results = [_result(item, next(published)) if isinstance(item, _Ready) else item for item in items]
    counts = {status: sum(one.status is status for one in results) for status in PublishStatus}
    return PublishResults(
        results,
        accepted=counts[PublishStatus.ACCEPTED],
        duplicates=counts[PublishStatus.DUPLICATE],
        rejected=counts[PublishStatus.REJECTED],
    )


def _result(item: _Ready, published: Published) -> MessageResult:
    status = PublishStatus.DUPLICATE if published.duplicate else PublishStatus.ACCEPTED
    return MessageResult(item.id, status, broker_id=published.broker_id)
