"""/monitoring/explain: the right cause in each situation that a message, job, event, group or pool can be in."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from tests.api.dispatching import Dispatching, on_sqlite
from tests.api.running import Running, run_router, until
from tests.api.subscribing import Subscribing
from tests.support.http_servers import Gate, RawServer, always, raw_server, reply

SMALL = [PoolSettings(code="DEFAULT-POOL", concurrency=4), PoolSettings(code="SMALL", concurrency=1)]


async def explain(router: Running, name: str, query: str = "") -> dict[str, Any]:
    answer = await router.client.get(f"/monitoring/explain/{quote(name, safe='')}{query}")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


async def explained(router: Running, name: str, state: str, cause: str) -> dict[str, Any]:
    """The explanation, once it says this."""
    found: dict[str, Any] = {}

    async def says_so() -> bool:
        nonlocal found
        found = await explain(router, name)
        return (found["state"], found["cause"]) == (state, cause)

    try:
        await until(says_so)
    except TimeoutError:
        pytest.fail(f"it says {found['state']} {found['cause']}: {found['summary']} {found['chain']}")
    return found


def actions(found: dict[str, Any]) -> list[str]:
    return [one["what"] for one in found["actions"]]


def again(found: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether it is safe to send it again."""
    return found["safeToSendAgain"], found["sendAgainText"]


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path, pools=SMALL) as running:
        yield running


@asynccontextmanager
async def hanging(router: Running, *names: str, **more: Any) -> AsyncIterator[RawServer]:
    """Messages of a group, the attempt of the first is under way."""
    gate = Gate()
    async with raw_server(gate) as server:
        message = {"mediationTarget": server.url("/hook"), "messageGroupId": "g"} | more
        await router.client.post("/api/messages", [{"id": name, **message} for name in names or ("m-1",)])
        await server.until(lambda server: len(server.requests) == 1)
        yield server
        gate.opened.set()


async def test_an_attempt_under_way(router: Running) -> None:
    async with hanging(router):
        found = await explained(router, "m-1", "IN_FLIGHT", "ANSWER")
        assert found["summary"].startswith("Attempt 1 of message m-1 has been under way for ")
        assert (found["pool"], found["group"], found["queue"]) == ("DEFAULT-POOL", "g", "default")
        assert again(found) == (False, "No: it is not lost, and is tried without that.")


async def test_behind_a_slow_head(router: Running) -> None:
    async with hanging(router, "m-1", "m-2"):
        found = await explained(router, "m-2", "WAITING", "SLOW_HEAD")
        assert found["head"]["id"] == "m-1"
        assert found["chain"] == ["Message m-1, the first of group g, waits for the answer to attempt 1."]
        assert actions(found) == ["skip-head", "skip"]


async def test_behind_a_failing_head_with_its_last_answer(router: Running) -> None:
    message = {"mediationTarget": router.receiver("server-error"), "messageGroupId": "g"}
    await router.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])
    await explained(router, "m-1", "ON_HOLD", "RETRY")
    found = await explained(router, "m-2", "WAITING", "BEHIND_HEAD")
    assert (found["head"]["id"], found["lastAnswer"]["status"]) == ("m-1", 500)
    assert found["chain"][0] == "Message m-1, the first of group g, waits for its next attempt, after 1 failed attempt."
    assert found["chain"][1].endswith("got: HTTP 500.")
    assert actions(found)[:2] == ["retry-head", "skip-head"]


async def test_on_hold_until_its_retry(router: Running) -> None:
    await router.send(id="m-1", mediationTarget=router.receiver("server-error"))
    found = await explained(router, "m-1", "ON_HOLD", "RETRY")
    assert 0 < found["nextAttemptInMs"] <= 2000
    assert found["facts"]["failures"] >= 1
    assert actions(found) == ["retry", "skip"]


async def test_on_hold_after_429_in_its_queue_with_the_time_it_asked_for(router: Running) -> None:
    async with raw_server(always(reply(429, b"", "Retry-After: 600"))) as server:
        await router.send(id="m-1", mediationTarget=server.url())
        found = await explained(router, "m-1", "IN_QUEUE", "NACKED")
        assert 590_000 < found["nextAttemptInMs"] <= 600_000
        assert (
            found["summary"] == "Message m-1 was told to wait, waits in queue default and is due again in 10 minutes."
        )


