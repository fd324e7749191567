"""/api/dispatch-jobs of a router at work: what goes in, what can be seen, and what a person can do."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.running import Running, run_router, until
from tests.support.http_servers import always, raw_server, reply


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path, platform={"enabled": True}) as running:
        yield running


def job(running: Running, **more: Any) -> dict[str, Any]:
    return {"code": "test", "targetUrl": running.receiver("success"), **more}


async def until_status(running: Running, job_id: str, status: str) -> dict[str, Any]:
    async def is_so() -> bool:
        found = (await running.client.get(f"/api/dispatch-jobs/{job_id}")).json
        return bool(found["job"]["status"] == status)

    await until(is_so)
    whole: dict[str, Any] = (await running.client.get(f"/api/dispatch-jobs/{job_id}")).json
    return whole


async def test_a_job_is_made_and_delivered_and_shows_its_attempt(running: Running) -> None:
    made = await running.client.post("/api/dispatch-jobs", job(running, payload={"balance": 5}, metadata={"t": "acme"}))
    assert (made.status, made.json["status"], made.json["mode"]) == (201, "PENDING", "IMMEDIATE")
    assert (made.json["sequence"], made.json["maxRetries"]) == (99, 3)
    whole = await until_status(running, made.json["id"], "COMPLETED")
    (attempt,) = whole["attempts"]
    assert (attempt["attempt"], attempt["status"], attempt["error"]) == (1, 200, "NONE")
    assert whole["job"]["finishedAt"] is not None


async def test_its_payload_and_headers_are_what_is_sent(running: Running) -> None:
    async with raw_server(always(reply(204))) as server:
        text = {"payload": "<order/>", "contentType": "application/xml"}
        for more in ({"payload": {"b": 5.0, "a": [1]}, "headers": {"X-Tenant": "acme"}}, text, {}):
            made = await running.client.post(
                "/api/dispatch-jobs", job(running, **more) | {"targetUrl": server.url("/h")}
            )
            await until_status(running, made.json["id"], "COMPLETED")
        first, second, third = server.requests
    assert (first.body, first.headers["x-tenant"]) == (b'{"b":5.0,"a":[1]}', "acme")
    assert first.headers["x-flowcatalyst-attempt"] == "1"
    assert (second.body, second.headers["content-type"]) == (b"<order/>", "application/xml")
    assert third.body == msgspec.json.encode({"messageId": made.json["id"]})


async def test_a_blocked_group_is_found_and_unblocked(running: Running) -> None:
    common = {"messageGroup": "account:123", "mode": "BLOCK_ON_ERROR", "maxRetries": 0}
    failing = await running.client.post(
        "/api/dispatch-jobs", job(running, **common) | {"targetUrl": running.receiver("server-error")}
    )
    behind = await running.client.post("/api/dispatch-jobs", job(running, **common))
    await until_status(running, failing.json["id"], "ERROR")
    # As the guide of message groups has it.
    blocked = await running.client.get("/api/dispatch-jobs?status=PENDING&mode=BLOCK_ON_ERROR")
    assert [one["id"] for one in blocked.json["items"]] == [behind.json["id"]]
    group = await running.client.get("/api/dispatch-jobs?messageGroup=account:123")
    assert [one["status"] for one in group.json["items"]] == ["PENDING", "ERROR"]
    changed = await running.client.request(
        "PATCH", f"/api/dispatch-jobs/{failing.json['id']}", json={"mode": "NEXT_ON_ERROR"}
    )
    assert (changed.status, changed.json["mode"]) == (200, "NEXT_ON_ERROR")
    await until_status(running, behind.json["id"], "COMPLETED")
    cancelled = await running.client.post(f"/api/dispatch-jobs/{failing.json['id']}/cancel")
    assert cancelled.json["status"] == "CANCELLED"
    (await running.client.post(f"/api/dispatch-jobs/{failing.json['id']}/retry")).assert_problem(409, "is CANCELLED")
    actions = {event["action"] for event in (await running.client.get("/monitoring/audit")).json}
    assert {"job_create", "job_change", "job_cancel"} <= actions


async def test_a_repeated_key_answers_with_the_first_job(running: Running) -> None:
    asked = job(running, idempotencyKey="acct-123-7")
    first = await running.client.post("/api/dispatch-jobs", asked)
    again = await running.client.post("/api/dispatch-jobs", asked)
    assert (first.status, again.status) == (201, 200)
    assert again.json["id"] == first.json["id"]


async def test_each_job_of_a_batch_is_judged_on_its_own(running: Running) -> None:
    jobs = [job(running), job(running, sequence=-1), {"code": "no target"}, job(running, idempotencyKey="k")]
    answer = await running.client.post("/api/dispatch-jobs/batch", {"jobs": [*jobs, jobs[3]]})
    assert [one["status"] for one in answer.json["results"]] == [201, 400, 400, 201, 200]
    assert "sequence is -1" in answer.json["results"][1]["problem"]["detail"]
    assert "targetUrl" in answer.json["results"][2]["problem"]["detail"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "SOMETIMES"}, "mode"),
    "negative retries": ({"maxRetries": -1}, "maxRetries is -1"),
    "endless timeout": ({"timeoutSeconds": 1e9}, "timeoutSeconds is 1e+09"),
    "large payload": ({"payload": "x" * 300_000}, "payload has"),
    "header": ({"headers": {"X-A": "b\r\nEvil: yes"}}, "X-A may have printable"),
    "header of ours": ({"headers": {"Content-Length": "5"}}, "Content-Length"),
    "no group": ({"mode": "BLOCK_ON_ERROR"}, "give a messageGroup"),
    "unknown field": ({"messageGruop": "a"}, "messageGruop"),
    "target": ({"targetUrl": "ftp://x/"}, "targetUrl"),
    "over": ({"expiresAt": "2001-01-01T00:00:00Z"}, "expiresAt"),
    "empty code": ({"code": " "}, "code is empty"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_gets_one_clear_sentence_and_stores_nothing(running: Running, name: str) -> None:
    wrong, words = BAD[name]
    (await running.client.post("/api/dispatch-jobs", job(running) | wrong)).assert_problem(400, words)
    assert (await running.client.get("/api/dispatch-jobs")).json == {"items": [], "next": None}


async def test_a_list_goes_on_where_the_page_before_ended(running: Running) -> None:
    for _ in range(5):
        await running.client.post("/api/dispatch-jobs", job(running))
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = (await running.client.get(f"/api/dispatch-jobs?{query}")).json
        seen += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        query = f"limit=2&cursor={page['next']}"
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen, reverse=True)


async def test_a_router_without_the_platform_says_so(tmp_path: Path) -> None:
    async with run_router(tmp_path) as running:
        (await running.client.get("/api/dispatch-jobs")).assert_problem(404, "platform.enabled")
        assert not (tmp_path / "jobs.db").exists()


async def test_what_was_made_before_a_stop_is_delivered_after_it(tmp_path: Path) -> None:
    async with run_router(tmp_path, platform={"enabled": True}, enabled=False) as running:
        made = await running.client.post("/api/dispatch-jobs", job(running, payload=msgspec.Raw(b"[1]")))
        job_id = made.json["id"]
        target = made.json["targetUrl"]
    assert target
    async with run_router(tmp_path, platform={"enabled": True}) as running:

        async def was_tried() -> bool:
            found = (await running.client.get(f"/api/dispatch-jobs/{job_id}")).json
            return bool(found["attempts"])

        await until(was_tried)
