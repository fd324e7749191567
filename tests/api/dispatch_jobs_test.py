"""/api/dispatch-jobs: jobs are made, durable when the answer comes, and what can never be delivered is refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.dispatch.job import as_time
from tests.api.dispatching import GROUPS, JOBS, Dispatching, dispatching, on_sqlite
from tests.api.running import run_router, until
from tests.support.http_servers import always, raw_server, reply


async def test_a_job_is_made_with_what_it_was_not_given_filled_in(jobs: Dispatching) -> None:
    body = {"code": "test", "targetUrl": jobs.server.url("/hook"), "payload": {"name": "1"}}
    made = await jobs.client.post(JOBS, body)
    assert (made.status, made.json["status"], made.json["mode"]) == (201, "PENDING", "IMMEDIATE")
    assert (made.json["kind"], made.json["sequence"], made.json["maxRetries"]) == ("TASK", 99, 3)
    assert (made.json["timeoutSeconds"], made.json["dispatchPoolCode"]) == (30.0, "DEFAULT-POOL")


EXAMPLE = """
{"kind": "TASK", "code": "critical-update",
 "targetUrl": "https://shop.example/hooks/account", "payload": {"balance": 5},
 "messageGroup": "account:123", "sequence": 1, "mode": "BLOCK_ON_ERROR", "dispatchPoolCode": "DEFAULT-POOL",
 "headers": {"X-Tenant": "acme"}, "timeoutSeconds": 30, "maxRetries": 3, "retryDelaysSeconds": [1, 5, 30],
 "scheduledFor": null, "expiresAt": null, "idempotencyKey": "acct-123-7", "metadata": {"tenant": "acme"}}
