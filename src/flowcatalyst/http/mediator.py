"""Mediator: one attempt to deliver a message, as an HTTP POST (docs/reference.md, "Attempt")."""

from functools import lru_cache
from typing import Final

import msgspec

from flowcatalyst import __version__
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import DeliveryError, LocalShortageError
from flowcatalyst.core.headers import OUR_PREFIX, header_safe, names_trace
from flowcatalyst.core.message import DEFAULT_GROUP, Delivery, Headers, Outcome
from flowcatalyst.core.payload import JSON_TYPE, payload_bytes
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http.contract import WHOLE, HttpClient
from flowcatalyst.http.interpret import DELIVERED, PLAIN_SUCCESS, interpret, interpret_failure

MESSAGE_ID: Final = f"{OUR_PREFIX}Message-Id"
GROUP: Final = f"{OUR_PREFIX}Group"
ATTEMPT: Final = f"{OUR_PREFIX}Attempt"
USER_AGENT: Final = f"FlowCatalyst/{__version__}"

_encode = msgspec.json.Encoder().encode


class Mediator:
    """Delivers pointers. Whatever an endpoint does becomes an `Outcome`, never an exception.

    `LocalShortageError`: there was no attempt, for want of something on this machine.
    """

    def __init__(self, http: HttpClient, https: HttpClient, clock: Clock) -> None:
        self._http = http
        self._https = https
        self._clock = clock

    async def attempt(self, delivery: Delivery, timeout_s: float | None = None) -> Outcome:
        pointer, group = delivery.pointer, delivery.group
        try:
            target = parse_target(pointer.mediation_target)
            client = self._https if target.scheme == "https" else self._http
            if delivery.is_raw or pointer.payload or pointer.headers:
                headers, body = _own_content(delivery)
            else:
                headers, body = _headers(pointer.auth_token), b'{"messageId":%b}' % _encode(pointer.id)
            number = delivery.earlier + delivery.tries
            lines = f"{MESSAGE_ID}: {header_safe(pointer.id)}\r\n{_group_line(group)}{ATTEMPT}: {number}\r\n"
            if delivery.stamp is not None:
                lines += delivery.stamp.lines(delivery, body, self._clock.wall())
            if delivery.trace is not None:
                headers, traced = delivery.trace.passed_on(headers)
                lines += traced
            elif delivery.trace_context and not any(map(names_trace, pointer.headers or ())):
                lines += "".join(f"{name}: {value}\r\n" for name, value in delivery.trace_context)
            response = await client.post(target, headers, body, timeout_s, lines)
        except LocalShortageError:
            raise
        except DeliveryError as error:
            return interpret_failure(error)
        status = response.status
        if status == 200 and response.framed and response.body in PLAIN_SUCCESS:
            return DELIVERED
        retry_after = response.header("retry-after") if status == 429 else None
        content = response.content() if 200 <= status < 300 else WHOLE
        return interpret(status, retry_after, response.body, self._clock.wall(), content)

    async def close(self) -> None:
        await self._http.close()
        if self._https is not self._http:
            await self._https.close()


@lru_cache(maxsize=1024)
def _headers(token: str | None, content_type: str = JSON_TYPE) -> Headers:
    authorization = (("Authorization", f"Bearer {token}"),) if token else ()
    return (
        *authorization,
        ("Content-Type", content_type),
        ("Accept", JSON_TYPE),
        ("Accept-Encoding", "identity"),  # a refusal in a compressed body could not be read
        ("User-Agent", USER_AGENT),
    )


@lru_cache(maxsize=1024)
def _group_line(group: str | None) -> str:
    return f"{GROUP}: {header_safe(group)}\r\n" if group and group != DEFAULT_GROUP else ""


def _own_content(delivery: Delivery) -> tuple[Headers, bytes]:
    """Headers and body of a message that brings its own: a raw body, a payload, or headers besides the usual body."""
    pointer, body = delivery.pointer, delivery.body
    content_type = pointer.content_type or JSON_TYPE
    headers = _headers(pointer.auth_token, content_type)
    if pointer.headers:
        own = tuple(pointer.headers.items())
        names = {name.lower() for name, _ in own}
        headers = (*(header for header in headers if header[0].lower() not in names), *own)
    if delivery.is_raw:
        return headers, body.encode() if isinstance(body, str) else body
    if pointer.payload:
        return headers, payload_bytes(pointer.payload, content_type)
    return headers, b'{"messageId":%b}' % _encode(pointer.id)
