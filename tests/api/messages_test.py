import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import SecretStr

from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.core.message import MAX_BODY_BYTES
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.queues.settings import QueueSettings
from tests.api.running import Running, on_idle_router, run_router, until
from tests.servers import free_port
from tests.servers.nats import nats_server
from tests.support.http_servers import always, raw_server, reply


async def test_one_message_is_accepted_and_delivered(router: Running) -> None:
    async with raw_server(always(reply(200))) as endpoint:
        answer = await router.send(id="m-1", mediationTarget=endpoint.url("/hook"), authToken="s3cret")
        assert answer.status == 202
        result = answer.json["results"][0]
        assert (result["id"], result["status"]) == ("m-1", "ACCEPTED")
        assert result["brokerId"]
        assert "error" not in result
        assert {key: answer.json[key] for key in ("accepted", "duplicates", "rejected")} == {
            "accepted": 1,
            "duplicates": 0,
            "rejected": 0,
        }
        await endpoint.until(lambda server: len(server.requests) == 1)
        request = endpoint.requests[0]
        assert (request.method, request.path, request.body) == ("POST", "/hook", b'{"messageId":"m-1"}')


NAMES = ["id", "poolCode", "messageGroupId", "deduplicationId"]


@pytest.mark.parametrize("field", NAMES)
async def test_names_that_are_too_long_are_refused_and_the_longest_allowed_ones_delivered(
    router: Running, field: str
) -> None:
    target = router.receiver("fast")
    answer = await router.send(**{"mediationTarget": target, field: "n" * 257})
    answer.assert_problem(400, f"{field} has 257 characters, more than the 256 allowed")
    answer = await router.send(**{"mediationTarget": target, field: "n\0m"})
    answer.assert_problem(400, f"{field} has a NUL character, which not every queue can carry")
    assert len(answer.text) < 300
    both = [{"mediationTarget": target, field: "n" * 1_000_000}, {"mediationTarget": target, field: "n" * 256}]
    answer = await router.client.post("/api/messages", both)
    assert [one["status"] for one in answer.json["results"]] == ["REJECTED", "ACCEPTED"]
    assert len(answer.text) < 2000
    await router.until_settled()
    assert (await router.stats())["totalRequests"] == 1


@pytest.mark.parametrize("field", ["id", "poolCode", "messageGroupId", "its group at the broker"])
async def test_a_pointer_from_a_queue_with_a_name_that_is_too_long_is_a_dead_letter_with_the_reason(
    router: Running, field: str
) -> None:
    names = {"id": "m", field: "n" * 200_000}
    group = names.pop("its group at the broker", "g")
    body = msgspec.json.encode({"mediationTarget": router.receiver("fast"), **names}).decode()
    await router.app.queues["default"].publish([Outgoing(body, group)])
    [letter] = await router.until_dead(1)
    assert letter["reason"] == f"{field} has 200000 characters, more than the 256 allowed"
    await router.until_settled()
    assert (await router.stats())["totalRequests"] == 0


async def test_a_message_without_an_id_gets_one(router: Running) -> None:
    target = router.receiver("fast")
    first, second = [(await router.send(mediationTarget=target)).json["results"][0]["id"] for _ in range(2)]
    assert UUID(first).version == UUID(second).version == 7
    assert first != second


async def test_the_same_id_again_is_a_duplicate_with_the_broker_id_of_the_first(router: Running) -> None:
    message = {"id": "twice", "mediationTarget": router.receiver("fast")}
    first, second = await router.send(**message), await router.send(**message)
    assert second.status == 202
    assert second.json["results"][0]["status"] == "DUPLICATE"
    assert second.json["results"][0]["brokerId"] == first.json["results"][0]["brokerId"]
    await router.until_settled()
    assert (await router.stats())["totalRequests"] == 1


async def test_a_deduplication_id_goes_before_the_id(router: Running) -> None:
    target = router.receiver("fast")
    await router.send(id="a", mediationTarget=target, deduplicationId="d")
    same = await router.send(id="b", mediationTarget=target, deduplicationId="d")
    other = await router.send(id="a", mediationTarget=target, deduplicationId="e")
    assert [one.json["results"][0]["status"] for one in (same, other)] == ["DUPLICATE", "ACCEPTED"]


async def test_a_list_is_delivered_in_order(router: Running) -> None:
    ids = [f"run.g.{position}" for position in range(1, 101)]
    messages = [{"id": one, "mediationTarget": router.receiver("fast"), "messageGroupId": "g"} for one in ids]
    answer = await router.client.post("/api/messages", messages)
    assert answer.json["accepted"] == 100
    assert [result["id"] for result in answer.json["results"]] == ids
    await router.until_settled()
    stats = await router.stats()
    assert (stats["totalRequests"], stats["orderViolations"], stats["groups"]) == (100, 0, 1)


