"""/api/dispatch/process: where routers on other machines call back for a job that was published to them."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, post

from flowcatalyst.api.bodies import read_json
from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.api.dispatch.platform import store_of
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.tokens import InvalidTokenError

MAX_BYTES: Final = 16 * 1024  # of a body; a router sends the id of its message and no more
_SCHEME: Final = "bearer"


class OutMessage(msgspec.Struct, rename="camel"):
    """What a router sends for a message without a payload. Fields besides are for others."""

    message_id: str


class Processed(msgspec.Struct, rename="camel", omit_defaults=True):
    """Whether the message is done with at its broker. If not: to be sent again after so many seconds."""

    ack: bool
    delay_seconds: float | None = None


_message = msgspec.json.Decoder(OutMessage)


@post(
    "/api/dispatch/process",
    status_code=HTTPStatus.OK,
    tags=["Dispatch jobs"],
    summary="Deliver a job that was published to a queue",
    operation_class=with_json_body(OutMessage, "The message as its router sends it"),
    request_max_body_size=MAX_BYTES,
)
async def process_job(request: Request[Any, Any, Any], app: TheApp) -> Processed:
    """For routers, not for people. The token of the message, as Authorization: Bearer, is all it takes, and is good for
    one attempt at one job. The answer comes when that has ended and its verdict is kept, whatever it is."""
    store_of(app)
    if app.processing is None:
        raise QueueUnavailableError("this process does not run yet: ask again")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != _SCHEME:
        raise InvalidTokenError("a message that was published for a job brings a token (Authorization: Bearer)")
    permit = app.processing.permit_of(token.strip())  # a stranger's body is not read
    answer = await app.processing.process(permit, (await read_json(request, _message)).message_id)
    return Processed(answer.ack, answer.delay_s)
