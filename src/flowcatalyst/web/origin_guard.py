"""Keeps web pages of strangers away from an API that needs no credentials on loopback.

A page from anywhere can make a browser on this machine send requests here. Two checks stop that: a changing request
must come from our own pages or from no page at all, and the Host must be no name that a stranger could have pointed
at 127.0.0.1 (DNS rebinding).
"""

from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from flowcatalyst.web.problems import ProblemError

_READING_METHODS = ("GET", "HEAD", "OPTIONS")


async def refuse_foreign_pages(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A Litestar guard for every route. It is async only because Litestar would run it in a thread otherwise."""
    host = connection.headers.get("host", "")
    if host and not _is_local_name(host):
        detail = f"this API answers to localhost and to IP addresses only, not to the name {host}"
        raise ProblemError(HTTPStatus.MISDIRECTED_REQUEST, detail)
    if connection.scope.get("method", "GET") in _READING_METHODS:
        return
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise ProblemError(HTTPStatus.FORBIDDEN, "a web page of another origin may not change anything here")


def _is_local_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False
