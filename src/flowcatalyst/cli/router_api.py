"""The API of a router that runs, as commands use it."""

import base64
import json
import os
import ssl
from collections.abc import Generator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import typer

from flowcatalyst.client.connections import Answer, Connections
from flowcatalyst.control import environment
from flowcatalyst.control.config_source import login_of
from flowcatalyst.control.settings import Settings, load_settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.core.terminal import visible
from flowcatalyst.queues.embedded.store import routers_on

PATIENCE_S: Final = 60.0
LIVE_WITHIN_S: Final = 10.0  # an event comes every second
MAX_LINE_BYTES: Final = 4 * 1024 * 1024  # of an event
PAGE: Final = 1000  # of a list
FORM: Final = "http://127.0.0.1:8080"
Query: TypeAlias = Mapping[str, object]  # what is None is left out
NO_QUERY: Final[Query] = {}

Router = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="URL",
        help="The router to ask  [default: the one that has the data folder of the settings open, else their host and "
        "port]",
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", "--api-key", metavar="KEY", help=f"Its API key; better as variable {environment.API_KEY}"),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: all that there is, as JSON")]


class RouterUnreachableError(FlowCatalystError):
    """The router did not answer."""


class RouterRefusedError(FlowCatalystError):
    """The router did not do what it was asked for."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RouterApi:
    """One router. Raises `RouterUnreachableError`, `RouterRefusedError`, or `ConfigurationError` if it wants other
    credentials."""

    def __init__(self, router: str | None, key: str | None, patience_s: float = PATIENCE_S) -> None:
        """Without a URL the router of the settings is meant. Raises `typer.BadParameter` if the URL can never be
        called."""
        given = router or router_of(load_settings())
        try:
            parts = urlsplit(given.rstrip("/"))
            login = login_of(given) or os.environ.get(environment.LOGIN)
            self.url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            if key := key or os.environ.get(environment.API_KEY):
                headers["X-API-Key"] = key
            if login:
                headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
            self._connections = Connections(self.url, headers, patience_s, None, SystemClock())
            self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        except ValueError:  # without the reason: it may quote a password
            raise typer.BadParameter(f"--router is no URL of a router: give it as {FORM}") from None
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ConfigurationError("the API key may have printable ASCII characters only")
        self._headers = headers

    def get(self, *path: str, query: Query = NO_QUERY) -> Any:
        """What is at this path, whose later parts may hold anything."""
        return self._ask("GET", path, query)

    def post(self, *path: str, body: Mapping[str, Any] | None = None, query: Query = NO_QUERY) -> Any:
        return self._ask("POST", path, query, body)

    def delete(self, *path: str, query: Query = NO_QUERY) -> Any:
        return self._ask("DELETE", path, query)

    def listed(self, *path: str, limit: int, query: Query = NO_QUERY) -> tuple[list[Any], bool]:
        """Up to `limit` items of a list that comes in pages, and whether there are more."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            page = self.get(*path, query={**query, "limit": min(limit - len(items), PAGE), "cursor": cursor})
            items += page["items"]
            cursor = page["next"]
            if cursor is None or len(items) >= limit:  # a page with a next one may be empty
                return items[:limit], cursor is not None or len(items) > limit

    def overviews(self) -> Generator[Any, None, None]:
        """How the router is, about once a second, for as long as it is asked for the next."""
        tls = ssl.create_default_context() if self._tls else None
        assert self._host is not None, "or there would be no connections"
        connection = (
            HTTPConnection(self._host, self._port, timeout=LIVE_WITHIN_S)
            if tls is None
            else HTTPSConnection(self._host, self._port, timeout=LIVE_WITHIN_S, context=tls)
        )
        try:
            path = f"{urlsplit(self.url).path}/monitoring/live"
            connection.request("GET", path, headers={**self._headers, "Accept": "text/event-stream"})
            response = connection.getresponse()
            if response.status != 200:
                raise self._refusal(Answer(response.status, response.headers, response.read(MAX_LINE_BYTES)))
            event = ""
            while line := response.readline(MAX_LINE_BYTES):
                name, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
                if name == "event":
                    event = value.strip()
                elif name == "data" and event == "overview":
                    yield json.loads(value)
            raise RouterUnreachableError(f"the router at {self.url} ended its answer")
        except ValueError:
            raise self._no_router(200) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _ask(self, method: str, path: tuple[str, ...], query: Query, body: Mapping[str, Any] | None = None) -> Any:
        first, *rest = path
        place = "/".join([first, *(quote(part, safe="") for part in rest)])
        given = {name: value for name, value in query.items() if value is not None}
        if given:
            place += f"?{urlencode(given, quote_via=quote)}"
        try:
            answer = self._connections.ask(method, place, None if body is None else json.dumps(body).encode())
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        # Each request has a connection of its own: an idle one may break, and then what it asked for is sent again.
        self._connections.close()
        if answer.status >= 300:
            raise self._refusal(answer)
        try:
            return json.loads(answer.body) if answer.body else None
        except ValueError:
            raise self._no_router(answer.status) from None

    def _unreachable(self, error: OSError | HTTPException) -> RouterUnreachableError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "it closed"
        return RouterUnreachableError(f"the router at {self.url} did not answer: {why}")

    def _no_router(self, status: int) -> RouterRefusedError:
        return RouterRefusedError(f"{self.url} answered {status}, but as no router does: is --router right?", status)

    def _refusal(self, answer: Answer) -> FlowCatalystError:
        try:
            detail = visible(str(json.loads(answer.body)["detail"]))
        except (ValueError, TypeError, KeyError):
            return self._no_router(answer.status)
        said = f"the router at {self.url} answered {answer.status}: {detail}"
        if answer.status in (401, 403):
            how = f"set {environment.API_KEY} to an API key or {environment.LOGIN} to name:password"
            return ConfigurationError(f"{said}; {how}")
        return RouterRefusedError(said, answer.status)


def router_of(settings: Settings) -> str:
    """Where a router with these settings can be reached from here: one that runs on the data folder may have another
    port."""
    running = list(routers_on(settings.data_dir / "queue.db"))
    if len(running) == 1:
        return running[0]
    if running:
        raise typer.BadParameter(
            f"several routers have this data folder open, name one with --router: {', '.join(running)}"
        )
    if settings.port == 0:
        raise typer.BadParameter("the port of these settings is 0, any free one: name the router with --router")
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - it binds nothing
    host = everywhere.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
