"""Acting on jobs, one by one and all of a filter."""

from typing import Any

import pytest

from tests.api.dispatching import JOBS, Dispatching, on_sqlite
from tests.api.running import until

BLOCK, NEXT = "BLOCK_ON_ERROR", "NEXT_ON_ERROR"


async def test_an_edit_of_a_parked_job_is_sent_at_once(jobs: Dispatching) -> None:
    await jobs.blocked("1")
    moved = jobs.server.url("/moved")
    answer = await jobs.change(
        "1", targetUrl=moved, payload={"name": "new"}, contentType="application/vnd.new+json", headers={"X-A": "b"}
    )
    assert (answer.status, answer.json["targetUrl"]) == (200, moved)
    await jobs.until("1", "COMPLETED")
    sent = jobs.server.requests[-1]
    assert (sent.path, sent.body, sent.headers["x-a"]) == ("/moved", b'{"name":"new"}', "b")
    assert sent.headers["content-type"] == "application/vnd.new+json"
    actions = [one["action"] for one in (await jobs.whole("1"))["history"]]
    assert [action.partition(" ")[0] for action in actions] == ["change", "retry"]


async def test_a_job_that_waits_for_its_turn_can_be_edited_and_keeps_it(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2", "3")
    assert (await jobs.change("2", payload={"name": "2b"})).json["status"] == "PENDING"
    await jobs.act("1", "retry")
    await jobs.until("3", "COMPLETED")
    assert jobs.endpoint.started == ["1", "1", "2b", "3"]


async def test_a_change_of_mode_alone_does_not_try_a_parked_job_again(jobs: Dispatching) -> None:
    await jobs.blocked("1")
    await jobs.change("1", mode=NEXT)
    await jobs.create("other")
    await jobs.until("other", "COMPLETED")
    assert await jobs.status("1") == "ERROR"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "nothing is to be changed"),
        ({"mode": "SOMETIMES"}, "mode"),
        ({"targetUrl": "ftp://x/"}, "targetUrl cannot be called"),
        ({"targetUrl": "http://169.254.169.254/latest"}, "targetUrl cannot be called"),
        ({"headers": {"X-A": "b\r\nEvil: yes"}}, "X-A may have printable"),
        ({"payload": "x" * 300_000}, "payload has"),
        ({"payload": 1, "contentType": "no"}, "contentType"),
        ({"sequence": 1}, "sequence"),
    ],
)
@on_sqlite
async def test_a_bad_change_gets_one_clear_sentence_and_changes_nothing(
    jobs: Dispatching, change: dict[str, Any], words: str
) -> None:
    await jobs.blocked("1")
    before = await jobs.whole("1")
    (await jobs.change("1", **change)).assert_problem(400, words)
    (await jobs.bulk("change", filter={"status": "ERROR"}, change=change)).assert_problem(400, words)
    assert await jobs.whole("1") == before


async def test_what_cannot_be_done_says_why(jobs: Dispatching) -> None:
    await jobs.create("1")
    await jobs.until("1", "COMPLETED")
    (await jobs.act("1", "retry")).assert_problem(409, "COMPLETED")
    (await jobs.act("1", "cancel")).assert_problem(409, "COMPLETED")
    (await jobs.change("1", mode="IMMEDIATE")).assert_problem(409, "COMPLETED")
    jobs.ids["nobody"] = "nobody"
    (await jobs.act("nobody", "retry")).assert_problem(404, "nobody")
    (await jobs.change("nobody", mode="IMMEDIATE")).assert_problem(404, "nobody")


