"""Acting on jobs that a router has in hand: what was not started comes back first, whichever process has it."""

from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

from tests.api.dispatching import GROUPS, JOBS, Dispatching, dispatching
from tests.api.running import run_router, until
from tests.servers.postgres import PostgresServer
from tests.support.http_servers import reply

BLOCK, NEXT = "BLOCK_ON_ERROR", "NEXT_ON_ERROR"
GROUP = "account:123"
MANY = 200
_schemas = count(1)


async def in_hand(jobs: Dispatching, *names: str, **more: Any) -> None:
    """Jobs of a group of which the first is being delivered, and the router has the others."""
    jobs.endpoint.hangs(names[0])
    made = [jobs.body(name, messageGroup=GROUP, mode=BLOCK, **more) for name in names]
    answer = await jobs.client.post(f"{JOBS}/batch", {"jobs": made})
    for name, one in zip(names, answer.json["results"], strict=True):
        jobs.ids[name] = one["job"]["id"]
    await jobs.until(names[0], "IN_PROGRESS")
    await jobs.until(names[-1], "QUEUED")


async def goes_on(jobs: Dispatching, first: str) -> None:
    jobs.endpoint.gates.pop(first).set()


async def test_nothing_of_a_group_starts_once_its_hold_was_answered(jobs: Dispatching) -> None:
    names = [f"n{n}" for n in range(MANY)]
    await in_hand(jobs, *names)
    held = await jobs.client.post(f"{GROUPS}/{GROUP}/hold")
    assert (held.status, held.json["jobs"]) == (200, MANY)
    assert [await jobs.status(name) for name in ("n0", "n1", "n199")] == ["IN_PROGRESS", "PENDING", "PENDING"]
    await goes_on(jobs, "n0")
    await jobs.until("n0", "COMPLETED")
    await jobs.create("other")
    await jobs.until("other", "COMPLETED")
    assert jobs.endpoint.started == ["n0", "other"]
    await jobs.client.post(f"{GROUPS}/{GROUP}/release")
    await jobs.until("n199", "COMPLETED")
    assert jobs.endpoint.started == ["n0", "other", *names[1:]]
    assert (await jobs.whole("n199"))["job"]["attempts"] == 1