"""


async def test_the_example_is_taken_found_and_delivered_as_it_stands(jobs: Dispatching) -> None:
    async with raw_server(always(reply(204))) as server:
        await jobs.client.post(f"{GROUPS}/account:123/hold")
        example = EXAMPLE.replace("https://shop.example", server.url("")).encode()
        made = await jobs.client.request("POST", JOBS, body=example)
        assert (made.status, made.json["status"], made.json.get("note")) == (201, "PENDING", None)
        asked = msgspec.json.decode(example)
        echoed = {key: value for key, value in asked.items() if key not in ("payload", "headers")}
        assert {key: made.json[key] for key in echoed} == echoed
        for query in ("status=PENDING&mode=BLOCK_ON_ERROR", "messageGroup=account:123"):
            listed = (await jobs.client.get(f"{JOBS}?{query}")).json
            assert ([one["id"] for one in listed["items"]], listed["next"]) == ([made.json["id"]], None)
        await jobs.client.post(f"{GROUPS}/account:123/release")
        jobs.ids["it"] = made.json["id"]
        await jobs.until("it", "COMPLETED")
        (sent,) = server.requests
    assert (sent.method, sent.path, sent.body) == ("POST", "/hooks/account", b'{"balance": 5}')
    assert (sent.headers["x-tenant"], sent.headers["content-type"]) == ("acme", "application/json")
    assert sent.headers["x-flowcatalyst-message-id"] == made.json["id"]


async def test_its_payload_and_headers_are_what_is_sent(jobs: Dispatching) -> None:
    async with raw_server(always(reply(204))) as server:
        usual = {"code": "test", "targetUrl": server.url("/h")}
        json = {"payload": {"b": 5.0, "a": [1]}, "headers": {"X-Tenant": "acme"}}
        text = {"payload": "<order/>", "contentType": "application/xml"}
        bodies: list[dict[str, Any]] = [json, text, {}]
        for number, more in enumerate(bodies):
            jobs.ids[str(number)] = (await jobs.client.post(JOBS, usual | more)).json["id"]
            await jobs.until(str(number), "COMPLETED")
        first, second, third = server.requests
    assert (first.body, first.headers["x-tenant"]) == (b'{"b":5.0,"a":[1]}', "acme")
    assert first.headers["x-flowcatalyst-attempt"] == "1"
    assert (second.body, second.headers["content-type"]) == (b"<order/>", "application/xml")
    assert third.body == msgspec.json.encode({"messageId": jobs.ids["2"]})


async def test_a_repeated_key_answers_with_the_first_job(jobs: Dispatching) -> None:
    asked = jobs.body(idempotencyKey="acct-123-7")
    first = await jobs.client.post(JOBS, asked)
    again = await jobs.client.post(JOBS, asked)
    assert (first.status, again.status) == (201, 200)
    assert again.json["id"] == first.json["id"]


async def test_a_repeated_key_with_another_body_changes_nothing_and_answers_with_the_first_job(
    jobs: Dispatching,
) -> None:
    first = await jobs.create("1", idempotencyKey="k", code="first", metadata={"tenant": "acme"})
    await jobs.until("1", "COMPLETED")
    other = jobs.body("other", idempotencyKey="k", code="other", targetUrl=jobs.server.url("/other"), sequence=1)
    again = await jobs.client.post(JOBS, other)
    (in_batch,) = (await jobs.client.post(f"{JOBS}/batch", {"jobs": [other]})).json["results"]
    assert (again.status, in_batch["status"]) == (200, 200)
    for job in (again.json, in_batch["job"]):
        assert (job["id"], job["status"], job["code"], job["sequence"]) == (first, "COMPLETED", "first", 99)
    (await jobs.client.post(JOBS, other | {"sequence": -1})).assert_problem(400, "sequence is -1")
    assert [one["id"] for one in (await jobs.client.get(JOBS)).json["items"]] == [first]
    assert jobs.endpoint.started == ["1"]


async def test_each_job_of_a_batch_is_judged_on_its_own(jobs: Dispatching) -> None:
    batch = [jobs.body(), jobs.body(sequence=-1), {"code": "no target"}, jobs.body(idempotencyKey="k")]
    answer = await jobs.client.post(f"{JOBS}/batch", {"jobs": [*batch, batch[3]]})
    assert (answer.status, [one["status"] for one in answer.json["results"]]) == (200, [201, 400, 400, 201, 200])
    for one in answer.json["results"]:
        made, problem = one.get("job"), one.get("problem")
        assert made is None and problem["status"] == 400 if one["status"] == 400 else problem is None and made["id"]
    assert answer.json["results"][4]["job"]["id"] == answer.json["results"][3]["job"]["id"]
    assert "sequence is -1" in answer.json["results"][1]["problem"]["detail"]
    assert "targetUrl" in answer.json["results"][2]["problem"]["detail"]


async def test_a_thousand_jobs_are_made_at_once(jobs: Dispatching) -> None:
    await jobs.client.post(f"{GROUPS}/many/hold")
    many = [jobs.body(str(number), messageGroup="many", mode="BLOCK_ON_ERROR") for number in range(1000)]
    answer = await jobs.client.post(f"{JOBS}/batch", {"jobs": many})
    assert (answer.status, [one["status"] for one in answer.json["results"]]) == (200, [201] * 1000)
    assert len({one["job"]["id"] for one in answer.json["results"]}) == 1000
    assert (await jobs.client.get(f"{GROUPS}/many")).json["jobs"] == 1000


LARGEST = 262_144
FULL = {
    "JSON": (None, "x" * (LARGEST - 2), b'"%b"' % (b"x" * (LARGEST - 2))),
    "text": ("text/plain", "x" * LARGEST, b"x" * LARGEST),
    "lines": ("text/csv", "1\n" * (LARGEST // 2), b"1\n" * (LARGEST // 2)),
}


@pytest.mark.parametrize("kind", FULL)
async def test_exactly_256_kib_may_be_sent_and_not_one_byte_more(jobs: Dispatching, kind: str) -> None:
    content_type, payload, body = FULL[kind]
    async with raw_server(always(reply(204))) as server:
        usual = {"code": "test", "targetUrl": server.url("/h"), "contentType": content_type}
        made = await jobs.client.post(JOBS, usual | {"payload": payload})
        assert (made.status, made.json.get("payloadBytes")) == (201, LARGEST), made.text[:500]
        jobs.ids["largest"] = made.json["id"]
        await jobs.until("largest", "COMPLETED")
        assert [call.body for call in server.requests] == [body]
        more = await jobs.client.post(JOBS, usual | {"payload": payload + "x"})
        more.assert_problem(400, "payload has 262145 bytes, more than the 262144 allowed")
    assert len((await jobs.client.get(JOBS)).json["items"]) == 1


@pytest.mark.parametrize("count", [0, 1001])
@on_sqlite
async def test_a_batch_of_a_wrong_size_is_refused(jobs: Dispatching, count: int) -> None:
    answer = await jobs.client.post(f"{JOBS}/batch", {"jobs": [jobs.body()] * count})
    answer.assert_problem(400, "1 to 1000 jobs")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "SOMETIMES"}, "mode"),
    "kind": ({"kind": "CHORE"}, "kind"),
    "negative retries": ({"maxRetries": -1}, "maxRetries is -1"),
    "many delays": ({"retryDelaysSeconds": [1] * 1001}, "retryDelaysSeconds has 1001 entries"),
    "negative delay": ({"retryDelaysSeconds": [-1]}, "retryDelaysSeconds is -1"),
    "endless timeout": ({"timeoutSeconds": 1e9}, "timeoutSeconds is 1000000000, which is not between"),
    "sequence": ({"sequence": 2**40}, "sequence is"),
    "large payload": ({"payload": "x" * 300_000}, "payload has"),
    "10 MB payload": ({"payload": "x" * 10_000_000}, "payload has 10000002 bytes, more than the 262144 allowed"),
    "header": ({"headers": {"X-A": "b\r\nEvil: yes"}}, "X-A may have printable"),
    "name of a header": ({"headers": {"X-A\r\nEvil": "yes"}}, "not the name of a header"),
    "header of ours": ({"headers": {"Content-Length": "5"}}, "Content-Length"),
    "no group": ({"mode": "BLOCK_ON_ERROR"}, "give a messageGroup"),
    "unknown field": ({"messageGruop": "a"}, "messageGruop"),
    "target": ({"targetUrl": "ftp://x/"}, "targetUrl"),
    "metadata of a cloud": ({"targetUrl": "http://169.254.169.254/latest/meta-data"}, "serves metadata"),
    "over": ({"expiresAt": "2001-01-01T00:00:00Z"}, "expiresAt"),
    "empty code": ({"code": " "}, "code is empty"),
    "long code": ({"code": "x" * 257}, "code has 257 characters"),
    "NUL in code": ({"code": "a\0b"}, "code has a NUL character"),
    "NUL in group": ({"messageGroup": "a\0b"}, "messageGroup has a NUL character"),
    "NUL in metadata": ({"metadata": {"a": "\0"}}, "metadata has a NUL character"),
    "a field of messages": ({"mediationTarget": "http://127.0.0.1:9/"}, "did you mean `targetUrl`?"),
    "a group of messages": ({"messageGroupId": "a"}, "did you mean `messageGroup`?"),
    "a pool of messages": ({"poolCode": "A"}, "did you mean `dispatchPoolCode`?"),
    "a mode of messages": ({"dispatchMode": "IMMEDIATE"}, "did you mean `mode`?"),
    "one wrong header": ({"headers": {"X-A": "1", "X-B": 2}}, "`headers.X-B` must be text, not a number"),
    "deep metadata": ({"metadata": {"a": {"b": "c"}}}, "metadata"),
    "much metadata": ({"metadata": {"a": "b" * 9000}}, "metadata has more than"),
}


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"messageGroup": "g"}, "without a mode it is IMMEDIATE, so it is ordered with nothing"),
        ({"messageGroup": "g", "mode": "IMMEDIATE"}, None),
        ({"messageGroup": "g", "mode": "NEXT_ON_ERROR"}, None),
        ({}, None),
        ({"dispatchPoolCode": "NOPE"}, "there is no pool 'NOPE' now: DEFAULT-POOL will take it"),
    ],
    ids=["group without mode", "IMMEDIATE", "NEXT_ON_ERROR", "no group", "unknown pool"],
)
@on_sqlite
async def test_a_job_that_its_sender_may_not_have_meant_so_is_made_with_a_note(
    jobs: Dispatching, given: dict[str, str], note: str | None
) -> None:
    made = await jobs.client.post(JOBS, jobs.body() | given)
    batch = await jobs.client.post(f"{JOBS}/batch", {"jobs": [jobs.body() | given]})
    assert made.status == 201
    for job in (made.json, batch.json["results"][0]["job"]):
        assert job.get("note") is None if note is None else job["note"].startswith(note)
        assert job["mode"] == given.get("mode", "IMMEDIATE")


@pytest.mark.parametrize("name", BAD)
@on_sqlite
async def test_bad_input_gets_one_clear_sentence_and_stores_nothing(jobs: Dispatching, name: str) -> None:
    wrong, words = BAD[name]
    (await jobs.client.post(JOBS, jobs.body() | wrong)).assert_problem(400, words)
    batch = await jobs.client.post(f"{JOBS}/batch", {"jobs": [jobs.body() | wrong]})
    assert [one["status"] for one in batch.json["results"]] == [400]
    assert (await jobs.client.get(JOBS)).json == {"items": [], "next": None}


@on_sqlite
async def test_a_request_that_is_too_large_is_refused_before_it_is_read(jobs: Dispatching) -> None:
    answer = await jobs.client.post(JOBS, jobs.body(payload="x" * 17_000_000))
    answer.assert_problem(413, "larger than 16 MiB")
    assert (await jobs.client.get(JOBS)).json["items"] == []


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/", "http://127.0.0.1:9/", "http://localhost/x", "http://2130706433/", "http://[::1]/"]
)
async def test_a_target_on_a_private_network_is_refused_where_the_router_would_refuse_it(
    tmp_path: Path, target: str
) -> None:
    async with dispatching(tmp_path, egress={"allow_private": False}) as jobs:
        (await jobs.client.post(JOBS, jobs.body(targetUrl=target))).assert_problem(
            400, "targetUrl cannot be called", "not a public address", "egress.allowed_networks"
        )
        assert (await jobs.client.get(JOBS)).json["items"] == []
        receiver = jobs.running.receiver("success")  # the built-in one, which the router may call
        made = await jobs.client.post(JOBS, jobs.body(targetUrl=receiver))
        assert made.status == 201
        (await jobs.client.request("PATCH", f"{JOBS}/{made.json['id']}", json={"targetUrl": target})).assert_problem(
            400, "targetUrl cannot be called"
        )


async def test_a_router_without_the_platform_says_so(tmp_path: Path) -> None:
    async with run_router(tmp_path) as running:
        for path in (JOBS, f"{JOBS}/1", "/api/message-groups", "/api/message-groups/g"):
            (await running.client.get(path)).assert_problem(404, "platform.enabled")
        assert not (tmp_path / "jobs.db").exists()


async def test_what_was_made_before_a_stop_is_delivered_after_it(tmp_path: Path) -> None:
    async with dispatching(tmp_path, enabled=False) as jobs:
        job_id = await jobs.create("1")
    async with dispatching(tmp_path) as jobs:
        jobs.ids["1"] = job_id

        async def was_tried() -> bool:
            return bool((await jobs.whole("1"))["attempts"])

        await until(was_tried)


async def test_a_job_that_waits_for_longer_than_it_was_to_expires(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as jobs:
        await jobs.blocked("1")
        soon = as_time(SystemClock().wall() + 2.0)
        await jobs.create("2", messageGroup="account:123", mode="BLOCK_ON_ERROR", expiresAt=soon)
        whole = await jobs.until("2", "EXPIRED")
        assert (whole["attempts"], whole["waitsFor"]) == ([], None)


@pytest.mark.parametrize(
    "times",
    [
        {"expiresAt": "9999-12-31T23:59:59.999999Z"},
        {"expiresAt": "9999-12-31T23:59:59-00:01"},
        {"scheduledFor": "9999-12-31T23:59:59-14:00"},
        {"scheduledFor": "0001-01-01T00:00:00+14:00"},
    ],
    ids=str,
)
async def test_a_time_at_the_edge_of_the_calendar_is_taken_and_shown(jobs: Dispatching, times: dict[str, str]) -> None:
    made = await jobs.client.post(JOBS, {"code": "edge", "targetUrl": jobs.server.url("/edge"), **times})
    assert made.status == 201, made.text
    listed = await jobs.client.get(f"{JOBS}?code=edge")
    assert [job["id"] for job in listed.json["items"]] == [made.json["id"]]
    assert (await jobs.client.get(f"{JOBS}/{made.json['id']}")).status == 200
