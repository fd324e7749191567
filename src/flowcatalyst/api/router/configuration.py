"""/monitoring/config and /config/reload: the pools and queues in force, and where they come from."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, get, post

from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.api.secrets import mask_target
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.control.settings_sources import Origin, origin_of
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.queues.address import shown_uri
from flowcatalyst.queues.raw import Missing, RawConfig
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success, unconfigured_pools

Value = int | str | bool | list[int] | None


class ConfiguredPool(msgspec.Struct, rename="camel", kw_only=True):
    """A pool with the limits in force."""

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
    source: Origin  # of what is configured
    changed_by_api: dict[str, Value]  # what is configured, where a PUT changed it: it counts again after a restart

    @classmethod
    def of(cls, code: str, limits: PoolLimits, source: Origin) -> "ConfiguredPool":
        return cls(
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
            source=source,
            changed_by_api={},
        )


class RawView(msgspec.Struct, rename="camel"):
    """Where the bodies of a raw queue go. Queries and header values may be secrets, and are not shown."""

    target: str
    pool: str
    group: str
    id: str
    missing: Missing
    mode: DispatchMode | None
    content_type: str
    headers: list[str]

    @classmethod
    def of(cls, raw: RawConfig) -> "RawView":
        return cls(
            target=mask_target(raw.target),
            pool=raw.pool,
            group=raw.group,
            id=raw.id,
            missing=raw.missing,
            mode=raw.mode,
            content_type=raw.content_type,
            headers=[name for name, _ in raw.headers],
        )


class ConfiguredQueue(msgspec.Struct, rename="camel"):
    queue_name: str
    queue_uri: str  # without credentials
    connections: int
    visibility_timeout: float | None
    source: Origin
    raw: RawView | None  # null: its bodies are messages


class SourceView(msgspec.Struct, rename="camel"):
    """One place the configuration comes from."""

    url: str  # without credentials
    ok: bool
    failure: str  # why it did not answer; empty if it did
    answered_at: datetime | None


class ConfigView(msgspec.Struct, rename="camel"):
    """What the router does, and who told it to."""

    synced: bool  # false: it comes from the settings alone
    last_success_at: datetime | None
    last_attempt_at: datetime | None
    last_error: str  # why the latest sync failed; empty if it did not
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
    """Pools with their limits in force, queues, and where both come from: default, file, environment or sync. Where a
    PUT changed a pool, changedByApi has what is configured. DEFAULT-POOL is among them also where nobody configured it:
    it is made when a message needs it. A standby has them too, ready to begin."""
    sync = app.sync
    return ConfigView(
        synced=sync is not None,
        last_success_at=_moment(None if sync is None else sync.last_success_at),
        last_attempt_at=_moment(None if sync is None else sync.last_attempt_at),
        last_error="" if sync is None else sync.last_error,
        problems=[] if sync is None else sync.problems,
        sources=[
            SourceView(one.label, one.ok, one.failure, _moment(one.answered_at))
            for one in (sync.sources if sync is not None else ())
        ],
        processing_pools=_pools(app),
        queues=_queues(app),
    )


def _pools(app: ServedRouter) -> list[ConfiguredPool]:
    source = Origin.SYNC if app.sync is not None else origin_of(app.settings, "pools")
    at_work = app.router.pools if app.at_work else {}
    shown = []
    for code, limits in {**app.config.pools, **unconfigured_pools(app.config.pools)}.items():
        origin = source if code in app.config.pools else Origin.DEFAULT
        view = configured = ConfiguredPool.of(code, limits, origin)
        if (pool := at_work.get(code)) is not None and pool.configured != limits:
            view = ConfiguredPool.of(code, pool.configured, origin)
            now = msgspec.to_builtins(view)
            before = msgspec.to_builtins(configured)
            view.changed_by_api = {name: value for name, value in before.items() if value != now[name]}
        shown.append(view)
    return shown


def _queues(app: ServedRouter) -> list[ConfiguredQueue]:
    named = {queue.name for queue in app.settings.queues}
    of_brokers, of_embedded = origin_of(app.settings, "queues"), origin_of(app.settings, "embedded", "queues")
    return [
        ConfiguredQueue(
            queue.name,
            shown_uri(queue.uri),
            queue.connections,
            queue.visibility_s,
            Origin.SYNC if app.sync is not None else of_brokers if queue.name in named else of_embedded,
            None if queue.raw is None else RawView.of(queue.raw),
        )
        for queue in app.config.queues.values()
    ]


@post("/config/reload", tags=["Monitoring"], summary="Fetch the configuration now", status_code=HTTPStatus.OK)
async def reload_config(request: Request[Any, Any, Any], app: TheApp) -> ReloadReport:
    """Ask every source once and apply what is new; the answer says what changed. 409 if there is no source,
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


def _moment(wall: float | None) -> datetime | None:
    return None if wall is None else datetime.fromtimestamp(wall, UTC)
