from typing import Any

import pytest

from tests.api.running import Running, on_idle_router


async def pool(router: Running, code: str) -> dict[str, Any]:
    pools = (await router.client.get("/monitoring/pool-stats")).json
    return next(one for one in pools if one["code"] == code)


async def test_pool_stats_show_limits_load_and_counts(router: Running) -> None:
    await pool(router, "POOL-LOW")
    await router.client.post("/api/seed/messages?count=20&queue=low")
    await router.until_settled()
    stats = await pool(router, "POOL-LOW")
    mean, p95 = stats.pop("meanAttemptMs"), stats.pop("p95AttemptMs")
    lag_p50, lag_p95 = stats.pop("p50LagMs"), stats.pop("p95LagMs")
    assert mean > 0
    assert p95 > 0
    assert 0 < lag_p50 <= lag_p95
    for window in (stats.pop("last5Minutes"), stats.pop("last30Minutes")):
        assert 0 <= window.pop("seconds") < 60
        assert window == {
            "delivered": 20,
            "deadLettered": 0,
            "nacked": 0,
            "retried": 0,
            "rateLimitWaits": 0,
            "attempts": {"SUCCESS": 20, "ERROR_PROCESS": 0, "ERROR_CONFIG": 0, "ERROR_CONNECTION": 0},
            "meanAttemptMs": mean,
            "p95AttemptMs": p95,
            "p50LagMs": lag_p50,
            "p95LagMs": lag_p95,
        }
    assert stats == {
        "code": "POOL-LOW",
        "concurrency": 2,
        "rateLimitPerMinute": None,
        "share": None,
        "failureScope": "group",
        "maxDeliveryAttempts": None,
        "capacity": 50,
        "parkedLimit": 10_000,
        "retryStatuses": [],
        "success": "2xx",
        "ackBeforeNext": False,
        "queued": 0,
        "parked": 0,
        "inFlight": 0,
        "groups": 0,
        "heldGroups": 0,
        "oldestWaitingMs": None,
        "blockedGroups": 0,
        "longestBlockedMs": None,
        "delivered": 20,
        "deadLettered": 0,
        "nacked": 0,
        "retried": 0,
        "rateLimitWaits": 0,
        "attempts": {"SUCCESS": 20, "ERROR_PROCESS": 0, "ERROR_CONFIG": 0, "ERROR_CONNECTION": 0},
        "draining": False,
        "pausedBy": None,
        "pausedForMs": None,
    }


