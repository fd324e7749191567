"""GET /monitoring/audit: every change and every refused one, with who and from where, and no secret."""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from flowcatalyst.api.access import READING_METHODS
from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.openapi import operations
from flowcatalyst.app.router import App
from flowcatalyst.control.audit import AuditAction, AuditFilter
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.logs import close_logs, configure_logs
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Outgoing, Published
from tests.api.access_test import (
    ADMIN_KEY,
    ADMIN_PASSWORD,
    KEYS,
    PASSWORDS,
    READER_KEY,
    READER_PASSWORD,
    assert_no_secret_in,
    basic,
    running_as,
)
from tests.api.breakers_test import open_breaker
from tests.api.running import Running, run_router, until
from tests.support.http_servers import always, raw_server, reply

PATH = "/monitoring/audit"
TOKEN = "token-of-a-message-4711"
# What changes nothing that anybody would ask about later: a question, and the counters of the built-in receivers.
NO_CHANGES = {
    ("POST", "/api/dispatch/process"),  # an attempt that a router asks for
    ("POST", "/monitoring/in-flight-messages/check"),
    ("POST", "/api/test/{receiver}"),
    ("DELETE", "/api/test/stats"),
    ("POST", "/api/test/stats/reset"),
}


async def events(router: Running, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await router.client.get(f"{PATH}?{query}")).json
    return found


async def make_every_change(router: Running) -> set[tuple[str, str]]:
    """All of them once; returns their routes."""
    made: set[tuple[str, str]] = set()

    async def noted() -> int:
        return sum(event["requests"] for event in await events(router, "limit=1000"))

    async def change(method: str, route: str, path: str = "", body: Any = None) -> None:
        before = await noted()
        answer = await router.client.request(method, path or route, json=body)
        assert answer.status in (200, 201, 202, 204), answer.text
        assert await noted() == before + 1, f"{method} {route} left no event"
        made.add((method, route))

    def warn() -> int:
        router.app.warnings.add(WarningCode.PROCESSING, Severity.ERROR, "something", "pool")
        return router.app.warnings.recent()[0].id

    await change_platform(router, change)
    await change("PUT", "/monitoring/pools/{code}", "/monitoring/pools/POOL-LOW", {"concurrency": 7})
    await change("POST", "/api/messages", body={"mediationTarget": router.receiver("fast"), "authToken": TOKEN})
    await change("POST", "/api/seed/messages", "/api/seed/messages?count=3")
    for number, (method, route) in enumerate(
        [
            ("POST", "/monitoring/dead-letters/{number}/replay"),
            ("POST", "/monitoring/dead-letters/replay"),
            ("DELETE", "/monitoring/dead-letters/{number}"),
            ("DELETE", "/monitoring/dead-letters"),
        ]
    ):
        target = router.receiver("client-error")
        await router.send(mediationTarget=target, authToken=TOKEN, id=f"dead-{number}")
        *_, letter = await router.until_dead(1)
        await change(method, route, route.replace("{number}", str(letter["number"])))
        await router.client.delete("/monitoring/dead-letters")
        await router.until_settled()
    for method, route in [
        ("POST", "/monitoring/warnings/{id}/acknowledge"),
        ("POST", "/monitoring/warnings/acknowledge"),
        ("DELETE", "/monitoring/warnings/{id}"),
        ("DELETE", "/monitoring/warnings"),
    ]:
        await change(method, route, route.replace("{id}", str(warn())))
    open_breaker(router, "http://shop.test/")
    await change("POST", "/monitoring/circuit-breakers/reset")
    await change("POST", "/config/reload")
    await act_by_hand(router, change)
    await change_jobs(router, change)
    await change_keys(router, change)
    return made


