"""A blocked group is found on the page and got moving in each way, on a real router with a real endpoint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from flowcatalyst.control.pool_settings import RetrySettings
from tests.api.running import Running, run_router, until
from tests.browser.acting_test import confirmed, said
from tests.support.browser import open_page
from tests.support.http_servers import Call, RawServer, raw_server, reply

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Moody:
    """Refuses a message until it is told not to."""

    def __init__(self) -> None:
        self.refuses = True

    async def __call__(self, call: Call) -> None:
        await call.send(reply(500 if self.refuses and b"m-1" in call.body else 200, b"no stock"))


@asynccontextmanager
async def stuck(tmp_path: Path) -> AsyncIterator[tuple[Running, RawServer, Moody]]:
    """m-1 fails and is back in its queue for 30 s; m-2 waits behind it, and o-1 in another group does not."""
    moody = Moody()
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as router, raw_server(moody) as server:
        message = {"mediationTarget": server.url("/hook")}
        for name, group in (("m-1", "order:7"), ("m-2", "order:7"), ("o-1", "order:8")):
            await router.send(id=name, messageGroupId=group, **message)

        async def is_back() -> bool:
            depth = await router.app.queues["default"].depth()
            return depth is not None and depth.delayed > 0 and not len(router.app.tracker) and len(server.requests) == 2

        await until(is_back)
        yield router, server, moody


def delivered(server: RawServer) -> list[str]:
    return [name for request in server.requests for name in ("m-1", "m-2", "o-1") if name.encode() in request.body]


async def on_explain(page: Page, router: Running, name: str) -> None:
    """By the search box, as somebody does who knows nothing but an id."""
    await page.goto(f"{router.listening.url}/")
    await page.get_by_role("searchbox").fill(name)
    await page.keyboard.press("Enter")


async def test_somebody_who_knows_only_an_id_finds_out_why_it_is_late_and_skips_what_is_in_its_way(
    tmp_path: Path, browser: Browser
) -> None:
    async with stuck(tmp_path) as (router, server, _), open_page(browser, "about:blank") as page:
        await on_explain(page, router, "m-2")
        await expect(page.locator(".chain").filter(has_text="m-1").filter(has_text="order:7")).to_be_visible()
        await page.goto(f"{router.listening.url}/#/groups")
        row = page.get_by_role("row", name="order:7")
        await expect(row).to_contain_text("HTTP 500")
        await row.get_by_role("button", name="Skip").click()
        await confirmed(page, "Skip head")
        await said(page, "Message m-1 becomes a dead letter now.")
        [letter] = await router.until_dead(1)
        await router.until_settled()
        assert letter["messageId"] == "m-1"
        assert sorted(delivered(server)) == ["m-1", "m-2", "o-1"]


async def test_a_head_is_tried_at_once_when_its_endpoint_is_mended(tmp_path: Path, browser: Browser) -> None:
    async with stuck(tmp_path) as (router, server, moody), open_page(browser, "about:blank") as page:
        moody.refuses = False
        await on_explain(page, router, "order:7")
        await page.get_by_role("button", name="retry-head").or_(page.get_by_role("button", name="Retry")).first.click()
        await page.get_by_role("dialog").get_by_role("button").last.click()
        await router.until_settled()
        assert delivered(server)[-2:] == ["m-1", "m-2"]


async def test_a_head_that_got_through_before_the_click_costs_no_other_message(
    tmp_path: Path, browser: Browser
) -> None:
    async with stuck(tmp_path) as (router, _, moody), open_page(browser, "about:blank", expected="404") as page:
        await page.goto(f"{router.listening.url}/#/groups")
        await page.get_by_role("row", name="order:7").get_by_role("button", name="Skip").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Skip message m-1 of order:7?")
        moody.refuses = False
        await router.client.post("/monitoring/groups/order:7/retry-head")
        await router.until_settled()
        await router.client.post("/monitoring/groups/order:7/hold")
        await router.send(id="m-3", messageGroupId="order:7", mediationTarget=router.receiver("fast"))
        await confirmed(page, "Skip head")
        alert = page.get_by_role("dialog").get_by_role("alert")
        await expect(alert).to_contain_text("neither has message")
        await router.client.post("/monitoring/groups/order:7/release")
        await router.until_settled()
        assert await router.app.dead_letters.count() == 0


async def test_a_group_is_held_and_released(tmp_path: Path, browser: Browser) -> None:
    async with stuck(tmp_path) as (router, server, moody), open_page(browser, "about:blank") as page:
        await page.goto(f"{router.listening.url}/#/groups")
        row = page.get_by_role("row", name="order:7")
        await row.get_by_role("button", name="Hold").click()
        await confirmed(page, "Hold")
        await said(
            page, "Group order:7 is held: nothing of it starts until it is released, but for IMMEDIATE messages."
        )
        assert "order:7" in router.app.engine.pauses.groups
        moody.refuses = False
        await row.get_by_role("button", name="Release").click()
        await confirmed(page, "Release")
        await said(page, "Group order:7 goes on.")
        await router.client.post("/monitoring/groups/order:7/retry-head")
        await router.until_settled()
        assert delivered(server)[-2:] == ["m-1", "m-2"]


async def test_a_dead_letter_is_edited_and_replayed_in_front_of_its_group(tmp_path: Path, browser: Browser) -> None:
    async with run_router(tmp_path) as router, raw_server(Moody()) as server:
        await router.send(id="dead", mediationTarget=router.receiver("client-error"), messageGroupId="g")
        await router.until_dead(1)
        await router.until_settled()
        await router.client.post("/monitoring/pools/DEFAULT-POOL/pause")
        await router.send(id="m-2", mediationTarget=server.url("/hook"), messageGroupId="g")
        async with open_page(browser, f"{router.listening.url}/#/dead-letters/1") as page:
            await page.get_by_role("button", name="Replay …").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("Target").fill(server.url("/elsewhere"))
            await dialog.get_by_label("In front").check()
            await confirmed(page, "Replay")
            await said(page, "Dead letter 1 was replayed")
        await router.client.post("/monitoring/pools/DEFAULT-POOL/resume")
        await router.until_settled()
        assert [(request.path, b"dead" in request.body) for request in server.requests] == [
            ("/elsewhere", True),
            ("/hook", False),
        ]


async def test_a_pool_is_paused_and_resumed(router: Running, browser: Browser) -> None:
    pool = router.app.router.pools["POOL-LOW"]
    async with open_page(browser, f"{router.listening.url}/#/pools") as page:
        row = page.get_by_role("row", name="POOL-LOW")
        await row.get_by_role("button", name="Pause").click()
        await page.get_by_role("dialog").get_by_role("button").last.click()
        await expect(row).to_contain_text("PAUSED", ignore_case=True)
        assert pool.paused
        await row.get_by_role("button", name="Resume").click()
        await page.get_by_role("dialog").get_by_role("button").last.click()

        async def goes_on() -> bool:
            return not pool.paused

        await until(goes_on)
