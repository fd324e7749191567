"""A machine that lacks what an attempt takes."""

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConnectError, LocalShortageError
from flowcatalyst.core.targets import parse_target
from flowcatalyst.http.contract import HttpClient
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.http.resolver import SystemResolver
from flowcatalyst.http.shortage import shortage_among
from tests.support.deliveries import delivery
from tests.support.http_servers import closed_port, raw_server

LOOPS: list[Callable[[Coroutine[Any, Any, None]], None]] = [asyncio.run, uvloop.run]
GUARD = EgressGuard(allow_private=True)


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open nothing in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 1, before[1])
    )
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in taken:
            os.close(number)


async def post(client: HttpClient, url: str) -> int:
    return (await client.post(parse_target(url), [], b"{}")).status


@pytest.mark.parametrize("run", LOOPS, ids=["asyncio", "uvloop"])
def test_without_files_nothing_is_dialled_and_nobody_is_blamed(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def play() -> None:
        client = Http1Client(guard=GUARD, clock=SystemClock())
        async with raw_server() as server:
            with no_more_files(), pytest.raises(LocalShortageError, match=r"deliveries wait \(EMFILE\): this process"):
                await post(client, server.url())
            assert server.connections == 0
            assert await post(client, server.url()) == 200
            await client.close()

    run(play())


async def test_a_mediator_makes_no_outcome_of_a_shortage() -> None:
    client = Http1Client(guard=GUARD, clock=SystemClock())
    mediator = Mediator(client, client, SystemClock())
    async with raw_server() as server:
        with no_more_files(), pytest.raises(LocalShortageError):
            await mediator.attempt(delivery("m", target=server.url()))
    await mediator.close()


async def test_a_name_that_could_not_be_looked_up_without_files_is_not_unknown() -> None:
    guard = EgressGuard(True, resolver=SystemResolver())
    with no_more_files(), pytest.raises(LocalShortageError, match="EMFILE"):
        await guard.resolve("no-such-name.invalid", 80)
    with pytest.raises(ConnectError, match="cannot be resolved"):
        await EgressGuard(True, resolver=SystemResolver()).resolve("no-such-name.invalid", 80)


async def test_http2_tells_a_shortage_too() -> None:
    http2 = pytest.importorskip("flowcatalyst.http.http2")
    client = http2.Http2Client(guard=GUARD, clock=SystemClock())
    url = f"https://127.0.0.1:{closed_port()}/"
    with pytest.raises(ConnectError):  # its threads and files are there by now
        await post(client, url)
    with no_more_files(), pytest.raises(LocalShortageError, match="EMFILE"):
        await post(client, url)
    await client.close()


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("numbers", "shortage"),
    [
        ([errno.EMFILE], errno.EMFILE),
        ([errno.ENFILE], errno.ENFILE),
        ([errno.ENOBUFS], errno.ENOBUFS),
        ([errno.ENOMEM], errno.ENOMEM),
        ([errno.EADDRNOTAVAIL], errno.EADDRNOTAVAIL),
        ([errno.ECONNREFUSED, errno.EMFILE], errno.EMFILE),
        ([errno.ECONNREFUSED], None),
        ([errno.EADDRNOTAVAIL, errno.EADDRNOTAVAIL], errno.EADDRNOTAVAIL),
        ([errno.EADDRNOTAVAIL, errno.ECONNREFUSED], None),  # ::1 where there is no IPv6, and nobody at 127.0.0.1
        ([], None),
    ],
)
def test_what_is_a_shortage_of_this_machine(numbers: list[int], shortage: int | None) -> None:
    assert shortage_among(map(failure, numbers)) == shortage


def test_a_failure_without_a_number_is_no_shortage() -> None:
    assert shortage_among([ValueError("no such host name"), OSError("many things at once")]) is None