async def test_windows_forget_what_all_time_remembers(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = 0.0
    monotonic = router.app.clock.monotonic
    watches = router.app.engine.watches
    snapshots = next(watch for watch in watches.all if watch.name == "pool windows")

    async def later(seconds: float) -> dict[str, Any]:
        nonlocal ahead_s
        ahead_s += seconds
        with monkeypatch.context() as patch:
            patch.setattr(router.app.clock, "monotonic", lambda: monotonic() + ahead_s)
            await watches.look_once(snapshots)
            return await pool(router, "POOL-LOW")

    await later(0.0)
    await router.client.post("/api/seed/messages?count=5&queue=low")
    await router.until_settled()
    stats = await later(40.0)
    assert (stats["last5Minutes"]["delivered"], stats["last30Minutes"]["delivered"]) == (5, 5)
    stats = await later(301.0)
    assert (stats["last5Minutes"]["delivered"], stats["last30Minutes"]["delivered"]) == (0, 5)
    assert (stats["last5Minutes"]["meanAttemptMs"], stats["last5Minutes"]["p95AttemptMs"]) == (None, None)
    stats = await later(1801.0)
    assert (stats["delivered"], stats["last30Minutes"]["delivered"]) == (5, 0)


async def test_limits_change_while_the_pool_runs_and_what_is_left_out_stays(router: Running) -> None:
    path = "/monitoring/pools/POOL-LOW"
    answer = await router.client.put(path, {"concurrency": 7, "rateLimitPerMinute": 90, "maxDeliveryAttempts": 3})
    assert answer.status == 200
    changed = {"concurrency": 7, "rateLimitPerMinute": 90, "maxDeliveryAttempts": 3, "failureScope": "group"}
    assert {key: answer.json[key] for key in changed} == changed
    answer = await router.client.put(path, {"failureScope": "batch"})
    assert {key: answer.json[key] for key in changed} == {**changed, "failureScope": "batch"}
    assert router.app.router.pools["POOL-LOW"].limits.concurrency == 7


async def test_what_is_parked_retried_and_awaited_can_be_changed_too(router: Running) -> None:
    path = "/monitoring/pools/POOL-LOW"
    changed = {"parkedLimit": 0, "retryStatuses": [404, 501], "ackBeforeNext": True, "success": "200"}
    answer = await router.client.put(path, {**changed, "retryStatuses": [501, 404, 404]})
    assert answer.status == 200
    assert {key: answer.json[key] for key in changed} == changed
    answer = await router.client.put(path, {"concurrency": 3})
    assert {key: answer.json[key] for key in changed} == changed
    limits = router.app.router.pools["POOL-LOW"].limits
    assert (limits.parked_limit, limits.retry_statuses, limits.ack_before_next) == (0, frozenset({404, 501}), True)
    await router.client.post("/api/seed/messages?count=20&queue=low")
    await router.until_settled()
    assert (await pool(router, "POOL-LOW"))["delivered"] == 20


async def test_null_removes_a_limit(router: Running) -> None:
    path = "/monitoring/pools/POOL-LOW"
    await router.client.put(path, {"rateLimitPerMinute": 1, "maxDeliveryAttempts": 2})
    answer = await router.client.put(path, {"rateLimitPerMinute": None, "maxDeliveryAttempts": None})
    assert (answer.json["rateLimitPerMinute"], answer.json["maxDeliveryAttempts"]) == (None, None)


async def test_removing_a_rate_limit_lets_waiting_messages_go_at_once(router: Running) -> None:
    path = "/monitoring/pools/POOL-LOW"
    await router.client.put(path, {"rateLimitPerMinute": 1})
    await router.client.post("/api/seed/messages?count=5&queue=low&messageGroupMode=unique")
    await router.client.put(path, {"rateLimitPerMinute": None})
    await router.until_settled()
    assert (await pool(router, "POOL-LOW"))["delivered"] == 5


@on_idle_router
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"concurrency": 0}, ["`concurrency` must be at least 1"]),
        ({"concurrency": 10**30}, ["`concurrency` must be at most 100000"]),
        ({"concurrency": 2.5}, ["`concurrency` must be a whole number, not one with a decimal point"]),
        ({"concurrency": "5"}, ["`concurrency` must be a whole number, not text"]),
        ({"concurrency": True}, ["`concurrency` must be a whole number, not a boolean"]),
        ({"concurrency": None}, ["`concurrency` must be a whole number, not null"]),
        ({"rateLimitPerMinute": -1}, ["`rateLimitPerMinute` must be at least 0"]),
        ({"rateLimitPerMinute": {}}, ["`rateLimitPerMinute` must be a whole number or null, not an object"]),
        ({"maxDeliveryAttempts": -1}, ["`maxDeliveryAttempts` must be at least 1"]),
        ({"failureScope": "world"}, ["`failureScope` must be one of group, batch, not 'world'"]),
        ({"parkedLimit": -1}, ["`parkedLimit` must be at least 0"]),
        ({"parkedLimit": None}, ["`parkedLimit` must be a whole number, not null"]),
        ({"retryStatuses": [399]}, ["`retryStatuses[0]` must be at least 400"]),
        ({"retryStatuses": [502]}, ["`retryStatuses[0]` must be at most 501"]),
        ({"retryStatuses": [404, 429]}, ["429", "only 400 to 499 except 429, and 501 are allowed"]),
        ({"retryStatuses": [500]}, ["500", "only 400 to 499 except 429, and 501 are allowed"]),
        ({"retryStatuses": 404}, ["`retryStatuses` must be a list, not a number"]),
        ({"success": "201"}, ["`success` must be one of 2xx, 200, not '201'"]),
        ({"ackBeforeNext": "yes"}, ["`ackBeforeNext` must be true or false, not text"]),
        ({"concurency": 5}, ["`concurency` is not a field here (did you mean `concurrency`?)"]),
        ({"failure_scope": "group"}, ["did you mean `failureScope`?"]),
        ({"colour": "blue"}, ["`colour` is not a field here; the fields are concurrency, rateLimitPerMinute,"]),
        ([], ["the body must be an object, not a list"]),
    ],
)
async def test_a_wrong_change_says_why_and_changes_nothing(idle_router: Running, change: Any, words: list[str]) -> None:
    before = idle_router.app.router.pools["POOL-LOW"].limits
    (await idle_router.client.put("/monitoring/pools/POOL-LOW", change)).assert_problem(400, *words)
    assert idle_router.app.router.pools["POOL-LOW"].limits == before


async def test_a_changed_pool_answers_with_its_windows_too(router: Running) -> None:
    answer = await router.client.put("/monitoring/pools/POOL-LOW", {"concurrency": 3})
    assert answer.json["last5Minutes"]["delivered"] == answer.json["last30Minutes"]["delivered"] == 0


@on_idle_router
async def test_an_unknown_pool_lists_the_pools(idle_router: Running) -> None:
    answer = await idle_router.client.put("/monitoring/pools/NOPE", {"concurrency": 1})
    answer.assert_problem(404, "'NOPE'", "DEFAULT-POOL, POOL-HIGH")


async def test_a_rate_limit_of_0_is_none_here_as_in_the_settings_and_the_configuration(router: Running) -> None:
    path = "/monitoring/pools/POOL-LOW"
    await router.client.put(path, {"rateLimitPerMinute": 1})
    assert (await router.client.put(path, {"rateLimitPerMinute": 0})).json["rateLimitPerMinute"] is None
    assert router.app.router.pools["POOL-LOW"].limits.rate_per_minute is None
