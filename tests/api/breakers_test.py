from typing import Any
from urllib.parse import quote

from flowcatalyst.router.breaker import OPEN_S, WINDOW_CALLS
from tests.api.running import Running, on_idle_router, until

PATH = "/monitoring/circuit-breakers"


def open_breaker(router: Running, endpoint: str) -> None:
    breaker, now = router.app.breakers.get(endpoint), router.app.clock.monotonic()
    for _ in range(WINDOW_CALLS):
        breaker.record(failed=True, now=now, admitted_at=now)


async def states(router: Running) -> dict[str, str]:
    found: list[dict[str, Any]] = (await router.client.get(PATH)).json
    return {breaker["endpoint"]: breaker["state"] for breaker in found}


async def test_a_breaker_of_an_endpoint_that_cannot_be_reached_opens(router: Running) -> None:
    target = "http://127.0.0.1:9/nobody"
    await router.client.post(
        "/api/messages", [{"mediationTarget": f"{target}?n={n}", "dispatchMode": "IMMEDIATE"} for n in range(20)]
    )

    async def is_open() -> bool:
        breakers = (await router.client.get("/monitoring/circuit-breakers")).json
        return bool(breakers) and breakers[0]["state"] == "OPEN" and breakers[0]["rejected"] > 0

    await until(is_open)
    (breaker,) = (await router.client.get("/monitoring/circuit-breakers")).json
    assert breaker["endpoint"] == target
    assert breaker["openedForS"] >= 0
    text = (await router.client.get("/metrics")).text
    assert 'flowcatalyst_circuit_breaker_state{origin="http://127.0.0.1:9"} 2\n' in text


async def test_a_breaker_of_a_good_endpoint_is_closed(router: Running) -> None:
    await router.client.post("/api/seed/messages?count=1")
    await router.until_settled()
    (breaker,) = (await router.client.get("/monitoring/circuit-breakers")).json
    assert breaker == {
        "endpoint": router.receiver("fast"),
        "state": "CLOSED",
        "failureRatio": 0.0,
        "rejected": 0,
        "openedForS": None,
    }


async def test_a_reset_closes_the_breaker_of_one_endpoint_and_no_other(router: Running) -> None:
    first, second = "http://shop.test/a?x=1&y=ü", "http://shop.test/b"
    open_breaker(router, first)
    open_breaker(router, second)
    assert await states(router) == {first: "OPEN", second: "OPEN"}
    answer = await router.client.post(f"{PATH}/reset?endpoint={quote(first, safe='')}")
    assert (answer.status, answer.json) == (200, {"reset": 1})
    assert await states(router) == {first: "CLOSED", second: "OPEN"}


async def test_a_reset_starts_what_waits_for_the_breaker(router: Running) -> None:
    fast, breaker = router.receiver("fast"), router.app.breakers.get(router.receiver("fast"))
    in_an_hour = router.app.clock.monotonic() + 3600
    for _ in range(WINDOW_CALLS):
        breaker.record(failed=True, now=in_an_hour, admitted_at=in_an_hour)
    await router.client.post("/api/seed/messages?count=3")

    async def waits() -> bool:
        return breaker.rejected > 0

    await until(waits)
    assert router.app.sandbox.judge.requests == 0
    await router.client.post(f"{PATH}/reset?endpoint={quote(fast, safe='')}")
    await router.until_settled()
    assert router.app.sandbox.judge.requests == 3


async def test_a_reset_without_an_endpoint_closes_all_breakers(router: Running) -> None:
    for name in ("a", "b", "null"):
        open_breaker(router, name)
    assert (await router.client.post(f"{PATH}/reset?endpoint=null")).json == {"reset": 1}
    assert (await router.client.post(f"{PATH}/reset")).json == {"reset": 3}
    assert set((await states(router)).values()) == {"CLOSED"}


async def test_a_closed_breaker_says_nothing_of_its_past(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    await router.client.post(f"{PATH}/reset")
    (breaker,) = (await router.client.get(PATH)).json
    assert (breaker["failureRatio"], breaker["openedForS"]) == (0.0, None)


async def test_a_breaker_that_probes_its_endpoint_is_half_open(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    breaker = router.app.breakers.get("http://shop.test/")
    assert breaker.admit(breaker.opened_at + OPEN_S) is None
    assert await states(router) == {"http://shop.test/": "HALF_OPEN"}


@on_idle_router
async def test_the_breaker_of_an_unknown_endpoint_cannot_be_reset(idle_router: Running) -> None:
    (await idle_router.client.post(f"{PATH}/reset?endpoint=nobody")).assert_problem(404, "'nobody'")