async def act_by_hand(router: Running, change: Callable[..., Awaitable[None]]) -> None:
    groups, messages = "/monitoring/groups", "/monitoring/messages"
    for action in ("hold", "release", "hold"):
        await change("POST", f"{groups}/{{group}}/{action}", f"{groups}/h:1/{action}")
    for name in ("m-1", "m-2", "m-3"):
        await router.send(mediationTarget=router.receiver("fast"), authToken=TOKEN, id=name, messageGroupId="h:1")

    async def is_held() -> bool:
        return len(router.app.tracker) >= 1

    await until(is_held)
    await change("POST", f"{groups}/{{group}}/retry-head", f"{groups}/h:1/retry-head")
    await change("POST", f"{messages}/{{id}}/retry", f"{messages}/m-1/retry")
    await change("POST", f"{messages}/{{id}}/skip", f"{messages}/m-3/skip")
    await change("POST", f"{groups}/{{group}}/skip-head", f"{groups}/h:1/skip-head")
    await router.client.post(f"{groups}/h:1/release")
    await router.until_settled()
    await router.client.delete("/monitoring/dead-letters")
    for action in ("pause", "resume"):
        await change("POST", f"/monitoring/pools/{{code}}/{action}", f"/monitoring/pools/POOL-LOW/{action}")
        endpoint = f"/monitoring/endpoints/{action}"
        await change("POST", endpoint, f"{endpoint}?endpoint=http://shop.test/")


async def change_platform(router: Running, change: Callable[..., Awaitable[None]]) -> None:
    pools, subscriptions = "/api/dispatch-pools", "/api/subscriptions"
    pool = {"code": "P", "concurrency": 1}
    await change("POST", pools, body=pool)
    await change("PUT", f"{pools}/{{code}}", f"{pools}/P", pool)
    await change("PATCH", f"{pools}/{{code}}", f"{pools}/P", {"concurrency": 2})
    await change("DELETE", f"{pools}/{{code}}", f"{pools}/P")
    wanted = [{"eventTypeCode": "a.b"}]
    subscription = {"code": "s", "targetUrl": f"{router.receiver('fast')}?key={TOKEN}", "eventTypes": wanted}
    await change("POST", subscriptions, body=subscription)
    await change("PUT", f"{subscriptions}/{{code}}", f"{subscriptions}/s", subscription)
    await change("PATCH", f"{subscriptions}/{{code}}", f"{subscriptions}/s", {"name": "S"})
    for action in ("pause", "resume", "rotate-secret", "test"):
        await change("POST", f"{subscriptions}/{{code}}/{action}", f"{subscriptions}/s/{action}")
    span = {"from": "2026-01-01T00:00:00Z"}
    await change("POST", f"{subscriptions}/{{code}}/replay", f"{subscriptions}/s/replay", span)
    event = {"type": "c.d", "source": "s"}
    await change("POST", "/api/events", body=event)
    await change("POST", "/api/events/batch", body={"events": [event]})

    async def nothing_left() -> bool:
        jobs = (await router.client.get("/api/dispatch-jobs?subscription=s")).json["items"]
        return all(job["finishedAt"] or job["parked"] for job in jobs)

    await until(nothing_left)
    await change("DELETE", f"{subscriptions}/{{code}}", f"{subscriptions}/s")


async def change_jobs(router: Running, change: Callable[..., Awaitable[None]]) -> None:
    job = {"code": "x", "targetUrl": router.receiver("client-error"), "maxRetries": 0}
    await change("POST", "/api/dispatch-jobs", body=job)
    await change("POST", "/api/dispatch-jobs/batch", body={"jobs": [job]})
    jobs = (await router.client.get("/api/dispatch-jobs?code=x")).json["items"]

    async def failed() -> bool:
        found = (await router.client.get("/api/dispatch-jobs?status=ERROR")).json["items"]
        return len(found) == len(jobs)

    await until(failed)
    one, other = jobs[0]["id"], jobs[1]["id"]
    await change("PATCH", "/api/dispatch-jobs/{id}", f"/api/dispatch-jobs/{one}", {"mode": "IMMEDIATE"})
    await change("POST", "/api/dispatch-jobs/{id}/cancel", f"/api/dispatch-jobs/{one}/cancel")
    await change("POST", "/api/dispatch-jobs/{id}/retry", f"/api/dispatch-jobs/{other}/retry")
    for action, more in (("retry", {}), ("change", {"change": {"mode": "IMMEDIATE"}}), ("cancel", {})):
        await change("POST", f"/api/dispatch-jobs/{action}", body={"filter": {"code": "none"}, **more})
    await change_groups(router, change, job)


