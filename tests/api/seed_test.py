from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flowcatalyst.control.settings import EgressSettings
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.queues.settings import EmbeddedSettings, QueueSettings
from tests.api.running import Running, on_idle_router, run_router, until
from tests.support.http_servers import always, raw_server, reply


@pytest.mark.parametrize(("mode", "groups"), [("unique", 300), ("1of8", 8), ("single", 1)])
async def test_seeded_messages_are_all_delivered_in_order(router: Running, mode: str, groups: int) -> None:
    answer = await router.client.post(f"/api/seed/messages?count=300&queue=high&messageGroupMode={mode}")
    assert answer.status == 202
    result = answer.json
    assert UUID(result.pop("run")).version == 7
    assert result == {
        "count": 300,
        "queue": "high",
        "endpoint": "fast",
        "messageGroupMode": mode,
        "published": 300,
    }
    await router.until_settled()
    stats = await router.stats()
    assert (stats["totalRequests"], stats["orderViolations"], stats["duplicates"]) == (300, 0, 0)
    assert stats["groups"] == groups
    assert router.app.router.pools["POOL-HIGH"].stats.delivered == 300


async def test_without_parameters_ten_messages_go_to_fast_over_the_default_queue(router: Running) -> None:
    result = (await router.client.post("/api/seed/messages")).json
    del result["run"]
    assert result == {
        "count": 10,
        "queue": "default",
        "endpoint": "fast",
        "messageGroupMode": "1of8",
        "published": 10,
    }
    await router.until_settled()
    assert router.app.router.pools["DEFAULT-POOL"].stats.delivered == 10


async def test_the_body_wins_over_the_query(router: Running) -> None:
    answer = await router.client.post(
        "/api/seed/messages?count=5&queue=low", {"count": 3, "endpoint": "success", "messageGroupMode": "single"}
    )
    assert (answer.json["count"], answer.json["queue"], answer.json["endpoint"]) == (3, "low", "success")
    await router.until_settled()
    stats = await router.stats()
    assert stats["endpoints"] == {"success": {"requests": 3, "orderViolations": 0, "statusCounts": {"200": 3}}}


async def test_random_endpoints_and_queues_keep_the_order_too(router: Running) -> None:
    await router.client.post("/api/seed/messages?count=60&endpoint=slow&queue=random")

    async def all_seen() -> bool:
        return bool((await router.stats())["totalRequests"] >= 60)

    await until(all_seen)
    assert (await router.stats())["orderViolations"] == 0


async def test_random_endpoints_are_fast_slow_and_faulty(router: Running) -> None:
    await router.client.post("/api/seed/messages?count=100&endpoint=random&messageGroupMode=unique")

    async def all_seen() -> bool:
        return bool((await router.stats())["totalRequests"] >= 100)

    await until(all_seen)
    stats = await router.stats()
    assert set(stats["endpoints"]) == {"fast", "slow", "faulty"}
    assert stats["orderViolations"] == 0


async def test_two_runs_do_not_disturb_each_other(router: Running) -> None:
    runs = [(await router.client.post("/api/seed/messages?count=300")).json["run"] for _ in range(2)]
    assert runs[0] != runs[1]
    await router.until_settled()
    stats = await router.stats()
    assert (stats["totalRequests"], stats["orderViolations"], stats["groups"]) == (600, 0, 16)


async def test_without_the_named_queue_the_first_one_is_used(tmp_path: Path) -> None:
    async with run_router(tmp_path, embedded=EmbeddedSettings(queues=["only"])) as router:
        answer = await router.client.post("/api/seed/messages?count=20&queue=random")
        assert answer.json["published"] == 20
        await router.until_settled()
        stats = await router.stats()
        assert (stats["totalRequests"], stats["orderViolations"]) == (20, 0)


async def test_any_queue_can_be_seeded_and_others_than_the_four_have_the_default_pool(tmp_path: Path) -> None:
    async with run_router(tmp_path, queues=[QueueSettings(name="orders", uri="embedded:orders")]) as router:
        answer = await router.client.post("/api/seed/messages?count=20&queue=orders")
        assert (answer.json["queue"], answer.json["published"]) == ("orders", 20)
        await router.until_settled()
        stats = await router.stats()
        assert (stats["totalRequests"], stats["orderViolations"]) == (20, 0)
        assert router.app.router.pools["DEFAULT-POOL"].stats.delivered == 20
        wrong = await router.client.post("/api/seed/messages?queue=nope")
        wrong.assert_problem(400, "queue has to be one of high, medium, low, default, random, orders")


