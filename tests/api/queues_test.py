import asyncio
from collections import Counter
from typing import Any

import pytest

from flowcatalyst.control import depths
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Depth
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from tests.api.running import Running, on_idle_router, until
from tests.support.clocks import SetClock
from tests.support.http_servers import Gate, raw_server
from tests.support.patience import PATIENCE_S


async def listed(router: Running, path: str, key: str) -> dict[str, dict[str, Any]]:
    return {one.pop(key): one for one in (await router.client.get(path)).json}


async def test_queues_tell_what_they_hold(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        await router.client.post("/api/messages?queue=low", {"mediationTarget": endpoint.url()})
        await endpoint.until(lambda server: len(server.requests) == 1)
        queues = {queue["name"]: queue for queue in (await router.client.get("/monitoring/queue-stats")).json}
        assert list(queues) == ["default", "high", "medium", "low"]
        low = queues["low"]
        assert (low["waiting"], low["leased"], low["delayed"]) == (0, 1, 0)
        assert 0 <= low["oldestMessageMs"] < PATIENCE_S * 1000
        assert queues["high"]["oldestMessageMs"] is None
        assert low["uri"] == "embedded:low"
        assert low["secondsSincePoll"] < 60
        gate.opened.set()
        await router.until_settled()


@pytest.mark.parametrize(
    ("failure", "words"), [(QueueUnavailableError("the broker is away"), "is away"), (None, "no answer within 1 s")]
)
async def test_a_queue_that_cannot_be_asked_hides_no_other(
    router: Running, monkeypatch: pytest.MonkeyPatch, failure: Exception | None, words: str
) -> None:
    depth_of = EmbeddedQueue.depth

    async def depth(self: EmbeddedQueue) -> Depth:
        if self.name != "high":
            return await depth_of(self)
        if failure is None:
            await asyncio.Event().wait()
            raise AssertionError("it hangs for ever")
        raise failure

    monkeypatch.setattr(EmbeddedQueue, "depth", depth)
    monkeypatch.setattr(depths, "ANSWER_WITHIN_S", 1.0)
    found = await listed(router, "/monitoring/queue-stats", "name")
    high, low = found["high"], found["low"]
    assert (high["waiting"], high["leased"], high["delayed"]) == (None, None, None)
    assert words in high["lastError"]
    assert (low["waiting"], low["lastError"]) == (0, "")


async def test_all_who_ask_within_a_second_share_one_reading_of_each_queue(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth_of, asked = EmbeddedQueue.depth, Counter[str]()
    monkeypatch.setattr(router.app.depths, "_clock", clock := SetClock())

    async def depth(self: EmbeddedQueue) -> Depth:
        asked[self.name] += 1
        return await depth_of(self)

    monkeypatch.setattr(EmbeddedQueue, "depth", depth)
    pages = [router.client.get("/monitoring/queue-stats") for _ in range(20)]
    scrapes = [router.client.get("/metrics") for _ in range(5)]
    await asyncio.gather(*pages, *scrapes)
    assert asked == {"default": 1, "high": 1, "medium": 1, "low": 1}
    clock.now += depths.KEEP_S
    await router.client.get("/monitoring/queue-stats")
    assert asked == {"default": 2, "high": 2, "medium": 2, "low": 2}


async def test_queue_that_hangs_is_asked_once_however_many_wait_for_it(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def depth(self: EmbeddedQueue) -> Depth:
        asked.append(self.name)
        await asyncio.Event().wait()
        raise AssertionError("it hangs for ever")

    monkeypatch.setattr(EmbeddedQueue, "depth", depth)
    monkeypatch.setattr(depths, "ANSWER_WITHIN_S", 0.01)
    monkeypatch.setattr(depths, "KEEP_S", 0.0)
    for _ in range(5):
        found = await listed(router, "/monitoring/queue-stats", "name")
        assert "no answer" in found["low"]["lastError"]
    assert sorted(asked) == ["default", "high", "low", "medium"]


@on_idle_router
async def test_consumers_of_an_idle_router_are_healthy(idle_router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.reports.last_poll_at is not None for consumer in idle_router.app.consumers.values())

    await until(polled)
    found = await listed(idle_router, "/monitoring/consumer-health", "queue")
    assert list(found) == ["default", "high", "medium", "low"]
    for consumer in found.values():
        assert consumer.pop("secondsSincePoll") < 60
        assert consumer == {"healthy": True, "waitsForCapacity": False, "restarts": 0, "lastError": ""}


async def test_a_consumer_whose_polls_fail_says_why(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(self: EmbeddedQueue, limit: int, wait_s: float, demand: object = None) -> list[Any]:
        raise QueueUnavailableError("the broker is away")

    monkeypatch.setattr(EmbeddedQueue, "receive", receive)

    async def low_says_so() -> bool:
        low = (await listed(router, "/monitoring/consumer-health", "queue"))["low"]
        return bool(low["lastError"] == "the broker is away" and not low["healthy"])

    await until(low_says_so)


async def test_a_consumer_that_was_restarted_says_how_often(router: Running) -> None:
    await router.app.engine.restart_consumer("low")
    found = await listed(router, "/monitoring/consumer-health", "queue")
    assert (found["low"]["restarts"], found["high"]["restarts"]) == (1, 0)


async def test_a_router_that_is_not_at_work_has_queues_but_no_consumers(router: Running) -> None:
    router.app.at_work = False
    assert (await router.client.get("/monitoring/consumer-health")).json == []
    found = await listed(router, "/monitoring/queue-stats", "name")
    assert {name: queue["secondsSincePoll"] for name, queue in found.items()} == {
        "default": None,
        "high": None,
        "medium": None,
        "low": None,
    }