async def test_in_its_queue_after_it_failed_and_was_nacked(tmp_path: Path) -> None:
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as router:
        for name in ("m-1", "m-2"):
            await router.send(id=name, mediationTarget=router.receiver("server-error"), messageGroupId="g")
        found = await explained(router, "m-1", "IN_QUEUE", "NACKED")
        assert found["summary"].startswith("Message m-1 failed 1 time, waits in queue default and is due again in ")
        assert found["lastAnswer"]["detail"] == "HTTP 500"
        assert actions(found) == ["retry", "skip"]


async def test_in_its_queue_behind_a_nacked_head_although_the_router_never_had_it(tmp_path: Path) -> None:
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as router:
        await router.send(id="m-1", mediationTarget=router.receiver("server-error"), messageGroupId="g")
        await explained(router, "m-1", "IN_QUEUE", "NACKED")
        await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="g")
        found = await explained(router, "m-2", "IN_QUEUE", "BEHIND_HEAD")
        assert found["chain"][0] == "1 message of its group g is before it; the first is message m-1."
        assert found["chain"][1].startswith("The first failed 1 time and is due again in ")
        assert found["chain"][2].endswith("got: HTTP 500.")
        assert found["head"]["id"] == "m-1"
        assert actions(found) == ["retry-head", "skip-head", "skip"]


async def test_a_rate_limit(tmp_path: Path) -> None:
    pools = [PoolSettings(code="DEFAULT-POOL", concurrency=4, rate_limit_per_minute=1)]
    async with run_router(tmp_path, pools=pools) as router:
        for number in range(2):
            await router.send(id=f"m-{number}", mediationTarget=router.receiver("fast"), messageGroupId=f"g{number}")
        found = await explained(router, "m-1", "WAITING", "RATE_LIMIT")
        assert 0 < found["nextAttemptInMs"] <= 60_000
        assert found["estimateInMs"] >= found["nextAttemptInMs"]
        pool = await explained(router, "DEFAULT-POOL", "WAITING", "RATE_LIMIT")
        assert pool["summary"] == "Pool DEFAULT-POOL waits for its rate limit."


async def test_all_slots_busy(router: Running) -> None:
    async with hanging(router, poolCode="SMALL"):
        await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="other", poolCode="SMALL")
        found = await explained(router, "m-2", "WAITING", "SLOTS")
        assert found["chain"] == ["Pool SMALL has 1 of 1 slots busy."]
        pool = await explained(router, "SMALL", "WAITING", "SLOTS")
        assert pool["kind"] == "POOL"


async def test_an_endpoint_that_has_its_share(tmp_path: Path) -> None:
    async with run_router(tmp_path) as router, hanging(router, poolCode="POOL-LOW") as server:
        await router.send(id="m-2", mediationTarget=server.url("/hook"), messageGroupId="o", poolCode="POOL-LOW")
        found = await explained(router, "m-2", "WAITING", "ENDPOINT_SHARE")
        assert "which has its share: 1 of 2" in found["summary"]


async def test_an_open_breaker(router: Running) -> None:
    for number in range(30):
        await router.send(id=f"m-{number}", mediationTarget="http://127.0.0.1:1/", messageGroupId=f"g{number}")
    found: dict[str, Any] = {}

    async def one_waits() -> bool:
        nonlocal found
        for number in range(30):
            found = await explain(router, f"m-{number}")
            if found["cause"] == "BREAKER":
                return True
        return False

    await until(one_waits)
    assert found["summary"].endswith("waits for its endpoint, whose circuit breaker is open.")
    assert actions(found) == ["reset", "skip"]


async def test_a_paused_pool_that_holds_it(router: Running) -> None:
    async with hanging(router, poolCode="SMALL"):
        await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="o", poolCode="SMALL")
        await explained(router, "m-2", "WAITING", "SLOTS")
        await router.client.post("/monitoring/pools/SMALL/pause")
        found = await explained(router, "m-2", "PAUSED", "POOL_PAUSED")
        assert found["summary"] == "Message m-2 waits for its pool to be resumed: anonymous paused it."
        assert actions(found)[0] == "resume"
        await router.client.post("/monitoring/pools/SMALL/resume")


