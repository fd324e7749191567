"""/api/events: an event is kept with all its jobs or not at all, and a repeat is answered with the first one."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent

from tests.api.dispatching import on_sqlite
from tests.api.running import run_router
from tests.api.subscribing import EVENTS, Subscribing

BATCH = f"{EVENTS}/batch"


async def test_an_event_becomes_a_signed_webhook_of_each_subscription_that_wants_it(shop: Subscribing) -> None:
    await shop.subscribe("orders", "order.created", mode="BLOCK_ON_ERROR")
    await shop.subscribe("all", "**")
    await shop.subscribe("others", "invoice.*")
    sent = await shop.send("1", messageGroup="order:1")
    assert sent["jobs"] == 2
    await shop.until_got("orders", "1")
    await shop.until_got("all", "1")
    await shop.until_done("orders")
    await shop.until_done("all")
    assert shop.subscriber.names("others") == []
    whole = (await shop.client.get(f"{EVENTS}/{sent['id']}")).json
    assert {job["subscription"]: job["status"] for job in whole["jobs"]} == {"orders": "COMPLETED", "all": "COMPLETED"}
    assert {job["messageGroup"] for job in whole["jobs"]} == {"orders:order:1", "all:order:1"}


async def test_all_fields_of_an_event_are_kept_and_shown(shop: Subscribing) -> None:
    asked = {
        "specVersion": "1.0",
        "id": "o-77",
        "type": "order.created",
        "source": "/shop/eu",
        "subject": "order:12345",
        "time": "2026-01-02T03:04:05Z",
        "data": {"total": 12.0, "name": "n"},
        "dataContentType": "application/json",
        "messageGroup": "order:12345",
        "deduplicationId": "o-1",
        "correlationId": "c-1",
        "causationId": "z-1",
        "extensions": {"sequence": 1, "tenant": "acme", "test": True},
    }
    sent = await shop.client.post(EVENTS, asked)
    assert sent.status == 201, sent.text
    whole = (await shop.client.get(f"{EVENTS}/{sent.json['id']}")).json
    event = whole["event"]
    assert whole["data"] == asked["data"]
    assert (event["senderId"], event["jobs"], event["dataBytes"]) == ("o-77", 0, len('{"total":12.0,"name":"n"}'))
    same = {"type", "source", "subject", "time", "dataContentType", "messageGroup", "deduplicationId", "correlationId"}
    for name in (*same, "causationId", "extensions", "specVersion"):
        assert event[name] == asked[name], name
    assert event == sent.json


async def test_the_context_of_an_event_is_sent_along(shop: Subscribing) -> None:
    await shop.subscribe("orders", headers={"X-Tenant": "acme"}, mode="NEXT_ON_ERROR")
    sent = await shop.send("1", correlationId="c€1", causationId="z1", messageGroup="g", extensions={"sequence": "3"})
    await shop.until_got("orders", "1")
    (request,) = shop.server.requests
    headers = request.headers
    assert headers["content-type"] == "application/cloudevents+json"
    assert (headers["x-flowcatalyst-event-id"], headers["x-flowcatalyst-event-type"]) == (sent["id"], "order.created")
    assert (headers["x-flowcatalyst-subscription"], headers["x-tenant"]) == ("orders", "acme")
    assert (headers["x-flowcatalyst-correlation-id"], headers["x-flowcatalyst-causation-id"]) == ("c%E2%82%AC1", "z1")
    assert (headers["x-flowcatalyst-group"], headers["x-flowcatalyst-group-seq"]) == ("orders:g", "1")
    assert headers["x-flowcatalyst-group-prev"] == "0"
    body = json.loads(request.body)
    assert (body["specversion"], body["id"], body["data"]) == ("1.0", sent["id"], {"name": "1"})


async def test_a_repeat_is_answered_with_the_first_event_and_makes_nothing(shop: Subscribing) -> None:
    await shop.subscribe("orders")
    first = await shop.client.post(EVENTS, shop.event("1", deduplicationId="d"))
    again = await shop.client.post(EVENTS, shop.event("2", deduplicationId="d"))
    assert (first.status, again.status) == (201, 200)
    assert again.json == first.json
    batch = await shop.client.post(BATCH, {"events": [shop.event("3", deduplicationId=one) for one in "dee"]})
    assert [one["status"] for one in batch.json["results"]] == [200, 201, 200]
    assert batch.json["results"][0]["event"] == first.json
    await shop.until_done("orders")
    assert sorted(shop.subscriber.names("orders")) == ["1", "3"]


async def test_the_senders_own_id_tells_a_repeat_too(shop: Subscribing) -> None:
    first = await shop.client.post(EVENTS, shop.event("1", id="7"))
    again = await shop.client.post(EVENTS, shop.event("1", id="7"))
    other = await shop.client.post(EVENTS, shop.event("1", id="7", source="other"))
    assert (first.status, again.status, other.status) == (201, 200, 201)
    assert first.json["deduplicationId"] == "shop 7"


async def test_each_event_of_a_batch_is_judged_on_its_own_and_groups_keep_its_order(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    good = [shop.event(str(number), messageGroup="g") for number in range(5)]
    batch = [*good, shop.event("x", type="no type"), {"type": "order.created"}, {"typo": 1}]
    answer = await shop.client.post(BATCH, {"events": batch})
    assert answer.status == 200
    assert [one["status"] for one in answer.json["results"]] == [201] * 5 + [400] * 3
    assert [one["event"]["jobs"] for one in answer.json["results"][:5]] == [1] * 5
    assert "no event type" in answer.json["results"][5]["problem"]["detail"]
    assert "source" in answer.json["results"][6]["problem"]["detail"]
    await shop.until_got("orders", *"01234")


async def test_a_batch_of_a_thousand_events_is_taken(shop: Subscribing) -> None:
    answer = await shop.client.post(BATCH, {"events": [shop.event(str(number)) for number in range(1000)]})
    assert {one["status"] for one in answer.json["results"]} == {201}


@pytest.mark.parametrize("count", [0, 1001])
@on_sqlite
async def test_a_batch_of_a_wrong_size_is_refused(shop: Subscribing, count: int) -> None:
    answer = await shop.client.post(BATCH, {"events": [shop.event("1")] * count})
    answer.assert_problem(400, "1 to 1000 events")


def titled(headers: Mapping[str, str]) -> dict[str, str]:
    """With the names that our client knows them by."""
    return {name.title(): value for name, value in headers.items()}


def cloud_event(number: int = 1, data: Any = None, content_type: str = "application/json") -> CloudEvent:
    attributes = {
        "id": f"ce-{number}",
        "source": "/shop",
        "type": "order.created",
        "specversion": "1.0",
        "subject": "order 1% €",
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "datacontenttype": content_type,
        "messagegroup": "g",
        "correlationid": "c",
        "tenant": "acme",
    }
    return CloudEvent(attributes, {"name": str(number)} if data is None else data)


async def test_cloud_events_of_the_official_sdk_are_taken_structured_and_binary(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    for number, form in enumerate((http.to_structured_event, http.to_binary_event), 1):
        message = form(cloud_event(number))
        sent = await shop.client.request("POST", EVENTS, body=message.body, headers=titled(message.headers))
        assert sent.status == 201, sent.text
        event = sent.json
        assert (event["senderId"], event["source"], event["subject"]) == (f"ce-{number}", "/shop", "order 1% €")
        assert (event["messageGroup"], event["correlationId"], event["jobs"]) == ("g", "c", 1)
        assert (event["time"], event["extensions"]) == ("2026-01-02T03:04:05Z", {"tenant": "acme"})
        again = await shop.client.request("POST", EVENTS, body=message.body, headers=titled(message.headers))
        assert (again.status, again.json) == (200, event)
    await shop.until_got("orders", "1", "2")
    got = http.from_structured_event(http.HTTPMessage(shop.server.requests[0].headers, shop.server.requests[0].body))
    assert (got.get_id(), got.get_data()) == ("ce-1", {"name": "1"})


async def test_a_batch_of_cloud_events_is_taken_and_each_is_judged_on_its_own(shop: Subscribing) -> None:
    events = [json.loads(http.to_structured_event(cloud_event(number)).body) for number in (1, 2)]
    body = json.dumps([*events, {"specversion": "1.0", "id": "3"}]).encode()
    headers = {"Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
    answer = await shop.client.request("POST", BATCH, body=body, headers=headers)
    assert [one["status"] for one in answer.json["results"]] == [201, 201, 400]
    assert "has no source and no type" in answer.json["results"][2]["problem"]["detail"]


async def test_data_that_are_no_json_stay_what_they_are(shop: Subscribing) -> None:
    message = http.to_binary_event(cloud_event(1, b"\xff\x00", "image/png"))
    sent = await shop.client.request("POST", EVENTS, body=message.body, headers=titled(message.headers))
    whole = (await shop.client.get(f"{EVENTS}/{sent.json['id']}")).json
    assert (whole["data"], whole["dataBase64"], whole["event"]["dataBytes"]) == (None, "/wA=", 2)


@on_sqlite
async def test_cloud_events_in_the_wrong_place_or_form_are_told_where_to_go(shop: Subscribing) -> None:
    structured, batched = "application/cloudevents+json", "application/cloudevents-batch+json"
    for path, media_type, words in (
        (EVENTS, batched, "/api/events/batch"),
        (BATCH, structured, "/api/events"),
        (EVENTS, "text/plain", f"application/json or {structured}, not text/plain"),
        (BATCH, "text/plain", f"application/json or {batched}, not text/plain"),
    ):
        answer = await shop.client.request("POST", path, body=b"[]", headers={"Content-Type": media_type})
        answer.assert_problem(415, words)
    avro = {"Content-Type": "application/cloudevents+avro"}
    (await shop.client.request("POST", EVENTS, body=b"x", headers=avro)).assert_problem(400, "not read")


async def test_lists_are_newest_first_by_filter_and_page(shop: Subscribing) -> None:
    begin = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    for number in range(6):
        kind = "a.b" if number % 2 else "c.d"
        await shop.send(
            str(number),
            type=kind,
            source=f"s{number % 3}",
            subject=f"about {number}",
            messageGroup=f"g:{number % 2}",
            correlationId=f"c{number}",
            deduplicationId=f"d{number}",
        )

    async def listed(query: str) -> list[str]:
        answer = await shop.client.get(f"{EVENTS}?{query}")
        assert answer.status == 200, answer.text
        return [one["deduplicationId"] for one in answer.json["items"]]

    assert await listed("") == ["d5", "d4", "d3", "d2", "d1", "d0"]
    assert await listed("type=a.b") == ["d5", "d3", "d1"]
    assert await listed("source=s1") == ["d4", "d1"]
    assert await listed("subject=about%203") == ["d3"]
    assert await listed("messageGroup=g:0&source=s2") == ["d2"]
    assert await listed("correlationId=c4") == ["d4"]
    assert await listed("deduplicationId=d5") == ["d5"]
    assert await listed(f"from={begin}&type=a.b") == ["d5", "d3", "d1"]
    assert await listed(f"before={begin}") == []
    pages, cursor = [], ""
    while True:
        page = (await shop.client.get(f"{EVENTS}?limit=2{cursor}")).json
        pages.append([one["deduplicationId"] for one in page["items"]])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert [one for page in pages for one in page] == ["d5", "d4", "d3", "d2", "d1", "d0"]
    assert all(len(page) <= 2 for page in pages)
    (await shop.client.get(f"{EVENTS}?type=a.*")).assert_problem(400, "type is 'a.*', a pattern", "only subscriptions")
    (await shop.client.get(f"{EVENTS}?kind=x")).assert_problem(400, "kind")
    (await shop.client.get(f"{EVENTS}?from=yesterday")).assert_problem(400, "from")


async def test_an_event_that_nobody_knows_is_not_found(shop: Subscribing) -> None:
    for name in ("nothing", "a%00b"):
        (await shop.client.get(f"{EVENTS}/{name}")).assert_problem(404, "there is no event")


def nested(depth: int) -> str:
    return '{"type":"a","source":"s","data":' + "[" * depth + "]" * depth + "}"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"type": "order created"}, "no event type"),
    "pattern": ({"type": "order.*"}, "no event type"),
    "many segments": ({"type": ".".join("a" * 17)}, "17 segments"),
    "source with a space": ({"source": "my shop"}, "source has a space"),
    "empty source": ({"source": ""}, "source is empty"),
    "long subject": ({"subject": "x" * 1025}, "subject has 1025 characters"),
    "NUL": ({"subject": "a\0b"}, "control character"),
    "header injection": ({"correlationId": "x\r\nEvil: yes"}, "control character"),
    "long group": ({"messageGroup": "g" * 192}, "messageGroup has 192 characters"),
    "large data": ({"data": "x" * 300_000}, "data has"),
    "deep data": ({"data": json.loads("[" * 65 + "]" * 65)}, "more than 64 deep"),
    "both data": ({"data": 1, "dataBase64": "AA=="}, "both there"),
    "no base64": ({"data": None, "dataBase64": "%"}, "not base64"),
    "extension": ({"extensions": {"Tenant": "a"}}, "no name"),
    "extension that is a field": ({"extensions": {"subject": "a"}}, "beside extensions"),
    "deep extension": ({"extensions": {"a": {"b": 1}}}, "extensions"),
    "many extensions": ({"extensions": {f"e{number}": 1 for number in range(21)}}, "21 entries"),
    "sequence": ({"extensions": {"sequence": -1}}, "sequence"),
    "unknown field": ({"messageGruop": "a"}, "messageGruop"),
    "spec": ({"specVersion": "0.3"}, "specVersion"),
}


@pytest.mark.parametrize("name", BAD)
@on_sqlite
async def test_bad_input_gets_one_clear_sentence_and_keeps_nothing(shop: Subscribing, name: str) -> None:
    wrong, words = BAD[name]
    (await shop.client.post(EVENTS, shop.event("1") | wrong)).assert_problem(400, words)
    batch = await shop.client.post(BATCH, {"events": [shop.event("1") | wrong]})
    assert [one["status"] for one in batch.json["results"]] == [400]
    assert (await shop.client.get(EVENTS)).json == {"items": [], "next": None}


@on_sqlite
async def test_nesting_without_end_and_bodies_without_end_are_refused(shop: Subscribing) -> None:
    for depth in (10_000, 1_000_000):
        answer = await shop.client.request("POST", EVENTS, body=nested(depth).encode())
        assert answer.status == 400, answer.text
        assert len(answer.json["detail"]) < 200
    (await shop.client.post(EVENTS, shop.event("x" * 17_000_000))).assert_problem(413, "larger than 16 MiB")
    assert (await shop.client.get(EVENTS)).json["items"] == []


@on_sqlite
async def test_secrets_in_data_are_masked_where_they_are_shown(shop: Subscribing) -> None:
    sent = await shop.send("1", data={"name": "1", "password": "hunter2"})
    assert "hunter2" not in (await shop.client.get(f"{EVENTS}/{sent['id']}")).text


async def test_a_router_without_the_platform_says_so(tmp_path: Path) -> None:
    async with run_router(tmp_path) as running:
        for path in (EVENTS, f"{EVENTS}/1", "/api/subscriptions", "/api/dispatch-pools", "/api/config/router"):
            (await running.client.get(path)).assert_problem(404, "platform.enabled")
