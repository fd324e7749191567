"""What the documentation shows, request by request, and what becomes of an event with more jobs than one answer has."""

from typing import Any

from tests.api.running import until
from tests.api.subscribing import EVENTS, SUBSCRIPTIONS, Subscribing

BATCH = f"{EVENTS}/batch"
ORDER_CREATED: dict[str, Any] = {
    "type": "order.created",
    "source": "shop",
    "subject": "order:12345",
    "messageGroup": "order:12345",
    "data": {"total": 12},
    "deduplicationId": "o-1",
    "extensions": {"sequence": 1},
}


def processor(shop: Subscribing, code: str) -> dict[str, Any]:
    return {
        "code": code,
        "name": "Orders",
        "targetUrl": shop.server.url(f"/hooks/{code}"),
        "mode": "NEXT_ON_ERROR",
        "eventTypes": [{"eventTypeCode": "order.created"}, {"eventTypeCode": "order.*"}],
    }


async def test_the_examples_of_the_documentation_are_one_story(shop: Subscribing) -> None:
    async def subscribe(code: str) -> None:
        made = await shop.client.post(SUBSCRIPTIONS, processor(shop, code))
        assert made.status == 201, made.text
        assert made.json["secret"].startswith("whsec_")
        shop.subscriber.secrets[code] = [made.json["secret"]]
        assert "secret" not in await shop.shown(code)

    await subscribe("order-processor")
    first = await shop.client.post(EVENTS, ORDER_CREATED)
    assert (first.status, first.json["jobs"]) == (201, 1)  # though both patterns of the subscription match
    await shop.until_done("order-processor")

    await subscribe("order-audit")
    second = await shop.client.post(EVENTS, ORDER_CREATED | {"deduplicationId": "o-2"})
    assert (second.status, second.json["jobs"]) == (201, 2)

    again = await shop.client.post(EVENTS, ORDER_CREATED)
    assert (again.status, again.json) == (200, first.json)

    events = [ORDER_CREATED | {"deduplicationId": name} for name in ("o-3", "o-1")]
    batch = await shop.client.post(BATCH, {"events": events})
    assert batch.status == 200, batch.text
    made, repeated = batch.json["results"]
    assert (made["status"], made["event"]["jobs"], made["event"]["deduplicationId"]) == (201, 2, "o-3")
    assert repeated == {"status": 200, "event": first.json}

    for code, count in (("order-processor", 3), ("order-audit", 2)):
        await shop.until_done(code)
        assert len(shop.subscriber.names(code)) == count
    assert shop.subscriber.refused == []
    assert {webhook.json()["data"]["total"] for webhook in shop.subscriber.webhooks} == {12}


async def test_all_jobs_of_an_event_are_found_however_many_they_are(shop: Subscribing) -> None:
    codes = [f"s-{number:03}" for number in range(130)]
    for code in codes:
        await shop.subscribe(code)
    sent = await shop.send("1")
    assert sent["jobs"] == 130
    whole = (await shop.client.get(f"{EVENTS}/{sent['id']}")).json
    assert len(whole["jobs"]) == 100
    found = [job["subscription"] for job in whole["jobs"]]
    cursor = whole["nextJobs"]
    while cursor is not None:
        query = f"metadata=eventId:{sent['id']}&limit=20&cursor={cursor}"
        page = (await shop.client.get(f"/api/dispatch-jobs?{query}")).json
        found += [job["subscription"] for job in page["items"]]
        cursor = page["next"]
    assert sorted(found) == codes

    async def all_came() -> bool:
        return len(shop.subscriber.got) == 130

    await until(all_came)