async def test_a_paused_pool_that_did_not_receive_it(router: Running) -> None:
    await router.client.post("/monitoring/pools/SMALL/pause")
    await router.send(id="m-1", mediationTarget=router.receiver("fast"), poolCode="SMALL")
    found = await explained(router, "m-1", "PAUSED", "POOL_PAUSED")
    assert found["chain"][-1] == "It also waits for pool SMALL to be resumed: anonymous paused it."
    pool = await explain(router, "SMALL")
    assert (pool["state"], pool["summary"]) == ("PAUSED", "Pool SMALL is paused by anonymous.")


async def test_a_paused_endpoint(router: Running) -> None:
    url = router.receiver("fast")
    await router.client.post(f"/monitoring/endpoints/pause?endpoint={quote(url)}")
    await router.send(id="m-1", mediationTarget=url)
    found = await explained(router, "m-1", "PAUSED", "ENDPOINT_PAUSED")
    assert actions(found) == ["resume", "skip"]
    resumed = await router.client.post(found["actions"][0]["path"])
    assert resumed.status == 200
    await explained(router, "m-1", "DELIVERED", "DELIVERED")


async def test_a_held_group(router: Running) -> None:
    await router.client.post("/monitoring/groups/g/hold")
    await router.send(id="m-1", mediationTarget=router.receiver("fast"), messageGroupId="g")
    found = await explained(router, "m-1", "HELD", "GROUP_HELD")
    assert found["summary"] == "Message m-1 waits for its group to be released: anonymous holds it."
    assert (await explain(router, "g"))["state"] == "HELD"
    await router.client.post(found["actions"][0]["path"])
    await explained(router, "m-1", "DELIVERED", "DELIVERED")


async def test_a_message_and_a_group_of_one_name_are_both_told_of(router: Running) -> None:
    await router.client.post("/monitoring/groups/m-1/hold")
    await router.send(id="m-1", mediationTarget=router.receiver("fast"), messageGroupId="g")
    found = await explained(router, "m-1", "DELIVERED", "DELIVERED")
    assert "There is a group m-1 too, which this is not about: ask for the kind group." in found["chain"]


async def test_parked_beyond_the_capacity_of_its_pool(tmp_path: Path) -> None:
    pools = [PoolSettings(code="DEFAULT-POOL", concurrency=2)]  # one slot is kept for other endpoints
    async with run_router(tmp_path, pools=pools) as router, raw_server(Gate()) as server:
        body = [{"id": f"m-{n}", "mediationTarget": server.url(), "messageGroupId": f"g{n}"} for n in range(400)]
        await router.client.post("/api/messages", body)
        pool = router.app.router.pools["DEFAULT-POOL"]

        async def is_parked() -> bool:
            return pool.parked > 0

        await until(is_parked)
        latest = max(router.app.tracker, key=lambda one: one.arrived_at)
        found = await explained(router, latest.pointer.id, "PARKED", "ENDPOINT_SHARE")
        assert found["chain"][-1].startswith("It is parked: pool DEFAULT-POOL holds more than its capacity of ")


async def test_not_received_yet_because_its_pool_has_no_capacity(router: Running) -> None:
    async with hanging(router, poolCode="SMALL") as server:
        body = [
            {"id": f"m{n}", "mediationTarget": server.url("/hook"), "messageGroupId": f"g{n}", "poolCode": "SMALL"}
            for n in range(900)
        ]
        await router.client.post("/api/messages", body)
        found = await explained(router, "m899", "IN_QUEUE", "CAPACITY")
        assert found["chain"][0].startswith("Pool SMALL has no free capacity: it holds ")
        assert found["looked"][-1].startswith("queue default, the first ")


async def test_a_copy_that_was_dropped(router: Running) -> None:
    async with hanging(router) as server:
        # Its group is locked while the first one is in flight, so the copy has to come past it.
        copy = MessagePointer("m-1", server.url("/hook"), message_group_id="g")
        await router.app.queues["default"].publish([Outgoing(encode_pointer(copy).decode())])

        async def is_dropped() -> bool:
            return bool((await explain(router, "m-1"))["facts"]["copiesDropped"] == 1)

        await until(is_dropped)
        assert (await explain(router, "m-1"))["chain"] == ["1 copy of it came meanwhile and was dropped."]


