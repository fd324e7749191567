"""Keeps web pages of strangers away from the API.

A page from anywhere can make a browser send requests here. Two checks stop that: a changing request must come from our
own pages or from no page at all, and the Host must be no name that a stranger could have pointed at 127.0.0.1 (DNS
rebinding). Where a request comes from the browser says in Origin and in Sec-Fetch-Site. It may leave out one of them:
some do not send Origin with every POST, and Sec-Fetch-Site comes over https or on this machine only.

Which of them are needed depends on what a browser does by itself. Without credentials, both are. With basic ones only
the first: the browser adds the credentials to requests of any page, but not under another name, and a name is what
people use to reach an API on the network. An API key is never added by a browser, so no page can misuse it.
"""

from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowcatalyst.api.access import OWN_TOKENS, READING_METHODS
from flowcatalyst.api.problems import ProblemError

_NO_FOREIGN_SITE: Final = ("same-origin", "none")  # none: the user asked for it, not a page


def origin_guards(mode: Literal["none", "api_key", "basic"]) -> list[Guard]:
    """The guards of every route that an auth mode needs against foreign pages."""
    match mode:
        case "none":
            return [refuse_foreign_names, refuse_foreign_pages]
        case "basic":
            return [refuse_foreign_pages]
        case "api_key":
            return []


# Both are async only because Litestar would run them in a thread otherwise.


async def refuse_foreign_names(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    host = connection.headers.get("host", "")
    if connection.scope["path_template"] in OWN_TOKENS:
        return  # routers may know us by any name, and pages have no tokens
    try:
        name = urlsplit(f"//{host}").hostname or ""
        is_local = name == "localhost" or bool(ip_address(name))
    except ValueError:
        is_local = False
    if host and not is_local:
        detail = f"this API answers to localhost and to IP addresses only, not to the name {host}"
        raise ProblemError(HTTPStatus.MISDIRECTED_REQUEST, detail)


async def refuse_foreign_pages(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if connection.scope.get("method", "GET") in READING_METHODS:
        return
    headers = connection.headers
    origin = headers.get("origin")
    foreign = origin is not None and urlsplit(origin).netloc != headers.get("host", "")
    if foreign or headers.get("sec-fetch-site", "none") not in _NO_FOREIGN_SITE:
        raise ProblemError(HTTPStatus.FORBIDDEN, "a web page of another origin may not change anything here")
