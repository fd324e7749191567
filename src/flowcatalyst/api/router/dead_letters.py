"""/monitoring/dead-letters: messages that were never delivered, for a person to look at, replay or remove."""

import asyncio
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import page_of
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.secrets import mask_body, mask_echo, mask_headers, mask_target, secrets_of
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.control.dead_letters import DeadLetter
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import (
    DEFAULT_POOL,
    MAX_BODY_BYTES,
    MAX_NAME_CHARS,
    DispatchMode,
    MediationType,
    MessagePointer,
    parse_pointer,
)
from flowcatalyst.queues.raw import RawConfig

MAX_NUMBER: Final = 2**53 - 1  # what JSON can carry everywhere
MAX_LISTED: Final = 1000
READ_CHARS: Final = MAX_BODY_BYTES + 1  # of a body: all of it, if it can be a message of ours
SHOWN_CHARS: Final = 64 * 1024  # of a body that is no message
Number = Annotated[int, PathParameter(ge=1, le=MAX_NUMBER, description="Number of the dead letter")]


class PointerView(msgspec.Struct, rename="camel"):
    """A message without its token, its target without its query, and its payload and headers without their secrets."""

    id: str
    mediation_target: str
    pool_code: str
    mediation_type: MediationType
    message_group_id: str | None
    high_priority: bool
    dispatch_mode: DispatchMode | None
    payload: str | None  # as JSON text, its beginning
    content_type: str | None
    headers: dict[str, str] | None

    @classmethod
    def of(cls, pointer: MessagePointer) -> "PointerView":
        return cls(
            id=pointer.id,
            mediation_target=mask_target(pointer.mediation_target),
            pool_code=pointer.pool_code or DEFAULT_POOL,
            mediation_type=pointer.mediation_type or MediationType.HTTP,
            message_group_id=pointer.message_group_id,
            high_priority=pointer.high_priority,
            dispatch_mode=pointer.dispatch_mode,
            payload=mask_body(bytes(pointer.payload).decode())[:SHOWN_CHARS] if pointer.payload else None,
            content_type=pointer.content_type,
            headers=None if pointer.headers is None else mask_headers(pointer.headers),
        )


class DeadLetterView(msgspec.Struct, rename="camel"):
    """A dead letter and its reason. `message` is null if the body is not a message; then `body` shows its beginning.

    Nobody sees tokens, queries of targets and what repeats them: they are masked.
    """

    number: int
    message_id: str
    queue: str
    group: str | None
    reason: str
    status: int | None
    excerpt: str
    failures: int
    recorded_at: datetime
    message: PointerView | None
    body: str | None
    body_truncated: bool

    @classmethod
    def of(cls, letter: DeadLetter, raw: RawConfig | None) -> "DeadLetterView":
        try:
            pointer = parse_pointer(letter.body) if raw is None else None
        except InvalidMessageError:
            pointer = None
        sent = pointer if raw is None else MessagePointer("", raw.target, headers=dict(raw.headers))
        secrets = [] if sent is None else secrets_of(sent)
        return cls(
            number=letter.number,
            message_id=letter.message_id,
            queue=letter.queue,
            group=None if letter.group is None else letter.group[:MAX_NAME_CHARS],
            reason=mask_echo(letter.reason, secrets),
            status=letter.status,
            excerpt=mask_echo(letter.excerpt, secrets),
            failures=letter.failures,
            recorded_at=datetime.fromtimestamp(letter.recorded_at, UTC),
            message=None if pointer is None else PointerView.of(pointer),
            body=mask_body(letter.body[:SHOWN_CHARS]) if pointer is None else None,
            body_truncated=pointer is None and len(letter.body) > SHOWN_CHARS,
        )


class Replayed(msgspec.Struct, rename="camel"):
    """How many messages were requeued."""

    replayed: int


class Purged(msgspec.Struct, rename="camel"):
    """How many dead letters were removed."""

    purged: int


