"""POST /api/seed/messages: a sender to try the router out with."""

from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, post
from litestar.params import QueryParameter

from flowcatalyst.api.bodies import read_optional_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import FieldProblem, ProblemError
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.sandbox.seeding import CHUNK, POOL_OF_QUEUE, RANDOM, GroupMode, Seed, targets_of

MAX_COUNT: Final = 10_000

Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]


class SeedRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What to seed; a field that is left out comes from the query, else it is the default."""

    count: Count | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    queue: str | msgspec.UnsetType = msgspec.UNSET
    message_group_mode: GroupMode | msgspec.UnsetType = msgspec.UNSET


class SeedResult(msgspec.Struct, rename="camel"):
    """What was seeded. `run` is the first part of every message id: `{run}.{group}.{position}`."""

    run: str
    count: int
    queue: str
    endpoint: str
    message_group_mode: GroupMode
    published: int


_decoder = msgspec.json.Decoder(SeedRequest)


@post(
    "/api/seed/messages",
    status_code=HTTPStatus.ACCEPTED,
    tags=["Try it out"],
    summary="Seed messages",
    operation_class=with_json_body(SeedRequest, "The same fields as in the query; these win", required=False),
)
async def seed_messages(
    request: Request[Any, Any, Any],
    app: TheApp,
    count: Annotated[int, QueryParameter(ge=1, le=MAX_COUNT, description="How many messages")] = 10,
    endpoint: Annotated[
        str, QueryParameter(description="Name of a built-in receiver, random (fast, slow or faulty), or a full URL")
    ] = "fast",
    queue: Annotated[
        str,
        QueryParameter(
            description="high, medium, low or default, each with its own pool, random of these, or any other queue"
        ),
    ] = "default",
    group_mode: Annotated[
        GroupMode,
        QueryParameter(
            name="messageGroupMode",
            description="unique: a group each; 1of8: eight groups; single: one group",
        ),
    ] = GroupMode.ONE_OF_8,
) -> SeedResult:
    """Publish messages for the built-in receivers, which judge the order they arrive in: see GET /api/test/stats.

    Groups belong to their run, so two runs never wait for each other.
    """
    given = await read_optional_json(request, _decoder) or SeedRequest()
    endpoint = endpoint if given.endpoint is msgspec.UNSET else given.endpoint
    queue = queue if given.queue is msgspec.UNSET else given.queue
    mode = group_mode if given.message_group_mode is msgspec.UNSET else given.message_group_mode
    wanted = count if given.count is msgspec.UNSET else given.count
    seed = Seed(
        run=app.ids.new_id(),
        queues=_queues_meant(queue, app),
        targets=_targets_meant(endpoint, app.sandbox.url),
        groups=mode,
        ids=app.ids,
    )
    if queue not in (*app.queues, RANDOM):
        queue = next(iter(app.queues))  # where what names a pool by a queue that is not there goes
    published = 0
    try:
        async for number in _publish(app, list(seed.messages(wanted))):
            published += number
    except QueueUnavailableError as error:
        detail = f"{error}; at least {published} of {wanted} messages were published before that"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail) from None
    finally:
        if published:
            app.audit.add_up(actor_of(request), AuditAction.SEED, f"queue {queue}", published)
    return SeedResult(seed.run, wanted, queue, endpoint, mode, published)


def _queues_meant(queue: str, app: ServedRouter) -> list[str]:
    raw = [name for name, config in app.config.queues.items() if config.raw is not None]
    if all(name in raw for name in app.queues):
        raise ProblemError(HTTPStatus.NOT_FOUND, "there are no queues to seed")
    names = [*POOL_OF_QUEUE, RANDOM, *(name for name in app.queues if name not in POOL_OF_QUEUE)]
    names = [name for name in names if name not in raw]
    if queue not in names:
        raise _wrong("queue", f"queue has to be one of {', '.join(names)}")
    return [name for name in POOL_OF_QUEUE if name not in raw] if queue == RANDOM else [queue]


def _targets_meant(endpoint: str, router_url: str) -> list[str]:
    try:
        return targets_of(endpoint, router_url)
    except InvalidMessageError as error:
        raise _wrong("endpoint", str(error)) from None


async def _publish(app: ServedRouter, messages: Sequence[tuple[str, Outgoing]]) -> AsyncIterator[int]:
    """How many were published, as they are."""
    raw = [name for name, config in app.config.queues.items() if config.raw is not None]
    first_queue = next(queue for name, queue in app.queues.items() if name not in raw)
    for start in range(0, len(messages), CHUNK):
        by_queue: dict[str, list[Outgoing]] = {}
        for name, message in messages[start : start + CHUNK]:
            by_queue.setdefault(name, []).append(message)
        for name, chunk in by_queue.items():
            yield len(await app.queues.get(name, first_queue).publish(chunk))


def _wrong(field: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, detail, [FieldProblem(field, detail)])
