"""Whatever a request holds, the answer is one that the OpenAPI document announces, and never a 500.

`FUZZ_EXAMPLES=500 pytest tests/api/schema_fuzz_test.py` looks longer.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.router import test_endpoints
from flowcatalyst.app import router as app_module
from flowcatalyst.app.clients import Clients
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.targets import Target
from flowcatalyst.http.contract import Response
from tests.api.running import run_router
from tests.support.patience import PATIENCE_S

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "15"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
]
NOT_EXPECTED = {
    "/api/messages": [positive_data_acceptance],  # whether a URL can be called is more than a schema can say
    "/monitoring/dead-letters": [positive_data_acceptance],  # the same
    "/monitoring/dead-letters/replay": [positive_data_acceptance],
    "/monitoring/dead-letters/{number}/replay": [positive_data_acceptance],
    # Which jobs there are, where they stand, and what a filter may have to do with what is done to them.
    "/api/dispatch-jobs/batch": [negative_data_rejection, positive_data_acceptance],  # each is judged on its own
    "/api/dispatch-jobs": [positive_data_acceptance],
    "/api/dispatch-jobs/{id}": [positive_data_acceptance],
    "/api/dispatch-jobs/{id}/retry": [positive_data_acceptance],
    "/api/dispatch-jobs/{id}/cancel": [positive_data_acceptance],
    "/api/dispatch-jobs/retry": [positive_data_acceptance],
    "/api/dispatch-jobs/cancel": [positive_data_acceptance],
    "/api/dispatch-jobs/change": [positive_data_acceptance],
    "/api/message-groups": [positive_data_acceptance],  # a cursor
    "/api/message-groups/{group}": [positive_data_acceptance],  # no NUL
    "/api/message-groups/{group}/hold": [positive_data_acceptance],
    "/api/message-groups/{group}/release": [positive_data_acceptance],
    "/api/message-groups/{group}/retry-head": [positive_data_acceptance],
    "/api/message-groups/{group}/skip-head": [positive_data_acceptance],
    "/monitoring/groups": [positive_data_acceptance],  # a cursor
    "/monitoring/endpoints": [positive_data_acceptance],  # a cursor
    "/monitoring/endpoints/pause": [positive_data_acceptance],  # a URL that can be called
    "/monitoring/endpoints/resume": [positive_data_acceptance],
    "/api/api-keys": [positive_data_acceptance],  # a name that can be printed, an end in the future
    "/api/api-keys/{id}": [positive_data_acceptance],
    "/api/api-keys/{id}/rotate": [positive_data_acceptance],
    # Which events, subscriptions and pools there are, and what is more than a schema can say of them.
    "/api/events": [positive_data_acceptance],
    "/api/events/batch": [negative_data_rejection, positive_data_acceptance],  # each is judged on its own
    "/api/events/{id}": [positive_data_acceptance],
    "/api/subscriptions": [positive_data_acceptance],
    "/api/subscriptions/{code}": [positive_data_acceptance],
    "/api/subscriptions/{code}/pause": [positive_data_acceptance],
    "/api/subscriptions/{code}/resume": [positive_data_acceptance],
    "/api/subscriptions/{code}/rotate-secret": [positive_data_acceptance],
    "/api/subscriptions/{code}/test": [positive_data_acceptance],
    "/api/subscriptions/{code}/replay": [positive_data_acceptance],
    "/api/dispatch-pools": [positive_data_acceptance],
    "/api/dispatch-pools/{code}": [positive_data_acceptance],
    "/api/seed/messages": [positive_data_acceptance],
    "/api/test/{receiver}": [not_a_server_error, positive_data_acceptance],  # to fail is what some are for
}


def _document() -> Any:
    with TemporaryDirectory() as folder:
        document = build_api(App(Settings(data_dir=Path(folder)))).openapi_schema.to_schema()
    return msgspec.json.decode(msgspec.json.encode(document))


schema = schemathesis.openapi.from_dict(_document())
schema.config.generation.update(deterministic=True)
schema.config.checks.negative_data_rejection.expected_statuses.append("414")  # a filter may be too long for a URL


class Nobody:
    """An HTTP client that calls nobody: a message that was made up may name any host."""

    def __init__(self) -> None:
        self.freed = asyncio.Event()

    async def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Response:
        if target.path == "/hang":
            await self.freed.wait()
        return Response(400 if target.path == "/refuse" else 200, [], b'{"ack": true}')

    async def close(self) -> None: ...


async def at_once(seconds: float) -> None:
    """In place of a sleep: receivers can be asked for a minute of it."""


@pytest.fixture(scope="module")
def router_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a router that runs in a thread of its own: schemathesis asks and waits without a loop."""
    started, urls, nobody = threading.Event(), [], Nobody()

    async def run(end: asyncio.Event) -> None:
        async with run_router(tmp_path_factory.mktemp("fuzzed"), platform={"enabled": True}) as running:
            urls.append(running.listening.url)
            started.set()
            await end.wait()
            nobody.freed.set()

    end, loop = asyncio.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(run(end),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_endpoints, "asyncio", SimpleNamespace(sleep=at_once))
        patch.setattr(app_module, "build_clients", lambda *_: Clients(nobody, nobody))
        thread.start()
        try:
            assert started.wait(PATIENCE_S)
            yield urls[0]
        finally:
            loop.call_soon_threadsafe(end.set)
            thread.join(PATIENCE_S)
            loop.close()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def busy_url(router_url: str, session: requests.Session) -> str:
    """The address of the router when there is something to list: a message in it, a dead letter, a warning."""

    def has(path: str) -> bool:
        return bool(session.get(f"{router_url}/monitoring/{path}", timeout=PATIENCE_S).json())

    messages = [
        {"mediationTarget": "http://host.test/refuse", "dispatchMode": "IMMEDIATE"},
        {"mediationTarget": "http://host.test/hang", "dispatchMode": "IMMEDIATE", "id": "hangs"},
    ]
    session.post(f"{router_url}/api/messages", json=messages, timeout=PATIENCE_S).raise_for_status()
    give_up_at = time.monotonic() + PATIENCE_S
    while not all(map(has, ["in-flight-messages", "dead-letters", "warnings", "circuit-breakers"])):
        assert time.monotonic() < give_up_at
    jobs = [
        {"code": "c", "targetUrl": f"http://host.test/{path}", "messageGroup": "g", "mode": "BLOCK_ON_ERROR"}
        for path in ("refuse", "behind")
    ]
    session.post(f"{router_url}/api/dispatch-jobs/batch", json={"jobs": jobs}, timeout=PATIENCE_S).raise_for_status()
    subscription: dict[str, Any] = {
        "code": "c",
        "targetUrl": "http://host.test/",
        "eventTypes": [{"eventTypeCode": "**"}],
    }
    session.post(f"{router_url}/api/subscriptions", json=subscription, timeout=PATIENCE_S)  # or it is there
    event: dict[str, Any] = {"type": "a.b", "source": "s", "data": {"a": 1}}
    session.post(f"{router_url}/api/events", json=event, timeout=PATIENCE_S).raise_for_status()
    return router_url


def test_the_document_that_is_tried_out_is_the_one_that_is_served(router_url: str, session: requests.Session) -> None:
    assert session.get(f"{router_url}/schema/openapi.json", timeout=PATIENCE_S).json() == _document()


@schema.exclude(path="/monitoring/live").parametrize()  # an answer without an end
@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck])
def test_every_answer_is_one_that_the_document_announces(
    case: "Case[Any]", busy_url: str, session: requests.Session
) -> None:
    checks = [check for check in CHECKS if check not in NOT_EXPECTED.get(case.operation.path, ())]
    case.call_and_validate(base_url=busy_url, session=session, checks=checks)
