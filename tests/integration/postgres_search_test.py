"""The search of a PostgreSQL queue for an id: slice by slice, and one at a time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from flowcatalyst.core.message import MessagePointer, Settled, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.postgres import inspect
from flowcatalyst.storage.postgres import Connection
from tests.conformance.bench import take
from tests.servers.postgres import PostgresServer
from tests.support.postgres import Bench, server

__all__ = ["server"]


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    bench = Bench(server)
    yield bench
    await bench.close()


def message(name: str, group: str, said: str = "") -> Outgoing:
    pointer = MessagePointer(id=name, mediation_target=f"http://receiver.test/{said}")
    return Outgoing(encode_pointer(pointer).decode(), group)


async def test_a_message_is_found_in_whichever_slice_it_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await bench.client()
    await queue.publish([message(f"m{number}", f"g{number % 7}") for number in range(50)])
    for most, candidates in ((1, 100), (7, 100), (7, 2), (50, 100)):
        monkeypatch.setattr(inspect, "SLICE", most)
        monkeypatch.setattr(inspect, "CANDIDATES", candidates)
        for number in (0, 6, 7, 30, 49):
            found = await queue.find(f"m{number}")
            assert found is not None
            assert (found.group.group, found.ahead) == (f"g{number % 7}", number // 7)
        assert await queue.find("nobody") is None


async def test_texts_that_only_look_like_an_id_do_not_end_a_search(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "CANDIDATES", 3)
    queue = await bench.client()
    looks_alike = [
        Outgoing(f'{{"id": "x{n}", "mediationTarget": "http://a.test/", "poolCode": "m9"}}', "g") for n in range(9)
    ]
    await queue.publish([*looks_alike, message("m9", "g")])
    found = await queue.find("m9")
    assert found is not None
    assert found.ahead == 9


async def test_searches_go_one_after_the_other_and_what_is_delivered_goes_on_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await bench.client()
    await queue.publish([message(f"m{number}", "g") for number in range(3)])
    search_slice, going, most = inspect.search_slice, 0, 0
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def watched(
        connection: Connection, queue: str, name: str, needle: str, after: inspect.Place
    ) -> inspect.Found:
        nonlocal going, most
        going += 1
        most = max(most, going)
        begun.set()
        await may_go_on.wait()
        going -= 1
        return await search_slice(connection, queue, name, needle, after)

    monkeypatch.setattr(inspect, "search_slice", watched)
    searches = [asyncio.create_task(queue.find(f"nobody-{number}")) for number in range(12)]
    await begun.wait()
    taken = await take(queue, 3)
    assert await queue.ack(taken) == [Settled.OK] * 3
    may_go_on.set()
    assert await asyncio.gather(*searches) == [None] * 12
    assert most == 1
