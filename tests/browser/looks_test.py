"""Every view, on a wide screen and on a phone, light and dark: nothing sticks out, and everybody can use it."""

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running, run_router
from tests.browser.contract import endpoint, explanation, group
from tests.browser.shop import Furnished, Shop, furnish
from tests.browser.sign_in_test import KEYS, PASSWORDS
from tests.servers import ServerMissingError, needs, skip_or_fail
from tests.servers.node import packages_of
from tests.support.browser import answer_with, open_page, show

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "x" * 300
VIEWS = [
    *("overview", "groups", "warnings", "pools", "pools/DEFAULT-POOL", "queues", "endpoints", "dead-letters"),
    *("dead-letters/1", "jobs", "jobs/groups", "events", "subscriptions", "pauses", "standby", "audit", "sandbox"),
    *("explain", f"explain/{LONG}"),
]
PLATFORM_VIEWS = ["jobs", "jobs?parked=true", "jobs/groups", "events", "subscriptions"]
ACCESS: dict[str, dict[str, Any]] = {"api_key": KEYS, "basic": PASSWORDS}
# Out of the window, or of the place that the content has in it.
BEYOND = """(() => {
    const main = document.querySelector("main"), box = main.getBoundingClientRect()
    const edge = box.right - parseFloat(getComputedStyle(main).paddingRight)
    return [...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > (one.closest("main > *") ? edge : innerWidth) + 1)
        .filter((one) => !one.closest(".unseen, .u-wrap"))
        .map((one) => one.outerHTML.slice(0, 300))
})()"""
WITHOUT_TITLE = """[...document.querySelectorAll("main th, main .stat")]
    .filter((one) => !one.title)
    .map((one) => one.outerHTML)"""
SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that looks for what keeps people out."""
    try:
        return (packages_of(needs.BROWSER_PACKAGES) / "axe-core" / "axe.min.js").read_text()
    except ServerMissingError as error:
        skip_or_fail(error)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def furnished(shop: Shop) -> Furnished:
    return await furnish(shop)


async def fill(router: Running, page: Page) -> None:
    """One of everything that a page may show, with long names."""
    target = f"{router.receiver('client-error')}?{LONG}"
    await router.send(id="gone", mediationTarget=target, messageGroupId="g" * 256)
    await router.until_dead(1)
    router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, f"http://127.0.0.1:9000/{LONG}", "mediator")
    groups = [group(LONG), group("held", state="HELD", heldBy="ann", heldForMs=1000, head=None, lastAnswer=None)]
    endpoints = [endpoint(f"http://{LONG}/", state="OPEN", lastError=LONG, downForMs=61_000), endpoint("http://b/")]
    await answer_with(page, "/monitoring/groups", {"items": groups, "next": "more"})
    await answer_with(page, "/monitoring/endpoints", {"items": endpoints, "next": None})
    await answer_with(page, f"/monitoring/explain/{LONG}", explanation(LONG))


@pytest.mark.parametrize(("width", "dark"), SCREENS)
async def test_every_view_fits_the_screen_says_what_its_numbers_mean_and_axe_finds_nothing_serious(
    router: Running, browser: Browser, axe: str, width: int, dark: bool
) -> None:
    # A router without jobs says so, with 404.
    async with open_page(browser, "about:blank", width=width, dark=dark, expected="404 (Not Found)") as page:
        await fill(router, page)
        await page.goto(f"{router.listening.url}/")
        await expect(page.locator(".connection .badge")).to_be_visible()
        for view in VIEWS:
            await show(page, view)
            await looks_good(page, axe, view)


@pytest.mark.parametrize(("width", "dark"), SCREENS)
async def test_what_the_platform_has_fits_the_screen_and_axe_finds_nothing_serious(
    shop: Shop, furnished: Furnished, browser: Browser, axe: str, width: int, dark: bool
) -> None:
    async with open_page(browser, f"{shop.url}/", width=width, dark=dark) as page:
        for view in (*PLATFORM_VIEWS, *furnished.views):
            await show(page, view)
            await expect(page.locator("main :is(tbody tr, dl.facts)").first).to_be_visible()
            await looks_good(page, axe, view)


@pytest.mark.parametrize(("width", "dark"), SCREENS)
async def test_a_question_fits_the_screen_and_axe_finds_nothing_serious(
    router: Running, browser: Browser, axe: str, width: int, dark: bool
) -> None:
    await router.send(id="gone", mediationTarget=f"{router.receiver('client-error')}?{LONG}", messageGroupId="g")
    await router.until_dead(1)
    async with open_page(browser, f"{router.listening.url}/", width=width, dark=dark) as page:
        for view, button in (("pools/DEFAULT-POOL", "Limits …"), ("dead-letters/1", "Replay …")):
            await show(page, view)
            await page.get_by_role("button", name=button).click()
            await expect(page.get_by_role("dialog").get_by_role("heading")).to_be_visible()
            await looks_good(page, axe, f"{view}: {button}")
            await page.keyboard.press("Escape")


@pytest.mark.parametrize("mode", ["api_key", "basic"])
@pytest.mark.parametrize(("width", "dark"), SCREENS)
async def test_who_has_to_sign_in_can_on_every_screen_and_axe_finds_nothing_serious(
    tmp_path: Path, browser: Browser, axe: str, width: int, dark: bool, mode: str
) -> None:
    async with (
        run_router(tmp_path, auth=ACCESS[mode]) as router,
        open_page(browser, f"{router.listening.url}/", width=width, dark=dark, expected="401 (Unauthorized)") as page,
    ):
        await expect(page.get_by_role("heading", name="Sign in to FlowCatalyst")).to_be_visible()
        await looks_good(page, axe, mode)
        await page.locator("input").last.fill("wrong")
        await page.locator("input").first.fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("These credentials are wrong.")
        await looks_good(page, axe, f"{mode}, refused")


@pytest.mark.parametrize("dark", [False, True])
async def test_the_menu_of_a_phone_fits_the_screen_and_axe_finds_nothing_serious(
    router: Running, browser: Browser, axe: str, dark: bool
) -> None:
    router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, "an example", "mediator")
    async with open_page(browser, f"{router.listening.url}/", width=390, dark=dark) as page:
        await page.get_by_role("button", name="Views").click()
        await expect(page.get_by_role("link", name="Try it out")).to_be_visible()
        await looks_good(page, axe, "menu")


async def looks_good(page: Page, axe: str, view: str) -> None:
    assert await page.evaluate(BEYOND) == [], view
    assert await page.evaluate(WITHOUT_TITLE) == [], view
    assert await serious_problems(page, axe) == [], view


async def serious_problems(page: Page, axe: str) -> list[str]:
    """Run in a world of its own: the policy of the page forbids scripts that are not ours."""
    session = await page.context.new_cdp_session(page)
    frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
    world = await session.send("Page.createIsolatedWorld", {"frameId": frame})
    context = world["executionContextId"]

    async def run(expression: str) -> Any:
        asked = {"expression": expression, "contextId": context, "awaitPromise": True, "returnByValue": True}
        answer = await session.send("Runtime.evaluate", asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    await run(axe)
    found = await run("axe.run(document).then((result) => result.violations)")
    await session.detach()
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


async def test_light_and_dark_follow_the_system_until_somebody_chooses(router: Running, browser: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    async with open_page(browser, f"{router.listening.url}/", dark=True) as page:
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        dark = await page.evaluate(ground)
        await page.get_by_role("button", name="Change to the light theme").click()
        light = await page.evaluate(ground)
        assert light != dark
        await page.reload()
        await expect(page.get_by_role("button", name="Change to the dark theme")).to_be_visible()
        assert await page.evaluate(ground) == light


async def test_everything_can_be_reached_by_keyboard(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/") as page:
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Overview")).to_be_focused()
        link = page.get_by_role("navigation", name="Views").get_by_role("link", name="Pools")
        await link.focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Pools")).to_be_focused()  # a screen reader reads what is new
        assert await page.title() == "Pools · FlowCatalyst"


async def test_on_a_phone_the_views_are_behind_a_button(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/", width=390) as page:
        button = page.get_by_role("button", name="Views")
        await expect(button).to_have_attribute("aria-expanded", "false")
        await button.click()
        await page.get_by_role("navigation", name="Views").get_by_role("link", name="Queues").click()
        await expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        await expect(button).to_have_attribute("aria-expanded", "false")


async def test_what_a_router_does_not_have_is_one_sentence(router: Running, browser: Browser) -> None:
    async with open_page(browser, f"{router.listening.url}/#/jobs", expected="404 (Not Found)") as page:
        await expect(page.get_by_role("alert").filter(has_text="dispatches no jobs")).to_be_visible()
