"""Makes the pictures of the README from a demo run: `python -m tools.screenshots`. Needs Playwright and chromium."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from playwright.async_api import Browser, async_playwright
from tests.servers import free_port

IMAGES = Path(__file__).parent.parent / "docs" / "images"
LARGEST_BYTES = 150_000
WARM_UP_S = 75  # of traffic, so that charts have something to show
START_S = 60
# Name, view, width, height, dark.
PICTURES = (
    ("overview", "overview", 1280, 720, False),
    ("pool", "pools/DEFAULT-POOL", 1280, 720, True),
    ("dead-letter", "dead-letters", 1280, 560, False),
    ("phone", "overview", 390, 844, True),
)
# What a demo does not have by itself: something that cannot be delivered, and somebody who does not answer.
TROUBLE = (
    {"id": "order-4711", "messageGroupId": "customer-17", "receiver": "client-error"},
    {"id": "order-4712", "messageGroupId": "customer-18", "receiver": "client-error"},
    {"id": "order-4713", "messageGroupId": "customer-19", "receiver": "fail"},
)


def send(url: str, message: dict[str, str]) -> None:
    target = f"{url}/api/test/{message['receiver']}"
    body = {"id": message["id"], "messageGroupId": message["messageGroupId"], "mediationTarget": target}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/messages", json.dumps(body).encode(), headers)  # noqa: S310
    urllib.request.urlopen(request).close()  # noqa: S310 - our own router


async def until_it_answers(url: str) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/health/ready").close())  # noqa: S310
            except OSError:
                await asyncio.sleep(0.2)
            else:
                return


async def take(browser: Browser, url: str) -> None:
    pages = []
    for name, view, width, height, dark in PICTURES:
        size = {"width": width, "height": height}
        page = await browser.new_page(viewport=size, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
        await page.goto(f"{url}/#/{view}")
        pages.append((name, page))
    await asyncio.sleep(WARM_UP_S)
    for name, page in pages:
        picture = IMAGES / f"{name}.png"
        await page.screenshot(path=picture)
        size_bytes = picture.stat().st_size
        if size_bytes > LARGEST_BYTES:
            sys.exit(f"{picture} has {size_bytes} bytes, more than {LARGEST_BYTES}: make it smaller")
        print(f"{picture.name}: {size_bytes} bytes")


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed (on Debian: apt-get install chromium)")
    IMAGES.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flowcatalyst", "up", "--demo", "--port", str(port), "--data-dir", folder]
        router = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603, ASYNC220 - once
        try:
            await until_it_answers(url)
            for message in TROUBLE:
                await asyncio.to_thread(send, url, message)
            async with async_playwright() as driver:
                browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                await take(browser, url)
                await browser.close()
        finally:
            router.terminate()
            await asyncio.to_thread(router.wait)


if __name__ == "__main__":
    asyncio.run(main())
