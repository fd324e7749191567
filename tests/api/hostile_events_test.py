"""Whatever is sent, the loop goes on: deliveries and probes do not wait for somebody's huge batch or costly filters."""

import asyncio
import gc
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
import requests

from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.dispatch.cloudevents import BATCH_TYPE
from flowcatalyst.dispatch.store.platform_contract import EntryKind
from tests.api.dispatching import on_sqlite
from tests.api.subscribing import EVENTS, SUBSCRIPTIONS, Subscribing
from tests.support.hostile_filters import ACCEPTED, REFUSED
from tests.support.patience import PATIENCE_S

LONGEST_TURN_S: Final = 0.08  # of processor time: 50 ms, and what a neighbour on the same core makes of them

PATTERNS = ["a" * 256, "a." * 8_000 + "a", "**.a", "*" * 100_000, "a:" * 17, "\x00", "a b"]
HEADERS = [
    {"X-A": "a\r\nX-Evil: 1"},
    {"X-A\r\nX-Evil": "1"},
    {"webhook-signature": "v1,x"},
    {"X-FlowCatalyst-Group": "g"},
    {"Host": "evil.example"},
    {"X-A": "x" * 1_000_000},
    {f"X-{n}": "x" for n in range(50_000)},
]


async def request(shop: Subscribing, method: str, path: str, body: bytes, kind: str = "application/json") -> int:
    """From a thread: what the sender does is not the loop's work."""
    headers = {"Content-Type": kind}
    url = f"{shop.running.listening.url}{path}"
    answer = await asyncio.to_thread(requests.request, method, url, data=body, headers=headers, timeout=PATIENCE_S)
    return answer.status_code


async def post(shop: Subscribing, path: str, body: bytes, kind: str = "application/json") -> int:
    return await request(shop, "POST", path, body, kind)


async def subscribe_many(shop: Subscribing, count: int, **more: Any) -> None:
    """Alike, and paused: what is measured is not their webhooks."""
    await shop.subscribe("first", status="PAUSED", **more)
    assert shop.running.app.platform is not None
    catalog, store = shop.running.app.platform.catalog, shop.running.app.platform.store
    first = catalog.subscription("first").document
    for begin in range(1, count, 100):
        codes = [f"s{number}" for number in range(begin, min(begin + 100, count))]
        documents = [msgspec.structs.replace(first, code=code) for code in codes]
        await asyncio.gather(
            *(
                store.add(EntryKind.SUBSCRIPTION, one.code, msgspec.json.encode(one).decode(), paused=True)
                for one in documents
            )
        )
    await catalog.refresh()
    assert len(catalog.subscriptions) == count


@asynccontextmanager
async def no_long_turns() -> AsyncIterator[None]:
    turns, tasks = [0.0], Tasks()

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    gc.collect()
    gc.disable()  # all that other tests of this process left is not what is measured here
    try:
        tasks.spawn(watch())
        yield
        await tasks.cancel()
    finally:
        gc.enable()
    assert max(turns) < LONGEST_TURN_S


def large(kinds: int = 6000) -> dict[str, Any]:
    return {"name": "x", "a": [{"b": number, "c": "y" * 20} for number in range(kinds)]}


async def test_a_batch_as_large_as_a_request_may_be_holds_nobody_up(shop: Subscribing) -> None:
    body = msgspec.json.encode({"events": [shop.event("x", data=large())] * 60})
    async with no_long_turns():
        assert await post(shop, f"{EVENTS}/batch", body) == 200


async def test_a_batch_of_cloudevents_as_large_as_a_request_may_be_holds_nobody_up(shop: Subscribing) -> None:
    events = [
        {"specversion": "1.0", "id": f"e{n}", "source": "s", "type": "order.x", "data": large()} for n in range(60)
    ]
    body = msgspec.json.encode(events)
    assert 11_000_000 < len(body) < 16 * 1024 * 1024
    small = [{"specversion": "1.0", "id": f"f{n}", "source": "s", "type": "order.x", "data": n} for n in range(1000)]
    async with no_long_turns():
        assert await post(shop, f"{EVENTS}/batch", body, BATCH_TYPE) == 200
        assert await post(shop, f"{EVENTS}/batch", msgspec.json.encode(small), BATCH_TYPE) == 200


@on_sqlite
async def test_brackets_without_end_hold_nobody_up(shop: Subscribing) -> None:
    body = b'{"type":"a","source":"s","data":' + b"[" * 7_000_000 + b"]" * 7_000_000 + b"}"
    async with no_long_turns():
        assert await post(shop, EVENTS, body) == 400