async def change_groups(router: Running, change: Callable[..., Awaitable[None]], job: dict[str, Any]) -> None:
    await change("POST", "/api/message-groups/{group}/hold", "/api/message-groups/g:1/hold")
    await change("POST", "/api/message-groups/{group}/release", "/api/message-groups/g:1/release")
    await router.client.post("/api/dispatch-jobs", job | {"messageGroup": "g:1", "mode": "BLOCK_ON_ERROR"})

    async def parked() -> bool:
        found = (await router.client.get("/api/dispatch-jobs?messageGroup=g:1&parked=true")).json["items"]
        return len(found) == 1

    for action in ("retry-head", "skip-head"):
        await until(parked)
        await change("POST", f"/api/message-groups/{{group}}/{action}", f"/api/message-groups/g:1/{action}")


async def change_keys(router: Running, change: Callable[..., Awaitable[None]]) -> None:
    await change("POST", "/api/api-keys", body={"name": "shop", "scopes": ["publish"]})
    (key,) = (await router.client.get("/api/api-keys")).json["items"]
    await change("POST", "/api/api-keys/{id}/rotate", f"/api/api-keys/{key['id']}/rotate")
    await change("DELETE", "/api/api-keys/{id}", f"/api/api-keys/{key['id']}")


def config_file(folder: Path, **more: Any) -> Path:
    file = folder / "router.json"
    pools = [{"code": "DEFAULT-POOL", "concurrency": 20}, {"code": "POOL-LOW", "concurrency": 2, **more}]
    queues = [{"queueName": "default"}, {"queueName": "far", "queueUri": "embedded:far"}]
    file.write_text(json.dumps({"processingPools": pools, "queues": queues}))
    return file


@pytest.fixture
def _restore_logs() -> Iterator[None]:
    yield
    close_logs()
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restore_logs")
async def test_every_change_leaves_an_event_and_a_line_with_who_and_from_where_and_no_secret(tmp_path: Path) -> None:
    configure_logs("warning", "json", tmp_path / "log")
    sync = {"config_url": str(config_file(tmp_path))}
    async with running_as(
        tmp_path / "data", PASSWORDS, basic("ann", ADMIN_PASSWORD), sync=sync, platform={"enabled": True}
    ) as router:
        made = await make_every_change(router)
        answer = await router.client.get(f"{PATH}?limit=1000")
    document = build_api(App(Settings(data_dir=tmp_path))).openapi_schema
    changing = {(method, path) for path, method, _ in operations(document) if method not in READING_METHODS}
    assert made == changing - NO_CHANGES, "a change that nobody audits, or that is not tried here"
    found = answer.json
    by_action = {event["action"]: event for event in reversed(found)}
    not_by_callers = {AuditAction.REFUSED, AuditAction.DEAD_LETTER_DROP}
    assert by_action.keys() == set(AuditAction) - not_by_callers
    sync_event = by_action.pop("config_change")
    assert (sync_event["who"], sync_event["detail"]) == ("config sync", "the first one: 2 pools, 2 queues")
    for event in by_action.values():
        assert (event["who"], event["role"], event["address"]) == ("ann", "admin", "127.0.0.1")
    assert (by_action["pool_change"]["object"], by_action["pool_change"]["detail"]) == (
        "pool POOL-LOW",
        "concurrency 2 -> 7",
    )
    assert (by_action["seed"]["object"], by_action["seed"]["count"]) == ("queue default", 3)
    assert "message dead-0 of queue default" in [event["detail"] for event in found]
    assert (by_action["breaker_reset"]["object"], by_action["breaker_reset"]["count"] > 0) == (
        "all circuit breakers",
        True,
    )
    close_logs()
    text = (tmp_path / "log").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if line.get("action") == "audit"]
    told = {line["what"] for line in lines}
    many = {"publish", "seed", "job_create", "event_publish"}  # level info
    assert told == by_action.keys() - many | {"config_change"}
    assert {line["who"] for line in lines} == {"ann", "config sync"}
    assert TOKEN not in answer.text + text
    assert_no_secret_in(answer.text + text)
    for file in (tmp_path / "data").glob("audit.db*"):
        assert TOKEN.encode() not in file.read_bytes()
        assert ADMIN_PASSWORD.encode() not in file.read_bytes()


