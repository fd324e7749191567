"""/monitoring/audit: who changed what, and when."""

from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from litestar import get
from litestar.params import QueryParameter

from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.api.times import seconds_of
from flowcatalyst.control.audit import AuditAction, AuditEvent, AuditFilter

MAX_LISTED: Final = 1000
MAX_NUMBER: Final = 2**53 - 1  # what JSON can carry everywhere


class AuditView(msgspec.Struct, rename="camel"):
    """What somebody did. Publishes and refused attempts of a caller are summed up by the minute: `until` is when the
    latest came, `requests` how many there were.
    """

    number: int
    at: datetime
    until: datetime
    action: AuditAction
    who: str  # name of the credentials, or anonymous
    role: str | None  # null: no credentials were asked for, or none were right
    address: str | None  # of the client, or of the proxy it came through
    forwarded_for: str | None  # as the proxy says, or anybody
    object: str
    detail: str  # before -> after, where that is small
    count: int | None  # of messages, dead letters, warnings or breakers
    requests: int

    @classmethod
    def of(cls, event: AuditEvent) -> "AuditView":
        return cls(
            number=event.number,
            at=datetime.fromtimestamp(event.at, UTC),
            until=datetime.fromtimestamp(event.until, UTC),
            action=AuditAction(event.action),
            who=event.who,
            role=event.role,
            address=event.address,
            forwarded_for=event.forwarded_for,
            object=event.object,
            detail=event.detail,
            count=event.count,
            requests=event.requests,
        )


@get("/monitoring/audit", tags=["Monitoring"], summary="Who changed what")
async def list_audit(
    app: TheApp,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="Largest number to return")] = 100,
    before: Annotated[
        int | None,
        QueryParameter(ge=1, le=MAX_NUMBER, description="Only those with a number below this; the last one you have"),
    ] = None,
    action: Annotated[AuditAction | None, QueryParameter(description="Only those of this kind")] = None,
    who: Annotated[str | None, QueryParameter(description="Only what this caller did")] = None,
    since: Annotated[
        str | None,
        QueryParameter(description="Only what happened at this time or later", schema_extra={"format": "date-time"}),
    ] = None,
) -> list[AuditView]:
    """Changes of pools, replays and removals of dead letters, publishes, config reloads and changes, acknowledged and
    removed warnings, resets of circuit breakers, and attempts at any change that were refused. Newest first; the last
    1,000 of each kind are kept. An answer is never much longer than 256 KiB, so it may have fewer events than `limit`:
    to go on, ask for those before the last one you have, until there are none.
    """
    wanted = AuditFilter(action, who, seconds_of("since", since) or 0.0, before)
    return [AuditView.of(event) for event in await app.audit.page(limit, wanted)]
