"""The API as an ASGI application."""

from typing import Final

from litestar import Litestar
from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from flowcatalyst.app import App
from flowcatalyst.observe.metrics import Metrics
from flowcatalyst.web.api import (
    dead_letters,
    health,
    home,
    in_flight,
    messages,
    metrics,
    monitoring,
    pools,
    seed,
    test_endpoints,
)
from flowcatalyst.web.dependencies import TestBench
from flowcatalyst.web.openapi import document_problems, openapi_config
from flowcatalyst.web.origin_guard import refuse_foreign_pages
from flowcatalyst.web.problems import EXCEPTION_HANDLERS, MAX_REQUEST_BYTES

_ROUTES: Final[list[ControllerRouterHandler]] = [
    home.get_home,
    messages.send_messages,
    seed.seed_messages,
    test_endpoints.receive_message,
    test_endpoints.get_test_stats,
    test_endpoints.delete_test_stats,
    test_endpoints.reset_test_stats,
    health.get_health,
    health.get_liveness,
    health.get_readiness,
    metrics.get_metrics,
    pools.get_pool_stats,
    pools.change_pool,
    in_flight.get_in_flight_messages,
    monitoring.get_circuit_breakers,
    monitoring.get_queues,
    monitoring.get_warnings,
    dead_letters.list_dead_letters,
    dead_letters.get_dead_letter,
    dead_letters.replay_dead_letter,
    dead_letters.replay_dead_letters,
    dead_letters.delete_dead_letter,
    dead_letters.delete_dead_letters,
]


def build_api(app: App) -> Litestar:
    """The API of a router. It may be served before the router runs and after it stopped: then it answers 503."""
    bench, its_metrics = TestBench(app.judge, app.ids), Metrics(app)
    api = Litestar(
        route_handlers=_ROUTES,
        dependencies={
            "app": Provide(lambda: app, sync_to_thread=False),
            "bench": Provide(lambda: bench, sync_to_thread=False),
            "metrics": Provide(lambda: its_metrics, sync_to_thread=False),
        },
        guards=[refuse_foreign_pages],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=openapi_config(),
        request_max_body_size=MAX_REQUEST_BYTES,
        logging_config=None,
        debug=False,
    )
    document_problems(api.openapi_schema)
    return api
