"""What the page shows while the router works, and when it does not."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running, run_router
from tests.support.browser import open_page, show

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_numbers_change_without_anybody_asking_for_them(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/") as page:
        delivered = page.locator("[data-key='DEFAULT-POOL'] [data-column='Delivered']")
        await expect(delivered).to_have_text("0")
        await router.client.post("/api/seed/messages?count=40")
        await expect(delivered).to_have_text("40")
        await router.client.post("/api/seed/messages?count=2")
        await expect(delivered).to_have_text("42")


async def test_health_and_its_reasons_are_shown_and_lead_to_where_they_come_from(
    router: Running, browser: Browser
) -> None:
    async with open_page(browser, f"{router.listening.url}/") as page:
        health = page.get_by_role("region", name="Health")
        await expect(health).to_contain_text("Everything works.")
        router.app.warnings.add(WarningCode.PROCESSING, Severity.ERROR, "an example of trouble", "mediator")
        await expect(health).to_contain_text("an example of trouble")
        await health.get_by_role("link", name="Warnings").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Warnings")


async def test_a_router_that_is_gone_is_said_to_be_gone_and_the_figures_are_of_before(
    tmp_path: Path, browser: Browser
) -> None:
    async with run_router(tmp_path) as router:
        opened = open_page(browser, f"{router.listening.url}/", expected="ERR_")
        page = await opened.__aenter__()
        await expect(page.get_by_role("link", name="Healthy")).to_be_visible()
    await expect(page.get_by_text("the figures are of before")).to_be_visible()
    await expect(page.locator(".connection")).to_contain_text("no connection since")
    await opened.__aexit__(None, None, None)


async def test_a_refresh_keeps_the_rows_that_stay_under_the_finger_of_whoever_clicks(
    router: Running, browser: Browser
) -> None:
    router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, "the first one", "mediator")
    async with open_page(browser, f"{router.listening.url}/#/warnings") as page:
        button = page.get_by_role("button", name="Acknowledge", exact=True)
        await button.focus()
        router.app.warnings.add(WarningCode.ROUTING, Severity.WARN, "another one", "router")
        await expect(page.get_by_text("another one")).to_be_visible()
        row = page.get_by_role("row").filter(has_text="the first one")
        await expect(row.get_by_role("button", name="Acknowledge", exact=True)).to_be_focused()


async def test_what_the_built_in_receivers_saw_is_shown_and_traffic_is_a_button_away(
    router: Running, browser: Browser
) -> None:
    async with open_page(browser, f"{router.listening.url}/") as page:
        await page.get_by_role("link", name="Try it out").click()
        await page.get_by_role("button", name="50 messages, one group").click()
        await expect(page.get_by_role("status").filter(has_text="50 messages were published.")).to_be_visible()
        await expect(page.locator(".stat", has_text="Requests received").locator("b")).to_have_text("50")
        await expect(page.locator(".stat", has_text="Order violations").locator("b")).to_have_text("0")
        for position in (1, 3):
            await router.client.post("/api/test/fast", {"messageId": f"run.group.{position}"})
        await expect(page.locator(".stat.bad", has_text="Order violations").locator("b")).to_have_text("1")
        await page.get_by_role("button", name="Reset counts").click()
        await expect(page.locator(".stat", has_text="Requests received").locator("b")).to_have_text("0")


async def test_a_long_list_is_shown_a_page_at_a_time(router: Running, browser: Browser) -> None:
    for number in range(120):
        router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, f"number {number:03}", f"source {number}")
    async with open_page(browser, f"{router.listening.url}/") as page:
        await show(page, "warnings")
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(50)
        await page.get_by_role("button", name="Next").click()
        await expect(page.get_by_text("Page 2")).to_be_visible()
        await page.get_by_role("button", name="Next").click()
        await expect(rows).to_have_count(len(router.app.warnings.recent()) - 100)
        await page.get_by_role("button", name="Previous").click()
        await expect(rows).to_have_count(50)


async def test_what_is_typed_into_a_filter_stays_while_the_page_goes_on_and_takes_effect_by_itself(
    router: Running, browser: Browser
) -> None:
    async with open_page(browser, f"{router.listening.url}/#/groups?show=all") as page:
        field = page.get_by_label("Name begins with")
        await field.press_sequentially("or")
        for _ in range(2):  # the list is drawn anew with each reading of the router
            async with page.expect_response(lambda response: "/monitoring/groups" in response.url):
                pass
        await field.press_sequentially("der ")
        await expect(field).to_have_value("order ")
        await expect(page).to_have_url(f"{router.listening.url}/#/groups?show=all&prefix=order")
        await page.get_by_role("button", name="Clear").click()
        await expect(field).to_have_value("")


async def test_enter_in_a_filter_applies_it_beside_the_others(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/#/groups?show=all") as page:
        await page.get_by_label("Name begins with").fill("order")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No groups match")).to_be_visible()
        assert page.url.endswith("#/groups?show=all&prefix=order")