async def test_a_publish_is_counted_with_its_queue_and_a_key_is_named_by_its_hash(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {"X-API-Key": ADMIN_KEY}) as router:
        for _ in range(20):
            await router.client.post("/api/messages", [{"mediationTarget": router.receiver("fast")}] * 5)
        [event] = await events(router)
        assert (event["action"], event["object"], event["count"], event["requests"]) == (
            "publish",
            "queue default",
            100,
            20,
        )
        digest = KEYS["admin"][0].removeprefix("sha256:")
        assert event["who"] == f"key {digest[:8]}"


async def test_without_access_control_changes_are_anonymous(router: Running) -> None:
    headers = {"X-Forwarded-For": "not an address, 192.0.2.7"}
    await router.client.request("PUT", "/monitoring/pools/POOL-LOW", json={"concurrency": 3}, headers=headers)
    [event] = await events(router)
    assert (event["who"], event["role"], event["address"]) == ("anonymous", None, "127.0.0.1")
    assert event["forwardedFor"] == "192.0.2.7"
    headers = {"X-Forwarded-For": "<script>"}
    await router.client.request("PUT", "/monitoring/pools/POOL-LOW", json={"concurrency": 4}, headers=headers)
    assert (await events(router))[0]["forwardedFor"] is None


@pytest.mark.parametrize(
    ("auth", "headers", "status", "who", "role"),
    [
        (KEYS, {}, 401, "anonymous", None),
        (KEYS, {"X-API-Key": "wrong"}, 401, "anonymous", None),
        (PASSWORDS, basic("ann", "wrong"), 401, "anonymous", None),
        (PASSWORDS, basic("bob", READER_PASSWORD), 403, "bob", "read_only"),
        (PASSWORDS, basic("ann", ADMIN_PASSWORD) | {"Origin": "http://evil.example"}, 403, "anonymous", None),
    ],
)
async def test_a_change_that_is_refused_leaves_an_event_and_reading_none(
    tmp_path: Path, auth: dict[str, Any], headers: dict[str, str], status: int, who: str, role: str | None
) -> None:
    async with running_as(tmp_path, auth, headers) as router:
        for _ in range(3):
            assert (await router.client.request("DELETE", "/monitoring/dead-letters")).status == status
        await router.client.get("/monitoring/pool-stats")
        [event] = await router.app.audit.page(10, AuditFilter())
        assert (event.action, event.who, event.role, event.address) == ("refused", who, role, "127.0.0.1")
        assert (event.object, event.requests) == (f"{status} DELETE /monitoring/dead-letters", 3)


async def test_a_change_that_fails_is_none(router: Running) -> None:
    await router.client.put("/monitoring/pools/NOBODY", {"concurrency": 3})
    await router.client.put("/monitoring/pools/POOL-LOW", {"concurrency": -3})
    await router.client.delete("/monitoring/dead-letters/4711")
    await router.client.post("/api/messages", {"mediationTarget": "nonsense"})
    await router.client.post("/monitoring/circuit-breakers/reset?endpoint=nobody")
    assert await events(router) == []


