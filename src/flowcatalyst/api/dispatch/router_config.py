"""/api/config/router: pools and queues for routers on other machines, in the form that config sync reads."""

import hashlib
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response, get

from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.platform import platform_of
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.queues.raw import Missing, RawConfig
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success

EMBEDDED: Final = "embedded:"  # queues of this process alone: nobody else can read them


class RouterPool(msgspec.Struct, rename="camel", omit_defaults=True):
    """A pool as a router reads it."""

    code: str
    concurrency: int
    rate_limit_per_minute: int | None
    failure_scope: FailureScope
    max_delivery_attempts: int | None
    capacity: int | None
    parked_limit: int
    retry_statuses: list[int]
    ack_before_next: bool
    success: Success

    @classmethod
    def of(cls, code: str, limits: PoolLimits) -> "RouterPool":
        return cls(
            code,
            limits.concurrency,
            limits.rate_per_minute,
            limits.failure_scope,
            limits.max_delivery_attempts,
            limits.capacity,
            limits.parked_limit,
            sorted(limits.retry_statuses),
            limits.ack_before_next,
            limits.success,
        )


class RawQueue(msgspec.Struct, rename="camel"):
    """What the messages of a raw queue become."""

    target: str
    pool: str
    group: str
    id: str
    missing: Missing
    mode: DispatchMode | None
    content_type: str
    headers: dict[str, str]

    @classmethod
    def of(cls, raw: RawConfig) -> "RawQueue":
        return cls(raw.target, raw.pool, raw.group, raw.id, raw.missing, raw.mode, raw.content_type, dict(raw.headers))


class RouterQueue(msgspec.Struct, rename="camel"):
    """A queue as a router reads it, with the credentials of its broker."""

    queue_name: str
    queue_uri: str
    connections: int
    visibility_timeout: int | None
    raw: RawQueue | None

    @classmethod
    def of(cls, queue: QueueConfig) -> "RouterQueue":
        return cls(
            queue.name,
            queue.uri,
            queue.connections,
            None if queue.visibility_s is None else round(queue.visibility_s),
            None if queue.raw is None else RawQueue.of(queue.raw),
        )


class RouterDocument(msgspec.Struct, rename="camel"):
    """The configuration of a router. `connections` is for queues that do not say their own."""

    processing_pools: list[RouterPool]
    queues: list[RouterQueue]
    connections: int


@get("/api/config/router", tags=["Dispatch pools"], summary="The configuration for routers")
async def get_router_config(request: Request[Any, Any, Any], app: TheApp) -> Response[RouterDocument]:
    """All pools, and the queues of brokers, for `sync.config_url` of routers on other machines. The addresses of queues
    hold credentials, so it is for admins only."""
    await platform_of(app).catalog.ready()
    content: Any = msgspec.json.encode(_document(app))
    version = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": version, "Cache-Control": "no-store"}
    if request.headers.get("if-none-match") == version:
        content = None
        return Response(content, status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


def _document(app: ServedRouter) -> RouterDocument:
    queues = [queue for queue in app.config.queues.values() if not queue.uri.startswith(EMBEDDED)]
    return RouterDocument(
        processing_pools=[RouterPool.of(code, limits) for code, limits in app.config.pools.items()],
        queues=[RouterQueue.of(queue) for queue in queues],
        connections=1,
    )