@get("/monitoring/dead-letters", tags=["Dead letters"], summary="List dead letters")
async def list_dead_letters(
    request: Request[Any, Any, Any],
    app: TheApp,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    after: Annotated[
        int,
        QueryParameter(ge=0, le=MAX_NUMBER, description="Only those with a number above this; the last one you have"),
    ] = 0,
) -> Response[list[DeadLetterView]]:
    """Oldest first, at most about 1 MiB of them: if there are more, the Link header leads to them."""
    found = await app.dead_letters.page(limit, after, READ_CHARS)
    more = bool(found) and await app.dead_letters.has_after(found[-1].number)
    views = []
    for letter in found:
        views.append(DeadLetterView.of(letter, _raw(app, letter)))
        await asyncio.sleep(0)  # to look for secrets in a large body takes some milliseconds
    return page_of(request, views, lambda shown, last: {"after": last.number}, more=more)


@get("/monitoring/dead-letters/{number:int}", tags=["Dead letters"], summary="Look at a dead letter")
async def get_dead_letter(app: TheApp, number: Number) -> DeadLetterView:
    """The message, why it ended here, and what its endpoint answered."""
    letter = await _find(app, number, READ_CHARS)
    return DeadLetterView.of(letter, _raw(app, letter))


@post(
    "/monitoring/dead-letters/{number:int}/replay",
    status_code=HTTPStatus.OK,
    tags=["Dead letters"],
    summary="Replay a dead letter",
)
async def replay_dead_letter(request: Request[Any, Any, Any], app: TheApp, number: Number) -> Replayed:
    """Put the message back into its queue, behind whatever its group holds now, and forget the dead letter."""
    letter = await _find(app, number)
    await app.dead_letters.replay(letter, app.queues)
    app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_REPLAY, *_what(letter), 1)
    return Replayed(1)


@post(
    "/monitoring/dead-letters/replay",
    status_code=HTTPStatus.OK,
    tags=["Dead letters"],
    summary="Replay all dead letters",
)
async def replay_dead_letters(request: Request[Any, Any, Any], app: TheApp) -> Replayed:
    """Oldest first. Those that end here again meanwhile stay."""
    await _refuse_body(request, "POST /monitoring/dead-letters/{number}/replay")
    replayed, detail = 0, "stopped by an error"
    try:
        async for count in app.dead_letters.replay_all(app.queues):
            replayed += count
        detail = ""
    finally:
        app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_REPLAY, "all dead letters", detail, replayed)
    return Replayed(replayed)


@delete("/monitoring/dead-letters/{number:int}", tags=["Dead letters"], summary="Remove a dead letter")
async def delete_dead_letter(request: Request[Any, Any, Any], app: TheApp, number: Number) -> None:
    """For good: the message is gone then."""
    letter = await _find(app, number)
    if not await app.dead_letters.purge(number):
        raise _unknown(number)
    app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_DELETE, *_what(letter), 1)


@delete(
    "/monitoring/dead-letters",
    status_code=HTTPStatus.OK,
    tags=["Dead letters"],
    summary="Remove all dead letters",
)
async def delete_dead_letters(request: Request[Any, Any, Any], app: TheApp) -> Purged:
    """For good: the messages are gone then."""
    await _refuse_body(request, "DELETE /monitoring/dead-letters/{number}")
    purged, detail = 0, "stopped by an error"
    try:
        async for count in app.dead_letters.purge_all():
            purged += count
        detail = ""
    finally:
        app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_DELETE, "all dead letters", detail, purged)
    return Purged(purged)


async def _refuse_body(request: Request[Any, Any, Any], for_one: str) -> None:
    """Whoever sends one means some of them."""
    if await request.body():
        detail = f"this takes no body and means all dead letters; for one of them use {for_one}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)


async def _find(app: ServedRouter, number: int, body_chars: int = -1) -> DeadLetter:
    letter = await app.dead_letters.get(number, body_chars)
    if letter is None:
        raise _unknown(number)
    return letter


def _raw(app: ServedRouter, letter: DeadLetter) -> RawConfig | None:
    queue = app.config.queues.get(letter.queue)
    return None if queue is None else queue.raw


def _what(letter: DeadLetter) -> tuple[str, str]:
    """Which one it is, for the audit trail."""
    message = letter.message_id or "that cannot be read"
    return f"dead letter {letter.number}", f"message {message} of queue {letter.queue}"


def _unknown(number: int) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no dead letter {number}")
