"""/monitoring/explain: what a person stopped waits for that person, wherever it is, and is told what lets it go on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.core.message import DEFAULT_POOL
from tests.api.explain_test import actions, explain, explained
from tests.api.router_groups_test import blocked
from tests.api.running import Running, run_router
from tests.support.http_servers import Gate, raw_server

BY_A_PERSON = "When a person lets it go on."


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    """A failure goes to its queue at once, for 30 s."""
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as running:
        yield running


class Stopped(NamedTuple):
    """By a person, and what is said of it then."""

    request: str
    state: str
    cause: str
    waits_for: str
    end: str


def stops(router: Running) -> dict[str, Stopped]:
    url = router.receiver("server-error")
    return {
        "pool": Stopped(
            f"/monitoring/pools/{DEFAULT_POOL}/pause",
            "PAUSED",
            "POOL_PAUSED",
            f"pool {DEFAULT_POOL} to be resumed: anonymous paused it",
            "resume",
        ),
        "endpoint": Stopped(
            f"/monitoring/endpoints/pause?endpoint={quote(url, safe='')}",
            "PAUSED",
            "ENDPOINT_PAUSED",
            f"{url} to be resumed: anonymous paused it",
            "resume",
        ),
        "group": Stopped(
            "/monitoring/groups/g/hold", "HELD", "GROUP_HELD", "its group to be released: anonymous holds it", "release"
        ),
    }


def assert_nothing_is_foretold(found: dict[str, Any]) -> None:
    assert (found["nextAttemptInMs"], found["estimateInMs"], found["estimateText"]) == (None, None, BY_A_PERSON)


async def stop(router: Running, kind: str) -> Stopped:
    stopped = stops(router)[kind]
    assert (await router.client.post(stopped.request)).status == 200
    return stopped


KINDS = pytest.mark.parametrize("kind", ["pool", "endpoint", "group"])


@KINDS
async def test_a_failed_message_in_its_queue_waits_for_who_stopped_it(router: Running, kind: str) -> None:
    await blocked(router, "m-1")
    stopped = await stop(router, kind)
    found = await explain(router, "m-1")
    assert (found["state"], found["cause"]) == (stopped.state, stopped.cause)
    assert found["summary"].startswith("Message m-1 failed 1 time, waits in queue default and is due again in ")
    assert found["chain"][0].endswith("got: HTTP 500.")
    assert found["chain"][1:] == [f"It also waits for {stopped.waits_for}."]
    assert_nothing_is_foretold(found)
    assert actions(found) == [stopped.end, "skip"]
    refused = (await router.client.post("/monitoring/messages/m-1/retry")).json
    assert (refused["done"], refused["text"]) == (False, f"message m-1 waits for {stopped.waits_for}")
    assert (await router.client.post(found["actions"][0]["path"])).status == 200
    found = await explained(router, "m-1", "IN_QUEUE", "NACKED")
    assert actions(found) == ["retry", "skip"]


@KINDS
async def test_a_message_that_was_never_received_waits_for_who_stopped_it_too(router: Running, kind: str) -> None:
    await blocked(router, "m-1")
    await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="g")
    stopped = await stop(router, kind)  # of the endpoints only that of the first
    found = await explain(router, "m-2")
    assert (found["state"], found["cause"]) == (stopped.state, stopped.cause)
    assert found["summary"] == "Message m-2 waits in queue default."
    assert found["chain"][0] == "1 message of its group g is before it; the first is message m-1."
    assert found["chain"][-1] == f"It also waits for {stopped.waits_for}."
    assert_nothing_is_foretold(found)
    assert actions(found) == [stopped.end, "skip-head", "skip"]


async def test_a_message_in_its_queue_for_a_pool_that_there_is_not_waits_for_the_default_pool(router: Running) -> None:
    stopped = await stop(router, "pool")
    await router.send(id="m-1", mediationTarget=router.receiver("fast"), poolCode="NOPE")
    found = await explained(router, "m-1", "PAUSED", "POOL_PAUSED")
    assert found["chain"][-1] == f"It also waits for {stopped.waits_for}."
    assert found["actions"][0]["path"] == f"/monitoring/pools/{DEFAULT_POOL}/resume"


@KINDS
async def test_a_message_behind_one_that_is_back_in_its_queue_waits_for_who_stopped_that(
    router: Running, kind: str
) -> None:
    await blocked(router, "m-1")
    message = {"id": "m-2", "mediationTarget": router.receiver("fast"), "messageGroupId": "g"}
    await router.client.post("/api/messages?queue=low", message)
    await explained(router, "m-2", "WAITING", "AWAY_HEAD")
    stopped = await stop(router, kind)
    found = await explain(router, "m-2")
    assert (found["state"], found["cause"]) == (stopped.state, stopped.cause)
    assert found["chain"][0].startswith("Message m-1, the first of group g, failed 1 time, waits in queue default ")
    assert found["chain"][1] == f"It also waits for {stopped.waits_for}."
    assert (found["head"]["id"], found["head"]["where"]) == ("m-1", "IN_QUEUE")
    assert_nothing_is_foretold(found)
    assert actions(found) == [stopped.end, "skip"]


@KINDS
async def test_a_message_on_hold_in_the_router_waits_for_who_stopped_it(tmp_path: Path, kind: str) -> None:
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[30.0])) as router:
        await router.send(id="m-1", mediationTarget=router.receiver("server-error"), messageGroupId="g")
        await explained(router, "m-1", "ON_HOLD", "RETRY")
        stopped = await stop(router, kind)
        found = await explain(router, "m-1")
        assert (found["state"], found["cause"]) == (stopped.state, stopped.cause)
        assert_nothing_is_foretold(found)
        assert actions(found) == [stopped.end, "skip"]
        assert not (await router.client.post("/monitoring/messages/m-1/retry")).json["done"]
        assert (await router.client.post(found["actions"][0]["path"])).status == 200
        await explained(router, "m-1", "ON_HOLD", "RETRY")


@KINDS
async def test_a_blocked_group_that_is_stopped_too_says_so_and_how_to_let_it_go_on(router: Running, kind: str) -> None:
    await blocked(router, "m-1", "m-2")
    found = await explain(router, "g")
    assert found["chain"][-1] == "1 of its messages waits behind it."
    assert actions(found) == ["retry-head", "skip-head", "hold"]
    stopped = await stop(router, kind)
    found = await explain(router, "g")
    assert found["state"] == ("HELD" if kind == "group" else "BLOCKED")
    assert found["chain"][0] == f"Message m-1 was nacked to queue default and waits for {stopped.waits_for}."
    assert_nothing_is_foretold(found)
    assert actions(found) == [stopped.end, "skip-head", *([] if kind == "group" else ["hold"])]


async def test_a_skip_that_waits_for_its_message_to_come_again_is_told(router: Running) -> None:
    await blocked(router, "m-1")
    await stop(router, "pool")
    done = (await router.client.post("/monitoring/messages/m-1/skip")).json
    assert done["text"] == f"message m-1 becomes a dead letter when pool {DEFAULT_POOL} is resumed"
    found = await explain(router, "m-1")
    said = "It becomes a dead letter when its turn comes: skipped by anonymous; last: HTTP 500."
    assert found["chain"][-1] == said
    await router.client.post(f"/monitoring/pools/{DEFAULT_POOL}/resume")
    [letter] = await router.until_dead(1)
    assert letter["messageId"] == "m-1"


async def test_what_waits_for_permits_goes_out_at_the_pace_of_the_rate_limit(tmp_path: Path) -> None:
    pools = [PoolSettings(code=DEFAULT_POOL, concurrency=4, rate_limit_per_minute=2)]
    async with run_router(tmp_path, pools=pools) as router:
        for number in range(6):
            await router.send(id=f"m-{number}", mediationTarget=router.receiver("fast"), messageGroupId=f"g{number}")
        await explained(router, "m-0", "DELIVERED", "DELIVERED")
        await explained(router, "m-1", "DELIVERED", "DELIVERED")
        for number in range(2, 6):
            found = await explained(router, f"m-{number}", "WAITING", "RATE_LIMIT")
        assert 0 < found["nextAttemptInMs"] <= 60_000
        after_the_first_ms = found["estimateInMs"] - found["nextAttemptInMs"]  # three more permits of 30 s
        assert after_the_first_ms == pytest.approx(90_000, abs=2)


async def test_what_is_within_the_rate_limit_waits_for_slots_alone(tmp_path: Path) -> None:
    pools = [PoolSettings(code=DEFAULT_POOL, concurrency=1, rate_limit_per_minute=6)]
    gate = Gate()
    async with run_router(tmp_path, pools=pools) as router, raw_server(gate) as server:
        await router.send(id="m-0", mediationTarget=server.url(), messageGroupId="g0")
        await server.until(lambda server: len(server.requests) == 1)
        for number in range(1, 5):
            await router.send(id=f"m-{number}", mediationTarget=router.receiver("fast"), messageGroupId=f"g{number}")
        for number in range(1, 5):
            found = await explained(router, f"m-{number}", "WAITING", "SLOTS")
        assert found["estimateInMs"] < 10_000  # a permit comes every 10 s, but there are some
        gate.opened.set()
