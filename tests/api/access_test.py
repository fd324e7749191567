"""Access control as clients meet it: who gets in, to what, and what the log says about it."""

import base64
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from uvicorn.protocols.http import httptools_impl

from flowcatalyst.api.access import MAX_FAILED_PASSWORDS_PER_S
from flowcatalyst.api.scopes import SCOPES
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.core.credentials import hash_key, hash_password, new_key
from flowcatalyst.core.logs import LogFormat, close_logs, configure_logs
from tests.api.running import Answer, Client, Running, run_router
from tests.support.http_servers import always, raw_server, reply

pytestmark = pytest.mark.thorough  # a router for each test; `make quick` has the rules in tests/unit/access_test.py

ADMIN_KEY, READER_KEY = new_key(), new_key()
KEYS = {"mode": "api_key", "admin": [hash_key(ADMIN_KEY.encode())], "read_only": [hash_key(READER_KEY.encode())]}
ADMIN_PASSWORD, READER_PASSWORD = "anns pässword", "bobs:password"
PASSWORDS = {
    "mode": "basic",
    "admin": [f"ann:{hash_password(ADMIN_PASSWORD.encode())}"],
    "read_only": [f"bob:{hash_password(READER_PASSWORD.encode())}"],
}


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


ADMINS = [
    pytest.param(KEYS, {"X-API-Key": ADMIN_KEY}, id="key"),
    pytest.param(KEYS, bearer(ADMIN_KEY), id="bearer"),
    pytest.param(PASSWORDS, basic("ann", ADMIN_PASSWORD), id="basic"),
]
READERS = [
    pytest.param(KEYS, {"X-API-Key": READER_KEY}, id="key"),
    pytest.param(KEYS, bearer(READER_KEY), id="bearer"),
    pytest.param(PASSWORDS, basic("bob", READER_PASSWORD), id="basic"),
]
PROBES = ("/health", "/health/live", "/health/ready", "/health/startup", "/metrics", "/health/")
GUARDED = (
    "/schema",
    "/schema/openapi.json",
    "/monitoring/queue-stats",
    "/monitoring/dead-letters",
    "/api/test/stats",
)
CHANGES = (
    ("POST", "/api/messages"),
    ("POST", "/api/seed/messages"),
    ("PUT", "/monitoring/pools/DEFAULT-POOL"),
    ("DELETE", "/api/test/stats"),
    ("POST", "/api/test/stats/reset"),
    ("DELETE", "/monitoring/dead-letters/1"),
)
AUTHS = [pytest.param(KEYS, id="keys"), pytest.param(PASSWORDS, id="passwords")]


@asynccontextmanager
async def running_as(
    folder: Path, auth: dict[str, Any], headers: dict[str, str], **settings: Any
) -> AsyncIterator[Running]:
    """A router whose client sends these headers with every request."""
    async with (
        run_router(folder, auth=auth, **settings) as running,
        aiohttp.ClientSession(running.listening.url, headers=headers) as session,
    ):
        yield replace(running, client=Client(session))


def assert_unauthorized(answer: Answer, auth: dict[str, Any]) -> None:
    answer.assert_problem(401)
    scheme = "Basic" if auth["mode"] == "basic" else "Bearer"
    assert answer.headers["WWW-Authenticate"].startswith(f'{scheme} realm="FlowCatalyst"')


@pytest.mark.parametrize("auth", AUTHS)
async def test_nobody_gets_in_without_credentials(tmp_path: Path, auth: dict[str, Any]) -> None:
    async with running_as(tmp_path, auth, {}) as router:
        for path in GUARDED:
            assert_unauthorized(await router.client.get(path), auth)
        for method, path in CHANGES:
            assert_unauthorized(await router.client.request(method, path, json={}), auth)
        assert_unauthorized(await router.client.request("OPTIONS", "/monitoring/queue-stats"), auth)


@pytest.mark.parametrize("auth", AUTHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": "4711"},
        {"X-API-Key": ""},
        {"X-API-Key": "schlüssel"},
        bearer("4711"),
        bearer(""),
        bearer(KEYS["admin"][0]),
        {"Authorization": ADMIN_KEY},
        basic(ADMIN_KEY, ""),
        basic("ann", "wrong"),
        basic("nobody", ADMIN_PASSWORD),
        basic("ann", READER_PASSWORD),
        basic("ann", PASSWORDS["admin"][0]),
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"ann").decode()},
    ],
)
async def test_nobody_gets_in_with_wrong_credentials(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]
) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        answer = await router.client.get("/monitoring/queue-stats")
        assert_unauthorized(answer, auth)
        for value in headers.values():
            assert not value or value not in answer.text


