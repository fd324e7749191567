"""POST /api/messages: the way in."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, post
from litestar.openapi import ResponseSpec
from litestar.params import QueryParameter

from flowcatalyst.api.bodies import decode_json, read_json
from flowcatalyst.api.callable_targets import check_may_be_called
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.notes import note_on_pool
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.queues.address import EmbeddedAddress, parse_queue_uri
from flowcatalyst.queues.contract import Published, Publisher
from flowcatalyst.queues.intake import NewMessage, Ready, prepare

MAX_MESSAGES: Final = 1000
DEFAULT_QUEUE: Final = "default"


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
    note: str | None = None  # what its sender may not have meant


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
        count = len(results)
        detail = f"none of the {count} messages can be accepted; the first one: {results[0].error}"
        if count == 1:
            detail = f"the message of the list cannot be accepted: {results[0].error}"
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
    queue: Annotated[
        str | None, QueryParameter(description="Name of the queue; unset: `default`, or the first one there is")
    ] = None,
) -> PublishResults:
    """Put one message or a list of messages into a queue, in order.

    Accepted messages are durable when the response comes. In a list each message is judged on its own: good ones are
    published although others are rejected. A message whose deduplicationId (by default its id, if the sender gave one)
    was sent less than five minutes ago is a duplicate and not published again, if the broker of the queue can tell.
    After a 503 some messages may be in the queue: send them again with the same deduplicationId.
    """
    unread = app.removed_queues.keys() - app.config.queues.keys()
    names = [name for name in app.queues if name not in unread]
    if queue is None:
        queue = names[0] if names and DEFAULT_QUEUE not in names else DEFAULT_QUEUE
    publisher = app.queues.get(queue) if queue not in unread else None
    if publisher is None:
        others = f"the queues are: {', '.join(names)}" if names else "there are no queues"
        raise ProblemError(HTTPStatus.NOT_FOUND, f"there is no queue {queue!r}; {others}")
    if (configured := app.config.queues.get(queue)) is not None and configured.raw is not None:
        embedded = isinstance(parse_queue_uri(configured.uri), EmbeddedAddress)
        how = f"with flowcatalyst publish --queue {queue} --payload ..." if embedded else "at its broker"
        detail = f"queue {queue!r} is raw: its bodies go to its own target, so publish to it {how}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    asked = await read_json(request, _body_decoder)
    if isinstance(asked, NewMessage):
        ready = _prepare(asked, app)
        results = await _publish(publisher, [ready], app.config.pools)
        app.audit.add_up(actor_of(request), AuditAction.PUBLISH, f"queue {queue}", 1)
        return results
    if not 1 <= len(asked) <= MAX_MESSAGES:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST, f"a list has to have 1 to {MAX_MESSAGES} messages, and this one has {len(asked)}"
        )
    items = [_prepare_item(raw, app) for raw in asked]
    rejected = [item for item in items if isinstance(item, MessageResult)]
    if len(rejected) == len(items):
        raise NoneAcceptedError(rejected)
    results = await _publish(publisher, items, app.config.pools)
    app.audit.add_up(actor_of(request), AuditAction.PUBLISH, f"queue {queue}", len(items) - len(rejected))
    return results


def _prepare(asked: NewMessage, app: ServedRouter) -> Ready:
    ready = prepare(asked, app.ids)
    check_may_be_called(app, "mediationTarget", asked.mediation_target)
    return ready


def _prepare_item(raw: msgspec.Raw, app: ServedRouter) -> Ready | MessageResult:
    try:
        return _prepare(decode_json(bytes(raw), _item_decoder, "it"), app)
    except (ProblemError, InvalidMessageError) as error:
        text = error.detail if isinstance(error, ProblemError) else str(error)
        return MessageResult(_id_in(bytes(raw)), PublishStatus.REJECTED, error=text)


def _id_in(item: bytes) -> str | None:
    """The id of an item that is wrong otherwise, so that its sender can tell which one it was."""
    try:
        found = _id_decoder.decode(item).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found is None else found[:MAX_NAME_CHARS]


async def _publish(
    publisher: Publisher, items: Sequence[Ready | MessageResult], pools: Collection[str]
) -> PublishResults:
    """Publish what is ready in one call and put the results where the messages were."""
    ready = [item for item in items if isinstance(item, Ready)]
    published = iter(await publisher.publish([item.outgoing for item in ready]))
    results = [_result(item, next(published), pools) if isinstance(item, Ready) else item for item in items]
    counts = {status: sum(one.status is status for one in results) for status in PublishStatus}
    return PublishResults(
        results,
        accepted=counts[PublishStatus.ACCEPTED],
        duplicates=counts[PublishStatus.DUPLICATE],
        rejected=counts[PublishStatus.REJECTED],
    )


def _result(item: Ready, published: Published, pools: Collection[str]) -> MessageResult:
    status = PublishStatus.DUPLICATE if published.duplicate else PublishStatus.ACCEPTED
    return MessageResult(item.id, status, broker_id=published.broker_id or None, note=note_on_pool(item.pool, pools))
