"""What can be done on the page: each change asks first, and says afterwards what the router did."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from flowcatalyst.core.credentials import hash_password
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.router.breaker import BreakerState
from tests.api.breakers_test import open_breaker
from tests.api.running import Running, run_router, until
from tests.browser.contract import endpoint, explanation, group
from tests.support.browser import answer_with, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

OPEN = WarningFilter(acknowledged=False)


async def confirmed(page: Page, button: str) -> None:
    """Press the button of the dialog that asks."""
    await page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


async def said(page: Page, sentence: str) -> None:
    await expect(page.get_by_role("status").filter(has_text=sentence)).to_be_visible()


async def test_a_warning_is_acknowledged(router: Running, browser: Browser) -> None:
    router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, "an example", "mediator")
    async with open_page(browser, f"{router.listening.url}/#/warnings") as page:
        await page.get_by_role("row", name="an example").get_by_role("button", name="Acknowledge").click()
        assert len(router.app.warnings.recent(OPEN)) == 1  # not before somebody confirmed it
        await confirmed(page, "Acknowledge")
        await said(page, "The warning is acknowledged.")
        await expect(page.get_by_text("There is none that nobody has acknowledged.")).to_be_visible()
        assert router.app.warnings.recent(OPEN) == []


async def test_a_pool_is_resized_with_confirmation(router: Running, browser: Browser) -> None:
    pool = router.app.router.pools["DEFAULT-POOL"]
    async with open_page(browser, f"{router.listening.url}/#/pools/DEFAULT-POOL") as page:
        await page.get_by_role("button", name="Limits …").click()
        await page.get_by_role("dialog").get_by_label("Slots").fill("7")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert pool.configured.concurrency == 20
        await page.get_by_role("button", name="Limits …").click()
        await page.get_by_role("dialog").get_by_label("Slots").fill("7")
        await page.get_by_label("Starts per minute").fill("600")
        await confirmed(page, "Change limits")
        await said(page, "Pool DEFAULT-POOL has 7 slots and at most 600 starts per minute now.")
        assert (pool.configured.concurrency, pool.configured.rate_per_minute) == (7, 600)
        await expect(page.locator(".stat", has_text="In flight").locator("b")).to_have_text("0 / 7")


async def test_what_the_router_refuses_is_said_in_its_own_words_and_nothing_pretends_to_be_done(
    router: Running, browser: Browser
) -> None:
    async with open_page(browser, f"{router.listening.url}/#/pools", expected="400 (Bad Request)") as page:
        row = page.get_by_role("row", name="DEFAULT-POOL")
        await row.get_by_role("button", name="Limits …").click()
        await page.get_by_role("dialog").get_by_label("Slots").fill("1000000")
        await confirmed(page, "Change limits")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("concurrency")
        assert router.app.router.pools["DEFAULT-POOL"].configured.concurrency == 20
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(row.get_by_role("button", name="Limits …")).to_be_focused()


async def test_a_dead_letter_is_looked_at_replayed_and_removed(router: Running, browser: Browser) -> None:
    await router.send(id="gone", mediationTarget=router.receiver("client-error"), messageGroupId="g")
    await router.until_dead(1)
    async with open_page(browser, f"{router.listening.url}/#/dead-letters") as page:
        await page.get_by_role("link", name="gone").click()
        await expect(page.get_by_label("The answer of the endpoint")).to_contain_text("ack")
        await page.get_by_role("button", name="Replay …").click()
        await confirmed(page, "Replay")
        await said(page, "Dead letter 1 was replayed.")
        row = page.get_by_role("row", name="gone")
        await expect(row.get_by_role("link", name="2", exact=True)).to_be_visible()  # it ended here again
        await row.get_by_role("button", name="Remove").click()
        await confirmed(page, "Remove")
        await said(page, "Dead letter 2 is removed.")
        await expect(page.get_by_text("No dead letters")).to_be_visible()

        async def none() -> bool:
            return await router.app.dead_letters.count() == 0

        await until(none)


async def test_a_circuit_breaker_is_reset(router: Running, browser: Browser) -> None:
    broken = "http://127.0.0.1:9000/hook"
    open_breaker(router, broken)
    async with open_page(browser, "about:blank") as page:
        await answer_with(page, "/monitoring/endpoints", {"items": [endpoint(broken, state="OPEN")], "next": None})
        await page.goto(f"{router.listening.url}/#/endpoints")
        await page.get_by_role("row", name=broken).get_by_role("button", name="Reset").click()
        await confirmed(page, "Reset breaker")
        await said(page, f"The circuit breaker of {broken} is closed.")
        assert all(breaker.state is BreakerState.CLOSED for _, breaker in router.app.breakers.items())


async def test_a_group_is_found_by_search_and_its_head_skipped(router: Running, browser: Browser) -> None:
    async with open_page(browser, "about:blank") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(f"{request.method} {request.url.partition('/monitoring')[2]}"))
        await answer_with(page, "/monitoring/explain/order%209", explanation("order 9"))
        done = {"done": True, "text": "message order-7 is a dead letter now", "group": None}
        await answer_with(page, "/monitoring/groups/customer-1/skip-head", done, method="POST")
        await page.goto(f"{router.listening.url}/")
        await page.get_by_role("searchbox").fill("order 9")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("It waits behind message order-7 of its group")).to_be_visible()
        await expect(page.get_by_text("Safe to send again? No: it is not lost")).to_be_visible()
        await page.get_by_role("button", name="Skip head").click()
        await confirmed(page, "Skip head")
        await said(page, "Message order-7 is a dead letter now.")
        assert "POST /groups/customer-1/skip-head" in asked


async def test_what_was_not_done_is_no_success_although_the_router_answered(router: Running, browser: Browser) -> None:
    async with open_page(browser, "about:blank") as page:
        await answer_with(page, "/monitoring/groups", {"items": [group("customer-1")], "next": None})
        refused = {"done": False, "text": "its head is in flight: try again when it has ended", "group": None}
        await answer_with(page, "/monitoring/messages/b7/retry", refused, method="POST")
        await page.goto(f"{router.listening.url}/#/groups")
        await page.get_by_role("row", name="customer-1").get_by_role("button", name="Retry").click()
        await confirmed(page, "Retry now")
        alert = page.get_by_role("dialog").get_by_role("alert")
        await expect(alert).to_have_text("Its head is in flight: try again when it has ended.")


async def test_a_reader_sees_the_page_and_is_told_why_an_action_is_refused(tmp_path: Path, browser: Browser) -> None:
    accounts = {"admin": [f"ann:{hash_password(b'a')}"], "read_only": [f"bob:{hash_password(b'b')}"]}
    async with run_router(tmp_path, auth={"mode": "basic", **accounts}, egress={"allow_private": True}) as router:
        router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, "an example", "mediator")
        # A login in the address bar: fetch refuses addresses that repeat it.
        url = router.listening.url.replace("//", "//bob:b@")
        async with open_page(browser, f"{url}/#/warnings", expected="403 (Forbidden)") as page:
            await page.get_by_role("button", name="Acknowledge", exact=True).click()
            await confirmed(page, "Acknowledge")
            await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("may only read")
        assert len(router.app.warnings.recent(OPEN)) == 1
