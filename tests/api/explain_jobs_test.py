"""/monitoring/explain of dispatch jobs and events: what keeps a job in a router or from it, and what ends that."""

from typing import Any
from urllib.parse import quote

from tests.api.breakers_test import open_breaker
from tests.api.dispatching import Dispatching, on_sqlite
from tests.api.explain_test import actions, explain, explained
from tests.api.running import until
from tests.api.subscribing import Subscribing


async def follow(jobs: Dispatching, found: dict[str, Any], what: str) -> None:
    [act] = [one for one in found["actions"] if one["what"] == what]
    answer = await jobs.client.request(act["method"], act["path"])
    assert answer.status in (200, 201), answer.text


@on_sqlite
async def test_a_job_of_a_paused_pool_says_so_and_is_delivered_once_that_is_resumed(jobs: Dispatching) -> None:
    await jobs.client.post("/monitoring/pools/DEFAULT-POOL/pause")
    job = await jobs.create("a")
    found = await explained(jobs.running, job, "PAUSED", "POOL_PAUSED")
    assert found["chain"] == ["It waits for pool DEFAULT-POOL to be resumed: anonymous paused it."]
    assert found["estimateText"] == "When a person lets it go on."
    assert actions(found) == ["resume", "cancel"]
    await follow(jobs, found, "resume")
    await explained(jobs.running, job, "COMPLETED", "COMPLETED")


@on_sqlite
async def test_a_job_for_a_paused_endpoint_says_so_and_is_delivered_once_that_is_resumed(jobs: Dispatching) -> None:
    url = jobs.server.url("/hook")
    await jobs.client.post(f"/monitoring/endpoints/pause?endpoint={quote(url)}")
    job = await jobs.create("a")
    found = await explained(jobs.running, job, "PAUSED", "ENDPOINT_PAUSED")
    assert actions(found) == ["resume", "cancel"]
    await follow(jobs, found, "resume")
    await explained(jobs.running, job, "COMPLETED", "COMPLETED")


@on_sqlite
async def test_a_job_whose_endpoint_has_an_open_breaker_says_so_and_what_closes_it(jobs: Dispatching) -> None:
    url = jobs.server.url("/hook")
    open_breaker(jobs.running, url)
    job = await jobs.create("a")
    found: dict[str, Any] = {}

    async def says_so() -> bool:
        nonlocal found
        found = await explain(jobs.running, job)
        return bool(found["cause"] == "BREAKER")

    await until(says_so)
    assert "reset" in actions(found), found
    await follow(jobs, found, "reset")
    if "retry" in actions(found):  # it is told to wait in its store
        await follow(jobs, found, "retry")
    await explained(jobs.running, job, "COMPLETED", "COMPLETED")


@on_sqlite
async def test_a_job_that_waits_for_a_slot_and_one_that_waits_for_a_permit(jobs: Dispatching) -> None:
    made = await jobs.client.post("/api/dispatch-pools", {"code": "one", "concurrency": 1})
    assert made.status == 201, made.text
    slow = await jobs.client.post("/api/dispatch-pools", {"code": "slow", "concurrency": 2, "rateLimitPerMinute": 1})
    assert slow.status == 201, slow.text
    answered = jobs.endpoint.hangs("a")
    await jobs.create("a", dispatchPoolCode="one")
    await explained(jobs.running, jobs.ids["a"], "IN_FLIGHT", "ANSWER")
    found = await explained(jobs.running, await jobs.create("b", dispatchPoolCode="one"), "WAITING", "SLOTS")
    assert found["summary"] == "This router has it, and it waits for a free slot: 1 of 1 are busy."
    await jobs.client.post("/monitoring/pools/one/pause")
    paused = await explained(jobs.running, jobs.ids["b"], "PAUSED", "POOL_PAUSED")
    await follow(jobs, paused, "resume")
    answered.set()
    await jobs.create("c", dispatchPoolCode="slow")
    await jobs.until("c", "COMPLETED")
    found = await explained(jobs.running, await jobs.create("d", dispatchPoolCode="slow"), "WAITING", "RATE_LIMIT")
    assert "1 attempts per minute are used up" in found["summary"]


@on_sqlite
async def test_a_job_of_a_router_that_stands_by(jobs: Dispatching) -> None:
    await jobs.client.post("/monitoring/pools/DEFAULT-POOL/pause")
    job = await jobs.create("a")
    await explained(jobs.running, job, "PAUSED", "POOL_PAUSED")
    jobs.running.app.at_work = False
    try:
        found = await explain(jobs.running, job)
        assert (found["state"], found["cause"]) == ("STANDBY", "STANDBY")
        assert found["chain"] == ["This router does not work now: it is a standby or disabled."]
    finally:
        jobs.running.app.at_work = True


@on_sqlite
async def test_a_job_of_a_held_group_is_delivered_once_that_is_released(jobs: Dispatching) -> None:
    await jobs.client.post("/api/message-groups/g/hold")
    job = await jobs.create("a", messageGroup="g", mode="BLOCK_ON_ERROR")
    found = await explained(jobs.running, job, "HELD", "RELEASE")
    await follow(jobs, found, "release")
    await explained(jobs.running, job, "COMPLETED", "COMPLETED")


@on_sqlite
async def test_a_job_of_a_paused_subscription_is_delivered_once_that_is_resumed(shop: Subscribing) -> None:
    await shop.subscribe("ship")
    await shop.act("ship", "pause")
    await shop.send("e-1")
    [job] = await shop.unfinished("ship")
    found = await explained(shop.running, job["id"], "PAUSED", "RESUME")
    [resume] = [one for one in found["actions"] if one["what"] == "resume"]
    assert (await shop.client.post(resume["path"])).status == 200
    await explained(shop.running, job["id"], "COMPLETED", "COMPLETED")


@on_sqlite
async def test_an_event_with_a_job_that_failed_and_one_that_was_delivered(shop: Subscribing) -> None:
    await shop.subscribe("ship", maxRetries=0)
    await shop.subscribe("mail", "mail.*")
    await shop.subscribe("bill", maxRetries=0)
    shop.subscriber.fails("e-1", 500)  # whoever comes first
    event = (await shop.send("e-1"))["id"]
    found: dict[str, Any] = {}

    async def one_is_left() -> bool:
        nonlocal found
        found = await explain(shop.running, event)
        return "1 ERROR" in found["summary"] and "1 COMPLETED" in found["summary"]

    await until(one_is_left)
    assert (found["kind"], found["state"], found["cause"]) == ("EVENT", "WAITING", "JOBS")
    [why] = found["chain"]
    assert "failed (HTTP 500) and waits for a person" in why
    assert actions(found) == ["retry", "cancel"]
    [retry, _] = found["actions"]
    assert retry["text"].startswith("try it now (job ")
    assert (await shop.client.post(retry["path"])).status == 200
    await explained(shop.running, event, "COMPLETED", "FINISHED")
