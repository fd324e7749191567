"""/monitoring/dead-letters: messages that were never delivered, for a person to look at, replay or remove."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.bodies import read_optional_json
from flowcatalyst.api.callable_targets import check_may_be_called
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import page_of
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import FieldProblem, ProblemError
from flowcatalyst.api.secrets import mask_body, mask_echo, mask_headers, mask_target, secrets_of
from flowcatalyst.api.times import seconds_of
from flowcatalyst.control import acting
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.control.dead_letters import DeadLetter, NoFrontError, NoTargetError, UnknownQueueError
from flowcatalyst.control.letter_filter import ANY, LetterFilter, target_prefix
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import (
    DEFAULT_POOL,
    MAX_BODY_BYTES,
    MAX_NAME_CHARS,
    MAX_TARGET_CHARS,
    DispatchMode,
    MediationType,
    MessagePointer,
    check_target,
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


class Position(StrEnum):
    """Where in its group a message is put."""

    BEHIND = "BEHIND"
    FRONT = "FRONT"


class ReplayHow(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Where the message is put in its group, and where it is sent then. What is left out stays as it was."""

    position: Position = Position.BEHIND
    target: str | None = None


class Replayed(msgspec.Struct, rename="camel"):
    """How many messages were requeued."""

    replayed: int


class ReplayedMany(msgspec.Struct, rename="camel"):
    """How many messages were requeued, of how many that the filter found; of a dry run 0."""

    replayed: int
    matching: int
    dry_run: bool


class Purged(msgspec.Struct, rename="camel"):
    """How many dead letters were removed, of how many that the filter found; of a dry run 0."""

    purged: int
    matching: int
    dry_run: bool


def read_filter(
    group: Annotated[str | None, QueryParameter(description="Only those of this group")] = None,
    target: Annotated[
        str | None,
        QueryParameter(
            max_length=MAX_TARGET_CHARS,
            description="Only those for this URL and what is below it: `https://h.example/a` finds "
            "`https://h.example/a` and `https://h.example/a/b`, not `https://h.example/ab`. Without its query.",
        ),
    ] = None,
    status: Annotated[
        int | None, QueryParameter(ge=100, le=999, description="Only those whose endpoint answered with this status")
    ] = None,
    queue: Annotated[str | None, QueryParameter(description="Only those of this queue")] = None,
    since: Annotated[
        str | None,
        QueryParameter(description="Only those recorded then or later", schema_extra={"format": "date-time"}),
    ] = None,
    until: Annotated[
        str | None, QueryParameter(description="Only those recorded before then", schema_extra={"format": "date-time"})
    ] = None,
) -> LetterFilter:
    """The filter in the query parameters."""
    times = seconds_of("since", since), seconds_of("until", until)
    return LetterFilter(group, None if target is None else _prefix(target), status, queue, *times)


def _prefix(target: str) -> str:
    detail = "target has to end before the query of a target, which is masked"
    try:
        if "?" not in target:
            return target_prefix(target)
    except InvalidMessageError as error:
        detail = str(error).replace("mediationTarget", "target", 1)
    raise ProblemError(HTTPStatus.BAD_REQUEST, detail, [FieldProblem("target", detail)])


_FILTERED: Final = {"wanted": Provide(read_filter, sync_to_thread=False)}
Wanted = NamedDependency[LetterFilter]
DryRun = Annotated[bool, QueryParameter(name="dryRun", description="Change nothing, just say how many there are")]
_how = msgspec.json.Decoder(ReplayHow)


@get("/monitoring/dead-letters", dependencies=_FILTERED, tags=["Dead letters"], summary="List dead letters")
async def list_dead_letters(
    request: Request[Any, Any, Any],
    app: TheApp,
    wanted: Wanted,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    after: Annotated[
        int,
        QueryParameter(
            ge=0,
            le=MAX_NUMBER,
            description="Only those that follow the one with this number; the last one you have; 0: from the first on",
        ),
    ] = 0,
    newest_first: Annotated[bool, QueryParameter(name="newestFirst", description="Newest first")] = False,
) -> Response[list[DeadLetterView]]:
    """Oldest first unless asked otherwise, at most about 1 MiB of them: if there are more, the Link header leads to
    them. Filters combine: all of them have to hold.
    """
    letters = app.dead_letters
    found = await letters.page(limit, after, READ_CHARS, wanted, newest_first=newest_first)
    more = bool(found) and await letters.has_after(found[-1].number, wanted, newest_first=newest_first)
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
    operation_class=with_json_body(ReplayHow, "How; without a body behind its group, as it was", required=False),
)
async def replay_dead_letter(request: Request[Any, Any, Any], app: TheApp, number: Number) -> Replayed:
    """Put the message back into its queue and forget the dead letter.

    It goes behind whatever its group holds now, or in front of that (`"position": "FRONT"`): on the embedded queue and
    PostgreSQL, unless an attempt of the group is in flight or another router has messages of it. With a `target` it is
    sent there; else, and in all other ways, it is as it was.
    """
    how = await read_optional_json(request, _how) or ReplayHow()
    letter = await _find(app, number)
    in_front = how.position is Position.FRONT
    _check_how(app, letter, how)
    await acting.replay(app, letter, target=how.target, in_front=in_front)
    what, detail = _what(letter)
    if in_front:
        detail += ", in front of its group"
    if how.target is not None:
        detail += f", to {mask_target(how.target)}"
    app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_REPLAY, what, detail, 1)
    return Replayed(1)


