"""Names that hang, names that fail, and everybody else. No name here is ever looked up for real."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowcatalyst.core.errors import NotLookedUpError
from flowcatalyst.http import resolver
from flowcatalyst.http.resolver import FOUND_FOR_S, NOT_FOUND_FOR_S, SystemResolver
from tests.support.clocks import SetClock

FOUND = [(int(socket.AF_INET), "127.0.0.1")]


class Names:
    """A `getaddrinfo` that knows every name but those that are unknown, and hangs at those that hang."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.released = threading.Event()
        self.started: dict[str, threading.Event] = {}

    def hang(self, host: str) -> None:
        self.started[host] = threading.Event()

    def __call__(self, host: str, port: None, *, type: int) -> list[Any]:  # noqa: A002
        self.asked[host] += 1
        if host in self.started:
            self.started[host].set()
            self.released.wait()
        if host in self.unknown:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, type, 6, "", (address, 0)) for family, address in FOUND]


@asynccontextmanager
async def names(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> AsyncIterator[Names]:
    monkeypatch.setattr(resolver, "LOOKUP_LIMIT_S", limit_s)
    made = Names()
    try:
        yield made
    finally:
        made.released.set()


async def until_idle(resolve: SystemResolver) -> None:
    while "threads=0 " not in repr(resolve):
        await asyncio.sleep(0)


async def test_a_name_is_looked_up_once_for_all_who_ask_and_kept_for_a_while() -> None:
    clock, known = SetClock(), Names()
    resolve = SystemResolver(clock, known)
    assert await asyncio.gather(*(resolve("shop.test", port) for port in range(20))) == [FOUND] * 20
    clock.now += FOUND_FOR_S - 1
    assert await resolve("shop.test", 80) == FOUND
    assert known.asked == {"shop.test": 1}
    clock.now += 1
    assert await resolve("shop.test", 80) == FOUND
    assert known.asked == {"shop.test": 2}


async def test_an_unknown_name_is_asked_for_again_only_after_a_pause() -> None:
    clock, known = SetClock(), Names()
    resolve = SystemResolver(clock, known)
    known.unknown.add("new.test")
    for _ in range(3):
        with pytest.raises(OSError, match="not known"):
            await resolve("new.test", 80)
    known.unknown.clear()
    clock.now += NOT_FOUND_FOR_S
    assert await resolve("new.test", 80) == FOUND
    assert known.asked == {"new.test": 2}


async def test_names_that_hang_do_not_delay_a_name_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with names(monkeypatch, 60.0) as known:
        resolve = SystemResolver(SetClock(), known)
        for number in range(30):
            known.hang(f"dead{number}.test")
        hanging = [asyncio.ensure_future(resolve(host, 80)) for host in known.started]
        assert await resolve("shop.test", 80) == FOUND
        assert not any(task.done() for task in hanging)
        known.released.set()
        assert await asyncio.gather(*hanging) == [FOUND] * 30
        assert repr(resolve) == "<SystemResolver names=31 threads=0 in_line=0>"


async def test_who_asks_for_a_name_that_hangs_is_told_in_time_and_then_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with names(monkeypatch, 0.01) as known:
        clock = SetClock()
        resolve = SystemResolver(clock, known)
        known.hang("dead.test")
        for _ in range(3):
            with pytest.raises(OSError, match="no answer in"):
                await resolve("dead.test", 80)
            clock.now += 1000
        assert (known.asked["dead.test"], repr(resolve)) == (1, "<SystemResolver names=1 threads=1 in_line=0>")
        known.released.set()
        await until_idle(resolve)
        assert await resolve("dead.test", 80) == FOUND
        assert known.asked["dead.test"] == 1


async def test_names_that_hang_leave_threads_to_names_that_resolved_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with names(monkeypatch, 60.0) as known:
        clock = SetClock()
        resolve = SystemResolver(clock, known)
        assert await resolve("shop.test", 80) == FOUND
        clock.now += FOUND_FOR_S
        for number in range(100):
            known.hang(f"dead{number}.test")
        hanging = [asyncio.ensure_future(resolve(host, 80)) for host in known.started]
        assert await resolve("shop.test", 80) == FOUND
        assert repr(resolve) == "<SystemResolver names=101 threads=48 in_line=52>"
        known.released.set()
        await asyncio.gather(*hanging)


async def test_a_lookup_that_finds_no_thread_in_time_is_a_shortage_here_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "MAX_THREADS", resolver.KEPT_FOR_KNOWN_NAMES + 1)
    async with names(monkeypatch, 0.01) as known:
        clock = SetClock()
        resolve = SystemResolver(clock, known)
        known.hang("dead.test")
        with pytest.raises(OSError, match="no answer"):
            await resolve("dead.test", 80)
        for _ in range(2):
            with pytest.raises(NotLookedUpError, match="no thread was free"):
                await resolve("new.test", 80)
        known.released.set()
        await until_idle(resolve)
        clock.now += NOT_FOUND_FOR_S
        assert await resolve("new.test", 80) == FOUND


async def test_who_gives_up_waiting_does_not_end_the_lookup_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with names(monkeypatch, 60.0) as known:
        resolve = SystemResolver(SetClock(), known)
        known.hang("slow.test")
        impatient, patient = (asyncio.ensure_future(resolve("slow.test", 80)) for _ in range(2))
        await asyncio.to_thread(known.started["slow.test"].wait)
        impatient.cancel()
        known.released.set()
        assert await patient == FOUND
        assert impatient.cancelled()


async def test_the_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_NAMES", 3)
    known = Names()
    resolve = SystemResolver(SetClock(), known)
    for host in "abacda":
        await resolve(f"{host}.test", 80)
    assert repr(resolve) == "<SystemResolver names=3 threads=0 in_line=0>"
    assert known.asked == {"a.test": 1, "b.test": 1, "c.test": 1, "d.test": 1}


async def test_a_thread_that_returns_after_its_loop_ended_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Names()
    known.hang("slow.test")
    monkeypatch.setattr(resolver, "LOOKUP_LIMIT_S", 0.01)

    def ask() -> None:
        with pytest.raises(OSError, match="no answer"):
            asyncio.run(SystemResolver(SetClock(), known)("slow.test", 80))

    await asyncio.to_thread(ask)
    known.released.set()
    for thread in threading.enumerate():
        if thread.name == "resolver":
            await asyncio.to_thread(thread.join)