class Failing(MemoryQueue):
    """A broker that goes away after one call."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        if len(self):
            raise QueueUnavailableError("the broker went away")
        return await super().publish(messages)


async def test_a_broker_that_goes_away_is_a_503_that_says_how_much_is_published(router: Running) -> None:
    router.app.queues["failing"] = Failing("failing", router.app.clock)
    answer = await router.client.post("/api/seed/messages?count=1200&queue=failing")
    answer.assert_problem(503, "the broker went away; at least 500 of 1200 messages were published before that")


async def test_without_any_queue_there_is_nothing_to_seed(router: Running) -> None:
    router.app.queues.clear()
    (await router.client.post("/api/seed/messages")).assert_problem(404, "there are no queues")


async def test_messages_may_go_to_a_url(router: Running) -> None:
    async with raw_server(always(reply(200))) as endpoint:
        body = {"count": 3, "endpoint": endpoint.url("/mine"), "messageGroupMode": "single"}
        run = (await router.client.post("/api/seed/messages", body)).json["run"]
        await endpoint.until(lambda server: len(server.requests) == 3)
        assert [request.path for request in endpoint.requests] == ["/mine"] * 3
        positions = [f'{{"messageId":"{run}.single-group.{position}"}}'.encode() for position in (1, 2, 3)]
        assert [request.body for request in endpoint.requests] == positions


@on_idle_router
@pytest.mark.parametrize(
    ("query", "body", "words"),
    [
        ("count=0", None, ["parameter 'count' must be at least 1"]),
        ("count=10001", None, ["parameter 'count' must be at most 10000"]),
        ("count=many", None, ["parameter 'count' must be a whole number"]),
        ("queue=vip", None, ["queue has to be one of high, medium, low, default, random"]),
        ("endpoint=nope", None, ["endpoint has to be a URL or one of fast,"]),
        ("endpoint=ftp://host/", None, ["endpoint cannot be called", "ftp"]),
        ("messageGroupMode=2of8", None, ["'messageGroupMode' must be one of unique, 1of8, single, not '2of8'"]),
        ("group_mode=single", None, ["'group_mode' is unknown (did you mean 'messageGroupMode'?)"]),
        ("", {"count": 0}, ["count"]),
        ("", {"cuont": 5}, ["`cuont` is not a field here (did you mean `count`?)"]),
        ("", {"messageGroupMode": "2of8"}, ["`messageGroupMode` must be one of unique, 1of8, single, not '2of8'"]),
    ],
)
async def test_what_cannot_be_seeded_says_why(idle_router: Running, query: str, body: Any, words: list[str]) -> None:
    answer = await idle_router.client.request("POST", f"/api/seed/messages?{query}", json=body)
    answer.assert_problem(400, *words)


async def test_seeded_messages_reach_the_own_receivers_where_private_targets_are_not_allowed(tmp_path: Path) -> None:
    async with run_router(tmp_path, egress=EgressSettings(allow_private=False)) as router:
        await router.client.post("/api/seed/messages?count=20&endpoint=success")
        async with raw_server(always(reply(200))) as other:
            await router.publish("other", other.url())
            [letter] = await router.until_dead(1)
            assert other.requests == []
        await router.until_settled()
        assert (letter["messageId"], (await router.stats())["totalRequests"]) == ("other", 20)


async def test_the_answer_names_the_queue_they_went_to(tmp_path: Path) -> None:
    async with run_router(tmp_path, embedded={"queues": ["orders"]}) as router:
        assert (await router.client.post("/api/seed/messages?count=1")).json["queue"] == "orders"
        sent = await router.client.post("/api/messages", {"mediationTarget": router.receiver("success")})
        assert sent.status == 202  # to the first one: there is no default
        (await router.client.post("/api/messages?queue=default", {})).assert_problem(404, "the queues are: orders")
        await router.until_settled()
        events = (await router.client.get("/monitoring/audit")).json
        assert {event["object"] for event in events} == {"queue orders"}