@pytest.mark.parametrize(("auth", "headers"), ADMINS)
async def test_an_admin_may_read_and_change(tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        for path in GUARDED + PROBES:
            assert (await router.client.get(path)).status == 200
        for method, path in CHANGES:
            assert (await router.client.request(method, path, json={})).status not in (401, 403)
        assert (await router.client.delete("/api/test/stats")).status == 204


@pytest.mark.parametrize(("auth", "headers"), READERS)
async def test_a_reader_may_read_but_not_change(tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        for path in GUARDED + PROBES:
            assert (await router.client.get(path)).status == 200
        assert (await router.client.request("OPTIONS", "/api/messages")).status == 204
        for method, path in CHANGES:
            answer = await router.client.request(method, path, json={})
            scope = SCOPES[
                f"{method} {path}".replace("DEFAULT-POOL", "{code}").replace("letters/1", "letters/{number}")
            ]
            answer.assert_problem(403, f"may only read: this needs some with the scope {scope}")
            assert "WWW-Authenticate" not in answer.headers


@pytest.mark.parametrize("auth", AUTHS)
async def test_probes_and_metrics_are_open(tmp_path: Path, auth: dict[str, Any]) -> None:
    async with running_as(tmp_path, auth, {}) as router:
        for path in PROBES:
            assert (await router.client.get(path)).status == 200


async def test_probes_and_metrics_are_open_to_whoever_sends_wrong_credentials(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {"X-API-Key": "wrong"}) as router:
        for path in PROBES:
            assert (await router.client.get(path)).status == 200


@pytest.mark.parametrize("auth", AUTHS)
async def test_probes_and_metrics_are_closed_by_setting(tmp_path: Path, auth: dict[str, Any]) -> None:
    async with running_as(tmp_path, auth | {"open_probes": False}, {}) as router:
        for path in PROBES:
            assert_unauthorized(await router.client.get(path), auth)


async def test_a_browser_without_a_key_is_told_what_to_do(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {}) as router:
        answer = await router.client.get("/schema")
        answer.assert_problem(401, "X-API-Key", "browser", "auth.mode to basic")


@pytest.mark.parametrize("auth", AUTHS)
async def test_the_live_stream_of_the_dashboard_needs_credentials(tmp_path: Path, auth: dict[str, Any]) -> None:
    async with running_as(tmp_path, auth, {}) as router:
        assert_unauthorized(await router.client.get("/monitoring/live"), auth)


@pytest.mark.parametrize("auth", AUTHS)
async def test_the_dashboard_is_served_to_anybody_since_it_holds_no_data(tmp_path: Path, auth: dict[str, Any]) -> None:
    async with running_as(tmp_path, auth, {}) as router:
        for path in ("/", "/dashboard/app.js", "/dashboard/style.css"):
            assert (await router.client.get(path)).status == 200


async def test_wrong_passwords_that_come_fast_get_429_but_who_is_in_stays_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_as(tmp_path, PASSWORDS, {}) as router:

        async def status(headers: dict[str, str]) -> int:
            return (await router.client.request("GET", "/monitoring/queue-stats", headers=headers)).status

        monkeypatch.setattr(router.app.clock, "monotonic", lambda: 1_000.0)
        assert await status(basic("ann", ADMIN_PASSWORD)) == 200
        seen = [await status(basic("ann", f"wrong {number}")) for number in range(MAX_FAILED_PASSWORDS_PER_S + 2)]
        assert seen == [401] * MAX_FAILED_PASSWORDS_PER_S + [429] * 2
        refused = await router.client.request("GET", "/schema", headers=basic("bob", READER_PASSWORD))
        refused.assert_problem(429, "try again")
        assert refused.headers["Retry-After"] == "1"
        assert await status(basic("ann", ADMIN_PASSWORD)) == 200
        monkeypatch.setattr(router.app.clock, "monotonic", lambda: 1_001.0)
        assert await status(basic("bob", READER_PASSWORD)) == 200


@pytest.mark.parametrize(("auth", "headers"), ADMINS)
async def test_seeded_messages_reach_the_built_in_receivers(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]
) -> None:
    async with running_as(tmp_path, auth, headers, egress={"allowed_networks": ["127.0.0.1/32"]}) as router:
        assert (await router.client.post("/api/seed/messages?count=20")).status == 202
        await router.until_settled()
        stats = await router.stats()
        assert (stats["totalRequests"], stats["orderViolations"]) == (20, 0)
        assert await router.app.dead_letters.count() == 0


@pytest.mark.parametrize("egress", [{}, {"allow_private": True}, {"allowed_networks": ["127.0.0.0/8"]}])
async def test_seeded_messages_reach_the_receivers_of_a_router_on_the_network(
    tmp_path: Path, egress: dict[str, Any]
) -> None:
    headers = {"X-API-Key": ADMIN_KEY}
    async with running_as(tmp_path, KEYS, headers, host="0.0.0.0", egress=egress) as router:
        assert (await router.client.post("/api/seed/messages?count=5")).status == 202
        await router.until_settled()
        assert (await router.stats())["totalRequests"] == 5


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"], ids=["on the network", "behind a proxy"])
async def test_a_router_that_others_reach_does_not_deliver_to_private_addresses(tmp_path: Path, host: str) -> None:
    that_others_reach = running_as(tmp_path, KEYS, {"X-API-Key": ADMIN_KEY}, host=host)
    async with raw_server(always(reply(200))) as endpoint, that_others_reach as router:
        (await router.send(mediationTarget=endpoint.url())).assert_problem(400, "mediationTarget cannot be called")
        await router.publish("m", endpoint.url())  # another way in
        [letter] = await router.until_dead(1)
        assert "not a public address" in str(letter)
        assert endpoint.requests == []


@pytest.mark.parametrize("auth", AUTHS)
async def test_a_receiver_is_open_to_this_machine_but_not_to_what_a_proxy_passes_on(
    tmp_path: Path, auth: dict[str, Any]
) -> None:
    async with running_as(tmp_path, auth, {}) as router:
        message = {"messageId": "m"}
        assert (await router.client.post("/api/test/fast", message)).status == 200
        for name in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
            answer = await router.client.post("/api/test/fast", message, headers={name: "127.0.0.1"})
            assert_unauthorized(answer, auth)


@pytest.mark.parametrize(("auth", "headers"), READERS)
async def test_a_receiver_asks_other_machines_for_credentials_of_an_admin(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httptools_impl, "get_remote_addr", lambda transport: ("192.0.2.7", 1))
    async with running_as(tmp_path, auth, {}) as router:
        message = {"messageId": "m"}
        assert_unauthorized(await router.client.post("/api/test/fast", message), auth)
        (await router.client.post("/api/test/fast", message, headers=headers)).assert_problem(403)


@pytest.mark.parametrize(("auth", "headers"), ADMINS)
async def test_any_host_name_is_served_where_credentials_are_asked_for(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]
) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        named = {"Host": "router.example"}
        assert (await router.client.request("GET", "/monitoring/queue-stats", headers=named)).status == 200