async def test_a_dead_letter(router: Running) -> None:
    await router.send(id="m-1", mediationTarget=router.receiver("client-error"), messageGroupId="g")
    found = await explained(router, "m-1", "DEAD_LETTER", "DEAD_LETTER")
    assert found["summary"] == "Message m-1 is dead letter 1: HTTP 400."
    assert actions(found) == ["replay"]
    assert again(found) == (False, "No: replay its dead letter instead.")


async def test_delivered_lately(router: Running) -> None:
    await router.send(id="m-1", mediationTarget=router.receiver("fast"))
    found = await explained(router, "m-1", "DELIVERED", "DELIVERED")
    assert found["summary"].startswith("Message m-1 was delivered ")
    assert again(found) == (False, "No, unless you want it twice: it was delivered.")


async def test_never_seen_with_where_was_looked(router: Running) -> None:
    found = await explain(router, "nope")
    assert (found["kind"], found["state"], found["safeToSendAgain"]) == ("UNKNOWN", "NEVER_SEEN", True)
    assert found["sendAgainText"] == (
        "Yes, unless it was delivered before this router was started, or 50,000 deliveries ago: none older is known."
    )
    assert again(await explain(router, "nope", "?kind=POOL")) == (None, "")
    assert found["looked"][:2] == ["messages that this router has", "messages that failed here"]
    assert any(place.startswith("queue default") for place in found["looked"])
    known = "A group is known as long as a message of it waits, or somebody holds it."
    assert found["summary"].endswith(f"longer ago than is remembered. {known}")
    assert (await explain(router, "nope", "?kind=GROUP"))["summary"].endswith(known)
    assert known not in (await explain(router, "nope", "?kind=MESSAGE"))["summary"]


async def test_a_router_that_may_start_nothing(router: Running) -> None:
    router.app.fence.until = 0.0  # as if its lock was in doubt
    await router.send(id="m-1", mediationTarget=router.receiver("fast"))
    found = await explained(router, "m-1", "STANDBY", "FENCE")
    assert found["summary"] == "Message m-1 waits for this router to be sure that it is the primary."
    router.app.fence.until = math.inf


async def test_a_standby(tmp_path: Path) -> None:
    async with run_router(tmp_path) as router:
        await router.client.post("/monitoring/pools/DEFAULT-POOL/pause")
        await router.send(id="m-1", mediationTarget=router.receiver("fast"))
        router.app.at_work = False
        try:
            found = await explain(router, "m-1", "?kind=MESSAGE")
            assert (found["state"], found["cause"]) == ("STANDBY", "STANDBY")
            unknown = await explain(router, "nope")
            assert "ask the primary one" in unknown["summary"]
            assert again(unknown) == (None, "That cannot be told here: ask the primary router.")
        finally:
            router.app.at_work = True


async def test_a_skip_that_waits_for_its_turn(router: Running) -> None:
    async with hanging(router, "m-1", "m-2"):
        await explained(router, "m-2", "WAITING", "SLOW_HEAD")
        await router.client.post("/monitoring/messages/m-2/skip")
        found = await explain(router, "m-2")
        assert found["chain"][-1] == "It becomes a dead letter instead of being tried: skipped by anonymous."
        assert again(found) == (False, "No: it becomes a dead letter, which can be replayed.")


async def test_a_group_and_an_idle_pool(router: Running) -> None:
    await router.send(id="m-1", mediationTarget=router.receiver("server-error"), messageGroupId="orders:1")
    found = await explained(router, "orders:1", "BLOCKED", "BLOCKED")
    assert (found["kind"], found["head"]["id"], found["lastAnswer"]["status"]) == ("GROUP", "m-1", 500)
    assert actions(found) == ["retry-head", "skip-head", "hold"]
    assert (await explain(router, "SMALL"))["state"] == "IDLE"
    assert (await explain(router, "m-1", "?kind=POOL"))["state"] == "NEVER_SEEN"


async def test_behind_a_held_head_it_is_the_hold_that_counts(router: Running) -> None:
    await router.client.post("/monitoring/groups/g/hold")
    message = {"mediationTarget": router.receiver("fast"), "messageGroupId": "g"}
    await router.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])
    found = await explained(router, "m-2", "HELD", "GROUP_HELD")
    assert found["estimateText"] == "When a person lets it go on."
    assert actions(found)[0] == "release"
    assert found["estimateInMs"] is None


