"""/monitoring/standby-status: is this router at work, and who is if it is not."""

from datetime import UTC, datetime

import msgspec
from litestar import get

from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.control.standby import StandbyState


class StandbyStatus(msgspec.Struct, rename="camel"):
    """The place of this router among those that share a lock."""

    enabled: bool  # false: there is no lock; this router is always at work, or never if it is disabled
    state: StandbyState
    identity: str  # of this process; new at each start
    holder: str | None  # identity of the one at work, as far as known
    since: datetime | None
    fencing_number: int | None  # grows with each change of the one at work
    seconds_since_contact: float | None  # with the lock
    last_error: str  # why the lock cannot be reached; empty if it can


@get("/monitoring/standby-status", tags=["Monitoring"], summary="Primary or standby")
async def get_standby_status(app: TheApp) -> StandbyStatus:
    """A standby polls nothing and takes over when the primary gives up its lock or loses it."""
    standby = app.standby
    if not app.settings.enabled:
        return StandbyStatus(False, StandbyState.STANDBY, app.identity, None, None, None, None, "")
    if standby is None:
        return StandbyStatus(False, StandbyState.PRIMARY, app.identity, app.identity, None, None, None, "")
    contact = standby.last_contact_at
    return StandbyStatus(
        enabled=True,
        state=standby.state,
        identity=standby.identity,
        holder=standby.holder,
        since=datetime.fromtimestamp(standby.since, UTC),
        fencing_number=standby.fencing_number,
        seconds_since_contact=None if contact is None else round(app.clock.monotonic() - contact, 3),
        last_error=standby.last_error,
    )
