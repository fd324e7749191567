import asyncio
from typing import Any

import pytest

from flowcatalyst.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Depth
from flowcatalyst.queues.embedded import EmbeddedQueue
from flowcatalyst.web.api import queues
from tests.api.running import Running, on_idle_router, until
from tests.support.http_servers import Gate, raw_server


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
        assert low["uri"] == "embedded:low"
        assert low["secondsSincePoll"] < 60
        gate.opened.set()
        await router.until_settled()


@pytest.mark.parametrize(
    ("failure", "words"), [(QueueUnavailableError("the broker is away"), "is away"), (None, "no answer within 0.05 s")]
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
    monkeypatch.setattr(queues, "ANSWER_WITHIN_S", 0.05)
    found = await listed(router, "/monitoring/queue-stats", "name")
    high, low = found["high"], found["low"]
    assert (high["waiting"], high["leased"], high["delayed"]) == (None, None, None)
    assert words in high["trouble"]
    assert (low["waiting"], low["trouble"]) == (0, "")


@on_idle_router
async def test_consumers_of_an_idle_router_are_healthy(idle_router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.last_poll_at is not None for consumer in idle_router.app.consumers.values())

    await until(polled)
    found = await listed(idle_router, "/monitoring/consumer-health", "queue")
    assert list(found) == ["default", "high", "medium", "low"]
    for consumer in found.values():
        assert consumer.pop("secondsSincePoll") < 60
        assert consumer == {"healthy": True, "waitsForRoom": False, "keptMessages": 0, "restarts": 0, "trouble": ""}


async def test_a_consumer_whose_polls_fail_says_why(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def receive(self: EmbeddedQueue, limit: int, wait_s: float) -> list[Any]:
        raise QueueUnavailableError("the broker is away")

    monkeypatch.setattr(EmbeddedQueue, "receive", receive)

    async def low_says_so() -> bool:
        low = (await listed(router, "/monitoring/consumer-health", "queue"))["low"]
        return bool(low["trouble"] == "the broker is away" and not low["healthy"])

    await until(low_says_so)


async def test_a_consumer_that_was_restarted_says_how_often(router: Running) -> None:
    router.app.engine.restart_consumer("low")
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