async def test_only_what_a_queue_took_is_a_publish_or_a_seed(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(messages: Sequence[Outgoing]) -> list[Published]:
        raise QueueUnavailableError("the queue is closed")

    message = {"mediationTarget": router.receiver("fast")}
    monkeypatch.setattr(router.app.queues["default"], "publish", refuse)
    for path, body in (("/api/messages", message), ("/api/messages", [message]), ("/api/seed/messages", None)):
        assert (await router.client.post(path, body)).status == 503
    assert await events(router) == []


async def test_a_replay_that_stops_halfway_tells_how_far_it_came(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(messages: object) -> None:
        raise QueueUnavailableError("queue 'high' is away")

    target = router.receiver("client-error")
    for queue in ("default", "high"):
        await router.client.post(f"/api/messages?queue={queue}", {"mediationTarget": target, "id": queue})
        await router.until_settled()
    monkeypatch.setattr(router.app.queues["high"], "publish", away)
    (await router.client.post("/monitoring/dead-letters/replay")).assert_problem(503, "'high'")
    [event] = await events(router, "action=dead_letter_replay")
    assert (event["count"], event["detail"]) == (1, "stopped by an error")


async def test_events_survive_a_restart_and_are_filtered_and_paged(tmp_path: Path) -> None:
    async with run_router(tmp_path) as router:
        for number in range(3, 8):
            await router.client.put("/monitoring/pools/POOL-LOW", {"concurrency": number})
        await router.client.delete("/monitoring/warnings")
    async with run_router(tmp_path) as router:
        page = await events(router, "action=pool_change&limit=2")
        assert [event["detail"] for event in page] == ["concurrency 6 -> 7", "concurrency 5 -> 6"]
        page = await events(router, f"action=pool_change&before={page[-1]['number']}")
        assert [event["detail"] for event in page] == ["concurrency 4 -> 5", "concurrency 3 -> 4", "concurrency 2 -> 3"]
        assert await events(router, f"before={page[-1]['number']}") == []
        newest = (await events(router))[0]
        assert newest["action"] == "warning_delete"
        since = newest["at"].replace("+", "%2B")
        assert newest in await events(router, f"since={since}")
        assert await events(router, "who=ann") == []
        assert len(await events(router, "who=anonymous")) == 6
        (await router.client.get(f"{PATH}?action=nonsense")).assert_problem(400)
        (await router.client.get(f"{PATH}?since=yesterday")).assert_problem(400, "not a time")


async def test_a_reader_may_look_and_nobody_may_remove(tmp_path: Path) -> None:
    async with running_as(tmp_path, KEYS, {"X-API-Key": READER_KEY}) as router:
        assert (await router.client.get(PATH)).status == 200
        assert (await router.client.delete(PATH)).status == 405
    async with running_as(tmp_path, KEYS, {}) as router:
        assert (await router.client.get(PATH)).status == 401


async def test_what_a_sync_changed_is_told_without_addresses_of_queues(tmp_path: Path) -> None:
    def document(concurrency: int, uri: str, *more: str) -> bytes:
        pools = [{"code": "A", "concurrency": concurrency}, *({"code": code, "concurrency": 1} for code in more)]
        return json.dumps({"processingPools": pools, "queues": [{"queueName": "q", "queueUri": uri}]}).encode()

    async with raw_server(always(reply(200, document(5, "embedded:one", "B")))) as server:
        url = server.url("/router.json").replace("http://", "http://user:s3cret@")
        async with run_router(tmp_path, sync={"config_url": url, "interval_s": 0.1}) as router:
            server.script = always(reply(200, document(9, "embedded:two", "C")))

            async def told() -> bool:
                return len(await events(router, "action=config_change")) == 2

            await until(told)
            changed, first = await events(router, "action=config_change")
            assert first["detail"] == "the first one: 2 pools, 1 queue"
            assert changed["detail"] == "pool C added; pool B removed; pool A: concurrency 5 -> 9; queue q: uri changed"
            assert (changed["who"], changed["role"], changed["address"]) == ("config sync", None, None)
            assert str(server.port) in changed["object"]
            assert "s3cret" not in str([changed, first])


async def test_a_disk_that_fails_keeps_nobody_from_making_a_change(router: Running) -> None:
    await router.app.audit.writer.close()
    assert (await router.client.put("/monitoring/pools/POOL-LOW", {"concurrency": 3})).status == 200
    assert [one.code for one in router.app.warnings.recent()] == [WarningCode.AUDIT_FAILED]
    health = (await router.client.get("/monitoring/health")).json
    assert "AUDIT_FAILED" in health["reasons"][0]["text"]
