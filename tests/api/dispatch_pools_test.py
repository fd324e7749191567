"""/api/dispatch-pools and /api/config/router: pools are changed while they run, here at once and elsewhere soon."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from flowcatalyst.control.router_config import RouterConfig, parse
from flowcatalyst.core.credentials import hash_key, new_key
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success
from tests.api.dispatching import on_sqlite
from tests.api.running import Answer, Client, run_router, until
from tests.api.subscribing import POOLS, Subscribing, subscribing

CONFIG = "/api/config/router"
ALL_FIELDS: dict[str, Any] = {
    "code": "ORDERS",
    "concurrency": 7,
    "rateLimitPerMinute": 600,
    "failureScope": "batch",
    "maxDeliveryAttempts": 4,
    "capacity": 70,
    "parkedLimit": 5,
    "retryStatuses": [401, 404],
    "ackBeforeNext": True,
    "success": "200",
    "queue": "remote-orders",
}

ALL_LIMITS = PoolLimits(
    concurrency=7,
    rate_per_minute=600,
    failure_scope=FailureScope.BATCH,
    max_delivery_attempts=4,
    capacity=70,
    parked_limit=5,
    retry_statuses=frozenset({401, 404}),
    ack_before_next=True,
    success=Success.ONLY_200,
)


def limits_of(shop: Subscribing, code: str) -> PoolLimits | None:
    pool = shop.running.app.router.pools.get(code)
    return None if pool is None else pool.configured


async def test_every_field_of_a_pool_is_kept_shown_and_in_force_at_once(shop: Subscribing) -> None:
    made = await shop.client.post(POOLS, ALL_FIELDS)
    assert made.status == 201, made.text
    assert ALL_FIELDS.items() <= made.json.items()
    assert made.json["origin"] == "CATALOG"
    usual = PoolLimits(20)
    assert all(getattr(ALL_LIMITS, one.name) != getattr(usual, one.name) for one in fields(PoolLimits))  # each is told
    assert (await shop.client.get(f"{POOLS}/ORDERS")).json == made.json
    assert limits_of(shop, "ORDERS") == ALL_LIMITS
    here = await shop.client.request("PATCH", f"{POOLS}/ORDERS", json={"queue": None})
    assert (here.status, here.json["queue"]) == (200, None)  # else its jobs were for routers elsewhere
    await shop.subscribe("orders", dispatchPoolCode="ORDERS")
    await shop.send("1")
    await shop.until_done("orders")
    assert shop.running.app.router.pools["ORDERS"].stats.delivered == 1


async def test_a_pool_is_changed_and_replaced_while_it_runs(shop: Subscribing) -> None:
    await shop.client.post(POOLS, ALL_FIELDS)
    changed = await shop.client.request("PATCH", f"{POOLS}/ORDERS", json={"concurrency": 9, "rateLimitPerMinute": None})
    assert (changed.status, changed.json["concurrency"], changed.json["rateLimitPerMinute"]) == (200, 9, None)
    assert changed.json["capacity"] == 70
    assert limits_of(shop, "ORDERS") == replace(ALL_LIMITS, concurrency=9, rate_per_minute=None)
    put = await shop.client.put(f"{POOLS}/ORDERS", {"code": "ORDERS", "concurrency": 3})
    assert (put.status, put.json["concurrency"], put.json["capacity"], put.json["queue"]) == (200, 3, None, None)
    assert limits_of(shop, "ORDERS") == PoolLimits(3)
    (await shop.client.put(f"{POOLS}/ORDERS", {"code": "X", "concurrency": 3})).assert_problem(
        400, "the code of a pool"
    )


async def test_a_pool_of_the_catalog_wins_over_one_of_the_settings_until_it_is_deleted(shop: Subscribing) -> None:
    settings = (await shop.client.get(f"{POOLS}/POOL-LOW")).json
    assert (settings["origin"], settings["concurrency"]) == ("CONFIGURATION", 2)
    for answer in (
        await shop.client.put(f"{POOLS}/POOL-LOW", {"code": "POOL-LOW", "concurrency": 1}),
        await shop.client.request("PATCH", f"{POOLS}/POOL-LOW", json={"concurrency": 1}),
        await shop.client.delete(f"{POOLS}/POOL-LOW"),
        await shop.client.delete(f"{POOLS}/DEFAULT-POOL"),
    ):
        answer.assert_problem(404, "there is no dispatch pool", "that was made here: it comes from the settings")
    assert (await shop.client.post(POOLS, {"code": "POOL-LOW", "concurrency": 4})).status == 201
    assert limits_of(shop, "POOL-LOW") == PoolLimits(4)
    gone = await shop.client.delete(f"{POOLS}/POOL-LOW")
    assert (gone.status, gone.json["now"]["concurrency"]) == (200, 2)
    assert limits_of(shop, "POOL-LOW") == PoolLimits(2)


async def test_a_pool_that_subscriptions_name_is_not_deleted(shop: Subscribing) -> None:
    await shop.client.post(POOLS, ALL_FIELDS)
    await shop.subscribe("orders", dispatchPoolCode="ORDERS")
    (await shop.client.delete(f"{POOLS}/ORDERS")).assert_problem(409, "subscription orders is for pool ORDERS")
    await shop.change("orders", dispatchPoolCode="DEFAULT-POOL")
    assert (await shop.client.delete(f"{POOLS}/ORDERS")).json == {"code": "ORDERS", "now": None}
    assert limits_of(shop, "ORDERS") is None
    (await shop.client.get(f"{POOLS}/ORDERS")).assert_problem(404)


async def test_lists_have_all_pools_by_code_and_page(shop: Subscribing) -> None:
    await shop.client.post(POOLS, ALL_FIELDS)
    first = (await shop.client.get(f"{POOLS}?limit=2")).json
    assert [one["code"] for one in first["items"]] == ["DEFAULT-POOL", "ORDERS"]
    rest = (await shop.client.get(f"{POOLS}?cursor={first['next']}")).json
    assert [one["code"] for one in rest["items"]] == ["POOL-HIGH", "POOL-LOW", "POOL-MEDIUM"]
    assert rest["next"] is None


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no concurrency": ({"concurrency": 0}, "concurrency"),
    "much concurrency": ({"concurrency": 100_001}, "concurrency"),
    "rate": ({"rateLimitPerMinute": -1}, "rateLimitPerMinute"),
    "scope": ({"failureScope": "some"}, "failureScope"),
    "statuses": ({"retryStatuses": [429]}, "retryStatuses has 429"),
    "success": ({"success": "3xx"}, "success"),
    "capacity": ({"capacity": 0}, "capacity"),
    "empty code": ({"code": ""}, "code"),
    "code with a line": ({"code": "a\r\nb"}, "code begins or ends with a space, or has characters"),
    "unknown field": ({"concurency": 5}, "concurency"),
    "queue": ({"queue": " x"}, "queue begins or ends with a space"),
}


@pytest.mark.parametrize("name", BAD)
@on_sqlite
async def test_bad_input_gets_one_clear_sentence_and_keeps_nothing(shop: Subscribing, name: str) -> None:
    wrong, words = BAD[name]
    (await shop.client.post(POOLS, {"code": "P", "concurrency": 1} | wrong)).assert_problem(400, words)
    assert (await shop.client.get(POOLS)).json["items"][-1]["code"] == "POOL-MEDIUM"
    assert (await shop.client.post(POOLS, ALL_FIELDS)).status == 201
    (await shop.client.post(POOLS, ALL_FIELDS)).assert_problem(409, "dispatch pool ORDERS already")
    if "code" not in wrong:
        (await shop.client.request("PATCH", f"{POOLS}/ORDERS", json=wrong)).assert_problem(400, words)


@on_sqlite
async def test_a_change_leaves_alone_what_somebody_set_by_hand_in_another_pool(shop: Subscribing) -> None:
    await shop.client.put("/monitoring/pools/POOL-HIGH", {"concurrency": 99})
    await shop.client.post(POOLS, ALL_FIELDS)
    assert limits_of(shop, "POOL-HIGH") == PoolLimits(99)


@on_sqlite
async def test_changes_of_pools_are_in_the_audit_trail(shop: Subscribing) -> None:
    await shop.client.post(POOLS, ALL_FIELDS)
    await shop.client.request("PATCH", f"{POOLS}/ORDERS", json={"concurrency": 9})
    await shop.client.request("PATCH", f"{POOLS}/ORDERS", json={"queue": "others"})
    await shop.client.request("PATCH", f"{POOLS}/ORDERS", json={"concurrency": 8, "queue": None})
    await shop.client.delete(f"{POOLS}/ORDERS")
    found = [(one["action"], one["detail"]) for one in (await shop.client.get("/monitoring/audit")).json]
    assert found == [
        ("pool_delete", ""),
        ("pool_change", "concurrency 9 -> 8, queue others -> none"),
        ("pool_change", "queue remote-orders -> others"),
        ("pool_change", "concurrency 7 -> 9"),
        ("pool_create", "concurrency 7"),
    ]


async def test_another_process_sees_changes_within_a_second(tmp_path: Path, store: dict[str, str]) -> None:
    if not store:
        pytest.skip("of one file one process is the owner")
    async with (
        subscribing(tmp_path / "a", platform=store) as one,
        subscribing(tmp_path / "b", platform=store) as other,
    ):
        made = await one.subscribe("orders", "order.*")
        await one.client.post(POOLS, ALL_FIELDS)

        async def is_known() -> bool:
            found = await other.client.get("/api/subscriptions/orders")
            return found.status == 200 and limits_of(other, "ORDERS") is not None

        await until(is_known)
        sent = await other.client.post("/api/events", other.event("1"))
        assert sent.json["jobs"] == 1
        await one.until_got("orders", "1")
        assert "secret" in made
        await other.client.delete("/api/subscriptions/orders")

        async def is_gone() -> bool:
            return (await one.client.get("/api/subscriptions/orders")).status == 404

        await until(is_gone)
        assert (await one.send("2"))["jobs"] == 0


# The configuration of routers on other machines

URI = "postgresql://app:s3cret@db.example:5432/shop?queue=orders"


def config_in(document: Any) -> RouterConfig:
    config, problems = parse(msgspec.json.encode(document), "platform")
    assert problems == []
    return config


def etag_of(answer: Answer) -> str:
    return {name.lower(): value for name, value in answer.headers.items()}["etag"]


async def test_the_configuration_for_routers_is_what_config_sync_reads(tmp_path: Path, store: dict[str, str]) -> None:
    async with subscribing(tmp_path, platform=store) as shop:
        await shop.client.post(POOLS, ALL_FIELDS)
        answer = await shop.client.get(CONFIG)
        assert answer.status == 200
        config = config_in(answer.json)
        assert config.pools == shop.running.app.config.pools
        assert config.pools["ORDERS"].rate_per_minute == 600
        assert (config.queues, answer.json["connections"]) == ({}, 1)  # embedded queues are of this process alone
        same = await shop.client.request("GET", CONFIG, headers={"If-None-Match": etag_of(answer)})
        assert (same.status, same.text) == (304, "")
        await shop.client.delete(f"{POOLS}/ORDERS")
        assert etag_of(await shop.client.get(CONFIG)) != etag_of(answer)


async def test_a_router_on_another_machine_gets_its_pools_from_a_platform(tmp_path: Path) -> None:
    admin, reader = new_key(), new_key()
    auth = {"mode": "api_key", "admin": [hash_key(admin.encode())], "read_only": [hash_key(reader.encode())]}
    async with subscribing(tmp_path / "platform", auth=auth) as shop:
        url = shop.running.listening.url
        async with aiohttp.ClientSession(url, headers={"X-API-Key": admin}) as session:
            client = Client(session)
            assert (await client.post(POOLS, ALL_FIELDS)).status == 201
            made = (await client.post("/api/api-keys", {"name": "router", "scopes": ["admin"]})).json
            address = f"{url.replace('://', f'://{admin}@')}{CONFIG}"
            async with run_router(tmp_path / "router", sync={"config_url": address}) as router:
                assert router.app.config.pools == shop.running.app.config.pools
                await client.request("PATCH", f"{POOLS}/ORDERS", json={"concurrency": 11})
                report = (await router.client.post("/config/reload")).json
                assert (report["poolsChanged"], report["problems"]) == (["ORDERS"], [])
                assert router.app.router.pools["ORDERS"].configured.concurrency == 11
                assert admin not in (await router.client.get("/monitoring/config")).text
        async with aiohttp.ClientSession(url, headers={"X-API-Key": reader}) as session:
            (await Client(session).get(CONFIG)).assert_problem(403, "credentials", "admin")
            assert (await Client(session).get(POOLS)).status == 200
        async with aiohttp.ClientSession(url, headers={"X-API-Key": made["key"]}) as session:
            assert (await Client(session).get(CONFIG)).status == 200
        (await shop.client.get(CONFIG)).assert_problem(401)


async def test_the_addresses_of_queues_are_served_with_their_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with subscribing(tmp_path) as shop:
        app = shop.running.app
        queue = config_in({"queues": [{"queueName": "orders", "queueUri": URI, "connections": 2}]})
        monkeypatch.setattr(app, "config", RouterConfig(app.config.pools, queue.queues))
        assert config_in((await shop.client.get(CONFIG)).json).queues == queue.queues
