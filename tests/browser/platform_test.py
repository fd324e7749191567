"""Jobs, events and subscriptions of a real platform on the page, and what a person does about them there."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.acting_test import confirmed, said
from tests.browser.shop import LATER, Shop
from tests.support.browser import open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def badge(page: Page, word: str) -> None:
    await expect(page.locator("main .answer .badge")).to_have_text(word)


async def test_a_job_shows_its_attempts_and_is_tried_again_from_the_page(shop: Shop, browser: Browser) -> None:
    parked, behind = await shop.blocked("retry:1", "retry-1", "retry-2")
    async with open_page(browser, f"{shop.url}/#/jobs?messageGroup=retry:1") as page:
        await page.get_by_role("link", name=parked).click()
        await badge(page, "Parked")
        attempts = page.get_by_role("table", name="Attempts")
        await expect(attempts.locator("[data-column='Status']")).to_have_text(["503"])
        await expect(attempts.locator("[data-column='Answer']")).to_have_text(["the warehouse is closed"])
        await page.get_by_role("button", name="Retry", exact=True).click()
        assert await shop.status(parked) == "ERROR"  # not before somebody confirmed it
        await confirmed(page, "Retry")
        await said(page, "The job is tried again.")
        await badge(page, "Completed")
        await expect(attempts.locator("[data-column='Status']")).to_have_text(["503", "200"])
    await shop.until(behind, "COMPLETED")


async def test_a_job_that_nobody_wants_any_more_is_cancelled_and_its_group_goes_on(
    shop: Shop, browser: Browser
) -> None:
    parked, behind = await shop.blocked("cancel:1", "cancel-1", "cancel-2")
    async with open_page(browser, f"{shop.url}/#/jobs/{parked}") as page:
        await page.get_by_role("button", name="Cancel", exact=True).click()
        await confirmed(page, "Cancel job")
        await said(page, "The job is cancelled.")
        await badge(page, "Cancelled")
        await expect(page.get_by_role("table", name="History")).to_contain_text("cancel")
    await shop.until(behind, "COMPLETED")
    assert shop.application.got.count("cancel-1") == 1


async def test_acting_on_many_jobs_says_their_number_first_and_touches_no_others(shop: Shop, browser: Browser) -> None:
    names = [f"many-{number}" for number in range(3)]
    shop.application.refuses(*names, "another")
    many = [await shop.job(name, code="many") for name in names]
    another = await shop.job("another", code="other")
    for job in (*many, another):
        await shop.until(job, "ERROR")
    later = [await shop.job(name, code="many", scheduledFor=LATER) for name in ("later-1", "later-2")]
    async with open_page(browser, f"{shop.url}/#/jobs") as page:
        await page.get_by_label("Code").fill("many")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(5)
        await page.get_by_role("button", name="Retry matching …").click()
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Retry 3 jobs?")
        await confirmed(page, "Retry")
        await said(page, "3 jobs are tried again.")
        for job in many:
            await shop.until(job, "COMPLETED")
        await page.get_by_role("button", name="Cancel matching …").click()
        await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Cancel 2 jobs?")
        await confirmed(page, "Cancel jobs")
        await said(page, "2 jobs are cancelled.")
    assert [await shop.status(job) for job in (*later, another)] == ["CANCELLED", "CANCELLED", "ERROR"]


async def test_a_group_of_jobs_that_stands_still_is_found_and_its_head_skipped(shop: Shop, browser: Browser) -> None:
    parked, behind = await shop.blocked("skip:1", "skip-1", "skip-2")
    async with open_page(browser, f"{shop.url}/#/jobs") as page:
        await page.get_by_role("link", name="Groups of jobs").click()
        row = page.get_by_role("row", name="skip:1")
        await expect(row.locator("[data-column='State']")).to_have_text("Blocked")
        await expect(row.locator("[data-column='Jobs']")).to_have_text("2")
        await expect(row.locator("[data-column='Last error']")).to_contain_text("503")
        await row.get_by_role("button", name="Skip head").click()
        await confirmed(page, "Skip head")
        await expect(row).to_have_count(0)
    await shop.until(behind, "COMPLETED")
    assert await shop.status(parked) == "CANCELLED"


async def test_a_group_of_jobs_is_held_and_released(shop: Shop, browser: Browser) -> None:
    parked, behind = await shop.blocked("hold:1", "hold-1", "hold-2")
    async with open_page(browser, f"{shop.url}/#/jobs/groups") as page:
        row = page.get_by_role("row", name="hold:1")
        await row.get_by_role("button", name="Hold").click()
        await confirmed(page, "Hold")
        await expect(row.locator("[data-column='State']")).to_have_text("Held")
        await row.get_by_role("button", name="Release").click()
        await confirmed(page, "Release")
        await expect(row.locator("[data-column='State']")).to_have_text("Blocked")
        await row.get_by_role("button", name="Retry head").click()
        await confirmed(page, "Retry head")
    await shop.until(behind, "COMPLETED")
    assert await shop.status(parked) == "COMPLETED"


async def test_a_subscription_is_paused_and_what_happened_meanwhile_goes_out_when_it_is_resumed(
    shop: Shop, browser: Browser
) -> None:
    await shop.subscribe("stock", "stock.*")
    async with open_page(browser, f"{shop.url}/#/subscriptions") as page:
        row = page.get_by_role("row", name="stock.*")
        await row.get_by_role("button", name="Pause").click()
        await confirmed(page, "Pause")
        await said(page, "Subscription stock is paused.")
        await expect(row.locator("[data-column='Status']")).to_have_text("Paused")
        event = await shop.event("stock-1", "stock.low")
        await page.goto(f"{shop.url}/#/events/{event}")
        jobs = page.get_by_role("table", name="Jobs of the event")
        await expect(jobs.locator("[data-column='Status']")).to_contain_text("Pending")
        assert "stock-1" not in shop.application.got
        await page.goto(f"{shop.url}/#/subscriptions/stock")
        await page.get_by_role("button", name="Resume").click()
        await confirmed(page, "Resume")
        await said(page, "Subscription stock goes on.")
    await shop.until_got("stock-1")


async def test_an_event_leads_to_its_jobs_and_they_back_to_it(shop: Shop, browser: Browser) -> None:
    for code in ("mail", "ledger"):
        await shop.subscribe(code, "refund.*")
    event = await shop.event("refund-1", "refund.paid", subject="refund:1", messageGroup="refund:1")
    await shop.until_got("refund-1")
    async with open_page(browser, f"{shop.url}/#/events?type=refund.paid") as page:
        await expect(page.locator("tbody [data-column='Jobs']")).to_have_text("2")
        await page.get_by_role("link", name=event).click()
        await expect(page.get_by_label("Data")).to_contain_text('"name": "refund-1"')
        jobs = page.get_by_role("table", name="Jobs of the event")
        await expect(jobs.locator("[data-column='Status']")).to_have_text(["Completed", "Completed"])
        await jobs.get_by_role("row", name="ledger").locator("[data-column='Job'] a").click()
        await badge(page, "Completed")
        await page.get_by_role("link", name=event).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Event")
