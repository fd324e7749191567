"""/monitoring/warnings: what operators should know, and what they have seen of it."""

from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.api.listing import Offset, page_from
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.times import seconds_of
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import Warning, WarningCode, WarningFilter  # noqa: A004

MAX_ID: Final = 2**53 - 1  # what JSON can carry everywhere
Id = Annotated[int, PathParameter(ge=1, le=MAX_ID, description="Id of the warning")]


class WarningView(msgspec.Struct, rename="camel"):
    """Something an operator should know. One that repeats is counted; its repeat takes back an acknowledgement."""

    id: int
    code: WarningCode
    severity: Severity
    message: str
    source: str
    count: int
    first_at: datetime
    last_at: datetime
    acknowledged: bool

    @classmethod
    def of(cls, warning: Warning) -> "WarningView":
        return cls(
            id=warning.id,
            code=warning.code,
            severity=warning.severity,
            message=warning.message,
            source=warning.source,
            count=warning.count,
            first_at=datetime.fromtimestamp(warning.first_at, UTC),
            last_at=datetime.fromtimestamp(warning.last_at, UTC),
            acknowledged=warning.acknowledged,
        )


class Acknowledged(msgspec.Struct, rename="camel"):
    """How many warnings were acknowledged that had not been."""

    acknowledged: int


class Deleted(msgspec.Struct, rename="camel"):
    """How many warnings were removed."""

    deleted: int


def read_filter(
    severity: Annotated[Severity | None, QueryParameter(description="Only those of this severity")] = None,
    code: Annotated[WarningCode | None, QueryParameter(description="Only those with this code")] = None,
    source: Annotated[str | None, QueryParameter(description="Only those from this part of the router")] = None,
    acknowledged: Annotated[
        bool | None, QueryParameter(description="Only those that were acknowledged, or only those that were not")
    ] = None,
    text: Annotated[
        str | None, QueryParameter(description="Only those with this in their message, in any case")
    ] = None,
    since: Annotated[
        str | None,
        QueryParameter(
            description="Only those that came, or came again, at this time or later",
            schema_extra={"format": "date-time"},
        ),
    ] = None,
) -> WarningFilter:
    """The filter in the query parameters."""
    return WarningFilter(severity, code, source, acknowledged, text, seconds_of("since", since))


_FILTERED: Final = {"wanted": Provide(read_filter, sync_to_thread=False)}
Wanted = NamedDependency[WarningFilter]


@get("/monitoring/warnings", dependencies=_FILTERED, tags=["Warnings"], summary="List warnings")
async def get_warnings(
    request: Request[Any, Any, Any], app: TheApp, wanted: Wanted, offset: Offset = 0
) -> Response[list[WarningView]]:
    """Newest first; one that did not come again for eight hours is forgotten. At most about 1 MiB of them: if there are
    more, the Link header leads to them.
    """
    return page_from(request, map(WarningView.of, app.warnings.recent(wanted)[offset:]), offset)


@post(
    "/monitoring/warnings/{id:int}/acknowledge",
    status_code=HTTPStatus.OK,
    tags=["Warnings"],
    summary="Acknowledge a warning",
)
async def acknowledge_warning(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: Id,  # noqa: A002 - the name in the path
) -> WarningView:
    """Note that somebody knows about it. It stays in the list; if it comes again it is no longer acknowledged."""
    warning = app.warnings.acknowledge(id)
    if warning is None:
        raise _unknown(id)
    app.audit.record(actor_of(request), AuditAction.WARNING_ACKNOWLEDGE, *_what(warning), 1)
    return WarningView.of(warning)


@post(
    "/monitoring/warnings/acknowledge",
    status_code=HTTPStatus.OK,
    dependencies=_FILTERED,
    tags=["Warnings"],
    summary="Acknowledge all warnings",
)
async def acknowledge_warnings(request: Request[Any, Any, Any], app: TheApp, wanted: Wanted) -> Acknowledged:
    """Or those that the filters leave."""
    count = app.warnings.acknowledge_all(wanted)
    app.audit.record(actor_of(request), AuditAction.WARNING_ACKNOWLEDGE, "warnings", _which(wanted), count)
    return Acknowledged(count)


@delete("/monitoring/warnings/{id:int}", tags=["Warnings"], summary="Remove a warning")
async def delete_warning(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: Id,  # noqa: A002 - the name in the path
) -> None:
    """If it comes again it is a new one."""
    warning = next((one for one in app.warnings.recent() if one.id == id), None)
    if warning is None:
        raise _unknown(id)
    app.warnings.delete(id)
    app.audit.record(actor_of(request), AuditAction.WARNING_DELETE, *_what(warning), 1)


@delete(
    "/monitoring/warnings",
    status_code=HTTPStatus.OK,
    dependencies=_FILTERED,
    tags=["Warnings"],
    summary="Remove all warnings",
)
async def delete_warnings(request: Request[Any, Any, Any], app: TheApp, wanted: Wanted) -> Deleted:
    """Or those that the filters leave."""
    count = app.warnings.delete_all(wanted)
    app.audit.record(actor_of(request), AuditAction.WARNING_DELETE, "warnings", _which(wanted), count)
    return Deleted(count)


def _what(warning: Warning) -> tuple[str, str]:
    """Which one it is, for the audit trail."""
    return f"warning {warning.id}", f"{warning.severity} {warning.code}: {warning.message}"


def _which(wanted: WarningFilter) -> str:
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "all"


def _unknown(warning_id: int) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, f"there is no warning {warning_id}")
