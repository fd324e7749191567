"""Makes the pictures of the README and the docs from a demo run: `python -m tools.screenshots`, or `make pictures`.

With `--all DIR` it takes each view instead, on a wide screen and on a phone, light and dark, for somebody to look at.
Needs Playwright and chromium.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright
from tests.servers import free_port, program

IMAGES = Path(__file__).parent.parent / "docs" / "images"
LARGEST_BYTES = 150_000
WARM_UP_S = 75  # of traffic, so that charts have something to show
START_S = 60
LATER = "2100-01-01T00:00:00Z"


@dataclass(slots=True, frozen=True)
class Picture:
    name: str
    view: str
    width: int = 1280
    height: int = 720
    dark: bool = False


PICTURES = (
    Picture("overview", "overview"),
    Picture("groups", "groups", height=480),
    Picture("explain", "explain/order-4714", height=800),
    Picture("pool", "pools/DEFAULT-POOL", dark=True),
    Picture("phone", "explain/order-4714", width=390, height=844, dark=True),
)
VIEWS = (
    *("overview", "groups", "groups?show=all", "warnings", "pools", "pools/DEFAULT-POOL", "queues", "endpoints"),
    *("dead-letters", "dead-letters/1", "jobs", "jobs?parked=true", "jobs/groups", "events", "subscriptions"),
    *("subscriptions/demo-billing", "pauses", "standby", "audit", "sandbox", "explain", "explain/order-4714"),
    *(
        "explain/order-4713",
        "explain/order-4711",
        "explain/customer-19?kind=GROUP",
        "explain/DEFAULT-POOL",
        "explain/no",
    ),
)
# What a demo does not have by itself: something that cannot be delivered, and somebody who does not answer.
MESSAGES = (
    ("order-4711", "customer-17", "client-error"),
    ("order-4712", "customer-18", "client-error"),
    *((f"order-{number}", "customer-19", "fail") for number in range(4713, 4718)),
    *((f"order-{number}", "customer-20", "server-error") for number in range(4718, 4720)),
)


class Api:
    """Of the router that is pictured."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310
        return await asyncio.to_thread(_read, request)

    async def until_it_answers(self) -> None:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    await self.ask("GET", "/health/ready")
                except OSError:
                    await asyncio.sleep(0.2)
                else:
                    return

    async def send(self, name: str, group: str, receiver: str) -> None:
        target = f"{self.url}/api/test/{receiver}"
        message = {"id": name, "messageGroupId": group, "mediationTarget": target}
        await self.ask("POST", "/api/messages", message)

    async def job(self, code: str, receiver: str, **more: Any) -> str:
        target = f"{self.url}/api/test/{receiver}"
        job = {"code": code, "targetUrl": target, "payload": {"order": 4711}, "maxRetries": 0, **more}
        return str((await self.ask("POST", "/api/dispatch-jobs", job))["id"])


def _read(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own router
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else None


async def furnish(api: Api) -> list[str]:
    """One of everything that views can show; the views of single things that have no name of their own."""
    for verb, what in (("hold", "groups/customer-21"), ("pause", "pools/POOL-LOW")):
        await api.ask("POST", f"/monitoring/{what}/{verb}")
    await api.ask("POST", f"/monitoring/endpoints/pause?endpoint={api.url}/api/test/unused")
    group = {"messageGroup": "account:123", "mode": "BLOCK_ON_ERROR"}
    parked = await api.job("invoice.sent", "server-error", **group)
    behind = await api.job("invoice.sent", "fast", **group)
    waiting = await api.job("reminder.sent", "fast", scheduledFor=LATER)
    event = {"type": "order.refunded", "source": "demo-shop", "subject": "order:1", "data": {"order": 1, "total": 25}}
    told = (await api.ask("POST", "/api/events", event))["id"]
    jobs = [f"{view}/{job}" for job in (parked, behind, waiting) for view in ("jobs", "explain")]
    return [*jobs, f"events/{told}", f"explain/{told}"]


async def opened(browser: Browser, url: str, picture: Picture) -> Page:
    size: Any = {"width": picture.width, "height": picture.height}
    page = await browser.new_page(viewport=size, color_scheme="dark" if picture.dark else "light")
    await page.goto(f"{url}/#/{picture.view}")
    return page


async def take(browser: Browser, url: str) -> None:
    pages = [await opened(browser, url, picture) for picture in PICTURES]
    await asyncio.sleep(WARM_UP_S)
    for picture, page in zip(PICTURES, pages, strict=True):
        path = IMAGES / f"{picture.name}.png"
        await page.screenshot(path=path)
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_BYTES:
            sys.exit(f"{path} has {size_bytes} bytes, more than {LARGEST_BYTES}: make it smaller")
        print(f"{path.name}: {size_bytes} bytes")


async def take_all(browser: Browser, api: Api, folder: Path) -> None:
    """One page for each kind of screen goes through all views, so that its charts have something to show."""
    views = [*VIEWS, *await furnish(api)]
    screens = [Picture("", "overview", width, 900, dark) for width in (1280, 390) for dark in (False, True)]
    pages = [await opened(browser, api.url, screen) for screen in screens]
    await asyncio.sleep(WARM_UP_S)
    for screen, page in zip(screens, pages, strict=True):
        for view in views:
            await page.evaluate("(view) => { location.hash = `#/${view}` }", view)
            await page.locator("main h1").wait_for()
            await page.locator("main .loading").wait_for(state="hidden")
            name = "".join(letter if letter.isalnum() else "-" for letter in view)
            scheme = "dark" if screen.dark else "light"
            await page.screenshot(path=folder / f"{name}.{screen.width}.{scheme}.png", full_page=True)
    print(f"{len(views) * len(screens)} pictures in {folder}")


@asynccontextmanager
async def demo() -> AsyncIterator[Api]:
    api = Api(f"http://127.0.0.1:{(port := free_port())}")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flowcatalyst", "up", "--demo", "--port", str(port), "--data-dir", folder]
        router = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603, ASYNC220 - once
        try:
            await api.until_it_answers()
            yield api
        finally:
            router.terminate()
            await asyncio.to_thread(router.wait)


async def main(everything: Path | None) -> None:
    async with demo() as api, async_playwright() as driver:
        for message in MESSAGES:
            await api.send(*message)
        browser = await driver.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        if everything is None:
            await take(browser, api.url)
        else:
            await take_all(browser, api, everything)
        await browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("--all", type=Path, metavar="DIR", help="take each view x width x scheme into this folder")
    chosen: Path | None = parser.parse_args().all
    (chosen or IMAGES).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(chosen))
