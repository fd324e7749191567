"""Replaying dead letters: in front or behind, to another target, and many by a filter."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowcatalyst.core.message import Delivery, MessagePointer, encode_pointer, parse_pointer
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Depth, Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.memory import MemoryQueue
from tests.api.running import Running, run_router, until
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource
from tests.support.http_servers import Call, always, raw_server, reply

TARGET = "https://shop.example/hooks/orders"
FRONT = {"position": "FRONT"}


@pytest.fixture
async def aside(router: Running) -> AsyncIterator[EmbeddedQueue]:
    """A queue in the file of the router that it does not poll."""
    default = router.app.queues["default"]
    assert isinstance(default, EmbeddedQueue)
    queue = EmbeddedQueue(default.store, "aside")
    await queue.open()
    router.app.queues["aside"] = queue
    yield queue
    del router.app.queues["aside"]
    await queue.close()


async def add_letter(
    router: Running, name: str, *, queue: str = "aside", group: str = "g", body: str | None = None, **more: Any
) -> int:
    """Its number."""
    status = more.pop("status", 422)
    pointer = MessagePointer(id=name, mediation_target=more.pop("target", TARGET), **more)
    delivery = Delivery("broker", 1, body or encode_pointer(pointer).decode(), group)
    delivery.pointer, delivery.source = pointer, RecordingSource(name=queue)
    await router.app.dead_letters.record(delivery, f"HTTP {status}", interpret(status, None, b"", 0.0))
    return (await router.app.dead_letters.numbers_of([name]))[name]


async def replay(router: Running, number: int, how: Any = None) -> Any:
    return await router.client.post(f"/monitoring/dead-letters/{number}/replay", how)


async def ids_in(queue: EmbeddedQueue | MemoryQueue) -> list[str]:
    return [parse_pointer(one.body).id for one in await queue.receive(100, 0)]


def message(name: str, group: str = "g") -> Outgoing:
    return Outgoing(encode_pointer(MessagePointer(id=name, mediation_target=TARGET)).decode(), group)


async def audited(router: Running) -> list[tuple[str, str, int]]:
    events = (await router.client.get("/monitoring/audit")).json
    return [(one["object"], one["detail"], one["count"]) for one in events if one["action"].startswith("dead_letter")]


# Where in its group


@pytest.mark.parametrize("how", [None, {}, {"position": "BEHIND"}, {"target": None}])
async def test_a_letter_is_replayed_behind_its_group_unless_asked_otherwise(
    router: Running, aside: EmbeddedQueue, how: Any
) -> None:
    await aside.publish([message("waits")])
    number = await add_letter(router, "letter")
    answer = await replay(router, number, how)
    assert (answer.status, answer.json) == (200, {"replayed": 1})
    assert await ids_in(aside) == ["waits", "letter"]
    assert await router.app.dead_letters.count() == 0
    assert (await audited(router))[0] == (f"dead letter {number}", "message letter of queue aside", 1)


async def test_a_letter_is_replayed_in_front_of_a_head_that_failed(router: Running, aside: EmbeddedQueue) -> None:
    await aside.publish([message("head"), message("follower")])
    await aside.nack(await aside.receive(2, 0), 300)
    number = await add_letter(router, "letter")
    assert (await replay(router, number, FRONT)).json == {"replayed": 1}
    assert await ids_in(aside) == ["letter"]
    assert await aside.depth() == Depth(0, 1, 2)
    assert await router.app.dead_letters.count() == 0
    assert (await audited(router))[0][1] == "message letter of queue aside, in front of its group"


async def test_a_letter_whose_group_a_router_has_in_hand_stays_and_the_answer_says_what_to_do(
    router: Running, aside: EmbeddedQueue
) -> None:
    await aside.publish([message("head")])
    held = await aside.receive(1, 0)
    number = await add_letter(router, "letter")
    answer = await replay(router, number, FRONT)
    answer.assert_problem(409, "a router has messages of group 'g' in hand", "hold the group first", "try again")
    assert await router.app.dead_letters.count() == 1
    assert await aside.depth() == Depth(0, 1, 0)
    assert await audited(router) == []
    await aside.ack(held)
    assert (await replay(router, number, FRONT)).status == 200


async def test_a_letter_of_a_broker_without_a_front_stays_and_the_answer_says_why(router: Running) -> None:
    router.app.queues["broker"] = memory = MemoryQueue("broker", SetClock())
    try:
        number = await add_letter(router, "letter", queue="broker")
        answer = await replay(router, number, FRONT)
        answer.assert_problem(409, "the broker of queue 'broker' only takes messages at the end", "replay it behind")
        assert await router.app.dead_letters.count() == 1
        assert (await replay(router, number)).status == 200
        assert await ids_in(memory) == ["letter"]
    finally:
        del router.app.queues["broker"]


async def test_a_letter_in_front_is_delivered_before_what_its_group_holds(router: Running) -> None:
    async with raw_server(always(reply(422))) as endpoint:
        await router.send(id="letter", mediationTarget=endpoint.url(), messageGroupId="g")
        (letter,) = await router.until_dead(1)
        await router.until_settled()
        endpoint.script = always(reply(200))
        assert (await replay(router, letter["number"], FRONT)).status == 200
        await router.send(id="later", mediationTarget=endpoint.url(), messageGroupId="g")
        await router.until_settled()
        delivered = [msgspec.json.decode(request.body)["messageId"] for request in endpoint.requests]
    assert delivered == ["letter", "letter", "later"]


# Where to


async def test_a_letter_is_replayed_to_another_target_and_is_as_it_was_otherwise(
    router: Running, aside: EmbeddedQueue
) -> None:
    body = '{"id":"letter","mediationTarget":"https://old.example/","payload":{"a": 1.50},"poolCode":"P","note":[1e2]}'
    number = await add_letter(router, "letter", body=body)
    target = "https://new.example/hook?key=s3cret"
    assert (await replay(router, number, {"target": target, "position": "FRONT"})).status == 200
    [delivery] = await aside.receive(1, 0)
    assert delivery.body == body.replace("https://old.example/", target)
    detail = (await audited(router))[0][1]
    assert detail == "message letter of queue aside, in front of its group, to https://new.example/hook?***"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"target": ""}, ["target is empty"]),
        ({"target": "ftp://h.example/"}, ["target cannot be called", "scheme 'ftp'"]),
        ({"target": "https://h.example/\n"}, ["target cannot be called"]),
        ({"target": "https://h.example/" + "x" * 9000}, ["target has 9018 characters"]),
        ({"target": 5}, ["target"]),
        ({"position": "MIDDLE"}, ["position", "BEHIND", "FRONT"]),
        ({"pos": "FRONT"}, ["pos"]),
        ([], ["the body"]),
    ],
)
async def test_a_replay_that_cannot_be_meant_is_refused_and_the_letter_stays(
    router: Running, aside: EmbeddedQueue, how: Any, words: list[str]
) -> None:
    number = await add_letter(router, "letter")
    (await replay(router, number, how)).assert_problem(400, *words)
    assert await router.app.dead_letters.count() == 1
    assert await aside.depth() == Depth(0, 0, 0)


async def test_a_private_target_is_refused_where_messages_to_it_are(tmp_path: Path) -> None:
    async with run_router(tmp_path, egress={"allow_private": False}) as router:
        number = await add_letter(router, "letter", queue="default")
        answer = await replay(router, number, {"target": "http://10.1.2.3/x"})
        answer.assert_problem(400, "target cannot be called", "not a public address")
        assert await router.app.dead_letters.count() == 1


async def test_a_target_that_makes_the_message_too_large_is_refused_and_the_letter_stays(
    router: Running, aside: EmbeddedQueue
) -> None:
    filler = "x" * (256 * 1024 - 80)
    number = await add_letter(router, "letter", body=f'{{"id":"letter","mediationTarget":"{TARGET}","x":"{filler}"}}')
    answer = await replay(router, number, {"target": "https://h.example/" + "y" * 1000})
    answer.assert_problem(400, "bytes, more than")
    assert await router.app.dead_letters.count() == 1


async def test_a_letter_that_is_no_message_has_no_target_to_change(router: Running, aside: EmbeddedQueue) -> None:
    number = await add_letter(router, "letter", body='{"id": 7, "mediationTarget": ')
    (await replay(router, number, {"target": TARGET})).assert_problem(409, "no message that names a target")
    assert (await replay(router, number, FRONT)).status == 200


async def test_a_letter_of_a_raw_queue_has_no_target_of_its_own_nor_a_front_by_its_body(tmp_path: Path) -> None:
    raw = {"target": TARGET}
    queues = [
        {"name": "plain", "uri": "embedded:plain", "raw": raw},
        {"name": "grouped", "uri": "embedded:grouped", "raw": {**raw, "group": "$.order"}},
    ]
    async with run_router(tmp_path, queues=queues) as router:
        plain = await add_letter(router, "one", queue="plain", body='{"order": 1}')
        grouped = await add_letter(router, "two", queue="grouped", body='{"order": 1}')
        answer = await replay(router, plain, {"target": TARGET})
        answer.assert_problem(409, "queue 'plain' is raw", "all of them go to the one of the queue")
        answer = await replay(router, grouped, FRONT)
        answer.assert_problem(409, "queue 'grouped' takes groups from bodies", "replay it behind")
        assert await router.app.dead_letters.count() == 2


# Many


@pytest.fixture
async def four(router: Running, aside: EmbeddedQueue) -> list[int]:
    """Letters of two groups, for two targets."""
    other = "https://mail.example/"
    return [
        await add_letter(router, "a1", group="a"),
        await add_letter(router, "a2", group="a", target=other, status=500),
        await add_letter(router, "b1", group="b"),
        await add_letter(router, "b2", group="b", target=other),
    ]


BY_FILTER = {
    "group=a": ["a1", "a2"],
    "target=https://shop.example/hooks": ["a1", "b1"],
    "target=https://SHOP.example:443": ["a1", "b1"],
    "target=https://shop.example/hook": [],
    "status=500": ["a2"],
    "queue=aside&group=b&status=422": ["b1", "b2"],
    "queue=default": [],
    "since=2020-01-01T00:00:00Z&until=2100-01-01T00:00:00Z": ["a1", "a2", "b1", "b2"],
    "until=2020-01-01T00:00:00Z": [],
}


@pytest.mark.parametrize("query", BY_FILTER)
async def test_a_list_brings_what_its_filters_say(router: Running, four: list[int], query: str) -> None:
    found = (await router.client.get(f"/monitoring/dead-letters?{query}")).json
    assert [letter["messageId"] for letter in found] == BY_FILTER[query]
    found = (await router.client.get(f"/monitoring/dead-letters?{query}&newestFirst=true")).json
    assert [letter["messageId"] for letter in found] == BY_FILTER[query][::-1]


async def test_pages_of_a_filter_lead_on_both_ways(router: Running, four: list[int]) -> None:
    for more, expected in (("", ["a1", "b1"]), ("&newestFirst=true", ["b1", "a1"])):
        path, seen = f"/monitoring/dead-letters?target=https://shop.example&limit=1{more}", []
        while path:
            answer = await router.client.get(path)
            seen += [letter["messageId"] for letter in answer.json]
            path = answer.headers.get("Link", "").partition(">")[0].removeprefix("<")
        assert seen == expected


@pytest.mark.parametrize("query", BY_FILTER)
async def test_a_dry_run_counts_and_changes_nothing(
    router: Running, four: list[int], aside: EmbeddedQueue, query: str
) -> None:
    matching = len(BY_FILTER[query])
    answer = await router.client.post(f"/monitoring/dead-letters/replay?{query}&dryRun=true")
    assert (answer.status, answer.json) == (200, {"replayed": 0, "matching": matching, "dryRun": True})
    answer = await router.client.delete(f"/monitoring/dead-letters?{query}&dryRun=true")
    assert (answer.status, answer.json) == (200, {"purged": 0, "matching": matching, "dryRun": True})
    assert await router.app.dead_letters.count() == 4
    assert await aside.depth() == Depth(0, 0, 0)
    assert await audited(router) == []


async def test_letters_of_a_filter_are_replayed_oldest_first_and_the_others_stay(
    router: Running, four: list[int], aside: EmbeddedQueue
) -> None:
    answer = await router.client.post("/monitoring/dead-letters/replay?group=a&since=2020-01-01T00:00:00Z")
    assert answer.json == {"replayed": 2, "matching": 2, "dryRun": False}
    assert await ids_in(aside) == ["a1", "a2"]
    assert [letter["messageId"] for letter in await router.until_dead(2)] == ["b1", "b2"]
    line = ("dead letters of a filter", "group a, since 2020-01-01T00:00:00+00:00", 2)
    assert await audited(router) == [line]


async def test_letters_of_a_queue_that_is_gone_stay_and_the_answer_and_the_audit_trail_say_what_was_replayed(
    router: Running, four: list[int], aside: EmbeddedQueue
) -> None:
    await add_letter(router, "a3", queue="gone", group="a")
    answer = await router.client.post("/monitoring/dead-letters/replay?group=a")
    said = "2 dead letters were replayed, 1 of queue 'gone' was not: that queue is not known here"
    answer.assert_problem(409, said)
    assert answer.json["detail"] == said
    assert await ids_in(aside) == ["a1", "a2"]
    assert [letter["messageId"] for letter in await router.until_dead(3)] == ["b1", "b2", "a3"]
    assert await audited(router) == [("dead letters of a filter", f"group a, {said}", 2)]


async def test_letters_of_a_filter_are_removed_and_the_others_stay(router: Running, four: list[int]) -> None:
    answer = await router.client.delete("/monitoring/dead-letters?target=https://mail.example&status=500")
    assert answer.json == {"purged": 1, "matching": 1, "dryRun": False}
    assert [letter["messageId"] for letter in await router.until_dead(3)] == ["a1", "b1", "b2"]
    assert await audited(router) == [("dead letters of a filter", "target https://mail.example, status 500", 1)]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("grop=a", ["'grop'"]),
        ("status=teapot", ["status"]),
        ("status=1", ["status"]),
        ("since=yesterday", ["since", "2026-01-31T12:00:00Z"]),
        ("target=shop.example", ["target cannot be called", "no scheme"]),
        ("target=https://shop.example/?a=1", ["target has to end before the query"]),
        ("dryRun=perhaps", ["dryRun"]),
        ("group=a&group=b", ["group"]),
    ],
)
async def test_a_filter_that_cannot_be_meant_replays_and_removes_nothing(
    router: Running, four: list[int], query: str, words: list[str]
) -> None:
    (await router.client.post(f"/monitoring/dead-letters/replay?{query}")).assert_problem(400, *words)
    (await router.client.delete(f"/monitoring/dead-letters?{query}")).assert_problem(400, *words)
    assert await router.app.dead_letters.count() == 4


async def test_what_only_waits_in_the_router_lets_a_replayed_message_come_first(router: Running) -> None:
    answers = {b"dead": [404, 200], b"m-1": [500, 200], b"m-2": [200]}

    async def script(call: Call) -> None:
        name = next(name for name in answers if name in call.body)
        await call.send(reply(answers[name].pop(0)))

    async with raw_server(script) as server:
        message = {"mediationTarget": server.url(), "messageGroupId": "g"}
        await router.send(id="dead", **message)
        [letter] = await router.until_dead(1)
        await router.until_settled()
        await router.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])

        async def waits() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].held_count == 1

        await until(waits)
        replayed = await replay(router, letter["number"], FRONT)
        assert replayed.status == 200, replayed.text
        await router.until_settled()
        names = [next(name for name in answers if name in request.body) for request in server.requests]
        assert names == [b"dead", b"m-1", b"dead", b"m-1", b"m-2"]
