"""`flowcatalyst top`: one frame for pipes, and a screen that follows its router."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from flowcatalyst.cli.top_view import Reading, View, frame
from tests.servers import free_port
from tests.support.fake_router import FakeRouter, Terminal, endpoint, fake_router, group, overview, pool
from tests.support.patience import PATIENCE_S

GROUPS = "GET /monitoring/groups?blocked=true&limit=200"
ENDPOINTS = "GET /monitoring/endpoints?limit=1000"


def is_set_up(router: FakeRouter, **changes: Any) -> None:
    router.overviews = [overview(**changes)]
    router.answer(GROUPS, {"items": [group(), group(group="b", blockedForMs=1)], "next": None})
    router.answer(ENDPOINTS, {"items": [endpoint(), endpoint(endpoint="http://fine.test/", **FINE)], "next": None})


FINE: dict[str, Any] = {"state": "CLOSED", "downForMs": None}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with fake_router() as router:
        is_set_up(router)
        yield Terminal(router, monkeypatch, capsys)


# One frame


def texts(view: View, width: int = 80, height: int | None = None) -> list[str]:
    return [line.plain for line in frame(view, width, height)]


def a_view(**changes: Any) -> View:
    reading = Reading(overview(**changes), [group()], [endpoint()])
    return View("http://router.test", reading)


@pytest.mark.parametrize("options", [["--once"], []])
def test_where_nobody_looks_one_frame_is_printed(terminal: Terminal, options: list[str]) -> None:
    said = terminal.works("top", *options)
    assert said.splitlines() == [
        f"WARNING  primary  {terminal.router.url}  12:34:56 UTC",
        "delivered 1,204/s  failed 0.5/s  in flight 4  in the router 30  queued 12,000",
        "lag p50 12 ms, p95 2 s  blocked groups 1  dead letters 5  warnings 2",
        "WARNING endpoint: http://shop.test/hook is down for 10 min",
        "",
        "POOL    IN FLIGHT  QUEUED  PARKED  DELIVERED",
        "MAIL         9/10       1       2          7",
        "ORDERS       4/10      30       2     12,345",
        "",
        "BLOCKED GROUP    FOR  POOL    FAILED  BEHIND  NEXT  LAST ANSWER",
        "customer-7     5 min  ORDERS       3     41+  15 s  500 server error: no stock",
        "b               1 ms  ORDERS       3     41+  15 s  500 server error: no stock",
        "",
        "ENDPOINT IN TROUBLE       FOR  STATE  IN FLIGHT  WAITING  LAST ERROR",
        "http://shop.test/hook  10 min  OPEN           1       12  500 server error",
    ]


def test_a_pipe_gets_whole_lines(terminal: Terminal) -> None:
    text = "why " * 100
    is_set_up(terminal.router, reasons=[{"level": "WARNING", "part": "x", "text": text}] * 5, pools=[pool("P" * 200)])
    lines = terminal.works("top").splitlines()
    assert lines[3:8] == [f"WARNING x: {text}"] * 5
    assert any(line.startswith("P" * 200) for line in lines)


def test_a_router_that_is_not_there_is_one_sentence(terminal: Terminal) -> None:
    terminal.router.url = f"http://127.0.0.1:{free_port()}"
    assert "did not answer: Connection refused" in terminal.fails("top", "--once")


def test_a_frame_fits_any_terminal() -> None:
    long = "x" * 300
    view = a_view(
        pools=[pool(f"{long}-{number}") for number in range(50)],
        reasons=[{"level": "DEGRADED", "part": long, "text": long}] * 9,
    )
    assert view.reading is not None
    many = [group(group=f"{long}{number}", pool=long) for number in range(90)]
    view = replace(view, reading=replace(view.reading, groups=many, endpoints=[endpoint(endpoint=long)] * 40))
    for width, height in ((80, 24), (200, 60), (120, 12), (80, 5)):
        lines = frame(view, width, height)
        assert len(lines) <= height
        assert lines[-1].plain.startswith("q quit")
        tables = [line.plain for line in lines if line.plain.startswith(("xx", "POOL", "BLOCKED", "ENDPOINT"))]
        assert max(map(len, tables), default=0) <= width
    assert sum(line.plain.startswith("x") for line in frame(view, 200, 60)) > 40


def test_what_there_is_no_space_for_is_counted() -> None:
    view = a_view(pools=[pool(f"P{number}") for number in range(30)])
    [title] = [line for line in texts(view, 80, 20) if line.startswith("POOL")]
    shown = sum(line.startswith("P") for line in texts(view, 80, 20)) - 1
    assert title.startswith(f"POOL ({30 - shown} more)")


@pytest.mark.parametrize(
    ("key", "first"), [("1", "a"), ("2", "flies"), ("3", "queues"), ("4", "parks"), ("5", "delivers")]
)
def test_pools_are_sorted_by_a_key(key: str, first: str) -> None:
    pools = [
        pool("parks", parked=99),
        pool("flies", inFlight=99),
        pool("a"),
        pool("delivers", delivered=99_999),
        pool("queues", queued=99),
    ]
    lines = texts(a_view(pools=pools).after_key(key))
    assert lines[lines.index("") + 2].split()[0] == first


@pytest.mark.parametrize(
    ("key", "first"), [("b", "blocked"), ("f", "fails"), ("w", "waits"), ("n", "next"), ("g", "a")]
)
def test_groups_are_sorted_by_a_key(key: str, first: str) -> None:
    groups = [
        group(group="waits", waitingBehind=99),
        group(group="fails", head={**group()["head"], "failures": 99}),
        group(group="a", nextAttemptInMs=None, head=None),
        group(group="blocked", blockedForMs=999_999),
        group(group="next", nextAttemptInMs=1),
    ]
    view = View("http://router.test", Reading(overview(), groups, [])).after_key(key)
    lines = texts(view)
    [title] = [number for number, line in enumerate(lines) if line.startswith("BLOCKED GROUP")]
    assert lines[title + 1].split()[0] == first


def test_names_of_others_steer_no_terminal() -> None:
    said = "\n".join(texts(a_view(pools=[pool("\x1b[2J[red]x[/red]")], role="\x1b]0;a\x07")))
    assert "\x1b" not in said
    assert "\\x1b[2J[red]x[/red]" in said


# The screen


class Screen:
    """The command as a process at a terminal of its own."""

    def __init__(self, url: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(24, 80)
        command = [sys.executable, "-m", "flowcatalyst", "top", "--interval", "1", "--router", url]
        # What shells and readline export says how large the terminal was, and hides what it is now.
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**os.environ, "COLUMNS": "80", "LINES": "24"},
            preexec_fn=self._heed_ctrl_c,
        )
        self.shown = ""

    @staticmethod
    def _heed_ctrl_c() -> None:
        """As at a terminal. What a shell starts in the background, and all that this starts, does not hear it."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def resize(self, height: int, width: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """What was drawn since the last time, up to this text."""
        drawn = ""
        deadline = time.monotonic() + PATIENCE_S  # for all of it: a router that is gone is drawn again and again
        while text not in drawn:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} never came: {drawn[-2000:]}"
            drawn += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self._master, 65536).decode(errors="replace"))
        return drawn

    def exit_code(self) -> int | None:
        """How it ended. A terminal reads on until then: who writes to one that does not waits for ever."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.05)[0]:
                os.read(self._master, 65536)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def test_keys_sort_pause_and_quit_and_a_new_size_is_drawn_at_once() -> None:
    with fake_router() as router:
        is_set_up(router)
        router.stays_open.clear()
        with closing(Screen(router.url)) as screen:
            screen.until("pools by code (1 2 3 4 5)  groups by blocked (b f w n g)")
            screen.press("3w")
            screen.until("pools by queued (1 2 3 4 5)  groups by behind (b f w n g)")
            screen.press("p")
            screen.until("PAUSED")
            screen.resize(24, 40)
            screen.process.send_signal(signal.SIGWINCH)
            screen.until("q quit  p go on  pools by queued (1 2 3…")
            screen.press("q")
            assert screen.exit_code() == 0


def test_a_router_that_goes_away_and_comes_back_is_one_line() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with closing(Screen(url)) as screen:
        screen.until(f"asking again: the router at {url} did not answer: ")
        with fake_router(port) as router:
            is_set_up(router)
            router.stays_open.clear()
            assert "did not answer" not in screen.until("groups by blocked").rpartition("WARNING")[2]
        drawn = screen.until("asking again: ")
        assert "customer-7" in drawn + screen.until("groups by blocked")  # what was last known stays
        with fake_router(port) as router:
            is_set_up(router, level="HEALTHY", reasons=[])
            router.stays_open.clear()
            screen.until("HEALTHY")
        screen.process.send_signal(signal.SIGINT)  # Ctrl-C
        assert screen.exit_code() == 0
