"""Mediator: one attempt to deliver a message, as an HTTP POST in the form of 002."""

from functools import lru_cache
from typing import Final

import msgspec

from flowcatalyst.clock import Clock
from flowcatalyst.delivery.contract import WHOLE, HttpClient, parse_target
from flowcatalyst.errors import DeliveryError, LocalShortageError, TargetRefusedError
from flowcatalyst.message import MessagePointer, Outcome
from flowcatalyst.routing import policy

_MAX_CACHED_TOKENS: Final = 1024
_CONTENT_HEADERS: Final = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json"),
    ("Accept-Encoding", "identity"),  # a refusal in a compressed body could not be read
)

Headers = tuple[tuple[str, str], ...]


@lru_cache(maxsize=4096)
def endpoint_of(url: str) -> str:
    """What shares a circuit breaker: scheme, host, port and path, without the query."""
    try:
        target = parse_target(url)
    except TargetRefusedError:
        return url  # the attempt itself will say what is wrong with it
    return f"{target.scheme}://{target.authority}{target.path.partition('?')[0]}"


@lru_cache(maxsize=4096)
def origin_of(url: str) -> str:
    """What shares connections: scheme, host and port. For a URL that cannot be called, the URL itself."""
    try:
        target = parse_target(url)
    except TargetRefusedError:
        return url
    return f"{target.scheme}://{target.authority}"


class Mediator:
    """Delivers pointers. Whatever an endpoint does becomes an `Outcome`, never an exception.

    `LocalShortageError`: there was no attempt, for want of something on this machine.
    """

    def __init__(self, http: HttpClient, https: HttpClient, clock: Clock) -> None:
        self._http = http
        self._https = https
        self._clock = clock
        self._headers_by_token: dict[str, Headers] = {}

    async def attempt(self, pointer: MessagePointer, timeout_s: float | None = None) -> Outcome:
        try:
            target = parse_target(pointer.mediation_target)
            client = self._https if target.scheme == "https" else self._http
            body = b'{"messageId":%b}' % msgspec.json.encode(pointer.id)
            response = await client.post(target, self._headers(pointer.auth_token), body, timeout_s)
        except LocalShortageError:
            raise
        except DeliveryError as error:
            return policy.interpret_failure(error)
        status = response.status
        if status == 200 and response.framed and response.body in policy.PLAIN_SUCCESS:
            return policy.DELIVERED
        retry_after = response.header("retry-after") if status == 429 else None
        content = response.content() if 200 <= status < 300 else WHOLE
        return policy.interpret(status, retry_after, response.body, self._clock.wall(), content)

    async def close(self) -> None:
        await self._http.close()
        if self._https is not self._http:
            await self._https.close()

    def _headers(self, token: str | None) -> Headers:
        if not token:
            return _CONTENT_HEADERS
        headers = self._headers_by_token.get(token)
        if headers is None:
            if len(self._headers_by_token) >= _MAX_CACHED_TOKENS:
                self._headers_by_token.clear()
            headers = self._headers_by_token[token] = (("Authorization", f"Bearer {token}"), *_CONTENT_HEADERS)
        return headers
