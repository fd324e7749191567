"""Pause, resume, rotate, test, replay and delete: nothing of a group is lost or out of order, whatever was done."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.dispatch import replaying
from flowcatalyst.receiver import Verdict
from tests.api.dispatching import on_sqlite
from tests.api.running import until
from tests.api.subscribing import EVENTS, SUBSCRIPTIONS, Subscribing, subscribing

MODES = ["IMMEDIATE", "NEXT_ON_ERROR", "BLOCK_ON_ERROR"]


async def test_a_paused_subscription_keeps_what_comes_and_sends_it_in_order_when_it_is_resumed(
    shop: Subscribing,
) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    await shop.subscribe("others", mode="BLOCK_ON_ERROR")
    await shop.send("1", messageGroup="g")
    await shop.until_got("orders", "1")
    paused = await shop.act("orders", "pause")
    assert (paused.status, paused.json["status"]) == (200, "PAUSED")
    for name in "234":
        assert (await shop.send(name, messageGroup="g"))["jobs"] == 2
    await shop.until_got("others", *"1234")
    await shop.until_done("others")
    assert shop.subscriber.names("orders") == ["1"]
    waiting = await shop.unfinished("orders")
    assert len(waiting) == 3
    for job in waiting:
        whole = (await shop.client.get(f"/api/dispatch-jobs/{job['id']}")).json
        assert (whole["waiting"]["kind"], whole["waitsFor"]) == (
            "RESUME",
            "Its subscription orders is paused: resume it.",
        )
    resumed = await shop.act("orders", "resume")
    assert (resumed.status, resumed.json["status"]) == (200, "ACTIVE")
    await shop.until_got("orders", *"1234")
    await shop.until_done("orders")
    assert set(shop.subscriber.verdicts) == {Verdict.NEXT}


@pytest.mark.parametrize("mode", MODES)
async def test_a_pause_holds_back_what_waits_for_a_retry_and_what_is_in_a_routers_hands(
    shop: Subscribing, mode: str
) -> None:
    await shop.subscribe("orders", mode=mode, retryDelaysSeconds=[0.2])
    shop.subscriber.fails("1", 500)
    gate = shop.subscriber.hangs("a1")
    await shop.send("a1", messageGroup="a")
    await shop.send("1", messageGroup="g")
    for number in range(2, 30):
        await shop.send(f"a{number}", messageGroup="a")

    async def both_began() -> bool:
        return {"a1", "1"} <= {*shop.subscriber.names("orders")}

    await until(both_began)
    assert (await shop.act("orders", "pause")).status == 200
    before = len(shop.subscriber.got)
    gate.set()  # what is in flight ends as usual

    async def retry_is_due() -> bool:
        times = [job["nextAttemptAt"] for job in await shop.unfinished("orders")]
        return all(datetime.fromisoformat(time) < datetime.now(UTC) for time in times if time is not None)

    await until(retry_is_due)
    await shop.subscribe("others")
    await shop.send("fence")
    await shop.until_got("others", "fence")
    assert len(shop.subscriber.got) == before + 1
    assert (await shop.act("orders", "resume")).status == 200
    await shop.until_done("orders")
    names = [name for name in shop.subscriber.names("orders") if name.startswith("a")]
    assert sorted(names) == sorted(f"a{number}" for number in range(1, 30))
    if mode != "IMMEDIATE":
        assert names == [f"a{number}" for number in range(1, 30)]
    assert (shop.subscriber.names("orders").count("1"), "fence" in shop.subscriber.names("orders")) == (2, True)


async def test_a_subscription_can_be_made_paused_and_its_status_changed_like_any_field(shop: Subscribing) -> None:
    await shop.subscribe("orders", status="PAUSED", mode="BLOCK_ON_ERROR")
    await shop.subscribe("others")
    await shop.send("1", messageGroup="g")
    await shop.until_got("others", "1")
    assert shop.subscriber.names("orders") == []
    assert (await shop.change("orders", status="ACTIVE")).json["status"] == "ACTIVE"
    await shop.until_got("orders", "1")
    assert (await shop.change("orders", status="PAUSED")).json["status"] == "PAUSED"
    await shop.send("2", messageGroup="g")
    await shop.until_got("others", "1", "2")
    assert (await shop.client.put(f"{SUBSCRIPTIONS}/orders", shop.body("orders"))).json["status"] == "ACTIVE"
    await shop.until_got("orders", "1", "2")


async def test_what_is_paused_is_so_after_a_restart(tmp_path: Path, store: dict[str, str]) -> None:
    async with subscribing(tmp_path, platform=store) as shop:
        made = await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
        await shop.act("orders", "pause")
        await shop.send("1", messageGroup="g")
    async with subscribing(tmp_path, platform=store) as shop:
        shop.subscriber.secrets["orders"] = [made["secret"]]
        await shop.subscribe("others")
        await shop.send("2", messageGroup="g")
        await shop.until_got("others", "2")
        assert (await shop.shown("orders"))["status"] == "PAUSED"
        (first, _) = sorted(await shop.unfinished("orders"), key=lambda job: str(job["createdAt"]))
        await shop.act("orders", "resume")
        assert (first["status"], first["attempts"]) == ("PENDING", 0)


async def test_while_secrets_overlap_each_webhook_is_signed_with_both(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    rotated = await shop.act("orders", "rotate-secret", {"overlapSeconds": 86400})
    assert rotated.status == 200, rotated.text
    old, new = made["secret"], rotated.json["secret"]
    assert old != new
    assert [one["until"] is None for one in rotated.json["secrets"]] == [True, False]
    for name, secret in (("1", old), ("2", new)):
        shop.subscriber.secrets["orders"] = [secret]
        await shop.send(name, messageGroup="g")
        await shop.until_done("orders")
    await shop.until_got("orders", "1", "2")
    assert all(len(request.headers["webhook-signature"].split()) == 2 for request in shop.server.requests)
    assert "secret" not in await shop.shown("orders")


async def test_without_an_overlap_only_the_new_secret_signs_also_what_was_made_before(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", mode="BLOCK_ON_ERROR", status="PAUSED")
    await shop.send("1", messageGroup="g")
    rotated = await shop.act("orders", "rotate-secret", {"overlapSeconds": 0})
    assert len(rotated.json["secrets"]) == 1
    shop.subscriber.secrets["orders"] = [rotated.json["secret"]]
    await shop.act("orders", "resume")
    await shop.until_got("orders", "1")
    assert rotated.json["secret"] != made["secret"]


@on_sqlite
async def test_a_secret_that_is_over_signs_no_more(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", maxRetries=0)
    await shop.act("orders", "rotate-secret", {"overlapSeconds": 0.05})

    async def is_over() -> bool:
        return len((await shop.shown("orders"))["secrets"]) == 1

    await until(is_over)
    shop.subscriber.secrets["orders"] = [made["secret"]]
    await shop.send("1")

    async def was_refused() -> bool:
        return len(shop.subscriber.refused) == 1

    await until(was_refused)


@on_sqlite
async def test_rotations_are_checked(shop: Subscribing) -> None:
    await shop.subscribe("orders")
    (await shop.act("orders", "rotate-secret", {"overlapSeconds": -1})).assert_problem(400, "overlapSeconds")
    (await shop.act("orders", "rotate-secret", {"secret": "hunter2"})).assert_problem(400, "whsec_")
    for _ in range(4):
        assert (await shop.act("orders", "rotate-secret")).status == 200
    (await shop.act("orders", "rotate-secret")).assert_problem(409, "5 secrets", "overlapSeconds 0")
    assert len((await shop.act("orders", "rotate-secret", {"overlapSeconds": 0})).json["secrets"]) == 1


async def test_a_sample_is_a_real_signed_job(shop: Subscribing) -> None:
    await shop.subscribe("orders", "order.*", "x.**", mode="BLOCK_ON_ERROR", filters=[{"exact": {"source": "nobody"}}])
    sent = await shop.act("orders", "test")
    assert (sent.status, sent.json["code"], sent.json["subscription"]) == (201, "order.test", "orders")
    own = await shop.act("orders", "test", {"type": "order.created", "data": {"name": "mine"}})
    assert (own.status, own.json["code"]) == (201, "order.created")
    await shop.until_done("orders")
    assert sorted(shop.subscriber.names("orders")) == ["?", "mine"]
    assert shop.subscriber.refused == []
    assert (await shop.client.get(EVENTS)).json["items"] == []
    (await shop.act("orders", "test", {"type": "order.*"})).assert_problem(400, "no event type")


async def replayed(shop: Subscribing, **more: Any) -> dict[str, Any]:
    answer = await shop.act("orders", "replay", {"from": "2026-01-01T00:00:00Z"} | more)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


async def test_a_replay_sends_past_events_again_behind_what_its_groups_hold_now(shop: Subscribing) -> None:
    for name in "123":
        await shop.send(name, messageGroup="g", extensions={"sequence": 1})
    await shop.send("x", type="invoice.sent")
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR", status="PAUSED")
    await shop.send("4", messageGroup="g", extensions={"sequence": 50})
    begin = datetime.now(UTC).isoformat()
    await shop.send("5", messageGroup="g", extensions={"sequence": 50})
    dry = await replayed(shop, to=begin, dryRun=True)
    assert (dry["matched"], dry["made"]) == (4, 0)
    assert len(await shop.unfinished("orders")) == 2
    done = await replayed(shop, to=begin, id="first")
    assert (done["id"], done["events"] >= 4, done["made"], done["repeated"], done["next"]) == (
        "first",
        True,
        4,
        0,
        None,
    )
    again = await replayed(shop, to=begin, id="first")
    assert (again["made"], again["repeated"]) == (0, 4)
    await shop.send("6", messageGroup="g", extensions={"sequence": 60})
    await shop.act("orders", "resume")
    await shop.until_got("orders", *"45123", "4", "6")
    await shop.until_done("orders")
    assert set(shop.subscriber.verdicts) == {Verdict.NEXT}


async def test_the_id_of_a_replay_is_not_known_to_a_subscription_that_was_made_anew(shop: Subscribing) -> None:
    await shop.send("1")
    await shop.subscribe("orders")
    assert (await replayed(shop, id="first"))["made"] == 1
    await shop.until_got("orders", "1")
    assert (await replayed(shop, id="first"))["repeated"] == 1
    assert (await shop.client.delete(f"{SUBSCRIPTIONS}/orders")).status == 200
    await shop.subscribe("orders")
    anew = await replayed(shop, id="first")
    assert (anew["made"], anew["repeated"]) == (1, 0)
    await shop.until_got("orders", "1", "1")


async def test_a_replay_of_many_goes_in_parts_and_keeps_their_order(shop: Subscribing) -> None:
    batch = [shop.event(str(number), messageGroup=f"g{number % 7}") for number in range(900)]
    assert (await shop.client.post(f"{EVENTS}/batch", {"events": batch})).status == 200
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    assert (await replayed(shop))["made"] == 900
    await shop.until_done("orders")
    for group in range(7):
        got = [int(name) for name in shop.subscriber.names("orders") if int(name) % 7 == group]
        assert got == list(range(group, 900, 7))


async def test_a_replay_begins_with_the_first_event_that_came_at_its_time_or_later(shop: Subscribing) -> None:
    await shop.send("early", messageGroup="g", time="2030-01-01T00:00:00Z")  # when they happened does not count
    second = await shop.send("second", messageGroup="g", time="2020-01-01T00:00:00Z")
    await shop.send("third", messageGroup="g")
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    done = await replayed(shop, **{"from": second["createdAt"]})
    assert (done["events"], done["made"]) == (2, 2)
    await shop.until_got("orders", "second", "third")


async def test_a_replay_that_takes_too_long_goes_on_where_its_next_says(
    shop: Subscribing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "MOST_S", 0.0)
    names = [str(number) for number in range(230)]
    batch = [shop.event(name, messageGroup="g") for name in names]
    assert (await shop.client.post(f"{EVENTS}/batch", {"events": batch})).status == 200
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    part = await replayed(shop, id="first")
    parts = [part]
    await shop.send("new", messageGroup="g")  # a job as usual, and after `to`
    while part["next"] is not None:
        part = await replayed(shop, id="first", to=parts[0]["to"], cursor=part["next"])
        parts.append(part)
    assert len(parts) > 2
    for field in ("events", "matched", "made"):
        assert sum(one[field] for one in parts) == 230, field
    assert {(one["id"], one["to"], one["repeated"]) for one in parts} == {("first", parts[0]["to"], 0)}
    first = parts[0]["made"]
    again = await replayed(shop, id="first", to=parts[0]["to"])  # somebody lost the answer and begins anew
    assert (again["made"], again["repeated"], again["next"]) == (0, first, parts[0]["next"])
    await shop.until_done("orders")
    assert shop.subscriber.names("orders") == [*names[:first], "new", *names[first:]]


@on_sqlite
async def test_a_replay_is_for_a_span_of_time(shop: Subscribing) -> None:
    await shop.subscribe("orders")
    now = datetime.now(UTC).isoformat()
    for wrong, words in (
        ({}, "from"),
        ({"from": now, "to": "2026-01-01T00:00:00Z"}, "from is not before to"),
        ({"from": "yesterday"}, "from"),
        ({"from": now, "id": ""}, "id"),
        ({"from": "2026-01-01T00:00:00Z", "id": "a\0b"}, "NUL"),
        ({"from": now, "cursor": "x"}, "cursor"),
    ):
        (await shop.act("orders", "replay", wrong)).assert_problem(400, words)


async def test_a_deleted_subscription_is_gone_with_what_it_had_to_do(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR", retryDelaysSeconds=[600])
    shop.subscriber.fails("1", 500)
    for name in "123":
        await shop.send(name, messageGroup="g")
    await shop.send("4")

    async def has_failed() -> bool:
        return any(job["status"] == "ERROR" for job in await shop.unfinished("orders"))

    await until(has_failed)
    gone = await shop.client.delete(f"{SUBSCRIPTIONS}/orders")
    assert (gone.status, gone.json["inFlight"]) == (200, 0), gone.text
    assert gone.json["cancelled"] >= 3
    assert await shop.unfinished("orders") == []
    assert (await shop.send("5"))["jobs"] == 0
    (await shop.client.get(f"{SUBSCRIPTIONS}/orders")).assert_problem(404)
    (await shop.client.delete(f"{SUBSCRIPTIONS}/orders")).assert_problem(404)
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")  # the code is free, and nothing is paused
    shop.subscriber.got.clear()
    await shop.send("6", messageGroup="g")
    await shop.until_got("orders", "6")


async def test_a_delete_says_what_is_in_flight_and_a_repeat_cancels_what_came_of_it(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR", retryDelaysSeconds=[600])
    gate = shop.subscriber.hangs("1")
    shop.subscriber.fails("1", 500)
    await shop.send("1", messageGroup="g")
    await shop.send("2", messageGroup="g")
    await shop.until_got("orders", "1")
    gone = await shop.client.delete(f"{SUBSCRIPTIONS}/orders")
    assert (gone.json["cancelled"], gone.json["inFlight"]) == (1, 1), gone.text
    gate.set()

    async def has_failed() -> bool:
        return [job["status"] for job in await shop.unfinished("orders")] == ["ERROR"]

    await until(has_failed)
    taken = await shop.client.post(SUBSCRIPTIONS, shop.body("orders"))
    taken.assert_problem(409, "DELETE it once more")
    again = await shop.client.delete(f"{SUBSCRIPTIONS}/orders")
    assert (again.json["cancelled"], again.json["inFlight"]) == (1, 0)
    assert (await shop.client.post(SUBSCRIPTIONS, shop.body("orders"))).status == 201
