"""The API as an ASGI application."""

from typing import Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from flowcatalyst.api.access import access_guards
from flowcatalyst.api.browser_headers import add_browser_headers
from flowcatalyst.api.caller import refusals_noted
from flowcatalyst.api.dependencies import ServedRouter
from flowcatalyst.api.dispatch import (
    api_keys,
    events,
    groups,
    job_actions,
    job_bulk,
    job_list,
    jobs,
    process,
    router_config,
    subscription_actions,
    subscriptions,
)
from flowcatalyst.api.dispatch import pools as dispatch_pools
from flowcatalyst.api.openapi import (
    document_access,
    document_parameters,
    document_parts,
    document_problems,
    openapi_config,
)
from flowcatalyst.api.origin_guard import origin_guards
from flowcatalyst.api.problems import EXCEPTION_HANDLERS, MAX_REQUEST_BYTES
from flowcatalyst.api.query_guard import QueryGuard
from flowcatalyst.api.router import (
    audit,
    breakers,
    configuration,
    dead_letters,
    endpoints,
    explain,
    health,
    home,
    in_flight,
    live,
    messages,
    metrics,
    pools,
    queues,
    seed,
    standby,
    test_endpoints,
    top_groups,
    warnings,
)
from flowcatalyst.api.router import groups as router_groups
from flowcatalyst.control.health import StorageProbe
from flowcatalyst.control.live_feed import LiveFeed
from flowcatalyst.control.metrics import Metrics
from flowcatalyst.dispatch.api_keys import ApiKeys

_ROUTES: Final[list[ControllerRouterHandler]] = [
    home.get_home,
    home.get_dashboard_file,
    live.get_live,
    messages.send_messages,
    health.get_health,
    health.get_liveness,
    health.get_readiness,
    health.get_startup,
    health.get_monitoring_health,
    metrics.get_metrics,
    pools.get_pool_stats,
    pools.change_pool,
    pools.pause_pool,
    pools.resume_pool,
    router_groups.list_router_groups,
    router_groups.get_router_group,
    router_groups.hold_router_group,
    router_groups.release_router_group,
    router_groups.retry_router_head,
    router_groups.skip_router_head,
    router_groups.retry_message,
    router_groups.skip_message,
    endpoints.list_endpoints,
    endpoints.pause_endpoint,
    endpoints.resume_endpoint,
    endpoints.list_pauses,
    explain.explain_anything,
    top_groups.get_top_groups,
    in_flight.get_in_flight_messages,
    in_flight.check_in_flight,
    breakers.get_circuit_breakers,
    breakers.reset_circuit_breakers,
    queues.get_queue_stats,
    queues.get_consumer_health,
    audit.list_audit,
    configuration.get_config,
    configuration.reload_config,
    standby.get_standby_status,
    warnings.get_warnings,
    warnings.acknowledge_warning,
    warnings.acknowledge_warnings,
    warnings.delete_warning,
    warnings.delete_warnings,
    dead_letters.list_dead_letters,
    dead_letters.get_dead_letter,
    dead_letters.replay_dead_letter,
    dead_letters.replay_dead_letters,
    dead_letters.delete_dead_letter,
    dead_letters.delete_dead_letters,
    jobs.create_job,
    jobs.create_jobs,
    job_list.list_jobs,
    job_list.get_job,
    job_actions.retry_job,
    job_actions.cancel_job,
    job_actions.change_job,
    job_bulk.retry_jobs,
    job_bulk.cancel_jobs,
    job_bulk.change_jobs,
    groups.list_groups,
    groups.get_group,
    groups.hold_group,
    groups.release_group,
    groups.retry_head,
    groups.skip_head,
    process.process_job,
    events.send_event,
    events.send_events,
    events.list_events,
    events.get_event,
    subscriptions.create_subscription,
    subscriptions.list_subscriptions,
    subscriptions.get_subscription,
    subscriptions.replace_subscription,
    subscriptions.change_subscription,
    subscriptions.delete_subscription,
    subscription_actions.pause_subscription,
    subscription_actions.resume_subscription,
    subscription_actions.rotate_secret,
    subscription_actions.send_sample,
    subscription_actions.replay_events,
    dispatch_pools.create_pool,
    dispatch_pools.list_pools,
    dispatch_pools.get_pool,
    dispatch_pools.replace_pool,
    dispatch_pools.patch_pool,
    dispatch_pools.delete_pool,
    router_config.get_router_config,
    api_keys.create_api_key,
    api_keys.list_api_keys,
    api_keys.revoke_api_key,
    api_keys.rotate_api_key,
]

# Receivers and traffic for trying things out; not served by a router in production.
_SANDBOX: Final[list[ControllerRouterHandler]] = [
    seed.seed_messages,
    test_endpoints.receive_message,
    test_endpoints.get_test_stats,
    test_endpoints.delete_test_stats,
    test_endpoints.reset_test_stats,
]


class Served:
    """What handlers are given: a router, and what an API has of its own for it."""

    def __init__(self, app: ServedRouter) -> None:
        self.put(app)

    def put(self, app: ServedRouter) -> None:
        """Serve this router from now on; to build an API takes longer than to start a router."""
        self.app, self.metrics, self.storage = app, Metrics(app), StorageProbe(app)
        self.live = LiveFeed(app)


def build_api(app: ServedRouter, *, with_sandbox: bool = True) -> Litestar:
    """The API of a router. It may be served before the router runs and after it stopped: then it answers 503.

    Its `state.served` can be told to serve another router with the same access control.
    """
    served = Served(app)
    auth, query_guard = app.settings.auth, QueryGuard()

    def keys() -> ApiKeys | None:
        return None if served.app.platform is None else served.app.platform.api_keys

    api = Litestar(
        route_handlers=[*_ROUTES, *(_SANDBOX if with_sandbox else [])],
        dependencies={
            "app": Provide(lambda: served.app, sync_to_thread=False),
            "sandbox": Provide(lambda: served.app.sandbox, sync_to_thread=False),
            "metrics": Provide(lambda: served.metrics, sync_to_thread=False),
            "storage": Provide(lambda: served.storage, sync_to_thread=False),
            "live": Provide(lambda: served.live, sync_to_thread=False),
        },
        guards=[*origin_guards(auth.mode), *access_guards(auth, app.clock, keys), query_guard.refuse_unknown],
        before_send=[add_browser_headers],
        exception_handlers=EXCEPTION_HANDLERS,
        after_exception=[refusals_noted(lambda: served.app.audit)],
        openapi_config=openapi_config(),
        request_max_body_size=MAX_REQUEST_BYTES,
        logging_config=None,
        debug=False,
        state=State({"served": served}),
    )
    document_parameters(api.openapi_schema)
    document_problems(api.openapi_schema)
    document_parts(api.openapi_schema)
    document_access(api.openapi_schema, auth)
    query_guard.learn(api.openapi_schema)
    return api
