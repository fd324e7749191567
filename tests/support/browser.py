"""Pages in Debian's chromium, driven by Playwright. Nothing but loopback can be reached from them.

async with open_browser() as browser, open_page(browser, "http://127.0.0.1:8080/", width=390) as page:
    await page.get_by_role("button", name="Pause").click()
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.servers import NOT_TESTED, ServerMissingError, program, skip_or_fail
from tests.support.api_forms import check_answer

playwright = pytest.importorskip("playwright.async_api", reason=f"{NOT_TESTED}playwright is not installed")

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect  # noqa: E402 - once it is there

WITHIN_MS = 30_000
expect.set_options(timeout=WITHIN_MS)
_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    try:
        chromium = program("chromium")
    except ServerMissingError as error:
        skip_or_fail(error)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=_FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, expected: str = "\0"
) -> AsyncIterator[Page]:
    """A page of its own, with storage of its own. At the end of the block it has complained of nothing: no error in
    its console, as a breach of the content security policy is one, and no exception. Complaints with the text
    `expected` do not count: a browser notes each refused request."""
    said: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and expected not in message.text:
            said.append(message.text)

    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    try:
        page = await context.new_page()
        page.set_default_timeout(WITHIN_MS)
        page.on("console", hear)
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(url)
        yield page
        assert said == []
    finally:
        await context.close()


async def show(page: Page, view: str) -> None:
    """Go to a view of the dashboard and wait until it has what it shows."""
    await page.evaluate("(view) => { location.hash = `#/${view}` }", view)
    await page.locator("main h1").wait_for()
    await page.locator("main .loading").wait_for(state="hidden")


async def answer_with(page: Page, path: str, body: Any, *, method: str = "GET") -> None:
    """What the page is answered for a path, whatever its query, instead of what the router says, in the same form."""
    check_answer(f"{method} {path}", body)
    await page.route(lambda url: url.partition("?")[0].endswith(path), lambda route: route.fulfill(json=body))
