"""The way into the queues of a router that runs, over its API."""

import base64
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from flowcatalyst.control import environment
from flowcatalyst.control.config_source import login_of, masked, target_of
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import (
    ConfigurationError,
    DeliveryError,
    InvalidMessageError,
    QueueUnavailableError,
    TargetRefusedError,
)
from flowcatalyst.http.contract import Response
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.queues.contract import Outgoing, Published

DEFAULT_QUEUE: Final = "default"
PATIENCE_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024  # the API takes more

ApiKey = Annotated[
    str | None,
    typer.Option(help=f"With --router: its API key; better as variable {environment.API_KEY}", metavar="KEY"),
]


def refuse_key_without_router(api_key: str | None) -> None:
    """An option that nothing would look at."""
    if api_key is not None:
        raise typer.BadParameter("an --api-key is for a --router: name that, or leave out the key")


class RemoteQueue:
    """A queue of a router that runs."""

    deduplicates: bool | None = None  # its queue may be at any broker

    def __init__(self, url: str, queue: str | None, api_key: str | None) -> None:
        """Raises `typer.BadParameter` if the URL can never be called."""
        self._base = url.rstrip("/")
        self.name = queue or DEFAULT_QUEUE
        self._notes: set[str] = set()  # that it answered with
        self.place = f"router {masked(self._base)}"
        try:
            self._target = target_of(f"{self._base}/api/messages?queue={quote(self.name, safe='')}")
        except (TargetRefusedError, ValueError):  # without the reason: it may quote a password
            raise typer.BadParameter("--router is no URL of a router: give it as http://127.0.0.1:8080") from None
        login = login_of(url) or os.environ.get(environment.LOGIN)
        self._headers = [("content-type", "application/json"), ("accept-encoding", "identity")]
        if key := api_key or os.environ.get(environment.API_KEY):
            self._headers.append(("x-api-key", key))
        if login:
            self._headers.append(("authorization", f"Basic {base64.b64encode(login.encode()).decode()}"))
        self._client = Http1Client(
            guard=EgressGuard(allow_private=True),  # whoever types the command named the host
            clock=SystemClock(),
            request_timeout_s=PATIENCE_S,
            max_body_bytes=MAX_ANSWER_BYTES,
        )

    @property
    def base_url(self) -> str:
        """Without a login."""
        return f"{self._target.scheme}://{self._target.authority}{self._target.path.partition('/api/messages')[0]}"

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        """As `Publisher.publish`. Raises `ConfigurationError` too, if the router wants other credentials or has no such
        queue."""
        return [one for request in _requests(messages) for one in await self._send(request)]

    def notes(self, pools: Iterable[str]) -> set[str]:
        return self._notes  # the router knows its pools

    async def aclose(self) -> None:
        await self._client.close()

    async def _send(self, bodies: Sequence[Mapping[str, Any]]) -> list[Published]:
        try:
            response = await self._client.post(self._target, self._headers, msgspec.json.encode(bodies))
        except DeliveryError as error:
            raise QueueUnavailableError(f"the {self.place} did not take it: {error}") from None
        if response.status != 202:
            raise self._refusal(response)
        results = msgspec.json.decode(response.body)["results"]
        for one in results:
            if one["status"] == "REJECTED":
                raise InvalidMessageError(f"message {one['id']} was rejected by the {self.place}: {one['error']}")
        self._notes.update(one["note"] for one in results if "note" in one)
        return [Published(one.get("brokerId") or "", one["status"] == "DUPLICATE") for one in results]

    def _refusal(self, response: Response) -> Exception:
        try:
            detail = str(msgspec.json.decode(response.body)["detail"])
        except (msgspec.DecodeError, UnicodeError, TypeError, KeyError):
            detail = "it seems to be no router"
        said = f"the {self.place} answered {response.status}: {detail}"
        match response.status:
            case 401 | 403:
                how = f"set {environment.API_KEY} to an API key or {environment.LOGIN} to name:password, of an admin"
                return ConfigurationError(f"{said}; {how}")
            case 404:
                return ConfigurationError(said)
            case 400 | 413:
                return InvalidMessageError(said)
            case _:
                return QueueUnavailableError(said)


def _requests(messages: Sequence[Outgoing]) -> Iterator[list[Mapping[str, Any]]]:
    """Bodies of requests that the API takes."""
    request: list[Mapping[str, Any]] = []
    size = 0
    for message in messages:
        if request and size + len(message.body) > MAX_REQUEST_BYTES:
            yield request
            request, size = [], 0
        deduplication = {} if message.deduplication_id is None else {"deduplicationId": message.deduplication_id}
        # Its fields as they are: a payload must not be written anew.
        request.append({**msgspec.json.decode(message.body, type=dict[str, msgspec.Raw]), **deduplication})
        size += len(message.body)
    if request:
        yield request
