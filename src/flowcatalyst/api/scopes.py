"""Which scope each route needs. docs/operations.md shows the same table, and tests compare the three."""

from collections.abc import Mapping
from typing import Final

from flowcatalyst.core.credentials import Scope

# Nothing but a method of reading: it changes nothing, and lists may hold what was sent.
_READ: Final = (
    "GET /",
    "GET /dashboard/{path}",
    "GET /schema",
    "GET /schema/openapi.json",
    "GET /schema/{path}",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /health/startup",
    "GET /metrics",
    "GET /monitoring/audit",
    "GET /monitoring/circuit-breakers",
    "GET /monitoring/config",
    "GET /monitoring/consumer-health",
    "GET /monitoring/dead-letters",
    "GET /monitoring/dead-letters/{number}",
    "GET /monitoring/endpoints",
    "GET /monitoring/explain/{id}",
    "GET /monitoring/groups",
    "GET /monitoring/groups/{group}",
    "GET /monitoring/health",
    "GET /monitoring/in-flight-messages",
    "GET /monitoring/live",
    "POST /monitoring/in-flight-messages/check",
    "GET /monitoring/pauses",
    "GET /monitoring/pool-stats",
    "GET /monitoring/queue-stats",
    "GET /monitoring/standby-status",
    "GET /monitoring/top-groups",
    "GET /monitoring/warnings",
    "GET /api/dispatch-jobs",
    "GET /api/dispatch-jobs/{id}",
    "GET /api/dispatch-pools",
    "GET /api/dispatch-pools/{code}",
    "GET /api/events",
    "GET /api/events/{id}",
    "GET /api/message-groups",
    "GET /api/message-groups/{group}",
    "GET /api/subscriptions",
    "GET /api/subscriptions/{code}",
    "GET /api/test/stats",
)
_PUBLISH: Final = (
    "POST /api/messages",
    "POST /api/dispatch-jobs",
    "POST /api/dispatch-jobs/batch",
    "POST /api/events",
    "POST /api/events/batch",
)
# What is there goes on, waits, or is given up.
_OPERATE: Final = (
    "PATCH /api/dispatch-jobs/{id}",
    "POST /api/dispatch-jobs/{id}/retry",
    "POST /api/dispatch-jobs/{id}/cancel",
    "POST /api/dispatch-jobs/retry",
    "POST /api/dispatch-jobs/cancel",
    "POST /api/dispatch-jobs/change",
    "POST /api/message-groups/{group}/hold",
    "POST /api/message-groups/{group}/release",
    "POST /api/message-groups/{group}/retry-head",
    "POST /api/message-groups/{group}/skip-head",
    "POST /api/subscriptions/{code}/pause",
    "POST /api/subscriptions/{code}/resume",
    "POST /api/subscriptions/{code}/replay",
    "POST /api/subscriptions/{code}/test",
    "PUT /monitoring/pools/{code}",
    "POST /monitoring/pools/{code}/pause",
    "POST /monitoring/pools/{code}/resume",
    "POST /monitoring/endpoints/pause",
    "POST /monitoring/endpoints/resume",
    "POST /monitoring/groups/{group}/hold",
    "POST /monitoring/groups/{group}/release",
    "POST /monitoring/groups/{group}/retry-head",
    "POST /monitoring/groups/{group}/skip-head",
    "POST /monitoring/messages/{id}/retry",
    "POST /monitoring/messages/{id}/skip",
    "POST /monitoring/circuit-breakers/reset",
    "POST /monitoring/dead-letters/replay",
    "POST /monitoring/dead-letters/{number}/replay",
    "DELETE /monitoring/dead-letters",
    "DELETE /monitoring/dead-letters/{number}",
    "POST /monitoring/warnings/acknowledge",
    "POST /monitoring/warnings/{id}/acknowledge",
    "DELETE /monitoring/warnings",
    "DELETE /monitoring/warnings/{id}",
    "POST /config/reload",
    "POST /api/seed/messages",
    "POST /api/test/{receiver}",
    "POST /api/test/stats/reset",
    "DELETE /api/test/stats",
)
# Who gets in, and where to what is sent goes, and signed with what.
_ADMIN: Final = (
    "GET /api/config/router",
    "GET /api/api-keys",
    "POST /api/api-keys",
    "DELETE /api/api-keys/{id}",
    "POST /api/api-keys/{id}/rotate",
    "POST /api/subscriptions",
    "PUT /api/subscriptions/{code}",
    "PATCH /api/subscriptions/{code}",
    "DELETE /api/subscriptions/{code}",
    "POST /api/subscriptions/{code}/rotate-secret",
    "POST /api/dispatch-pools",
    "PUT /api/dispatch-pools/{code}",
    "PATCH /api/dispatch-pools/{code}",
    "DELETE /api/dispatch-pools/{code}",
)
SCOPES: Final[Mapping[str, Scope]] = {
    **dict.fromkeys(_PUBLISH, Scope.PUBLISH),
    **dict.fromkeys(_READ, Scope.READ),
    **dict.fromkeys(_OPERATE, Scope.OPERATE),
    **dict.fromkeys(_ADMIN, Scope.ADMIN),
}


def scope_of(method: str, route: str) -> Scope:
    """`route` as the document of the API writes it. One that nobody thought of is for admins."""
    return SCOPES.get(f"{'GET' if method == 'HEAD' else method} {route}", Scope.ADMIN)