async def test_a_dry_run_says_how_many_and_does_nothing(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2", "3")
    await jobs.create("done")
    await jobs.until("done", "COMPLETED")
    for action, more, matched in (
        ("retry", {}, 1),
        ("cancel", {}, 3),
        ("change", {"change": {"mode": NEXT}}, 3),
    ):
        answer = await jobs.bulk(action, filter={"code": "test"}, dryRun=True, **more)
        assert answer.json == {"matched": matched}, action
    assert (await jobs.status("1"), await jobs.status("2")) == ("ERROR", "PENDING")


async def test_all_parked_jobs_of_a_filter_are_tried_again(jobs: Dispatching) -> None:
    for name in ("1", "2", "3"):
        jobs.endpoint.fails(name, 500)
        await jobs.create(name, metadata={"tenant": "acme" if name != "3" else "other"})
        await jobs.until(name, "ERROR")
    answer = await jobs.bulk("retry", filter={"parked": True, "metadata": {"tenant": "acme"}})
    assert answer.json == {"done": 2, "refused": 0}
    for name in ("1", "2"):
        await jobs.until(name, "COMPLETED")
    assert await jobs.status("3") == "ERROR"
    assert [one["action"] for one in (await jobs.whole("1"))["history"]] == ["retry"]


async def test_all_jobs_of_a_group_are_cancelled_but_the_one_in_hand(jobs: Dispatching) -> None:
    gate = jobs.endpoint.hangs("busy")
    await jobs.create("busy", messageGroup="g", mode=BLOCK)
    await jobs.until("busy", "IN_PROGRESS")
    for name in ("1", "2"):
        await jobs.create(name, messageGroup="g", mode=BLOCK)
    answer = await jobs.bulk("cancel", filter={"messageGroup": "g"})
    assert answer.json == {"done": 2, "refused": 1}
    gate.set()
    await jobs.until("busy", "COMPLETED")
    assert [await jobs.status(name) for name in ("1", "2")] == ["CANCELLED", "CANCELLED"]
    assert jobs.endpoint.started == ["busy"]


async def test_a_bulk_change_of_mode_unblocks_every_group_of_its_filter(jobs: Dispatching) -> None:
    await jobs.blocked("a1", "a2", group="a")
    await jobs.blocked("b1", "b2", group="b")
    answer = await jobs.bulk("change", filter={"mode": BLOCK}, change={"mode": NEXT})
    assert answer.json == {"done": 4, "refused": 0}
    for name in ("a2", "b2"):
        await jobs.until(name, "COMPLETED")


async def test_an_endpoint_that_moved_is_changed_for_all_and_then_tried_again(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    change = {"targetUrl": jobs.server.url("/new")}
    answer = await jobs.bulk("change", filter={"targetUrl": jobs.server.url("/hook")}, change=change)
    assert answer.json == {"done": 2, "refused": 0}
    assert (await jobs.bulk("retry", filter={"targetUrl": jobs.server.url("/new")})).json["done"] == 1
    await jobs.until("2", "COMPLETED")
    assert [call.path for call in jobs.server.requests] == ["/hook", "/new", "/new"]


async def test_to_act_on_everything_has_to_be_said(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    bodies: list[dict[str, Any]] = [{}, {"filter": {}}, {"filter": {}, "all": False}]
    for body in bodies:
        (await jobs.bulk("cancel", **body)).assert_problem(400, '{"all": true}')
    assert (await jobs.bulk("cancel", all=True)).json == {"done": 2, "refused": 0}


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        ("retry", {"filter": {"status": "PENDING"}}, "not for jobs that are PENDING, only ERROR"),
        ("cancel", {"filter": {"status": "COMPLETED"}}, "not for jobs that are COMPLETED"),
        ("cancel", {"filter": {"statuss": "ERROR"}}, "statuss"),
        ("cancel", {"filter": {"messagegroup": "g"}}, "did you mean `messageGroup`?"),
        ("cancel", {"filter": {"status": "X"}}, "`filter.status` must be one of PENDING, QUEUED, "),
        (
            "change",
            {"all": True, "change": {"foo": 1}},
            "the fields are mode, targetUrl, payload, contentType, headers",
        ),
        ("cancel", {"filter": {"code": "\0"}}, "code has a NUL character"),
        ("cancel", {"filter": {"metadata": {"a": {"b": 1}}}}, "metadata"),
        ("cancel", {"filter": {"metadata": {f"k{number}": "v" for number in range(11)}}}, "metadata has 11 pairs"),
        ("cancel", {"filter": {"metadata": {"k": "v" * 9000}}}, "metadata has more than"),
        ("cancel", {"filter": {"code": "x" * 300}}, "code"),
        ("cancel", {"filter": {"targetUrl": "http://x/?key=a"}}, "before the query"),
        ("cancel", {"filter": "all"}, "filter"),
        ("change", {"filter": {"code": "x"}}, "change"),
    ],
)
@on_sqlite
async def test_a_bad_bulk_action_gets_one_clear_sentence(
    jobs: Dispatching, action: str, body: dict[str, Any], words: str
) -> None:
    (await jobs.bulk(action, **body)).assert_problem(400, words)


async def test_a_bulk_action_is_one_event_of_the_audit_trail_with_its_filter(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    await jobs.bulk("cancel", filter={"messageGroup": "account:123"})
    (event,) = (await jobs.client.get("/monitoring/audit?action=job_cancel")).json
    assert (event["object"], event["count"]) == ("jobs with messageGroup account:123", 2)


async def test_a_bulk_action_on_many_is_done_in_parts_while_jobs_are_delivered(jobs: Dispatching) -> None:
    many = [jobs.body(str(number), messageGroup="far", mode=BLOCK) for number in range(500)]
    await jobs.client.post("/api/message-groups/far/hold")
    assert (await jobs.client.post(f"{JOBS}/batch", {"jobs": many})).status == 200
    answer = await jobs.bulk("cancel", filter={"messageGroup": "far"})
    assert answer.json == {"done": 500, "refused": 0}
    await jobs.create("near")
    await jobs.until("near", "COMPLETED")

    async def none_left() -> bool:
        return bool((await jobs.client.get(f"{JOBS}?messageGroup=far&status=PENDING")).json["items"] == [])

    await until(none_left)
