"""/api/subscriptions: every field does what it says, secrets are shown once, and what cannot work is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.webhook import secret_of
from flowcatalyst.dispatch import housekeeping
from flowcatalyst.dispatch.sealing import new_secret_key
from tests.api.dispatching import on_sqlite
from tests.api.running import until
from tests.api.subscribing import POOLS, SUBSCRIPTIONS, Subscribing, subscribing

ALL_FIELDS: dict[str, Any] = {
    "name": "Orders of the shop",
    "status": "ACTIVE",
    "filters": [{"exact": {"source": "shop"}}, {"jsonpath": "$.total > 100"}],
    "mode": "NEXT_ON_ERROR",
    "sequence": 7,
    "dispatchPoolCode": "POOL-HIGH",
    "timeoutSeconds": 12.5,
    "maxRetries": 5,
    "retryDelaysSeconds": [0.5, 2],
    "delaySeconds": 1.5,
    "maxAgeSeconds": 3600,
    "dataOnly": True,
    "headers": {"X-Tenant": "acme"},
}


async def test_the_example_of_the_documentation_is_taken_as_it_stands(shop: Subscribing) -> None:
    made = await shop.client.post(
        SUBSCRIPTIONS,
        {
            "code": "order-processor",
            "name": "Orders",
            "targetUrl": "https://shop.example/hooks",
            "mode": "NEXT_ON_ERROR",
            "eventTypes": [{"eventTypeCode": "order.created"}, {"eventTypeCode": "order.*"}],
        },
    )
    assert made.status == 201, made.text
    assert made.json["secret"].startswith("whsec_")
    assert (made.json["status"], made.json["timeoutSeconds"], made.json["maxRetries"]) == ("ACTIVE", 30.0, 3)
    assert (made.json["sequence"], made.json["dispatchPoolCode"], made.json["problem"]) == (99, "DEFAULT-POOL", None)


async def test_every_field_is_kept_and_shown_but_the_secret_only_once(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", "order.*", "invoice.**", **ALL_FIELDS)
    secret = made.pop("secret")
    for name, value in ALL_FIELDS.items():
        assert made[name] == value, name
    assert made["eventTypes"] == [{"eventTypeCode": "order.*"}, {"eventTypeCode": "invoice.**"}]
    one = await shop.client.get(f"{SUBSCRIPTIONS}/orders")
    listed = await shop.client.get(SUBSCRIPTIONS)
    assert one.json == made
    assert listed.json == {"items": [made], "next": None}
    assert "secret" not in one.json
    assert secret not in one.text + listed.text


async def test_its_jobs_are_as_it_says(shop: Subscribing) -> None:
    await shop.subscribe("orders", **ALL_FIELDS | {"filters": [], "delaySeconds": 600})
    sent = await shop.send("1", messageGroup="g")
    (job,) = (await shop.client.get(f"/api/events/{sent['id']}")).json["jobs"]
    assert (job["mode"], job["sequence"], job["dispatchPoolCode"]) == ("NEXT_ON_ERROR", 7, "POOL-HIGH")
    assert (job["timeoutSeconds"], job["maxRetries"], job["retryDelaysSeconds"]) == (12.5, 5, [0.5, 2.0])
    assert (job["scheduledFor"] is not None, job["expiresAt"] is not None) == (True, True)
    assert (job["contentType"], job["payloadBytes"]) == ("application/json", len('{"name":"1"}'))
    assert (job["subscription"], job["messageGroup"], job["status"]) == ("orders", "orders:g", "PENDING")


async def test_filters_decide_which_events_it_gets(shop: Subscribing) -> None:
    await shop.subscribe("large", filters=[{"jsonpath": "$.total > 100"}])
    await shop.subscribe("acme", filters=[{"any": [{"exact": {"tenant": "acme"}}, {"prefix": {"subject": "vip:"}}]}])
    made = [
        (await shop.send("a", data={"name": "a", "total": 101}))["jobs"],
        (await shop.send("b", data={"name": "b", "total": 100}, extensions={"tenant": "acme"}))["jobs"],
        (await shop.send("c", subject="vip:7"))["jobs"],
        (await shop.send("d"))["jobs"],
    ]
    assert made == [1, 1, 1, 0]
    await shop.until_got("large", "a")


async def test_a_secret_that_the_receiver_knows_already_is_taken(shop: Subscribing) -> None:
    secret = secret_of(b"k" * 32)
    made = await shop.subscribe("orders", secret=secret)
    assert made["secret"] == secret
    await shop.send("1")
    await shop.until_got("orders", "1")


async def test_a_code_is_taken_once(shop: Subscribing) -> None:
    await shop.subscribe("orders")
    again = await shop.client.post(SUBSCRIPTIONS, shop.body("orders"))
    again.assert_problem(409, "subscription orders already")


@on_sqlite
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_what_get_answered_can_be_sent_back(shop: Subscribing, method: str) -> None:
    await shop.subscribe("orders", **ALL_FIELDS | {"filters": []})
    before = await shop.shown("orders")
    path = f"{SUBSCRIPTIONS}/orders"
    answer = await shop.client.request(method, path, json=before | {"name": "Renamed", "revision": 99_999})
    assert answer.status == 200, answer.text
    changing = {"name", "revision", "updatedAt"}
    assert answer.json["name"] == "Renamed"
    assert {**answer.json, **dict.fromkeys(changing)} == {**before, **dict.fromkeys(changing)}
    await shop.send("1", messageGroup="g")  # its secret is the same
    (await shop.client.request(method, path, json=before | {"revisions": 1})).assert_problem(400, "`revisions` is not")


@on_sqlite
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_neither_code_nor_secret_are_changed_with_the_other_fields(shop: Subscribing, method: str) -> None:
    await shop.subscribe("orders")
    path, body = f"{SUBSCRIPTIONS}/orders", shop.body("orders") if method == "PUT" else {}
    other = await shop.client.request(method, path, json=body | {"code": "other"})
    other.assert_problem(400, "the code of a subscription stays")
    secret = await shop.client.request(method, path, json=body | {"secret": secret_of(b"k" * 32)})
    secret.assert_problem(400, "POST /api/subscriptions/orders/rotate-secret")
    assert (await shop.client.request(method, path, json=[])).status == 400
    assert (await shop.client.request(method, path, body=b'{"name": ')).status == 400


@on_sqlite
async def test_a_pool_that_there_is_not_is_taken_and_told_of(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", dispatchPoolCode="TYPO")
    assert (
        made["note"] == "There is no pool TYPO here: its jobs go through DEFAULT-POOL, with a warning, until there is."
    )
    (listed,) = (await shop.client.get(SUBSCRIPTIONS)).json["items"]
    assert listed["note"] == made["note"]
    await shop.send("1")
    await shop.until_got("orders", "1")
    assert (await shop.client.post(POOLS, {"code": "TYPO", "concurrency": 1})).status == 201
    assert (await shop.shown("orders"))["note"] is None
    assert (await shop.change("orders", dispatchPoolCode="DEFAULT-POOL")).json["note"] is None
    assert (await shop.act("orders", "rotate-secret")).json["note"] is None


async def test_a_change_is_in_force_when_its_answer_comes(shop: Subscribing) -> None:
    made = await shop.subscribe("orders", "order.created", headers={"X-A": "1"})
    changed = await shop.change("orders", eventTypes=[{"eventTypeCode": "invoice.*"}], name="Invoices", maxRetries=9)
    assert changed.status == 200, changed.text
    assert (changed.json["name"], changed.json["maxRetries"], changed.json["headers"]) == ("Invoices", 9, {"X-A": "1"})
    assert changed.json["revision"] > made["revision"]
    assert (await shop.send("1", type="order.created"))["jobs"] == 0
    assert (await shop.send("2", type="invoice.sent"))["jobs"] == 1
    await shop.until_got("orders", "2")  # with the same secret


async def test_what_a_put_leaves_out_is_as_for_a_new_one(shop: Subscribing) -> None:
    await shop.subscribe("orders", **ALL_FIELDS)
    put = await shop.client.put(f"{SUBSCRIPTIONS}/orders", shop.body("orders", "a.b"))
    assert put.status == 200, put.text
    assert (put.json["name"], put.json["mode"], put.json["headers"], put.json["filters"]) == (None, "IMMEDIATE", {}, [])
    assert await shop.shown("orders") == put.json
    wrong = await shop.client.put(f"{SUBSCRIPTIONS}/orders", shop.body("other"))
    wrong.assert_problem(400, "the code of a subscription stays")


@on_sqlite
async def test_what_is_masked_stays_as_it_is_when_it_comes_back_so(shop: Subscribing) -> None:
    target = shop.server.url("/hooks/orders?key=hunter2")
    await shop.subscribe("orders", targetUrl=target, headers={"Authorization": "Bearer hunter3", "X-A": "1"})
    shown = await shop.shown("orders")
    assert "hunter" not in str(shown)
    body = shop.body("orders") | {name: shown[name] for name in ("targetUrl", "headers")}
    assert (await shop.client.put(f"{SUBSCRIPTIONS}/orders", body)).status == 200
    await shop.send("1")
    await shop.until_got("orders", "1")
    (request,) = shop.server.requests
    assert (request.path, request.headers["authorization"]) == ("/hooks/orders?key=hunter2", "Bearer hunter3")


async def test_lists_are_by_code_status_and_page(shop: Subscribing) -> None:
    for code in "cab":
        await shop.subscribe(code, status="PAUSED" if code == "b" else "ACTIVE")

    async def codes(query: str) -> tuple[list[str], str | None]:
        page = (await shop.client.get(f"{SUBSCRIPTIONS}?{query}")).json
        return [one["code"] for one in page["items"]], page["next"]

    assert await codes("") == (["a", "b", "c"], None)
    assert await codes("limit=2") == (["a", "b"], "b")
    assert await codes("limit=2&cursor=b") == (["c"], None)
    assert await codes("cursor=bb") == (["c"], None)  # it was deleted meanwhile
    assert await codes("cursor=c") == ([], None)
    (await shop.client.get(f"{SUBSCRIPTIONS}?cursor=zzz")).assert_problem(400, "cursor is 'zzz'")
    assert await codes("status=PAUSED") == (["b"], None)
    assert await codes("limit=1&status=ACTIVE") == (["a"], "a")


async def test_a_subscription_that_nobody_knows_is_not_found(shop: Subscribing) -> None:
    path = f"{SUBSCRIPTIONS}/nobody"
    answers = [
        await shop.client.get(path),
        await shop.client.put(path, shop.body("nobody")),
        await shop.change("nobody", name="x"),
        await shop.client.delete(path),
        await shop.client.delete(f"{SUBSCRIPTIONS}/a%00b"),
        await shop.act("nobody", "pause"),
        await shop.act("nobody", "resume"),
        await shop.act("nobody", "rotate-secret"),
        await shop.act("nobody", "test"),
        await shop.act("nobody", "replay", {"from": "2026-01-01T00:00:00Z"}),
    ]
    for answer in answers:
        answer.assert_problem(404, "there is no subscription")


EVIL = "x\r\nEvil: yes"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"code": "a b"}, "code is 'a b'"),
    "long code": ({"code": "x" * 65}, "up to 64"),
    "no patterns": ({"eventTypes": []}, "eventTypes has 0 entries"),
    "many patterns": ({"eventTypes": [{"eventTypeCode": "a"}] * 51}, "eventTypes has 51 entries"),
    "half a wildcard": ({"eventTypes": [{"eventTypeCode": "order.cre*"}]}, "no pattern"),
    "** in the middle": ({"eventTypes": [{"eventTypeCode": "**.created"}]}, "no pattern"),
    "many wildcards": ({"eventTypes": [{"eventTypeCode": ".".join("*" * 17)}]}, "17 segments"),
    "regular expression": ({"eventTypes": [{"eventTypeCode": "(a+)+$"}]}, "no pattern"),
    "dialect": ({"filters": [{"sql": "1 = 1"}]}, "filters[0]"),
    "regular filter": ({"filters": [{"jsonpath": "match($.a, '(a+)+')"}]}, "filters[0].jsonpath"),
    "two descents": ({"filters": [{"jsonpath": "$..a..b"}]}, "second `..`"),
    "long filter": ({"filters": [{"jsonpath": "$.a == '" + "x" * 1100 + "'"}]}, "filters[0].jsonpath"),
    "many parts": ({"filters": [{"jsonpath": " || ".join(["$.a == 1"] * 90)}]}, "filters[0].jsonpath"),
    "no filter": ({"filters": [{"jsonpath": "$["}]}, "filters[0].jsonpath"),
    "header": ({"headers": {"X-A": EVIL}}, "X-A may have printable"),
    "name of a header": ({"headers": {EVIL: "a"}}, "not the name of a header"),
    "signature": ({"headers": {"Webhook-Signature": "v1,x"}}, "part of the signature"),
    "name": ({"name": EVIL}, "name is empty, or has characters that cannot be printed"),
    "mode": ({"mode": "SOMETIMES"}, "mode"),
    "sequence": ({"sequence": -1}, "sequence is -1, which is not between 0 and 4194303"),
    "late sequence": ({"sequence": 4194304}, "sequence is 4194304, which"),
    "endless sequence": ({"sequence": 10**400}, "sequence is a number of hundreds of digits, which"),
    "timeout": ({"timeoutSeconds": 1e9}, "timeoutSeconds is 1000000000"),
    "retries": ({"maxRetries": -1}, "maxRetries is -1"),
    "delays": ({"retryDelaysSeconds": [-1]}, "retryDelaysSeconds is -1, which is not between 0 and 2592000"),
    "delay": ({"delaySeconds": -1}, "delaySeconds is -1, not between 0 and 2592000"),
    "long delay": ({"delaySeconds": 1e300}, "delaySeconds is 1e+300"),
    "age": ({"maxAgeSeconds": 0}, "maxAgeSeconds is 0: it has to be more than delaySeconds (0) and at most 31536000"),
    "unknown field": ({"dispatchPool": "x"}, "dispatchPool"),
    "unknown field of an event type": (
        {"eventTypes": [{"type": "x.y"}]},
        "`eventTypes[0].type` is not a field here; the fields are eventTypeCode",
    ),
    "scheme": ({"targetUrl": "file:///etc/passwd"}, "targetUrl"),
    "credentials": ({"targetUrl": "http://a:b@host.example/"}, "targetUrl"),
    "metadata of a cloud": ({"targetUrl": "http://169.254.169.254/latest/meta-data"}, "serves metadata"),
    "secret without its prefix": ({"secret": "hunter2"}, "begin with whsec_"),
    "short secret": ({"secret": "whsec_aGk="}, "24 to 64 bytes"),
    "secret that is no base64": ({"secret": "whsec_%%%"}, "base64"),
}


@pytest.mark.parametrize("name", BAD)
@on_sqlite
async def test_bad_input_gets_one_clear_sentence_and_keeps_nothing(shop: Subscribing, name: str) -> None:
    wrong, words = BAD[name]
    answer = await shop.client.post(SUBSCRIPTIONS, shop.body("orders") | wrong)
    answer.assert_problem(400, words)
    assert "hunter2" not in answer.text
    assert len(answer.json["detail"]) < 400
    assert (await shop.client.get(SUBSCRIPTIONS)).json == {"items": [], "next": None}
    before = await shop.subscribe("orders")
    if wrong.keys() & {"code", "secret"}:
        return
    (await shop.change("orders", **wrong)).assert_problem(400, words)
    (await shop.client.put(f"{SUBSCRIPTIONS}/orders", shop.body("orders") | wrong)).assert_problem(400, words)
    assert (await shop.shown("orders")).items() <= before.items()


@on_sqlite
async def test_filters_within_filters_without_end_are_refused(shop: Subscribing) -> None:
    deep: dict[str, Any] = {"exact": {"a": "b"}}
    for _ in range(200):
        deep = {"not": deep}
    (await shop.client.post(SUBSCRIPTIONS, shop.body("orders", filters=[deep]))).assert_problem(400, "filters[0]")
    body = b'{"code":"a","filters":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert (await shop.client.request("POST", SUBSCRIPTIONS, body=body)).status == 400


PRIVATE = [
    "http://10.0.0.1/",
    "http://127.0.0.1:9/",
    "http://localhost/x",
    "http://a.localhost./",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "http://0.0.0.0/",
    "http://100.100.100.200/",
    "http://metadata.google.internal/",
]


async def test_a_target_that_is_not_on_the_internet_is_refused_in_whatever_form(tmp_path: Path) -> None:
    async with subscribing(tmp_path, egress={"allow_private": False}) as shop:
        for target in PRIVATE:
            answer = await shop.client.post(SUBSCRIPTIONS, shop.body("orders", targetUrl=target))
            answer.assert_problem(400, "targetUrl cannot be called")
        assert (await shop.client.get(SUBSCRIPTIONS)).json["items"] == []
        fine = shop.body("orders", targetUrl="https://shop.example/hooks")
        assert (await shop.client.post(SUBSCRIPTIONS, fine)).status == 201
        for target in PRIVATE:
            (await shop.change("orders", targetUrl=target)).assert_problem(400, "targetUrl cannot be called")
        assert (await shop.shown("orders"))["targetUrl"] == "https://shop.example/hooks"


@on_sqlite
async def test_what_was_done_is_in_the_audit_trail_and_no_secret_is(shop: Subscribing, tmp_path: Path) -> None:
    secrets = [(await shop.subscribe("orders"))["secret"]]
    await shop.change("orders", name="x")
    await shop.act("orders", "pause")
    await shop.act("orders", "resume")
    secrets.append((await shop.act("orders", "rotate-secret")).json["secret"])
    await shop.act("orders", "test")
    await shop.act("orders", "replay", {"from": "2026-01-01T00:00:00Z"})
    await shop.client.delete(f"{SUBSCRIPTIONS}/orders")
    audit = await shop.client.get("/monitoring/audit")
    actions = ["create", "change", "pause", "resume", "secret", "test", "replay", "delete"]
    assert [one["action"] for one in audit.json] == [f"subscription_{action}" for action in reversed(actions)]
    assert [one["detail"] for one in audit.json if one["action"] == "subscription_change"] == ["name"]
    assert not any(secret in audit.text for secret in secrets)
    files = await asyncio.to_thread(lambda: b"".join(path.read_bytes() for path in tmp_path.rglob("*.db*")))
    assert b"subscription orders" in files
    assert not any(secret.removeprefix("whsec_").encode() in files for secret in secrets)


async def test_subscriptions_are_there_after_a_restart_with_their_secrets(
    tmp_path: Path, store: dict[str, str]
) -> None:
    async with subscribing(tmp_path, platform=store) as shop:
        made = await shop.subscribe("orders")
    async with subscribing(tmp_path, platform=store) as shop:
        shop.subscriber.secrets["orders"] = [made["secret"]]
        changed = await shop.change("orders", targetUrl=shop.server.url("/hooks/orders"))
        assert (changed.status, changed.json["createdAt"]) == (200, made["createdAt"])
        await shop.send("1")
        await shop.until_got("orders", "1")


@on_sqlite
async def test_a_lost_key_is_one_sentence_and_what_is_not_signed_waits(tmp_path: Path, store: dict[str, str]) -> None:
    async with subscribing(tmp_path, platform=store) as shop:
        await shop.subscribe("orders")
    (tmp_path / "secret.key").rename(tmp_path / "lost")
    async with subscribing(tmp_path, platform=store) as shop:
        assert "is gone: put it back" in (await shop.shown("orders"))["problem"]
        await shop.change("orders", targetUrl=shop.server.url("/hooks/orders"))
        await shop.send("1")
        for refused in (
            await shop.client.post(SUBSCRIPTIONS, shop.body("others", "invoice.*")),
            await shop.act("orders", "rotate-secret"),
        ):
            assert (refused.status, "is gone: put it back" in refused.json["detail"]) == (503, True)
        assert not (tmp_path / "secret.key").exists()
        [warned] = [one for one in shop.running.app.warnings.recent() if "of some subscriptions" in one.message]
        assert "is gone: put it back" in warned.message
        assert [job["status"] for job in await shop.unfinished("orders")] != []
        (tmp_path / "secret.key").write_text(new_secret_key())  # what the sentence says of a key that is lost for good
        assert (await shop.subscribe("others", "invoice.*"))["problem"] is None
        await shop.send("2", type="invoice.sent")
        await shop.until_got("others", "2")
        rotated = await shop.act("orders", "rotate-secret")
        shop.subscriber.secrets["orders"] = [rotated.json["secret"]]
        assert (rotated.status, rotated.json["problem"], len(rotated.json["secrets"])) == (200, None, 1)
        await shop.until_got("orders", "1")


@on_sqlite
async def test_after_a_change_of_the_key_the_old_one_can_be_taken_away_while_webhooks_are_sent(
    tmp_path: Path, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RESEAL_PERIOD_S", 0.02)
    file = tmp_path / "secret.key"
    async with subscribing(tmp_path, platform=store) as shop:
        revision = (await shop.subscribe("orders"))["revision"]
        new = new_secret_key()
        file.write_text(f"{new}\n{file.read_text()}")

        async def is_resealed() -> bool:
            return bool((await shop.shown("orders"))["revision"] > revision)

        await until(is_resealed)
        file.write_text(new)
        await shop.send("1")
        await shop.until_got("orders", "1")
    async with subscribing(tmp_path, platform=store) as shop:
        assert (await shop.shown("orders"))["problem"] is None