def _check_how(app: ServedRouter, letter: DeadLetter, how: ReplayHow) -> None:
    """Refuse what makes no sense for the queue of a letter, and targets that no message may have."""
    raw = _raw(app, letter)
    if how.target is not None:
        if raw is not None:
            raise NoTargetError(
                f"queue {letter.queue!r} is raw: its messages name no target, all of them go to the one of the queue"
            )
        try:
            check_target(how.target)
        except InvalidMessageError as error:
            raise InvalidMessageError(str(error).replace("mediationTarget", "target", 1)) from None
        check_may_be_called(app, "target", how.target)
    if how.position is Position.FRONT and raw is not None and raw.groups_by_body:
        raise NoFrontError(
            f"queue {letter.queue!r} takes groups from bodies and does not know them: nothing can be put in front of "
            "one, replay it behind"
        )


@post(
    "/monitoring/dead-letters/replay",
    status_code=HTTPStatus.OK,
    dependencies=_FILTERED,
    tags=["Dead letters"],
    summary="Replay dead letters",
)
async def replay_dead_letters(
    request: Request[Any, Any, Any], app: TheApp, wanted: Wanted, dry_run: DryRun = False
) -> ReplayedMany:
    """All of a filter, without one all there are. Oldest first, each behind whatever its group holds now. Those that
    end here again meanwhile stay, and those whose body is no text. So do those of queues that this router does not know
    (409): the others are replayed all the same.
    """
    await _refuse_body(request, "POST /monitoring/dead-letters/{number}/replay")
    matching = await app.dead_letters.count_matching(wanted)
    if dry_run:
        return ReplayedMany(0, matching, dry_run=True)
    replayed, detail = 0, "stopped by an error"
    try:
        async for count in app.dead_letters.replay_all(app.queues, wanted):
            replayed += count
        detail = ""
    except UnknownQueueError as error:
        detail = str(error)
        raise
    finally:
        app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_REPLAY, *_which(wanted, detail), replayed)
    return ReplayedMany(replayed, matching, dry_run=False)


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
    dependencies=_FILTERED,
    tags=["Dead letters"],
    summary="Remove dead letters",
)
async def delete_dead_letters(
    request: Request[Any, Any, Any], app: TheApp, wanted: Wanted, dry_run: DryRun = False
) -> Purged:
    """All of a filter, without one all there are. For good: the messages are gone then."""
    await _refuse_body(request, "DELETE /monitoring/dead-letters/{number}")
    matching = await app.dead_letters.count_matching(wanted)
    if dry_run:
        return Purged(0, matching, dry_run=True)
    purged, detail = 0, "stopped by an error"
    try:
        async for count in app.dead_letters.purge_all(wanted):
            purged += count
        detail = ""
    finally:
        app.audit.record(actor_of(request), AuditAction.DEAD_LETTER_DELETE, *_which(wanted, detail), purged)
    return Purged(purged, matching, dry_run=False)


async def _refuse_body(request: Request[Any, Any, Any], for_one: str) -> None:
    """Whoever sends one means some of them."""
    if await request.body():
        detail = f"this takes no body and means all dead letters of its filter; for one of them use {for_one}"
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


def _which(wanted: LetterFilter, detail: str) -> tuple[str, str]:
    """Which ones they are, and what else is to say of them, for the audit trail."""
    if wanted == ANY:
        return "all dead letters", detail
    given: dict[str, Any] = {name: value for name, value in asdict(wanted).items() if value is not None}
    for name in given.keys() & {"since", "until"}:
        given[name] = datetime.fromtimestamp(given[name], UTC).isoformat()
    which = ", ".join(f"{name} {value}" for name, value in given.items())
    return "dead letters of a filter", ", ".join(filter(None, [which, detail]))


def _unknown(number: int) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no dead letter {number}")
