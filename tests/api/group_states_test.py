"""/monitoring/groups and the overview: a group is known wherever it stands still, and groups of two pools are two."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.control.overview import STORED_EVERY_S, OverviewMaker
from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.inspection import StoredGroup
from flowcatalyst.router.pauses import PauseKind
from tests.api.dispatching import Dispatching, on_sqlite
from tests.api.router_groups_test import act, blocked, listed
from tests.api.running import Running, run_router, until
from tests.support.http_servers import Gate, raw_server

AT_ONCE = RetrySettings(backoff_s=[])  # a failure goes to its queue at once, for 30 s
TWO = [PoolSettings(code=code, concurrency=1) for code in (DEFAULT_POOL, "OTHER")]


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_router(tmp_path, retry=AT_ONCE, pools=TWO) as running:
        yield running


async def blocked_groups(router: Running) -> int:
    return (await OverviewMaker(router.app).make()).blocked_groups


def heads(groups: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["pool"], one["head"]["id"]) for one in groups}


# What a person stopped

POOL = f"/monitoring/pools/{DEFAULT_POOL}/pause", f"pool {DEFAULT_POOL} to be resumed: anonymous paused it"
GROUP = "/monitoring/groups/g/hold", "its group to be released: anonymous holds it"


@pytest.mark.parametrize(("stop", "waits_for"), [POOL, GROUP], ids=["pool", "group"])
async def test_a_group_that_a_person_stopped_has_no_next_attempt_and_says_who_did(
    router: Running, stop: str, waits_for: str
) -> None:
    await blocked(router, "m-1")
    [one] = await listed(router)
    assert one["nextAttemptInMs"] > 0
    await router.client.post(stop)
    [one] = await listed(router)
    assert one["nextAttemptInMs"] is None
    assert one["waitsFor"] == f"Message m-1 was nacked to queue default and waits for {waits_for}."


@pytest.mark.parametrize(("stop", "waits_for"), [POOL, GROUP], ids=["pool", "group"])
async def test_a_group_that_only_its_queue_knows_has_no_next_attempt_either(
    tmp_path: Path, stop: str, waits_for: str
) -> None:
    async with run_router(tmp_path, retry=AT_ONCE, pools=TWO) as before:
        await blocked(before, "m-1")
        await before.client.post(stop)
    async with run_router(tmp_path, retry=AT_ONCE, pools=TWO) as after:
        found = (await after.client.get("/monitoring/groups/g")).json
        assert found["nextAttemptInMs"] is None
        assert found["waitsFor"].startswith("Its first message, m-1, failed 1 time and is due again in ")
        assert found["waitsFor"].endswith(f"; it also waits for {waits_for}.")
        refused = (await act(after, "g", "retry-head")).json
        assert (refused["done"], refused["text"]) == (False, f"message m-1 waits for {waits_for}")


# Two pools


async def test_attempts_of_one_group_in_two_pools_are_those_of_two_groups(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as server:
        message = {"mediationTarget": server.url(), "messageGroupId": "g"}
        await router.client.post("/api/messages", {"id": "m-1", **message})
        await router.client.post("/api/messages?queue=low", {"id": "m-2", **message, "poolCode": "OTHER"})
        await server.until(lambda server: len(server.requests) == 2)
        assert heads(await listed(router)) == {(DEFAULT_POOL, "m-1"), ("OTHER", "m-2")}
        head = router.app.engine.acts.head
        assert [found.broker_id for code in (DEFAULT_POOL, "OTHER") if (found := head("g", code))] == [
            one.broker_id for name in ("m-1", "m-2") if (one := router.app.tracker.get(name))
        ]
        gate.opened.set()


async def test_one_group_that_failed_in_two_pools_is_blocked_twice(router: Running) -> None:
    await blocked(router, "m-1")
    message = {"mediationTarget": router.receiver("server-error"), "messageGroupId": "g", "poolCode": "OTHER"}
    await router.client.post("/api/messages?queue=low", {"id": "m-2", **message})

    async def both_failed() -> bool:
        return len(router.app.engine.failed.by_message) == 2

    await until(both_failed)
    assert heads(await listed(router, "?blocked=true")) == {(DEFAULT_POOL, "m-1"), ("OTHER", "m-2")}
    assert heads(await listed(router, "?blocked=true&pool=OTHER")) == {("OTHER", "m-2")}
    assert await blocked_groups(router) == 2


# Counted


async def test_groups_that_failed_before_the_router_started_are_counted_as_blocked(tmp_path: Path) -> None:
    async with run_router(tmp_path, retry=AT_ONCE) as before:
        await blocked(before, "m-1", "m-2")
        await blocked(before, "m-3", group="h")
    async with run_router(tmp_path, retry=AT_ONCE) as after:
        assert await blocked_groups(after) == 2
        await act(after, "other", "hold")
        assert await blocked_groups(after) == 3 == len(await listed(after, "?blocked=true"))


async def test_a_group_that_the_router_and_its_queue_know_is_counted_once(router: Running) -> None:
    await blocked(router, "m-1")
    assert await blocked_groups(router) == 1


async def test_queues_are_asked_for_blocked_groups_every_five_seconds_at_most(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    delayed_groups, maker, now = EmbeddedQueue.delayed_groups, OverviewMaker(router.app), router.app.clock.monotonic()

    async def counted(self: EmbeddedQueue, most: int) -> list[StoredGroup]:
        nonlocal asked
        asked += self.name == "default"
        return await delayed_groups(self, most)

    async def asked_until(seconds: float) -> int:
        monkeypatch.setattr(router.app.clock, "monotonic", lambda: now + seconds)
        await maker.make()
        return asked

    monkeypatch.setattr(EmbeddedQueue, "delayed_groups", counted)
    times = [0.0, 1.0, STORED_EVERY_S - 0.1, STORED_EVERY_S + 0.1, STORED_EVERY_S + 1.0, 2 * STORED_EVERY_S + 0.2]
    assert [await asked_until(seconds) for seconds in times] == [1, 1, 1, 2, 2, 3]


# Dispatch jobs


@on_sqlite
async def test_a_held_group_of_messages_holds_no_jobs_of_a_group_that_is_called_so(jobs: Dispatching) -> None:
    router = jobs.running
    answered = jobs.endpoint.hangs("a")
    await router.client.post("/monitoring/groups/g/hold")
    await jobs.create("a", messageGroup="g", mode="BLOCK_ON_ERROR")

    async def is_in_flight() -> bool:
        return jobs.endpoint.started == ["a"]

    await until(is_in_flight)
    [one] = await listed(router)
    assert (one["state"], one["heldBy"]) == ("IN_FLIGHT", None)
    answered.set()
    await jobs.until("a", "COMPLETED")
    assert router.app.engine.pauses.groups.keys() == {"g"}
    await router.app.engine.acts.resume(PauseKind.GROUP, "g")
