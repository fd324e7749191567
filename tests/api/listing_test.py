"""Lists come in pages: none is larger than its budget, and following the links one sees everything once."""

import re
from typing import Any

import pytest

from flowcatalyst.api import listing
from flowcatalyst.api.listing import MAX_LIST_BYTES
from flowcatalyst.control.health import NAMED
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import MAX_OF_A_KIND, WarningCode
from tests.api.breakers_test import open_breaker
from tests.api.running import Answer, Running, on_idle_router, until
from tests.support.http_servers import Gate, raw_server


async def pages_of(router: Running, path: str) -> list[Answer]:
    """All pages of a list, as the links lead to them."""
    pages = []
    while path:
        pages.append(await router.client.get(path))
        assert pages[-1].status == 200, pages[-1].text
        link = re.fullmatch('<(/[^>]+)>; rel="next"', pages[-1].headers.get("Link", ""))
        assert bool(link) == ("Link" in pages[-1].headers)
        path = link[1] if link else ""
    return pages


def items_of(pages: list[Answer]) -> list[Any]:
    return [item for page in pages for item in page.json]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("pool-stats", "code"),
        ("queue-stats", "name"),
        ("consumer-health", "queue"),
        ("circuit-breakers", "endpoint"),
        ("warnings?source=test&severity=WARN", "message"),
        ("in-flight-messages?pool=DEFAULT-POOL", "id"),
    ],
)
async def test_the_pages_of_a_list_have_everything_once_in_order(
    router: Running, monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    for number in range(5):
        router.app.warnings.add(WarningCode.ROUTING, Severity.WARN, f"text {number}", "test")
        router.app.breakers.get(f"http://h.test/{number}")
    gate = Gate()
    async with raw_server(gate) as endpoint:
        for number in range(4):
            await router.send(id=f"m-{number}", mediationTarget=endpoint.url(), messageGroupId=f"g-{number}")

        async def all_here() -> bool:
            return len(router.app.tracker) == 4

        await until(all_here)
        [whole] = await pages_of(router, f"/monitoring/{path}")
        monkeypatch.setattr(listing, "MAX_LIST_BYTES", 1)
        pages = await pages_of(router, f"/monitoring/{path}")
        gate.opened.set()
    assert len(whole.json) >= 4
    assert [len(page.json) for page in pages] == [1] * len(whole.json)
    assert [item[name] for item in items_of(pages)] == [item[name] for item in whole.json]


async def test_messages_beyond_the_limit_are_on_the_next_page(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        for number in range(5):
            await router.send(id=f"m-{number}", mediationTarget=endpoint.url(), messageGroupId=f"g-{number}")

        async def all_here() -> bool:
            return len(router.app.tracker) == 5

        await until(all_here)
        pages = await pages_of(router, "/monitoring/in-flight-messages?limit=2")
        gate.opened.set()
    assert [[item["id"] for item in page.json] for page in pages] == [["m-0", "m-1"], ["m-2", "m-3"], ["m-4"]]


async def test_no_page_is_larger_than_its_budget_whatever_others_made_of_it(router: Running) -> None:
    for number in range(400):
        router.app.breakers.get(f"http://h.test/{number:04}/{'x' * 8000}")
    for number in range(10 * MAX_OF_A_KIND):
        text = "\x01" * 1990 + f"{number}"
        router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, text, f"pool {number % 10}")
    for path, count in (("circuit-breakers", 400), ("warnings", 1000)):
        pages = await pages_of(router, f"/monitoring/{path}")
        assert max(len(page.text) for page in pages) <= MAX_LIST_BYTES
        assert len(pages) > 1
        assert len(items_of(pages)) == count


@on_idle_router
async def test_an_offset_beyond_the_end_is_an_empty_page(idle_router: Running) -> None:
    answer = await idle_router.client.get("/monitoring/pool-stats?offset=1000")
    assert (answer.json, "Link" in answer.headers) == ([], False)
    (await idle_router.client.get("/monitoring/pool-stats?offset=-1")).assert_problem(400, "offset")


async def test_health_names_some_open_breakers_and_counts_the_others(router: Running) -> None:
    for number in range(NAMED + 30):
        open_breaker(router, f"http://h.test/{number}")
    health = (await router.client.get("/monitoring/health")).json
    assert health["status"] == "WARNING"
    assert len(health["reasons"]) == NAMED + 1
    assert "30 more circuit breakers are not closed" in health["reasons"][-1]["text"]


@on_idle_router
async def test_a_receiver_takes_no_id_that_no_message_may_have(idle_router: Running) -> None:
    answer = await idle_router.client.post("/api/test/fast", {"messageId": "run.group." + "1" * 300})
    answer.assert_problem(400, "256")