async def test_behind_an_attempt_that_hangs_nothing_is_foretold(router: Running) -> None:
    async with hanging(router, "m-1", "m-2"):
        found = await explained(router, "m-2", "WAITING", "SLOW_HEAD")
        assert (found["estimateInMs"], found["estimateText"]) == (None, "It cannot be told when it goes out.")


# Jobs and events

Situation = Callable[[Dispatching], Awaitable[str]]


@on_sqlite
async def test_a_job_that_is_scheduled(jobs: Dispatching) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    job = await jobs.create("a", scheduledFor=later)
    found = await explained(jobs.running, job, "SCHEDULED", "TIME")
    assert (found["kind"], found["pool"]) == ("JOB", "DEFAULT-POOL")
    assert found["nextAttemptInMs"] > 3_000_000


@on_sqlite
async def test_a_job_that_expired(jobs: Dispatching) -> None:
    await jobs.client.post("/api/message-groups/g/hold")
    soon = datetime.now(UTC) + timedelta(seconds=5)
    job = await jobs.create("a", messageGroup="g", mode="BLOCK_ON_ERROR", expiresAt=soon.isoformat())

    async def is_over() -> bool:
        assert jobs.running.app.jobs is not None
        await jobs.running.app.jobs.expire(10)
        return bool((await explain(jobs.running, job))["state"] == "EXPIRED")

    await until(is_over)
    assert "expired before it could be delivered" in (await explain(jobs.running, job))["summary"]


@on_sqlite
async def test_a_job_behind_one_that_failed_and_what_gets_it_moving(jobs: Dispatching) -> None:
    await jobs.blocked("a", "b")
    found = await explained(jobs.running, jobs.ids["b"], "WAITING", "JOB")
    assert jobs.ids["a"] in found["summary"]
    cancel = next(one for one in found["actions"] if one["what"] == "cancel")
    assert (await jobs.client.post(cancel["path"])).status == 200
    await explained(jobs.running, jobs.ids["b"], "COMPLETED", "COMPLETED")


@on_sqlite
async def test_a_job_that_waits_for_a_person(jobs: Dispatching) -> None:
    await jobs.blocked("a")
    found = await explained(jobs.running, jobs.ids["a"], "ERROR", "PERSON")
    assert actions(found) == ["retry", "cancel"]


@on_sqlite
async def test_a_job_whose_attempt_is_under_way(jobs: Dispatching) -> None:
    answered = jobs.endpoint.hangs("a")
    job = await jobs.create("a")
    found = await explained(jobs.running, job, "IN_FLIGHT", "ANSWER")
    assert found["summary"] == "It waits for the answer to attempt 1."
    answered.set()
    await explained(jobs.running, job, "COMPLETED", "COMPLETED")


@on_sqlite
async def test_an_event_and_what_became_of_its_jobs(shop: Subscribing) -> None:
    router = shop.running
    unwanted = (await router.client.post("/api/events", {"type": "nobody.wants", "source": "shop"})).json["id"]
    found = await explain(router, unwanted)
    assert (found["kind"], found["state"]) == ("EVENT", "COMPLETED")
    assert found["summary"] == f"Event {unwanted} was accepted, and no subscription wanted it."


async def test_explaining_does_not_wait_for_a_writer_that_is_busy(router: Running) -> None:
    await router.send(id="m-1", mediationTarget=router.receiver("fast"), poolCode="SMALL")
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold_up(connection: object) -> None:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result()

    busy = router.app.store.writer.submit(hold_up)
    try:
        assert (await explain(router, "nope"))["state"] == "NEVER_SEEN"
    finally:
        released.set()
        await busy


@on_sqlite
async def test_a_blocked_group_of_jobs_is_explained_too(jobs: Dispatching) -> None:
    await jobs.blocked("a", "b", group="down:g1")
    found = await explained(jobs.running, "down:g1", "BLOCKED", "BLOCKED")
    assert found["summary"] == "Group down:g1 of dispatch jobs is blocked; it has 2 unfinished jobs."
    assert found["lastAnswer"]["status"] == 500
    assert actions(found) == ["retry-head", "skip-head"]
    skip = found["actions"][1]
    assert (await jobs.client.post(skip["path"])).status == 200
    await explained(jobs.running, jobs.ids["b"], "COMPLETED", "COMPLETED")
