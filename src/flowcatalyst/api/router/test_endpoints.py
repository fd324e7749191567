"""/api/test: receivers to try the router out with. They judge the order in which messages come."""

import asyncio
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import unquote

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.dependencies import TheSandbox
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.core.message import MAX_NAME_CHARS
from flowcatalyst.http.mediator import MESSAGE_ID
from flowcatalyst.sandbox.receivers import PENDING_S, RECEIVERS, SLOW_MS, Sandbox

MAX_DELAY_MS: Final = 60_000


class Received(msgspec.Struct, rename="camel"):
    """What the router sends."""

    message_id: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class ReceiverAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a receiver says: done, or come again after a while."""

    ack: bool
    delay_seconds: int | None = None


_decoder = msgspec.json.Decoder(Received)
WEBHOOK: Final = "webhook"
_NAMES: Final = (*RECEIVERS, WEBHOOK)
ReceiverName = Annotated[
    str, PathParameter(description=f"One of {', '.join(_NAMES)}", schema_extra={"enum": list(_NAMES)})
]
_FAILS: Final = [(400, "From client-error"), (500, "From fail, server-error and faulty")]


@post(
    "/api/test/{receiver:str}",
    status_code=HTTPStatus.OK,
    tags=["Try it out"],
    summary="Receive a message",
    operation_class=with_json_body(Received, "The message as the router delivers it"),
    responses={
        status: ResponseSpec(ReceiverAnswer, generate_examples=False, description=text) for status, text in _FAILS
    },
)
async def receive_message(
    request: Request[Any, Any, Any],
    sandbox: TheSandbox,
    receiver: ReceiverName,
    delay_ms: Annotated[
        int,
        QueryParameter(
            name="delayMs", ge=0, le=MAX_DELAY_MS, description=f"Answer after this time; 0 means {SLOW_MS} for slow"
        ),
    ] = 0,
    delay_s: Annotated[
        int, QueryParameter(name="delaySeconds", ge=1, le=43_200, description="What pending asks for")
    ] = PENDING_S,
) -> Response[ReceiverAnswer]:
    """A built-in endpoint for messages.

    fast and success ack at once, slow after a while, pending asks to come again later, faulty fails now and then,
    client-error answers 400, fail and server-error answer 500. webhook is for the webhooks of `--demo`: it verifies
    their signatures, and their places in their groups.
    """
    if receiver == WEBHOOK:
        return await _receive_webhook(request, sandbox)
    if receiver not in RECEIVERS:
        detail = f"there is no receiver {receiver!r}; the receivers are: {', '.join(_NAMES)}"
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)
    if named := request.headers.get(MESSAGE_ID):  # the body may be a payload of any kind
        message_id = unquote(named)[:MAX_NAME_CHARS]
        await request.body()
    else:
        message_id = (await read_json(request, _decoder)).message_id
    sandbox.judge.arrived(receiver, message_id)
    wait_ms = delay_ms or (SLOW_MS if receiver == "slow" else 0)
    if wait_ms:
        await asyncio.sleep(wait_ms / 1000)
    answer = RECEIVERS[receiver](sandbox.ids, delay_s)
    sandbox.judge.answered(receiver, message_id, answer.status, for_good=answer.for_good)
    headers = {} if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return Response(ReceiverAnswer(answer.ack, answer.delay_seconds), status_code=answer.status, headers=headers)


async def _receive_webhook(request: Request[Any, Any, Any], sandbox: Sandbox) -> Response[ReceiverAnswer]:
    status, said = sandbox.webhooks.receive(request.headers, await request.body())
    if status != HTTPStatus.OK:
        raise ProblemError(HTTPStatus(status), said)
    return Response(ReceiverAnswer(ack=True))


class ReceiverStats(msgspec.Struct, rename="camel"):
    """What one receiver saw and answered."""

    requests: int
    order_violations: int
    status_counts: dict[int, int]


class WebhooksReport(msgspec.Struct, rename="camel"):
    """What the receiver of webhooks saw since the start."""

    verified: int
    failed: int
    repeats: int
    wrong_signatures: int
    out_of_place: int
    last_problem: str


class ReceiversReport(msgspec.Struct, rename="camel"):
    """What all receivers saw since the last reset."""

    total_requests: int
    order_violations: int
    duplicates: int
    groups: int
    endpoints: dict[str, ReceiverStats]
    last_violations: list[str]
    webhooks: WebhooksReport


@get("/api/test/stats", tags=["Try it out"], summary="What the receivers saw")
async def get_test_stats(sandbox: TheSandbox) -> ReceiversReport:
    """Requests, order violations and duplicates. Only ids as seeding makes them carry an order to judge."""
    judge = sandbox.judge
    return ReceiversReport(
        total_requests=judge.requests,
        order_violations=judge.order_violations,
        duplicates=judge.duplicates,
        groups=judge.groups,
        endpoints={
            name: ReceiverStats(counts.requests, counts.order_violations, dict(counts.statuses))
            for name, counts in judge.by_receiver.items()
        },
        last_violations=list(judge.last_violations),
        webhooks=WebhooksReport(**asdict(sandbox.webhooks.counts), last_problem=sandbox.webhooks.last_problem),
    )


@delete("/api/test/stats", tags=["Try it out"], summary="Forget what the receivers saw")
async def delete_test_stats(sandbox: TheSandbox) -> None:
    """Start counting and judging from nothing."""
    sandbox.judge.reset()


@post(
    "/api/test/stats/reset",
    status_code=HTTPStatus.NO_CONTENT,
    tags=["Try it out"],
    summary="Forget what the receivers saw (for clients without DELETE)",
)
async def reset_test_stats(sandbox: TheSandbox) -> None:
    """The same as DELETE /api/test/stats."""
    sandbox.judge.reset()
