"""/api/message-groups: which groups stand still, why, and what a person can do."""

from urllib.parse import quote

import pytest

from tests.api.dispatching import GROUPS, Dispatching

BLOCK = "BLOCK_ON_ERROR"


async def test_blocked_groups_are_listed_the_longest_first(jobs: Dispatching) -> None:
    for group in ("c", "a", "b"):
        await jobs.blocked(f"{group}1", f"{group}2", group=group)
    found = (await jobs.client.get(f"{GROUPS}?blocked=true")).json
    assert [one["messageGroup"] for one in found["items"]] == ["c", "a", "b"]
    first = found["items"][0]
    assert (first["jobs"], first["head"]["id"], first["heldSince"]) == (2, jobs.ids["c1"], None)
    assert first["blockedSince"] is not None
    assert found["next"] is None


async def test_a_list_of_groups_goes_on_where_the_page_before_ended(jobs: Dispatching) -> None:
    for number in range(5):
        await jobs.blocked(f"{number}", group=f"g/{number}")
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await jobs.client.get(f"{GROUPS}?limit=2{cursor}")).json
        seen += [one["messageGroup"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={quote(page['next'], safe='')}"
    assert seen == [f"g/{number}" for number in range(5)]


@pytest.mark.parametrize("cursor", ["%00", "x", "-1", "a" * 5000, "%F0%9F%98%80", "1;2", "[1,2]"])
async def test_a_cursor_that_was_made_up_does_no_harm(jobs: Dispatching, cursor: str) -> None:
    answer = await jobs.client.get(f"{GROUPS}?cursor={cursor}")
    if answer.status != 200:
        answer.assert_problem(400, "cursor")


async def test_a_group_that_is_held_starts_nothing_until_it_is_released(jobs: Dispatching) -> None:
    held = await jobs.client.post(f"{GROUPS}/order:1/hold")
    assert (held.status, held.json["heldBy"]) == (200, "anonymous")
    for name in ("1", "2"):
        await jobs.create(name, messageGroup="order:1", mode=BLOCK)
    await jobs.create("other", messageGroup="order:2", mode=BLOCK)
    await jobs.until("other", "COMPLETED")
    waits = await jobs.whole("1")
    assert (waits["job"]["status"], waits["waiting"]["kind"]) == ("PENDING", "RELEASE")
    assert "held by anonymous" in waits["waitsFor"]
    (shown,) = (await jobs.client.get(f"{GROUPS}?blocked=true")).json["items"]
    assert (shown["messageGroup"], shown["jobs"], shown["heldSince"] is not None) == ("order:1", 2, True)
    assert (await jobs.client.post(f"{GROUPS}/order:1/release")).json["heldSince"] is None
    await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["other", "1", "2"]


async def test_to_release_a_group_that_nobody_holds_changes_nothing(jobs: Dispatching) -> None:
    answer = await jobs.client.post(f"{GROUPS}/nobody/release")
    assert (answer.status, answer.json["jobs"], answer.json["head"]) == (200, 0, None)


async def test_the_head_of_a_blocked_group_is_tried_again_or_skipped(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2", "3")
    jobs.endpoint.fails("1", 500)
    again = await jobs.client.post(f"{GROUPS}/account:123/retry-head")
    assert (again.status, again.json["job"]["id"]) == (200, jobs.ids["1"])
    whole = await jobs.until("1", "ERROR")
    assert len(whole["attempts"]) == 2
    skipped = await jobs.client.post(f"{GROUPS}/account:123/skip-head")
    assert (skipped.json["job"]["id"], skipped.json["job"]["status"]) == (jobs.ids["1"], "CANCELLED")
    await jobs.until("3", "COMPLETED")
    assert jobs.endpoint.started == ["1", "1", "2", "3"]


async def test_a_group_without_a_job_has_no_head_to_act_on(jobs: Dispatching) -> None:
    for action in ("retry-head", "skip-head"):
        (await jobs.client.post(f"{GROUPS}/empty/{action}")).assert_problem(409, "group empty has no unfinished job")
    assert (await jobs.client.get(f"{GROUPS}/empty")).json["jobs"] == 0


async def test_a_head_that_did_not_fail_cannot_be_tried_again(jobs: Dispatching) -> None:
    await jobs.client.post(f"{GROUPS}/g/hold")
    await jobs.create("1", messageGroup="g", mode=BLOCK)
    (await jobs.client.post(f"{GROUPS}/g/retry-head")).assert_problem(409, "PENDING")


@pytest.mark.parametrize(
    "group", ["order:12345", "a/b/c", "x/hold", "50%", "ä ö?#", "a b", "order-notifications:order:1", "..x", "%2F"]
)
async def test_a_group_may_have_any_name(jobs: Dispatching, group: str) -> None:
    path = f"{GROUPS}/{quote(group, safe='')}"
    await jobs.blocked("1", "2", group=group)
    assert (await jobs.client.get(path)).json["messageGroup"] == group
    assert (await jobs.client.post(f"{path}/hold")).json["messageGroup"] == group
    assert (await jobs.client.post(f"{path}/skip-head")).json["group"]["messageGroup"] == group
    assert (await jobs.client.post(f"{path}/release")).json["messageGroup"] == group
    await jobs.until("2", "COMPLETED")


async def test_a_bad_name_gets_one_clear_sentence(jobs: Dispatching) -> None:
    (await jobs.client.get(f"{GROUPS}/a%00b")).assert_problem(400, "the name of the group has a NUL character")
    (await jobs.client.post(f"{GROUPS}/{'x' * 257}/hold")).assert_problem(400, "at most 256 characters")
    (await jobs.client.post(f"{GROUPS}/g/explode")).assert_problem(405)


async def test_each_action_on_a_group_is_audited_with_its_name(jobs: Dispatching) -> None:
    await jobs.blocked("1")
    for action in ("hold", "release", "skip-head"):
        await jobs.client.post(f"{GROUPS}/account:123/{action}")
    events = (await jobs.client.get("/monitoring/audit")).json
    told = {event["action"]: (event["object"], event["detail"]) for event in events}
    assert told["group_hold"] == told["group_release"] == ("group account:123", "")
    assert told["job_cancel"] == (f"job {jobs.ids['1']}", "first of group account:123")
    actions = [one["action"] for one in (await jobs.whole("1"))["history"]]
    assert actions[-1] == "cancel"


@pytest.mark.parametrize("act", ["hold", "release"])
async def test_a_group_of_jobs_alone_is_refused_where_messages_are_held(jobs: Dispatching, act: str) -> None:
    await jobs.blocked("1", "2", group="order:1")
    answer = await jobs.client.post(f"/monitoring/groups/order:1/{act}")
    answer.assert_problem(409, "dispatch jobs", "POST /api/message-groups/order%3A1/hold")
    assert not jobs.running.app.pauses.groups


async def test_a_release_of_messages_lets_no_jobs_of_a_group_of_that_name_go(jobs: Dispatching) -> None:
    await jobs.client.post("/monitoring/groups/g/hold")  # no job of it was made yet
    await jobs.blocked("1", "2", group="g")
    await jobs.client.post(f"{GROUPS}/h/hold")
    await jobs.create("3", messageGroup="h", mode=BLOCK)
    for group in "gh":
        await jobs.client.post(f"/monitoring/groups/{group}/hold")
        await jobs.client.post(f"/monitoring/groups/{group}/release")
    await jobs.create("other")
    await jobs.until("other", "COMPLETED")
    assert [await jobs.status(name) for name in ("1", "2", "3")] == ["ERROR", "PENDING", "PENDING"]
    assert jobs.endpoint.started == ["1", "other"]