async def test_a_page_of_another_origin_may_not_use_the_password_that_the_browser_adds(tmp_path: Path) -> None:
    async with running_as(tmp_path, PASSWORDS, basic("ann", ADMIN_PASSWORD)) as router:
        foreign = {"Origin": "http://evil.example"}
        answer = await router.client.request("DELETE", "/api/test/stats", headers=foreign)
        answer.assert_problem(403, "origin")
        own = {"Origin": "https://router.example", "Host": "router.example"}
        assert (await router.client.request("DELETE", "/api/test/stats", headers=own)).status == 204


async def test_a_page_of_another_origin_may_use_a_key_since_no_browser_adds_it(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {"X-API-Key": ADMIN_KEY}) as router:
        foreign = {"Origin": "http://tools.example"}
        assert (await router.client.request("DELETE", "/api/test/stats", headers=foreign)).status == 204


SCHEMES = {"api_key": {"apiKey", "bearer"}, "basic": {"basic"}}


@pytest.mark.parametrize(("auth", "headers"), ADMINS)
async def test_the_document_says_which_credentials_each_operation_needs(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str]
) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        document = (await router.client.get("/schema/openapi.json")).json
    schemes = SCHEMES[auth["mode"]]
    schemes_in_order = list(document["components"]["securitySchemes"])
    assert set(schemes_in_order) == schemes
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path in PROBES:
                assert operation["security"] == []
                assert "401" not in operation["responses"]
                continue
            if path == "/api/dispatch/process":  # its token is not one of a person
                assert operation["security"] == []
                continue
            optional: list[dict[str, list[str]]] = [{}] if path == "/api/test/{receiver}" else []
            scope = SCOPES[f"{method.upper()} {path}"]
            assert operation["security"] == optional + [{name: [scope]} for name in schemes_in_order]
            assert f"Needs the scope `{scope}`." in operation["description"]
            assert "application/problem+json" in operation["responses"]["401"]["content"]
            assert "403" in operation["responses"]
            assert ("429" in operation["responses"]) == (auth["mode"] == "basic")