async def test_a_message_without_a_group_is_ordered_in_the_default_group(router: Running) -> None:
    ids = [f"run.any.{position}" for position in range(1, 31)]
    groups = [{}, {"messageGroupId": ""}, {"messageGroupId": "  "}]
    target = router.receiver("fast")
    messages = [{"id": one, "mediationTarget": target, **groups[index % 3]} for index, one in enumerate(ids)]
    await router.client.post("/api/messages", messages)
    await router.until_settled()
    stats = await router.stats()
    assert (stats["totalRequests"], stats["orderViolations"]) == (30, 0)


async def test_immediate_messages_of_one_group_run_side_by_side(router: Running) -> None:
    target = router.receiver("slow")
    messages = [
        {"id": f"run.g.{n}", "mediationTarget": target, "messageGroupId": "g", "dispatchMode": "IMMEDIATE"}
        for n in range(1, 11)
    ]
    await router.client.post("/api/messages", messages)
    await router.until_settled()
    stats = await router.stats()
    assert stats["totalRequests"] == 10
    assert stats["orderViolations"] > 0, "the judge sees that they do not wait for each other"


async def test_in_a_list_good_messages_are_published_and_bad_ones_say_why(router: Running) -> None:
    target = router.receiver("fast")
    answer = await router.client.post(
        "/api/messages",
        [
            {"id": "good-1", "mediationTarget": target},
            {"id": "typo", "mediationTarget": target, "messageGroupID": "g"},
            {"id": "empty", "mediationTarget": ""},
            "no object",
            {"id": "good-2", "mediationTarget": target},
            {"id": "good-1", "mediationTarget": target},
        ],
    )
    assert answer.status == 202
    results = answer.json["results"]
    assert [(one["id"], one["status"]) for one in results] == [
        ("good-1", "ACCEPTED"),
        ("typo", "REJECTED"),
        ("empty", "REJECTED"),
        (None, "REJECTED"),
        ("good-2", "ACCEPTED"),
        ("good-1", "DUPLICATE"),
    ]
    assert "`messageGroupID`" in results[1]["error"]
    assert "mediationTarget is empty" in results[2]["error"]
    assert results[3]["error"] == "it must be an object, not text"
    assert (answer.json["accepted"], answer.json["duplicates"], answer.json["rejected"]) == (2, 1, 3)
    await router.until_settled()
    assert (await router.stats())["totalRequests"] == 2


@on_idle_router
async def test_a_list_of_bad_messages_only_is_a_problem_with_a_result_for_each(idle_router: Running) -> None:
    answer = await idle_router.client.post("/api/messages", [{"id": "a"}, {"id": "b", "mediationTarget": "ftp://x"}])
    answer.assert_problem(400, "none of the 2 messages", "`mediationTarget`")
    assert [one["status"] for one in answer.json["results"]] == ["REJECTED", "REJECTED"]
    assert answer.json["rejected"] == 2
    answer = await idle_router.client.post("/api/messages", [{}])
    answer.assert_problem(400, "the message of the list cannot be accepted: `mediationTarget` is missing")


GOOD = {"mediationTarget": "http://127.0.0.1:9/hook"}