@on_sqlite
async def test_costly_conditions_of_many_subscriptions_hold_nobody_up(shop: Subscribing) -> None:
    for number in range(50):
        condition = f"$..[?@.c == 'q{number}'] || $.a[?@.b > 5990 && @.c == 'z{number}']"
        await shop.subscribe(f"s{number}", filters=[{"jsonpath": condition}], status="PAUSED")
    async with no_long_turns():
        assert await post(shop, EVENTS, msgspec.json.encode(shop.event("x", data=large()))) == 201
        batch = {"events": [shop.event("x")] * 1000}
        assert await post(shop, f"{EVENTS}/batch", msgspec.json.encode(batch)) == 200


async def test_large_data_for_hundreds_who_want_them_alone_hold_nobody_up(shop: Subscribing) -> None:
    await subscribe_many(shop, 300, dataOnly=True)
    data = b64encode(bytes(range(256)) * 740).decode()
    body = msgspec.json.encode({"type": "order.created", "source": "shop", "dataBase64": data})
    async with no_long_turns():
        assert await post(shop, EVENTS, body) == 201


@pytest.mark.thorough
@on_sqlite
async def test_an_event_that_thousands_want_holds_nobody_up(shop: Subscribing) -> None:
    """tests/unit/intake_test.py has the turns of PostgreSQL, where so many would take minutes to be added."""
    await subscribe_many(shop, 8000)
    async with no_long_turns():
        assert await post(shop, EVENTS, msgspec.json.encode(shop.event("x"))) == 201


@on_sqlite
async def test_hostile_filters_hold_nobody_up_when_they_are_saved(shop: Subscribing) -> None:
    await shop.subscribe("kept")
    path = f"{SUBSCRIPTIONS}/kept"
    async with no_long_turns():
        for number, (condition, expected) in enumerate(
            [(one, 400) for one in REFUSED] + [(one, 201) for one in ACCEPTED]
        ):
            body = shop.body(f"s{number}", filters=[{"jsonpath": condition}] * (1 if expected == 400 else 30))
            assert await post(shop, SUBSCRIPTIONS, msgspec.json.encode(body)) == expected, condition
            kept = msgspec.json.encode(body | {"code": "kept"})
            assert await request(shop, "PUT", path, kept) == (400 if expected == 400 else 200), condition
    listed = (await shop.client.get(f"{SUBSCRIPTIONS}?limit=1000")).json["items"]
    assert len(listed) == 1 + len(ACCEPTED)


@on_sqlite
@pytest.mark.parametrize(
    "filters",
    [
        b'{"not":' * 1_000_000 + b"1" + b"}" * 1_000_000,
        b'{"all":[' * 100 + b'{"exact":{"a":"b"}}' + b"]}" * 100,
        b'{"all":[' + b'{"exact":{"a":"b"}},' * 500_000 + b'{"exact":{"a":"b"}}]}',
        b'{"exact":{' + b",".join(b'"a%d":"b"' % n for n in range(300_000)) + b"}}",
        b'{"prefix":{"subject":"' + b"x" * 8_000_000 + b'"}}',
    ],
    ids=["nots without end", "deep", "wide", "many attributes", "long"],
)
async def test_filters_out_of_proportion_hold_nobody_up(shop: Subscribing, filters: bytes) -> None:
    body = msgspec.json.encode(shop.body("s"))[:-1] + b',"filters":[' + filters + b"]}"
    async with no_long_turns():
        assert await post(shop, SUBSCRIPTIONS, body) == 400


@on_sqlite
async def test_hostile_patterns_and_headers_hold_nobody_up(shop: Subscribing) -> None:
    async with no_long_turns():
        for pattern in PATTERNS:
            body = shop.body("s", pattern)
            assert await post(shop, SUBSCRIPTIONS, msgspec.json.encode(body)) == 400, pattern[:60]
        for headers in HEADERS:
            body = shop.body("s", headers=headers)
            assert await post(shop, SUBSCRIPTIONS, msgspec.json.encode(body)) == 400, str(headers)[:60]
    assert (await shop.client.get(SUBSCRIPTIONS)).json["items"] == []


async def test_a_replay_of_many_large_events_holds_nobody_up(shop: Subscribing) -> None:
    text = "x" * (MAX_PAYLOAD_BYTES - 100)
    for _ in range(5):
        batch = {"events": [shop.event("x", data=text)] * 50}
        assert await post(shop, f"{EVENTS}/batch", msgspec.json.encode(batch)) == 200
    await shop.subscribe("s", status="PAUSED", filters=[{"jsonpath": "length($) > 5"}])
    async with no_long_turns():
        body = msgspec.json.encode({"from": "2020-01-01T00:00:00Z"})
        assert await post(shop, f"{SUBSCRIPTIONS}/s/replay", body) == 200
    assert len(await shop.unfinished("s")) == 250
