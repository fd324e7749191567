"""Server-sent events about the router: an overview a second, made once for all who listen; none while nobody does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from flowcatalyst.control.overview import OverviewMaker
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.tasks import Tasks

PERIOD_S: Final = 1.0
HEARTBEAT_S: Final = 5.0  # without an overview; a proxy would think that nobody is there
MOST_LISTENERS: Final = 100
_HELLO: Final = b"retry: 2000\n\n"
_HEARTBEAT: Final = b": still here\n\n"


class LiveFeed:
    """Whoever reads slowly misses overviews and holds none: there is only the latest one."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._is_running = False
        self._listeners = 0
        self._wanted = asyncio.Event()  # somebody listens
        self._latest = b""
        self._news = asyncio.Event()  # another one comes into its place with each overview

    def __repr__(self) -> str:
        return f"<LiveFeed listeners={self._listeners} running={self._is_running}>"

    @property
    def has_capacity(self) -> bool:
        return self._listeners < MOST_LISTENERS

    @property
    def is_running(self) -> bool:
        return self._is_running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Feed who listens from here to the end of the block; then all of them have heard the end."""
        tasks = Tasks()
        self._app.supervisor.spawn(tasks, "live feed", self._feed)
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            self._news.set()
            await tasks.cancel()

    async def listen(self) -> AsyncIterator[bytes]:
        """Events as they go over the wire, until the feed ends."""
        if not self.has_capacity:
            return
        self._listeners += 1
        self._wanted.set()
        try:
            yield _HELLO
            while self._is_running:
                news = self._news
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield _HEARTBEAT
                else:
                    yield self._latest
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._wanted.clear()

    async def _feed(self) -> None:
        maker = OverviewMaker(self._app)
        while True:
            await self._wanted.wait()
            overview = await maker.make()
            self._latest = b"event: overview\ndata: %b\n\n" % msgspec.json.encode(overview)
            news, self._news = self._news, asyncio.Event()
            news.set()
            await asyncio.sleep(PERIOD_S)