@on_idle_router
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, ["`mediationTarget` is missing"]),
        ({"mediationTarget": ""}, ["mediationTarget is empty"]),
        ({"mediationTarget": "ftp://host/x"}, ["'ftp'", "only http and https"]),
        ({"mediationTarget": "/relative"}, ["target has no scheme: begin it with http:// or https://"]),
        ({"mediationTarget": "http://user:pw@host/"}, ["credentials"]),
        ({"mediationTarget": 5}, ["`mediationTarget` must be text, not a number"]),
        (
            {**GOOD, "targetUrl": "http://127.0.0.1:9/"},
            ["`targetUrl` is not a field here (did you mean `mediationTarget`?)"],
        ),
        ({**GOOD, "messageGroup": "g"}, ["`messageGroup` is not a field here (did you mean `messageGroupId`?)"]),
        ({**GOOD, "dispatchPoolCode": "A"}, ["(did you mean `poolCode`?)"]),
        ({**GOOD, "mode": "IMMEDIATE"}, ["(did you mean `dispatchMode`?)"]),
        ({**GOOD, "headers": {"X-A": "1", "X-B": None}}, ["`headers.X-B` must be text, not null"]),
        ({**GOOD, "messageGroupID": "g"}, ["`messageGroupID` is not a field here (did you mean `messageGroupId`?)"]),
        ({**GOOD, "dispatchMode": "LATER"}, ["'LATER'", "IMMEDIATE, NEXT_ON_ERROR, BLOCK_ON_ERROR", "dispatchMode"]),
        ({**GOOD, "mediationType": "SMTP"}, ["'SMTP'", "HTTP"]),
        ({**GOOD, "highPriority": "yes"}, ["`highPriority` must be true or false, not text"]),
        ({**GOOD, "id": " "}, ["id is empty"]),
        ({**GOOD, "authToken": "line\nbreak"}, ["authToken", "HTTP header"]),
        ({**GOOD, "authToken": "x" * MAX_BODY_BYTES}, ["more than the 262144 allowed"]),
        (17, ["the body must be an object or a list, not a number"]),
        ([], ["1 to 1000 messages", "has 0"]),
        ([GOOD] * 1001, ["1 to 1000 messages", "has 1001"]),
    ],
)
async def test_a_message_that_cannot_be_accepted_says_why(idle_router: Running, message: Any, words: list[str]) -> None:
    answer = await idle_router.client.request("POST", "/api/messages", json=message)
    answer.assert_problem(400, *words)
    assert "xxxx" not in answer.text, "a token is never repeated"


@on_idle_router
async def test_a_wrong_field_is_named(idle_router: Running) -> None:
    answer = await idle_router.send(**GOOD, dispatchMode="LATER")
    assert answer.json["errors"][0]["field"] == "dispatchMode"


@on_idle_router
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"mediationTarget": "http://x" ', ["not valid JSON"]),
        (b'{"mediationTarget": ?}', ["not valid JSON", "byte 20"]),
        (b"", ["not valid JSON"]),
        (b'{"mediationTarget": "\xff"}', ["not valid JSON"]),
        (b"[" * 100_000, ["nested too deeply"]),
    ],
)
async def test_malformed_json_is_told_with_its_place(idle_router: Running, body: bytes, words: list[str]) -> None:
    (await idle_router.client.post("/api/messages", body=body)).assert_problem(400, *words)


@on_idle_router
async def test_a_body_that_is_not_declared_as_json_is_refused(idle_router: Running) -> None:
    answer = await idle_router.client.post("/api/messages", body=b"{}", headers={"Content-Type": "text/plain"})
    answer.assert_problem(415, "application/json", "text/plain")


@on_idle_router
async def test_a_request_of_more_than_16_mib_is_refused(idle_router: Running) -> None:
    answer = await idle_router.client.post("/api/messages", body=b" " * (16 * 1024 * 1024 + 1))
    answer.assert_problem(413, "16 MiB")
    assert (await idle_router.client.get("/health/live")).status == 200


@on_idle_router
async def test_an_unknown_queue_lists_the_queues(idle_router: Running) -> None:
    answer = await idle_router.client.post("/api/messages?queue=nope", GOOD)
    answer.assert_problem(404, "'nope'", "default, high, medium, low")


async def test_without_any_queue_there_is_none_to_list(router: Running) -> None:
    router.app.queues.clear()
    (await router.send(**GOOD)).assert_problem(404, "there is no queue 'default'; there are no queues")


async def test_a_message_goes_to_the_queue_that_was_named(router: Running) -> None:
    message = {"mediationTarget": router.receiver("fast"), "poolCode": "POOL-LOW"}
    answer = await router.client.post("/api/messages?queue=low", message)
    assert answer.status == 202
    assert "note" not in answer.json["results"][0]
    await router.until_settled()
    assert router.app.router.pools["POOL-LOW"].stats.delivered == 1


async def test_an_unknown_pool_is_delivered_through_the_default_pool_with_a_warning(router: Running) -> None:
    answer = await router.send(mediationTarget=router.receiver("fast"), poolCode="NO-SUCH-POOL")
    [result] = answer.json["results"]
    assert result["note"] == "there is no pool 'NO-SUCH-POOL' now: DEFAULT-POOL will take it"
    await router.until_settled()
    assert router.app.router.pools["DEFAULT-POOL"].stats.delivered == 1
    warnings = (await router.client.get("/monitoring/warnings")).json
    assert [(one["code"], one["count"]) for one in warnings] == [("ROUTING", 1)]
    assert "NO-SUCH-POOL" in warnings[0]["message"]


