"""/api/test: receivers to try the router out with. They judge the order in which messages come."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.clock import IdSource
from flowcatalyst.message import MAX_NAME_CHARS
from flowcatalyst.web.bodies import read_json
from flowcatalyst.web.dependencies import TheTestBench
from flowcatalyst.web.openapi import with_json_body
from flowcatalyst.web.problems import ProblemError

MAX_DELAY_MS: Final = 60_000
SLOW_MS: Final = 100
PENDING_S: Final = 30


class Received(msgspec.Struct, rename="camel"):
    """What the router sends."""

    message_id: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class ReceiverAnswer(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a receiver says: done, or come again after a while."""

    ack: bool
    delay_seconds: int | None = None


@dataclass(slots=True, frozen=True)
class _Answer:
    status: int
    ack: bool = False
    delay_seconds: int | None = None
    retry_after_s: int | None = None

    @property
    def for_good(self) -> bool:
        """The router will not send the message again."""
        if self.status == HTTPStatus.OK:
            return self.ack
        return 400 <= self.status < 500 and self.status != HTTPStatus.TOO_MANY_REQUESTS

    def response(self) -> Response[ReceiverAnswer]:
        headers = {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}
        return Response(ReceiverAnswer(self.ack, self.delay_seconds), status_code=self.status, headers=headers)


_DONE: Final = _Answer(200, ack=True)


def _faulty(ids: IdSource, delay_s: int) -> _Answer:
    """Fails in ways that lose nothing: there is no 4xx among them."""
    roll = ids.rng.random()
    if roll < 0.70:
        return _DONE
    if roll < 0.85:
        return _Answer(500)
    if roll < 0.95:
        return _Answer(429, retry_after_s=1)
    return _Answer(200, delay_seconds=1)


RECEIVERS: Final[dict[str, Callable[[IdSource, int], _Answer]]] = {
    "fast": lambda ids, delay_s: _DONE,
    "slow": lambda ids, delay_s: _DONE,
    "faulty": _faulty,
    "fail": lambda ids, delay_s: _Answer(500),
    "success": lambda ids, delay_s: _DONE,
    "pending": lambda ids, delay_s: _Answer(200, delay_seconds=delay_s),
    "client-error": lambda ids, delay_s: _Answer(400),
    "server-error": lambda ids, delay_s: _Answer(500),
}

_decoder = msgspec.json.Decoder(Received)
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
    bench: TheTestBench,
    receiver: Annotated[
        str,
        PathParameter(description=f"One of {', '.join(RECEIVERS)}", schema_extra={"enum": list(RECEIVERS)}),
    ],
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
    client-error answers 400, fail and server-error answer 500.
    """
    if receiver not in RECEIVERS:
        detail = f"there is no receiver {receiver!r}; the receivers are: {', '.join(RECEIVERS)}"
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)
    message_id = (await read_json(request, _decoder)).message_id
    bench.judge.arrived(receiver, message_id)
    wait_ms = delay_ms or (SLOW_MS if receiver == "slow" else 0)
    if wait_ms:
        await asyncio.sleep(wait_ms / 1000)
    answer = RECEIVERS[receiver](bench.ids, delay_s)
    bench.judge.answered(receiver, message_id, answer.status, for_good=answer.for_good)
    return answer.response()


class ReceiverStats(msgspec.Struct, rename="camel"):
    """What one receiver saw and answered."""

    requests: int
    order_violations: int
    status_counts: dict[int, int]


class ReceiversReport(msgspec.Struct, rename="camel"):
    """What all receivers saw since the last reset."""

    total_requests: int
    order_violations: int
    duplicates: int
    groups: int
    endpoints: dict[str, ReceiverStats]
    last_violations: list[str]


@get("/api/test/stats", tags=["Try it out"], summary="What the receivers saw")
async def get_test_stats(bench: TheTestBench) -> ReceiversReport:
    """Requests, order violations and duplicates. Only ids as seeding makes them carry an order to judge."""
    judge = bench.judge
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
    )


@delete("/api/test/stats", tags=["Try it out"], summary="Forget what the receivers saw")
async def delete_test_stats(bench: TheTestBench) -> None:
    """Start counting and judging from nothing."""
    bench.judge.reset()


@post(
    "/api/test/stats/reset",
    status_code=HTTPStatus.NO_CONTENT,
    tags=["Try it out"],
    summary="Forget what the receivers saw (for clients without DELETE)",
)
async def reset_test_stats(bench: TheTestBench) -> None:
    """The same as DELETE /api/test/stats."""
    bench.judge.reset()
