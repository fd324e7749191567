"""`flowcatalyst top`: a router that runs, as it changes."""

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from flowcatalyst.cli.router_api import Key, Router, RouterApi
from flowcatalyst.cli.status import overview_of
from flowcatalyst.cli.top_view import Reading, View, frame, in_trouble
from flowcatalyst.core.errors import FlowCatalystError

MOST_GROUPS: Final = 200
MOST_ENDPOINTS: Final = 5000  # that are looked at: those in trouble are among the others
AGAIN_AFTER_S: Final = 1.0
PATIENCE_S: Final = 10.0
QUIT: Final = ("q", "Q", "\x03", "\x04")


def top(
    interval: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How often it is drawn anew")] = 2,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, as where nobody looks")] = False,
    router: Router = None,
    key: Key = None,
) -> None:
    """Show what a router does, as it changes.

    Keys: q quits, p pauses. 1 to 5 sort the pools: by code, in flight, queued, parked, delivered. The blocked groups
    are sorted by b the time, f failures, w those that wait behind, n the next attempt, g the name.
    """
    api = RouterApi(router, key, PATIENCE_S)
    console = Console(highlight=False)
    if once or not console.is_terminal or not sys.stdin.isatty():
        for line in frame(View(api.url, _reading(api)), console.width if console.is_terminal else None, None):
            if console.is_terminal:
                console.print(line, no_wrap=True, overflow="ellipsis")
            else:
                print(line.plain)
        return
    _Screen(api, console, interval).run()


def _reading(api: RouterApi, overview: object = None) -> Reading:
    groups = api.get("/monitoring/groups", query={"blocked": "true", "limit": MOST_GROUPS})["items"]
    endpoints, _ = api.listed("/monitoring/endpoints", limit=MOST_ENDPOINTS)
    given = overview_of(api) if overview is None else overview
    assert isinstance(given, dict)
    return Reading(given, groups, [one for one in endpoints if in_trouble(one)])


class _Feed(threading.Thread):
    """Reads the router in a thread of its own, so that a router that hangs holds back no key."""

    def __init__(self, api: RouterApi, interval: int) -> None:
        super().__init__(name="feed of top", daemon=True)
        self.newest: Reading | None = None
        self.problem = ""
        self.news, self._told = os.pipe()  # a byte comes with each reading
        self._api = api
        self._interval = interval
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            try:
                for number, overview in enumerate(self._api.overviews()):
                    if self._end.is_set():
                        return
                    if number % self._interval == 0 or self.problem:
                        self.newest = _reading(self._api, overview)
                        self._tell("")
            except FlowCatalystError as error:
                self._tell(f"asking again: {error}")
            self._end.wait(AGAIN_AFTER_S)

    def end(self) -> None:
        self._end.set()

    def _tell(self, problem: str) -> None:
        self.problem = problem
        os.write(self._told, b".")


class _Screen:
    """Draws when there is a new reading, when a key was pressed, and when the terminal has another size."""

    def __init__(self, api: RouterApi, console: Console, interval: int) -> None:
        self._feed = _Feed(api, interval)
        self._console = console
        self._view = View(api.url)

    def run(self) -> None:
        resized, resize = os.pipe()
        os.set_blocking(resize, False)

        def on_resize(_number: int, _frame: FrameType | None) -> None:
            with suppress(BlockingIOError):
                os.write(resize, b".")

        before = signal.signal(signal.SIGWINCH, on_resize)
        self._feed.start()
        keyboard = sys.stdin.fileno()
        try:
            with (
                _keys_at_once(keyboard),
                Live(console=self._console, screen=True, auto_refresh=False, transient=True) as live,
            ):
                self._draw(live)
                while True:
                    ready, _, _ = select.select([keyboard, self._feed.news, resized], [], [])
                    for descriptor in ready:
                        pressed = os.read(descriptor, 4096)
                        if descriptor == keyboard and not self._press(pressed.decode(errors="replace")):
                            return
                    if not self._view.paused:
                        self._view = replace(self._view, reading=self._feed.newest, problem=self._feed.problem)
                    self._draw(live)
        except KeyboardInterrupt:
            pass  # as good as a q
        finally:
            self._feed.end()
            signal.signal(signal.SIGWINCH, before)

    def _press(self, keys: str) -> bool:
        """False: it is to end."""
        for key in keys or QUIT[0]:  # nothing: the terminal is gone
            if key in QUIT:
                return False
            self._view = self._view.after_key(key)
        return True

    def _draw(self, live: Live) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())  # not COLUMNS and LINES, which do not change with the terminal
        self._console.size = ConsoleDimensions(size.columns, size.lines)
        live.update(Group(*frame(self._view, size.columns, size.lines)), refresh=True)


@contextmanager
def _keys_at_once(keyboard: int) -> Iterator[None]:
    """Keys come as they are pressed, and are not shown. Ctrl-C stays what it is."""
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
