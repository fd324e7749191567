"""What the fields of a subscription mean for its jobs: when, in which order, of which events, what is on the wire."""

from datetime import datetime
from typing import Any

from flowcatalyst.receiver import verify
from tests.api.subscribing import EVENTS, Subscribing
from tests.support.http_servers import always, reply


async def job_of(shop: Subscribing, event: dict[str, Any]) -> dict[str, Any]:
    (job,) = (await shop.client.get(f"{EVENTS}/{event['id']}")).json["jobs"]
    found: dict[str, Any] = job
    return found


def seconds_between(earlier: str, later: str) -> float:
    return round((datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds(), 3)


async def test_its_delay_and_its_age_count_from_when_the_event_came(shop: Subscribing) -> None:
    await shop.subscribe("both", "a.*", delaySeconds=600, maxAgeSeconds=3600.5)
    await shop.subscribe("late", "b.*", delaySeconds=0.75, status="PAUSED")
    await shop.subscribe("short", "c.*", maxAgeSeconds=90, status="PAUSED")
    for kind, delay_s, age_s in (("a.b", 600, 3600.5), ("b.c", 0.75, None), ("c.d", None, 90)):
        # When it happened, as its sender says, is another time.
        event = await shop.send("1", type=kind, time="2020-01-02T03:04:05Z")
        job = await job_of(shop, event)
        for field, wanted in (("scheduledFor", delay_s), ("expiresAt", age_s)):
            found = None if job[field] is None else seconds_between(event["createdAt"], job[field])
            assert found == wanted, (kind, field)


async def test_the_sequence_of_an_event_beats_that_of_its_subscription(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR", sequence=50, status="PAUSED")
    for name, extensions in (("b", {}), ("c", {"sequence": 90}), ("a", {"sequence": 10}), ("a2", {"sequence": "10"})):
        event = await shop.send(name, messageGroup="g", extensions=extensions)
        assert (await job_of(shop, event))["sequence"] == int(extensions.get("sequence", 50))
    await shop.act("orders", "resume")
    await shop.until_got("orders", "a", "a2", "b", "c")


DIALECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # a filter, and what an event needs to pass it
    "exact": ({"exact": {"tenant": "acme", "source": "shop"}}, {"extensions": {"tenant": "acme"}}),
    "prefix": ({"prefix": {"subject": "vip:"}}, {"subject": "vip:7"}),
    "suffix": ({"suffix": {"subject": ":vip"}}, {"subject": "7:vip"}),
    "all": (
        {"all": [{"exact": {"tenant": "a"}}, {"prefix": {"subject": "vip"}}]},
        {"extensions": {"tenant": "a"}, "subject": "vip"},
    ),
    "any": ({"any": [{"exact": {"tenant": "a"}}, {"exact": {"tenant": "b"}}]}, {"extensions": {"tenant": "b"}}),
    "not": ({"not": {"exact": {"source": "shop"}}}, {"source": "elsewhere"}),
    "jsonpath": ({"jsonpath": "$.total > 100"}, {"data": {"name": "yes", "total": 101}}),
}
NEARLY: dict[str, dict[str, Any]] = {
    "exact": {"extensions": {"tenant": "acme"}, "source": "shops"},
    "prefix": {"subject": "7:vip:"},
    "suffix": {"subject": ":vip:7"},
    "all": {"extensions": {"tenant": "a"}, "subject": "nobody"},
    "any": {"extensions": {"tenant": "ab"}},
    "not": {"source": "shop"},
    "jsonpath": {"data": {"name": "no", "total": 100}},
}


async def test_each_dialect_of_filters_lets_through_what_it_says_and_nothing_else(shop: Subscribing) -> None:
    for dialect, (fits, passing) in DIALECTS.items():
        made = await shop.subscribe(dialect, f"{dialect}.*", filters=[fits])
        assert made["filters"] == [fits]
        assert (await shop.send("no", type=f"{dialect}.a", **NEARLY[dialect]))["jobs"] == 0, dialect
        assert (await shop.send("yes", type=f"{dialect}.a", **passing))["jobs"] == 1, dialect
    for dialect in DIALECTS:
        await shop.until_got(dialect, "yes")


SENT: dict[str, tuple[bytes, bytes, str]] = {  # fields of an event as they are written; body and type of its webhook
    "JSON": (
        b'"data": {"total": 12.50,\n "name":"Zo\xc3\xab"}',
        b'{"total": 12.50,\n "name":"Zo\xc3\xab"}',
        "application/json",
    ),
    "shop.JSON": (
        b'"data": [1], "dataContentType": "application/vnd.shop+json"',
        b"[1]",
        "application/vnd.shop+json",
    ),
    "text": (
        b'"data": "Gr\\u00fc\\u00dfe,\\nBob", "dataContentType": "text/plain"',
        "Grüße,\nBob".encode(),
        "text/plain",
    ),
    "bytes": (b'"dataBase64": "/wAK", "dataContentType": "image/png"', b"\xff\x00\n", "image/png"),
    "bytes.untyped": (b'"dataBase64": "/wAK"', b"\xff\x00\n", "application/octet-stream"),
    "nothing": (b'"data": null', b"null", "application/json"),
}


async def test_data_alone_are_sent_as_they_came(shop: Subscribing) -> None:
    shop.server.script = always(reply(200))
    made = await shop.subscribe("orders", "**", dataOnly=True, mode="BLOCK_ON_ERROR")
    for kind, (fields, _, _) in SENT.items():
        event = f'{{"type": "{kind}", "source": "shop", "messageGroup": "g", '.encode() + fields + b"}"
        sent = await shop.client.request("POST", EVENTS, body=event)
        assert (sent.status, sent.json["jobs"]) == (201, 1), sent.text
    await shop.until_done("orders")
    assert [one.headers["x-flowcatalyst-event-type"] for one in shop.server.requests] == list(SENT)
    for request, (_, body, content_type) in zip(shop.server.requests, SENT.values(), strict=True):
        assert (request.body, request.headers["content-type"]) == (body, content_type)
        assert verify(request.headers, request.body, made["secret"]).group == "orders:g"
