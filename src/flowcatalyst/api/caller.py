"""Who sent a request, for the audit trail."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.types import Scope

from flowcatalyst.api.access import READING_METHODS
from flowcatalyst.control.audit import Actor, AuditAction, AuditLog
from flowcatalyst.core.credentials import Identity

ANONYMOUS: Final = "anonymous"
# What guards answer to those who may not do what they ask for.
REFUSALS: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
)


def actor_of(connection: ASGIConnection[Any, Any, Any, Any]) -> Actor:
    """By the credentials that were accepted. An address that a proxy told is only its word."""
    identity = connection.scope.get("user")
    client = connection.scope["client"]
    address = None if client is None else client[0]
    forwarded_for: str | None = None
    with suppress(ValueError):  # the one that the nearest proxy added; nothing that is no address
        forwarded_for = str(ip_address(connection.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()))
    if not isinstance(identity, Identity):
        return Actor(ANONYMOUS, None, address, forwarded_for)
    return Actor(identity.name, identity.title, address, forwarded_for)


def refusals_noted(audit: Callable[[], AuditLog]) -> Callable[[Exception, Scope], Awaitable[None]]:
    """A hook that notes changes that were refused. The route stands for what was asked: a path may hold anything."""

    async def note(error: Exception, scope: Scope) -> None:
        method = str(scope.get("method", "GET"))
        if method in READING_METHODS or not isinstance(error, HTTPException) or error.status_code not in REFUSALS:
            return
        what = f"{error.status_code} {method} {scope['path_template']}"
        audit().add_up(actor_of(ASGIConnection(scope)), AuditAction.REFUSED, what)

    return note
