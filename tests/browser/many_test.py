"""Much at once: 10,000 groups, charts, and dead letters by the dozen."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.core.message import MessagePointer
from flowcatalyst.queues.intake import outgoing_of
from tests.api.running import Running, run_router, until
from tests.browser.acting_test import confirmed, said
from tests.support.browser import open_page
from tests.support.http_servers import Call, raw_server, reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

GROUPS = 10_000
BATCH = 1000
MOST_ELEMENTS = 3000  # of a page of 50 rows, however much there is
WATCH = """new PerformanceObserver((list) => {
    for (const one of list.getEntries()) window.longestTaskMs = Math.max(window.longestTaskMs ?? 0, one.duration)
}).observe({ type: "longtask", buffered: true })"""
# How many points of the picture have the colour of its line, or nearly.
DRAWN = """(chart) => {
    const colour = getComputedStyle(chart.querySelector(".swatch")).color.match(/\\d+/g).map(Number)
    const canvas = chart.querySelector("canvas")
    const points = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    let drawn = 0
    for (let at = 0; at < points.length; at += 4)
        if (points[at + 3] > 128 && colour.every((part, place) => Math.abs(points[at + place] - part) < 40)) drawn++
    return drawn
}"""


async def fill(router: Running) -> None:
    """So many groups with a message each, all of them in the router, and a pool that lets next to none go."""
    for first in range(0, GROUPS, BATCH):
        pointers = [
            MessagePointer(
                id=f"message-{number}",
                mediation_target="http://127.0.0.1:9/hook",
                message_group_id=f"group-{number:05}",
            )
            for number in range(first, first + BATCH)
        ]
        await router.app.queues["default"].publish([outgoing_of(one, one.id) for one in pointers])

    async def all_there() -> bool:
        return router.app.router.pools["DEFAULT-POOL"].group_count >= GROUPS - 1

    await until(all_there)


async def test_a_page_shows_ten_thousand_groups_fifty_at_a_time_and_finds_each_of_them(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = PoolSettings(code="DEFAULT-POOL", concurrency=1, rate_limit_per_minute=1, capacity=4 * GROUPS)
    async with run_router(tmp_path, pools=[slow]) as router, open_page(browser, "about:blank") as page:
        await fill(router)
        await page.add_init_script(WATCH)
        await page.goto(f"{router.listening.url}/#/groups?show=all")
        seen: list[str] = []
        for number in range(1, 6):
            if number > 1:
                await page.get_by_role("button", name="Next").click()
                await expect(page.get_by_text(f"Page {number}", exact=True)).to_be_visible()
                await expect(page.locator(f"[data-key$='{seen[-1]}']")).to_have_count(0)
            await expect(page.locator("tbody tr")).to_have_count(50)
            seen += await names(page)
        assert len(set(seen)) == len(seen) == 5 * 50
        assert await page.locator("*").count() < MOST_ELEMENTS
        await page.get_by_label("Name begins with").fill("group-0999")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(10)
        await page.get_by_role("searchbox", name="Find").press_sequentially("message-9999")
        await page.keyboard.press("Enter")
        await expect(page.locator("main .answer")).to_contain_text("message-9999")
        longest_ms = await page.evaluate("window.longestTaskMs ?? 0")
    with capsys.disabled():
        print(f"\nlongest task of the page with {GROUPS:,} groups: {longest_ms:.0f} ms (0: none was longer than 50 ms)")


async def names(page: Page) -> list[str]:
    return await page.locator("tbody [data-column='Group'] .cut").all_inner_texts()


async def test_a_chart_draws_what_is_delivered(router: Running, browser: Browser) -> None:
    # Chromium says how reading a picture again and again could be faster.
    async with open_page(browser, f"{router.listening.url}/", expected="willReadFrequently") as page:
        throughput = page.locator(".chart", has_text="Throughput")
        await router.client.post("/api/seed/messages?count=40")
        await expect(page.locator("[data-key='DEFAULT-POOL'] [data-column='Delivered']")).to_have_text("40")

        async def is_drawn() -> bool:
            return int(await throughput.evaluate(DRAWN)) > 20

        await until(is_drawn)


async def test_dead_letters_of_a_filter_are_replayed_together_after_their_number_was_said(
    tmp_path: Path, browser: Browser
) -> None:
    refuses = True

    async def answer(call: Call) -> None:
        await call.send(reply(400 if refuses else 200))

    async with run_router(tmp_path) as router, raw_server(answer) as server:
        for number in range(5):
            group = "order:7" if number < 3 else "order:8"
            await router.send(id=f"m-{number}", messageGroupId=group, mediationTarget=server.url("/hook"))
        await router.until_dead(5)
        await router.until_settled()
        refuses = False
        async with open_page(browser, f"{router.listening.url}/#/dead-letters") as page:
            await page.get_by_label("Group", exact=True).fill("order:7")
            await page.keyboard.press("Enter")
            await expect(page.locator("tbody tr")).to_have_count(3)
            await page.get_by_role("button", name="Replay matching …").click()
            await expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Replay 3 dead letters?")
            assert len(server.requests) == 5  # not before somebody confirmed it
            await confirmed(page, "Replay")
            await said(page, "3 dead letters were replayed.")
        await router.until_settled()
        again = [
            name for request in server.requests[5:] for name in ("m-0", "m-1", "m-2") if name.encode() in request.body
        ]
        assert again == ["m-0", "m-1", "m-2"]
        assert await router.app.dead_letters.count() == 2
