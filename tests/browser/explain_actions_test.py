"""From the explanation that a search leads to, each button does what it says, on a real router with a real endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from flowcatalyst.router import breaker
from flowcatalyst.router.breaker import BreakerState
from tests.api.breakers_test import open_breaker
from tests.api.running import Running, run_router
from tests.browser.acting_test import confirmed
from tests.browser.unblocking_test import delivered, on_explain, stuck
from tests.support.browser import open_page
from tests.support.http_servers import RawServer, always, raw_server, reply

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def act(page: Page, button: str) -> None:
    """By a button of the explanation and the one of the question that it asks."""
    todo = page.locator(".todo")
    await todo.get_by_role("button", name=button, exact=True).click()
    await confirmed(page, button)
    await expect(page.get_by_role("dialog")).to_have_count(0)


@asynccontextmanager
async def stopped(folder: Path, what: str) -> AsyncIterator[tuple[Running, RawServer]]:
    """Somebody stopped something, and m-1 waits for it; `what` may name the endpoint of m-1 as {endpoint}."""
    async with run_router(folder) as router, raw_server(always(reply(200))) as server:
        endpoint = server.url("/hook")
        answer = await router.client.post(f"/monitoring/{what.format(endpoint=endpoint)}")
        assert answer.status == 200, answer.text
        await router.send(id="m-1", messageGroupId="order:7", mediationTarget=endpoint)
        yield router, server


async def test_a_head_is_skipped_from_the_explanation_of_what_waits_behind_it(tmp_path: Path, browser: Browser) -> None:
    async with stuck(tmp_path) as (router, server, _), open_page(browser, "about:blank") as page:
        await on_explain(page, router, "m-2")
        await act(page, "Skip head")
        [letter] = await router.until_dead(1)
        await router.until_settled()
        assert letter["messageId"] == "m-1"
        assert sorted(delivered(server)) == ["m-1", "m-2", "o-1"]


async def test_a_head_is_tried_now_from_the_explanation_of_what_waits_behind_it(
    tmp_path: Path, browser: Browser
) -> None:
    async with stuck(tmp_path) as (router, server, moody), open_page(browser, "about:blank") as page:
        moody.refuses = False
        await on_explain(page, router, "m-2")
        await act(page, "Retry now")
        await router.until_settled()
        assert delivered(server)[-2:] == ["m-1", "m-2"]


@pytest.mark.parametrize(
    ("what", "button"),
    [
        ("groups/order:7/hold", "Release"),
        ("pools/DEFAULT-POOL/pause", "Resume"),
        ("endpoints/pause?endpoint={endpoint}", "Resume"),
    ],
)
async def test_what_a_person_stopped_goes_on_from_the_explanation_of_a_message_that_waits_for_it(
    tmp_path: Path, browser: Browser, what: str, button: str
) -> None:
    async with stopped(tmp_path, what) as (router, server), open_page(browser, "about:blank") as page:
        await on_explain(page, router, "m-1")
        await expect(page.locator(".todo").get_by_role("button", name=button, exact=True)).to_be_visible()
        assert server.requests == []
        await act(page, button)
        await router.until_settled()
        assert delivered(server) == ["m-1"]
        await expect(page.locator(".answer .badge")).to_have_text("Delivered")


async def test_a_breaker_is_reset_from_the_explanation_of_a_message_that_waits_for_it(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "OPEN_S", 3600.0)  # nobody but the person at the page closes it
    async with run_router(tmp_path) as router, raw_server(always(reply(200))) as server:
        open_breaker(router, server.url("/hook"))
        await router.send(id="m-1", messageGroupId="order:7", mediationTarget=server.url("/hook"))
        async with open_page(browser, "about:blank") as page:
            await on_explain(page, router, "m-1")
            await act(page, "Reset breaker")
            await router.until_settled()
        assert delivered(server) == ["m-1"]
        assert all(one.state is BreakerState.CLOSED for _, one in router.app.breakers.items())
