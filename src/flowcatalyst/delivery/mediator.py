"""Mediator: one attempt to deliver a message, as an HTTP POST in the form of 002."""

from typing import Final

import msgspec

from flowcatalyst.clock import Clock
from flowcatalyst.delivery.contract import HttpClient, parse_target
from flowcatalyst.errors import DeliveryError, TargetRefusedError
from flowcatalyst.message import MessagePointer, Outcome
from flowcatalyst.routing import policy

_MAX_CACHED_TOKENS: Final = 1024
_MAX_CACHED_ENDPOINTS: Final = 4096
_CONTENT_HEADERS: Final = (("Content-Type", "application/json"), ("Accept", "application/json"))

Headers = tuple[tuple[str, str], ...]


_endpoints: dict[str, str] = {}


def endpoint_of(url: str) -> str:
    """What shares a circuit breaker: scheme, host, port and path, without the query."""
    endpoint = _endpoints.get(url)
    if endpoint is None:
        endpoint = _endpoint(url)
        if len(_endpoints) >= _MAX_CACHED_ENDPOINTS:
            _endpoints.clear()
        _endpoints[url] = endpoint
    return endpoint


def _endpoint(url: str) -> str:
    try:
        target = parse_target(url)
    except TargetRefusedError:
        return url  # the attempt itself will say what is wrong with it
    return f"{target.scheme}://{target.authority}{target.path.partition('?')[0]}"


class Mediator:
    """Delivers pointers. Whatever an endpoint does becomes an `Outcome`, never an exception."""

    def __init__(self, http: HttpClient, https: HttpClient, clock: Clock) -> None:
        self._http = http
        self._https = https
        self._clock = clock
        self._headers_by_token: dict[str, Headers] = {}

    async def attempt(self, pointer: MessagePointer) -> Outcome:
        try:
            target = parse_target(pointer.mediation_target)
            client = self._https if target.scheme == "https" else self._http
            body = b'{"messageId":%b}' % msgspec.json.encode(pointer.id)
            response = await client.post(target, self._headers(pointer.auth_token), body)
        except DeliveryError as error:
            return policy.interpret_failure(error)
        retry_after = response.header("retry-after") if response.status == 429 else None
        return policy.interpret(response.status, retry_after, response.body, self._clock.wall())

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