async def test_a_job_in_hand_is_cancelled_and_the_others_keep_their_order(jobs: Dispatching) -> None:
    await in_hand(jobs, "1", "2", "3", "4")
    assert (await jobs.act("3", "cancel")).json["status"] == "CANCELLED"
    await goes_on(jobs, "1")
    await jobs.until("4", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2", "4"]


async def test_a_job_in_hand_that_is_edited_is_sent_as_it_is_then(jobs: Dispatching) -> None:
    await in_hand(jobs, "1", "2", "3")
    answer = await jobs.change("2", payload={"name": "2b"}, targetUrl=jobs.server.url("/moved"))
    assert (answer.status, answer.json["targetUrl"]) == (200, jobs.server.url("/moved"))
    await goes_on(jobs, "1")
    await jobs.until("3", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2b", "3"]
    assert [request.path for request in jobs.server.requests] == ["/hook", "/moved", "/hook"]


async def test_a_job_in_hand_gets_another_mode(jobs: Dispatching) -> None:
    await in_hand(jobs, "1", "2", "3")
    assert (await jobs.change("3", mode="IMMEDIATE")).json["mode"] == "IMMEDIATE"
    await jobs.until("3", "COMPLETED")  # it waits for nobody
    assert (await jobs.change("2", mode=NEXT)).json["mode"] == NEXT
    await goes_on(jobs, "1")
    await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["1", "3", "2"]


async def test_a_job_that_is_being_delivered_is_refused_in_one_sentence(jobs: Dispatching) -> None:
    await in_hand(jobs, "1", "2")
    sentence = f"job {jobs.ids['1']} is being delivered right now: ask again when its attempt has ended"
    for answer in (
        await jobs.act("1", "cancel"),
        await jobs.act("1", "retry"),
        await jobs.change("1", mode=NEXT),
        await jobs.client.post(f"{GROUPS}/{GROUP}/skip-head"),
    ):
        answer.assert_problem(409, sentence)
    await goes_on(jobs, "1")
    await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2"]
    assert (await jobs.whole("1"))["history"] == []


async def test_all_of_a_filter_are_cancelled_but_the_one_that_is_being_delivered(jobs: Dispatching) -> None:
    await in_hand(jobs, "1", "2", "3", "4")
    answer = await jobs.bulk("cancel", filter={"messageGroup": GROUP})
    assert answer.json == {"done": 3, "refused": 1}
    await goes_on(jobs, "1")
    await jobs.until("1", "COMPLETED")
    assert jobs.endpoint.started == ["1"]


async def test_a_job_that_its_endpoint_told_to_wait_is_tried_now_if_a_person_says_so(jobs: Dispatching) -> None:
    jobs.endpoint.answers["1"] = deque([reply(429, b"", "Retry-After: 3600")])
    await jobs.create("1", messageGroup=GROUP, mode=BLOCK)
    await jobs.create("2", messageGroup=GROUP, mode=BLOCK)

    async def was_told_to_wait() -> bool:
        whole = await jobs.whole("1")
        return bool(whole["job"]["status"] == "PENDING" and whole["job"]["nextAttemptAt"])

    await until(was_told_to_wait)
    answer = await jobs.act("1", "retry")
    assert (answer.status, answer.json["nextAttemptAt"]) == (200, None)
    await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["1", "1", "2"]


async def test_jobs_at_an_open_breaker_spend_no_attempt_and_can_be_acted_on(
    jobs: Dispatching,
) -> None:
    """Ten failures open it: what waits there is in a router's hands."""
    for number in range(12):
        jobs.endpoint.fails(f"x{number}", 503)
        await jobs.create(f"x{number}", messageGroup=f"x{number}")
    for number in range(12):
        await jobs.until(f"x{number}", "ERROR")
    for name in ("1", "2"):
        await jobs.create(name, messageGroup=GROUP, mode=BLOCK)

    async def waits_there() -> bool:
        job = (await jobs.whole("1"))["job"]
        return bool(job["status"] == "QUEUED" or job["nextAttemptAt"])

    await until(waits_there)
    for name in ("1", "2"):
        waiting = await jobs.whole(name)
        assert (waiting["attempts"], waiting["job"]["attempts"], waiting["job"]["failures"]) == ([], 0, 0)
    assert (await jobs.act("1", "cancel")).json["status"] == "CANCELLED"
    answer = await jobs.change("2", targetUrl=jobs.server.url("/elsewhere"))
    assert answer.status == 200
    delivered = await jobs.until("2", "COMPLETED")
    assert [name for name in jobs.endpoint.started if name[0] != "x"] == ["2"]
    assert [(one["attempt"], one["status"]) for one in delivered["attempts"]] == [(1, 200)]
    assert (await jobs.whole("1"))["attempts"] == []


# Of another process


async def test_people_act_through_one_process_on_what_another_one_has_in_hand(
    job_server: PostgresServer, tmp_path: Path
) -> None:
    url = f"{job_server.url}?schema=recall_{next(_schemas)}"
    platform = {"database_url": url}
    async with dispatching(tmp_path / "one", platform=platform) as jobs:
        await in_hand(jobs, "1", "2", "3", "4", "5")
        async with run_router(tmp_path / "two", platform={"enabled": True, **platform}) as other:
            client = other.client
            assert (await client.post(f"{JOBS}/{jobs.ids['3']}/cancel")).status == 200
            edit = {"payload": {"name": "2b"}}
            assert (await client.request("PATCH", f"{JOBS}/{jobs.ids['2']}", json=edit)).status == 200
            refused = await client.post(f"{JOBS}/{jobs.ids['1']}/cancel")
            refused.assert_problem(409, "is being delivered right now")
            assert (await client.post(f"{GROUPS}/{GROUP}/hold")).status == 200
            await goes_on(jobs, "1")
            await jobs.until("1", "COMPLETED")
            assert jobs.endpoint.started == ["1"]
            await client.post(f"{GROUPS}/{GROUP}/release")
            await jobs.until("5", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2b", "4", "5"]


async def test_an_attempt_in_flight_is_in_progress_for_its_process_and_queued_for_others(
    job_server: PostgresServer, tmp_path: Path
) -> None:
    platform = {"database_url": f"{job_server.url}?schema=recall_{next(_schemas)}"}
    async with dispatching(tmp_path / "one", platform=platform) as jobs:
        await in_hand(jobs, "1", "2")
        async with run_router(tmp_path / "two", platform={"enabled": True, **platform}) as other:
            seen = (await other.client.get(f"{JOBS}/{jobs.ids['1']}")).json
            assert (seen["job"]["status"], seen["waiting"]["kind"]) == ("QUEUED", "ROUTER")
            assert (await other.client.get(f"{JOBS}?status=IN_PROGRESS")).json["items"] == []
            assert (await jobs.listed("status=IN_PROGRESS"), await jobs.status("1")) == (["1"], "IN_PROGRESS")
            await goes_on(jobs, "1")
            await jobs.until("1", "COMPLETED")
            assert (await other.client.get(f"{JOBS}/{jobs.ids['1']}")).json["job"]["status"] == "COMPLETED"
