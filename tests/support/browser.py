"""A page in a real chromium, driven over its DevTools protocol. Nothing but loopback can be reached from it.

async with open_page(folder, "http://127.0.0.1:8080/", width=360) as page:
    await page.until("document.title === 'FlowCatalyst'")
"""

import asyncio
import base64
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servers import NOT_TESTED

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WITHIN_S = 30.0
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason=f"{NOT_TESTED}chromium is not installed (on Debian: apt-get install chromium)"
)

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
    "--remote-debugging-port=0",
)


class Page:
    """An open page. `said` is what the browser complained about, as a breach of the content security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.said: list[str] = []
        self._socket = socket
        self._numbers = count(1)
        self._session = ""
        self._loaded = False

    async def open(self, url: str, width: int, height: int) -> None:
        target = (await self._call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Runtime"):
            await self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        await self._call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        await self._call("Page.navigate", url=url)
        async with asyncio.timeout(WITHIN_S):
            while not self._loaded:
                await self._hear(await self._socket.receive_json())

    async def ask(self, expression: str) -> Any:
        """What the expression is in the page; it may be a promise."""
        answer = await self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not await self.ask(expression):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"it did not come true: {expression}; the page: {await self.ask('document.body.innerText')}")

    async def click(self, selector: str) -> None:
        find = f"document.querySelector({selector!r})"
        await self.until(f"{find} !== null")
        await self.ask(f"{find}.click()")

    async def picture(self) -> bytes:
        """The whole page as a PNG."""
        taken = await self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    async def _call(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        await self._socket.send_json({"id": number, "method": method, "params": given, **session})
        async with asyncio.timeout(WITHIN_S):
            while (told := await self._socket.receive_json()).get("id") != number:
                await self._hear(told)
        assert "error" not in told, (method, told["error"])
        result: dict[str, Any] = told["result"]
        return result

    async def _hear(self, told: dict[str, Any]) -> None:
        match told.get("method"):
            case "Log.entryAdded":
                self.said.append(told["params"]["entry"]["text"])
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.said.append(str(told["params"]["exceptionDetails"]))
            case "Page.javascriptDialogOpening":  # a question: yes. Its own answer is of no interest.
                dialog = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                await self._socket.send_json({**dialog, "sessionId": self._session})


@asynccontextmanager
async def open_page(folder: Path, url: str, *, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    browser = await asyncio.create_subprocess_exec(
        *[CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'browser'}"],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(folder)},
        start_new_session=True,
    )
    assert browser.stderr is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            while b"DevTools listening on " not in (line := await browser.stderr.readline()):
                assert line, "the browser ended before it listened"
        address = line.decode().strip().removeprefix("DevTools listening on ")
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            await page.open(url, width, height)
            yield page
    finally:
        with suppress(ProcessLookupError):
            browser.terminate()
        await browser.communicate()
