"""The page asks for what the router asks for, and keeps it no longer than the tab."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from flowcatalyst.core.credentials import hash_key, hash_password
from tests.api.running import run_router
from tests.support.browser import open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = {"mode": "api_key", "admin": [hash_key(b"the right key")]}
PASSWORDS = {"mode": "basic", "admin": [f"ann:{hash_password('pässword'.encode())}"]}


async def test_a_key_is_asked_for_tried_and_forgotten_on_request(tmp_path: Path, browser: Browser) -> None:
    async with (
        run_router(tmp_path, auth=KEYS) as router,
        open_page(browser, f"{router.listening.url}/#/pools", expected="401 (Unauthorized)") as page,
    ):
        await expect(page.get_by_role("heading", name="Sign in to FlowCatalyst")).to_be_visible()
        key = page.get_by_label("API key")
        await expect(key).to_be_focused()
        await key.fill("a wrong key")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("These credentials are wrong.")
        await key.fill("the right key")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Pools", exact=True)).to_be_visible()
        await expect(page.get_by_role("link", name="Healthy")).to_be_visible()  # the stream has it too
        await page.reload()
        await expect(page.get_by_role("heading", name="Pools", exact=True)).to_be_visible()
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        assert "the right key" not in await page.evaluate("JSON.stringify(sessionStorage)")


async def test_a_name_and_a_password_are_asked_for_by_the_page_and_not_by_the_browser(
    tmp_path: Path, browser: Browser
) -> None:
    async with (
        run_router(tmp_path, auth=PASSWORDS) as router,
        open_page(browser, f"{router.listening.url}/", expected="401 (Unauthorized)") as page,
    ):
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Password").fill("wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("These credentials are wrong.")
        await page.get_by_label("Password").fill("pässword")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_credentials_that_are_no_longer_good_are_asked_for_again(tmp_path: Path, browser: Browser) -> None:
    async with (
        run_router(tmp_path, auth=KEYS) as router,
        open_page(browser, f"{router.listening.url}/", expected="401 (Unauthorized)") as page,
    ):
        await page.evaluate("sessionStorage.setItem('flowcatalyst.authorization', 'Bearer revoked')")
        await page.reload()
        await expect(page.get_by_role("alert")).to_have_text("These credentials are wrong.")
        await expect(page.get_by_label("API key")).to_be_visible()
