"""/monitoring/config and /config/reload: the pools and queues in force, and where they come from."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, get, post

from flowcatalyst.operations.audit import AuditAction
from flowcatalyst.operations.config_source import masked
from flowcatalyst.operations.config_sync import ConfigSync
from flowcatalyst.routing.groups import FailureScope
from flowcatalyst.routing.limits import Success
from flowcatalyst.web.caller import actor_of
from flowcatalyst.web.dependencies import TheApp
from flowcatalyst.web.problems import ProblemError


class ConfiguredPool(msgspec.Struct, rename="camel"):
    code: str
    concurrency: int
    rate_limit_per_minute: int | None
    capacity: int
    failure_scope: FailureScope
    max_delivery_attempts: int | None
    parked_limit: int
    retry_statuses: list[int]
    ack_before_next: bool
    success: Success


class ConfiguredQueue(msgspec.Struct, rename="camel"):
    queue_name: str
    queue_uri: str  # without credentials
    connections: int
    visibility_timeout: float | None


class SourceView(msgspec.Struct, rename="camel"):
    """One place the configuration comes from."""

    url: str  # without credentials
    ok: bool
    failure: str  # why it did not answer; empty if it did
    answered_at: datetime | None


class ConfigView(msgspec.Struct, rename="camel"):
    """What the router was told to do."""

    synced: bool  # false: it comes from the settings alone
    last_success_at: datetime | None
    last_attempt_at: datetime | None
    trouble: str  # why the latest sync failed; empty if it did not
    problems: list[str]  # entries that cannot be used
    sources: list[SourceView]
    processing_pools: list[ConfiguredPool]
    queues: list[ConfiguredQueue]


class ReloadReport(msgspec.Struct, rename="camel"):
    """What a reload changed."""

    changed: bool
    pools_added: list[str]
    pools_changed: list[str]
    pools_removed: list[str]
    queues_added: list[str]
    queues_changed: list[str]
    queues_removed: list[str]
    problems: list[str]
    unreachable: list[str]


@get("/monitoring/config", tags=["Monitoring"], summary="The configuration in force")
async def get_config(app: TheApp) -> ConfigView:
    """Pools and queues as they are configured. A standby has them too, ready to begin."""
    sync = app.sync
    return ConfigView(
        synced=sync is not None,
        last_success_at=_moment(None if sync is None else sync.last_success_at),
        last_attempt_at=_moment(None if sync is None else sync.last_attempt_at),
        trouble="" if sync is None else sync.trouble,
        problems=[] if sync is None else sync.problems,
        sources=[] if sync is None else _sources(sync),
        processing_pools=[
            ConfiguredPool(
                code=code,
                concurrency=limits.concurrency,
                rate_limit_per_minute=limits.rate_per_minute,
                capacity=limits.effective_capacity,
                failure_scope=limits.failure_scope,
                max_delivery_attempts=limits.max_delivery_attempts,
                parked_limit=limits.parked_limit,
                retry_statuses=sorted(limits.retry_statuses),
                ack_before_next=limits.ack_before_next,
                success=limits.success,
            )
            for code, limits in app.config.pools.items()
        ],
        queues=[
            ConfiguredQueue(queue.name, masked(queue.uri), queue.connections, queue.visibility_s)
            for queue in app.config.queues.values()
        ],
    )


@post("/config/reload", tags=["Monitoring"], summary="Fetch the configuration now", status_code=HTTPStatus.OK)
async def reload_config(request: Request[Any, Any, Any], app: TheApp) -> ReloadReport:
    """Ask every source once and apply what is new; the answer tells what changed. 409 if there is no source,
    or the router is disabled."""
    if not app.settings.enabled:
        detail = "this router is disabled (enabled is false): it has no configuration; enable it and restart it"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    if app.sync is None:
        detail = "this router has no config URL: its pools and queues come from its settings; restart it to change them"
        raise ProblemError(HTTPStatus.CONFLICT, detail)
    report = await app.sync.sync_now()
    outcome = "changed" if report.changed else "nothing new"
    detail = "; ".join([outcome, *report.unreachable, *report.problems])
    app.audit.record(actor_of(request), AuditAction.CONFIG_RELOAD, "configuration", detail)
    return ReloadReport(
        changed=report.changed,
        pools_added=report.pools_added,
        pools_changed=report.pools_changed,
        pools_removed=report.pools_removed,
        queues_added=report.queues_added,
        queues_changed=report.queues_changed,
        queues_removed=report.queues_removed,
        problems=report.problems,
        unreachable=report.unreachable,
    )


def _sources(sync: ConfigSync) -> list[SourceView]:
    return [SourceView(one.label, one.ok, one.failure, _moment(one.answered_at)) for one in sync.sources]


def _moment(wall: float | None) -> datetime | None:
    return None if wall is None else datetime.fromtimestamp(wall, UTC)