async def test_a_router_elsewhere_needs_the_token_of_its_message_and_no_other_credentials(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {}) as router:
        path, body = "/api/dispatch/process", {"messageId": "1"}
        named = {"Authorization": "Bearer made-up", "Host": "platform.example"}
        (await router.client.post(path, body, headers=named)).assert_problem(404, "dispatches no jobs")
        (await router.client.post("/api/dispatch-jobs", body)).assert_problem(401, "needs an API key")


async def test_the_document_says_when_probes_are_closed(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS | {"open_probes": False}, {"X-API-Key": ADMIN_KEY}) as router:
        document = (await router.client.get("/schema/openapi.json")).json
    assert document["paths"]["/metrics"]["get"]["security"] == [{"apiKey": ["read"]}, {"bearer": ["read"]}]


async def test_the_document_asks_for_nothing_where_nothing_is_needed(router: Running) -> None:
    document = (await router.client.get("/schema/openapi.json")).json
    assert "securitySchemes" not in document.get("components", {})
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "security" not in operation
            assert "401" not in operation["responses"]


@pytest.fixture
def _restore_logs() -> Iterator[None]:
    yield
    close_logs()
    structlog.reset_defaults()


WRONG_KEY, WRONG_PASSWORD = "wrong-key-4711", "wrong-password-4711"
SECRETS = (ADMIN_KEY, READER_KEY, WRONG_KEY, ADMIN_PASSWORD, READER_PASSWORD, WRONG_PASSWORD)
ATTEMPTS = [
    {"X-API-Key": ADMIN_KEY},
    bearer(READER_KEY),
    {"X-API-Key": WRONG_KEY},
    bearer(WRONG_KEY),
    {"Authorization": ADMIN_KEY},
    {"Authorization": f"Key {ADMIN_KEY}"},
    {"X-Api-Token": ADMIN_KEY},
    {"Cookie": f"key={ADMIN_KEY}"},
    basic(ADMIN_KEY, ""),
    basic("ann", ADMIN_PASSWORD),
    basic("bob", READER_PASSWORD),
    basic("ann", WRONG_PASSWORD),
    basic(WRONG_PASSWORD, "ann"),
    bearer(basic("ann", ADMIN_PASSWORD)["Authorization"].removeprefix("Basic ")),
]


def assert_no_secret_in(text: str) -> None:
    values = [value for headers in ATTEMPTS for value in headers.values()]
    for secret in (*SECRETS, *values, *(value.removeprefix("Basic ") for value in values)):
        assert secret not in text


@pytest.mark.usefixtures("_restore_logs")
@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("auth", AUTHS)
async def test_no_credentials_are_logged(
    tmp_path: Path, auth: dict[str, Any], log_format: LogFormat, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    configure_logs("debug", log_format, tmp_path / "log")
    async with running_as(tmp_path / "data", auth, {}) as router:
        for headers in ATTEMPTS:
            for method, path in (("GET", "/monitoring/queue-stats"), ("POST", "/api/messages"), ("GET", "/nope")):
                await router.client.request(method, path, headers=headers)
    close_logs()
    text = (tmp_path / "log").read_text()
    assert "access_refused" in text
    assert_no_secret_in(text + caplog.text)


@pytest.mark.usefixtures("_restore_logs")
@pytest.mark.parametrize(
    "log_format",
    [
        "json",
        "console",
    ],
)
async def test_no_credentials_are_logged_with_a_bug(
    tmp_path: Path, log_format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: DeadLetters, *args: Any, **options: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(DeadLetters, "page", broken)
    configure_logs("debug", log_format, tmp_path / "log")
    async with running_as(tmp_path / "data", KEYS, {"X-API-Key": ADMIN_KEY}) as router:
        (await router.client.get("/monitoring/dead-letters")).assert_problem(500)
    close_logs()
    text = (tmp_path / "log").read_text()
    assert "a bug" in text
    assert_no_secret_in(text)


@pytest.mark.usefixtures("_restore_logs")
async def test_refusals_are_logged_once_a_second_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logs("debug", "json", tmp_path / "log")
    async with running_as(tmp_path / "data", KEYS, {"X-API-Key": WRONG_KEY}) as router:
        for now in (1_000.0, 1_000.5, 1_000.9, 1_001.5):
            monkeypatch.setattr(router.app.clock, "monotonic", lambda now=now: now)
            await router.client.get("/monitoring/queue-stats")
    close_logs()
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if "access_refused" in line]
    assert ['"refused":1' in lines[0], '"refused":3' in lines[1], len(lines)] == [True, True, 2]
    assert '"last_route":"/monitoring/queue-stats"' in lines[0]
    assert '"last_peer":"127.0.0.1"' in lines[0]
