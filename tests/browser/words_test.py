"""What the page says of what the router says: in words, with room for them, and only where it belongs."""

import json
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running
from tests.browser.acting_test import confirmed, said
from tests.browser.contract import HEAD, endpoint, explanation, group
from tests.support.api_forms import check_answer
from tests.support.browser import answer_with, open_page, show
from tests.support.fake_router import overview

pytestmark = pytest.mark.asyncio(loop_scope="session")

OUTSIDE = "(one) => one.scrollWidth > one.clientWidth"


async def send_overview(page: Page, **changes: Any) -> None:
    """The stream has this one overview and ends."""
    said = overview(**changes)
    check_answer("GET /monitoring/live", said)
    body = f"event: overview\ndata: {json.dumps(said)}\n\n"
    await page.route("**/monitoring/live", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


@pytest.mark.parametrize("width", [1280, 390])
async def test_addresses_that_differ_at_their_ends_can_be_told_apart(
    router: Running, browser: Browser, width: int
) -> None:
    urls = [f"http://127.0.0.1:9000/hooks/orders/{number}" for number in range(2)]
    long = f"https://shop.test/{'x' * 300}/the-end"
    rows = [endpoint(url, state="OPEN", pausedBy="ann", pausedForMs=1, downForMs=961_000) for url in [*urls, long]]
    async with open_page(browser, "about:blank", width=width) as page:
        await answer_with(page, "/monitoring/endpoints", {"items": rows, "next": None})
        await page.goto(f"{router.listening.url}/#/endpoints")
        for url in urls:
            link = page.get_by_role("link", name=url, exact=True)
            assert not await link.evaluate(OUTSIDE)
            assert not await link.locator("xpath=..").evaluate(OUTSIDE)
        shown = page.get_by_title(long)
        await expect(shown).to_contain_text("/the-end")
        await expect(shown).to_contain_text("https://shop.test/")
        await expect(page.get_by_text("down for 16 min 1 s").first).to_be_visible()
        await expect(page.get_by_role("button", name="Reset").first).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", [1280, 390])
async def test_long_figures_stay_on_their_cards(router: Running, browser: Browser, width: int) -> None:
    async with open_page(browser, "about:blank", width=width) as page:
        await send_overview(page, lagMs={"p50": 86_000_000, "p95": 279_000}, queued=123_456_789, queuedExact=False)
        await page.goto(f"{router.listening.url}/")
        await expect(page.locator(".stat", has_text="Lag p95").locator("b")).to_have_text("4 min 39 s")
        assert (
            await page.locator(".stat").evaluate_all(f"(all) => all.filter({OUTSIDE}).map((one) => one.innerText)")
            == []
        )


async def test_a_reason_leads_to_the_explanation_it_names(router: Running, browser: Browser) -> None:
    text = "a group is blocked; see: flowcatalyst explain 'it'\"'\"'s 7'"
    async with open_page(browser, "about:blank") as page:
        await answer_with(page, "/monitoring/explain/it's%207", explanation("it's 7"))
        await send_overview(page, reasons=[{"level": "WARNING", "part": "group", "text": text}])
        await page.goto(f"{router.listening.url}/")
        await page.get_by_role("link", name="flowcatalyst explain").click()
        await expect(page.get_by_text("It waits behind message order-7")).to_be_visible()
        router.app.warnings.add(WarningCode.GROUP_BLOCKED, Severity.WARN, "see: flowcatalyst explain it-7", "pool P")
        await show(page, "warnings")
        await expect(page.get_by_role("link", name="flowcatalyst explain it-7")).to_have_attribute(
            "href", "#/explain/it-7"
        )


async def test_what_people_stopped_is_listed_and_let_go_on(router: Running, browser: Browser) -> None:
    url = "http://127.0.0.1:9000/hook"
    for what in ("pools/DEFAULT-POOL/pause", f"endpoints/pause?endpoint={url}", "groups/order:7/hold"):
        assert (await router.client.post(f"/monitoring/{what}")).status == 200
    async with open_page(browser, f"{router.listening.url}/") as page:
        await page.get_by_role("region", name="Health").get_by_role("link", name="Pause").first.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Paused and held")
        for name, button in (("DEFAULT-POOL", "Resume"), (url, "Resume"), ("order:7", "Release")):
            await page.get_by_role("row", name=name).get_by_role("button", name=button).click()
            await confirmed(page, button)
            await expect(page.get_by_role("row", name=name)).to_have_count(0)
        await expect(page.get_by_text("Nothing is paused or held")).to_be_visible()
    assert list(router.app.engine.pauses) == []


async def test_an_explanation_has_words_for_its_facts_and_actions(router: Running, browser: Browser) -> None:
    path = "/monitoring/groups/customer-1/skip-head"
    action = {"what": "skip-head", "method": "POST", "path": path, "text": "skip order-7"}
    odd = {"what": "turn-over", "method": "POST", "path": "/monitoring/turn-over", "text": "turn it over"}
    facts = {"inRouterMs": 119_199, "copiesDropped": 1200, "paused": False, "subscription": None}
    async with open_page(browser, "about:blank") as page:
        await answer_with(
            page, "/monitoring/explain/order-9", explanation("order-9", facts=facts, actions=[action, odd])
        )
        await page.goto(f"{router.listening.url}/#/explain/order-9")
        told = await page.locator("dl.facts").inner_text()
        assert [one.strip() for one in told.split("\n") if one.strip()][-6:] == [
            *("In the router", "1 min 59 s", "Copies dropped", "1,200", "Paused", "no")
        ]
        await expect(page.get_by_role("button", name="Turn over")).to_be_visible()
        await page.get_by_role("button", name="Skip head").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Skip order-7?")
        await expect(page.get_by_role("dialog")).to_contain_text("from where it can be replayed")


async def test_questions_and_what_was_said_stay_behind_when_the_view_changes(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/#/pools", expected="400 (Bad Request)") as page:
        await page.get_by_role("button", name="Limits …").first.click()
        await page.get_by_role("dialog").get_by_label("Slots").fill("1000000")
        await confirmed(page, "Change limits")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("concurrency")
        await show(page, "queues")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await show(page, "pools")
        await page.get_by_role("row", name="DEFAULT-POOL").get_by_role("button", name="Pause").click()
        await confirmed(page, "Pause")
        await said(page, "Pool DEFAULT-POOL is paused.")
        await show(page, "queues")
        await expect(page.get_by_text("Pool DEFAULT-POOL is paused.")).to_have_count(0)


async def test_a_group_shows_only_what_holds_for_it(router: Running, browser: Browser) -> None:
    hanging = group("hanging", head={**HEAD, "where": "IN_FLIGHT"}, lastAnswer=None, nextAttemptInMs=None)
    rows = [group("failing"), group("held", state="HELD", heldBy="ann", heldForMs=1000), hanging]
    async with open_page(browser, "about:blank") as page:
        await answer_with(page, "/monitoring/groups", {"items": rows, "next": None})
        await page.goto(f"{router.listening.url}/#/groups")
        failing, held, hangs = (page.get_by_role("row", name=name) for name in ("failing", "held", "hanging"))
        await expect(failing.get_by_role("button", name="Retry")).to_be_visible()
        await expect(hangs.get_by_role("button", name="Retry")).to_have_count(0)
        await expect(hangs.locator("[data-column='Last answer']")).to_have_text("no answer yet")
        await expect(held.locator("[data-column='Next attempt']")).to_have_text("held")


@pytest.mark.parametrize(("state", "again"), [("NEVER_SEEN", False), ("WAITING", True)])
async def test_what_was_found_nowhere_is_not_searched_again_and_again(
    router: Running, browser: Browser, state: str, again: bool
) -> None:
    async with open_page(browser, "about:blank") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url) if "/explain/order-9" in request.url else None)
        await answer_with(page, "/monitoring/explain/order-9", explanation("order-9", state=state))
        await page.clock.install()
        await page.goto(f"{router.listening.url}/#/explain/order-9")
        await expect(page.get_by_text("It waits behind message order-7")).to_be_visible()
        for _ in range(5):
            await page.clock.run_for(2_100)
            await page.evaluate("async () => (await fetch('/monitoring/health')).text()")
        assert (len(asked) > 1) is again
