"""The page at /: what it says, on every screen, and what can be done there."""

import re
from html.parser import HTMLParser
from pathlib import Path

from flowcatalyst.core.credentials import hash_password
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.router.breaker import BreakerState
from tests.api.breakers_test import open_breaker
from tests.api.running import Running, on_idle_router, run_router, until
from tests.support.browser import Page, needs_browser, open_page

LONG = "x" * 300
OPEN = WarningFilter(acknowledged=False)


class Titles(HTMLParser):
    """Finds numbers without a title: columns of tables, and <b id> that the script fills."""

    def __init__(self) -> None:
        super().__init__()
        self.without: list[str] = []
        self.found = 0
        self._open: list[bool] = []  # whether each open element has a title

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        titled = bool(given.get("title"))
        if tag == "th" or (tag == "b" and "id" in given):
            self.found += 1
            if not titled and not any(self._open):
                self.without.append(given.get("id") or self.get_starttag_text() or tag)
        if tag in ("div", "span", "a", "b", "section"):
            self._open.append(titled)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("div", "span", "a", "b", "section"):
            self._open.pop()


@on_idle_router
async def test_every_number_of_the_page_has_a_title(idle_router: Running) -> None:
    page = Titles()
    page.feed((await idle_router.client.get("/")).text)
    assert page.found > 20
    assert page.without == []


@on_idle_router
async def test_titles_name_the_severities_there_are_and_say_what_waiting_counts(idle_router: Running) -> None:
    text = (await idle_router.client.get("/")).text
    assert f'title="How bad it is: {", ".join(Severity)}"' in text
    [waiting] = re.findall(r'title="([^"]+)">Waiting<th title="[^"]+">Leased<', text)
    assert "those behind a delayed message of their group" in waiting


@on_idle_router
async def test_the_page_asks_no_other_server(idle_router: Running) -> None:
    text = (await idle_router.client.get("/")).text
    assert "http://" not in text
    assert "https://" not in text


async def _fill(router: Running) -> None:
    """One of everything that a page may show, with long names."""
    await router.send(id="gone", mediationTarget=f"{router.receiver('client-error')}?{LONG}", messageGroupId="g" * 256)
    await router.until_dead(1)
    router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, f"http://127.0.0.1:9000/{LONG}", "mediator")
    open_breaker(router, f"http://127.0.0.1:9000/{LONG}")


async def _live(page: Page) -> None:
    await page.until("document.getElementById('state').textContent === 'live'")


@needs_browser
async def test_a_wide_page_cuts_long_names_off_and_breaks_no_word(router: Running, tmp_path: Path) -> None:
    await _fill(router)
    async with open_page(tmp_path, f"{router.listening.url}/", width=1280, height=900) as page:
        await _live(page)
        await page.until("document.querySelectorAll('#letters tr').length === 1")
        await page.until("document.querySelectorAll('#breakers tr').length === 1")
        assert await page.ask("document.documentElement.scrollWidth") == 1280
        assert await page.ask("document.querySelector('#letters td:nth-child(2)').title.startsWith('g'.repeat(256))")
        lines = "[...document.querySelectorAll('#queues td:first-child')].map((cell) => cell.offsetHeight < 40)"
        assert await page.ask(f"{lines}.every(Boolean)")
        assert await page.ask("document.querySelector('link[rel=icon]').href.startsWith('data:')")


@needs_browser
async def test_the_page_fits_a_phone_whatever_it_shows(router: Running, tmp_path: Path) -> None:
    await _fill(router)
    async with open_page(tmp_path, f"{router.listening.url}/", width=360, height=740) as page:
        await _live(page)
        await page.until("document.querySelectorAll('#letters tr').length === 1")
        await page.until("document.querySelectorAll('#breakers tr').length === 1")
        assert await page.ask("document.documentElement.scrollWidth") == 360
        beyond = "[...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > 360)"
        assert await page.ask(f"{beyond}.map((one) => one.outerHTML)") == []
        assert page.said == []


@needs_browser
async def test_warnings_breakers_and_dead_letters_can_be_dealt_with_on_the_page(
    router: Running, tmp_path: Path
) -> None:
    await _fill(router)
    async with open_page(tmp_path, f"{router.listening.url}/") as page:
        await _live(page)

        async def counts_agree() -> bool:  # the watcher of dead letters may add one at any time
            shown = await page.ask("document.getElementById('warnings').textContent")
            return bool(shown == str(len(router.app.warnings.recent(OPEN))))

        await until(counts_agree)
        (example,) = router.app.warnings.recent(WarningFilter(code=WarningCode.PROCESSING))
        await page.click(f"#warning-rows [data-key='{example.id}'] button")
        await page.until(f"!document.querySelector('#warning-rows [data-key=\"{example.id}\"]')")
        assert example.acknowledged

        await page.click("#breakers button")
        await page.until("document.getElementById('breakers-part').hidden")
        assert all(breaker.state is BreakerState.CLOSED for _, breaker in router.app.breakers.items())

        await page.click("#letters button")  # it ends as a dead letter again
        await page.until("document.querySelector('#letters a')?.textContent === '2: gone'")
        assert await page.ask("document.querySelector('#letters a').pathname") == "/monitoring/dead-letters/2"
        await page.click("#letters button:last-child")
        await page.until("document.getElementById('letters-part').hidden")
        assert await router.app.dead_letters.count() == 0

        await page.click("#acknowledge-all")
        await page.until("document.getElementById('warnings-part').hidden")
        (refused,) = router.app.warnings.recent(WarningFilter(code=WarningCode.CONFIGURATION))
        assert refused.acknowledged
        assert page.said == []


@needs_browser
async def test_a_reader_sees_the_page_and_is_told_why_an_action_is_refused(tmp_path: Path) -> None:
    accounts = {"admin": [f"ann:{hash_password(b'a')}"], "read_only": [f"bob:{hash_password(b'b')}"]}
    async with run_router(tmp_path, auth={"mode": "basic", **accounts}, egress={"allow_private": True}) as router:
        router.app.warnings.add(WarningCode.PROCESSING, Severity.WARN, "an example", "mediator")
        # A login in the address bar: fetch refuses addresses that repeat it.
        url = router.listening.url.replace("//", "//bob:b@")
        async with open_page(tmp_path, f"{url}/") as page:
            await _live(page)
            await page.click("#warning-rows button")
            await page.until("document.getElementById('told').textContent.includes('may only read')")
        assert len(router.app.warnings.recent(OPEN)) == 1


@needs_browser
async def test_a_refresh_keeps_the_rows_that_stay_under_the_finger_of_whoever_clicks(
    router: Running, tmp_path: Path
) -> None:
    await _fill(router)
    async with open_page(tmp_path, f"{router.listening.url}/") as page:
        await _live(page)
        await page.until("document.querySelectorAll('#letters tr').length === 1")
        await page.ask("window.kept = document.querySelector('#letters button'), kept.focus(), window.then = looks, 0")
        router.app.warnings.add(WarningCode.ROUTING, Severity.WARN, "another one", "router")
        await page.until("looks > then + 6")
        assert await page.ask("document.activeElement === kept")
        texts = "[...document.querySelectorAll('#warning-rows .text:nth-last-child(2)')].map((one) => one.textContent)"
        assert "another one" in await page.ask(texts)