async def test_a_failed_message_is_delivered_by_a_later_attempt(router: Running) -> None:
    async with raw_server(always(reply(500))) as endpoint:
        await router.send(id="m", mediationTarget=endpoint.url())
        await endpoint.until(lambda server: len(server.requests) == 1)
        endpoint.script = always(reply(200))

        async def delivered() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].stats.delivered == 1

        await until(delivered)


class Forgetful(MemoryQueue):
    """A broker that neither deduplicates nor tells the id of what it took."""

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        await super().publish([replace(message, deduplication_id=None) for message in messages])
        return [Published("") for _ in messages]


async def test_where_the_broker_does_not_deduplicate_the_same_id_is_accepted_again(router: Running) -> None:
    queue = router.app.queues["forgetful"] = Forgetful("forgetful", router.app.clock)
    for _ in range(2):
        answer = await router.client.post("/api/messages?queue=forgetful", {**GOOD, "id": "twice"})
        assert answer.status == 202
        assert answer.json["results"] == [{"id": "twice", "status": "ACCEPTED"}]
    assert len(queue) == 2


async def test_a_broker_that_is_away_is_a_503_while_other_queues_take_messages(tmp_path: Path) -> None:
    port = free_port()
    away = QueueSettings(name="away", uri=f"nats://127.0.0.1:{port}/S?consumer=router")
    async with run_router(tmp_path, queues=[away]) as router:
        answer = await router.client.post("/api/messages?queue=away", [GOOD, GOOD])
        answer.assert_problem(503, f"127.0.0.1:{port}")
        assert "\n" not in answer.json["detail"]
        (await router.client.post("/api/messages?queue=nope", GOOD)).assert_problem(404, "medium, low, away")
        assert (await router.send(mediationTarget=router.receiver("fast"))).status == 202


async def test_messages_reach_a_queue_of_a_broker_from_a_standby_too(tmp_path: Path) -> None:
    never_primary = StandbySettings(redis_url=SecretStr(f"redis://127.0.0.1:{free_port()}/0"))
    with nats_server(tmp_path / "nats") as nats:
        orders = QueueSettings(name="orders", uri=f"{nats.url}/ORDERS?consumer=router&create=true")
        async with run_router(tmp_path / "primary", queues=[orders]) as primary:
            message = {"id": "m-1", "mediationTarget": primary.receiver("fast")}
            async with run_router(tmp_path / "standby", queues=[orders], standby=never_primary) as standby:
                first = await standby.client.post("/api/messages?queue=orders", message)
                assert not standby.app.at_work
            second = await primary.client.post("/api/messages?queue=orders", [message, {**message, "id": "m-2"}])
            assert [one["status"] for one in first.json["results"] + second.json["results"]] == [
                "ACCEPTED",
                "DUPLICATE",
                "ACCEPTED",
            ]

            async def both_seen() -> bool:
                return bool((await primary.stats())["totalRequests"] == 2)

            await until(both_seen)


async def test_bodies_of_other_producers_are_delivered_and_what_is_not_clear_is_named(router: Running) -> None:
    async with raw_server(always(reply(200))) as endpoint:
        clear = {"id": 7, "mediationTarget": endpoint.url("/a b"), "highPriority": None, "dispatchMode": "immediate"}
        unclear = {"id": 8, "mediationTarget": endpoint.url("/c"), "highPriority": "often"}
        bodies = ["\ufeff" + json.dumps(clear), json.dumps(unclear)]
        await router.app.queues["default"].publish([Outgoing(body, "g") for body in bodies])
        [letter] = await router.until_dead(1)
        await router.until_settled()
        assert [(one.path, one.body) for one in endpoint.requests] == [("/a%20b", b'{"messageId":"7"}')]
    assert letter["reason"] == "body is not a message pointer: `highPriority` must be true or false, not text"


async def test_a_target_that_no_attempt_could_reach_is_refused_at_once(tmp_path: Path) -> None:
    async with run_router(tmp_path, egress={"allow_private": False}) as router:
        good, bad = {"mediationTarget": router.receiver("success")}, {"id": "b", "mediationTarget": "http://10.1.2.3/"}
        (await router.client.post("/api/messages", bad)).assert_problem(
            400, "mediationTarget cannot be called", "not a public address", "egress.allowed_networks"
        )
        answer = await router.client.post("/api/messages", [good, bad])
        assert (answer.status, answer.json["accepted"], answer.json["rejected"]) == (202, 1, 1)
        assert "cannot be called" in answer.json["results"][1]["error"]
        await router.until_settled()
        assert await router.app.dead_letters.count() == 0
