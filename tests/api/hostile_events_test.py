"""Whatever is sent, the loop goes on: deliveries and probes do not wait for somebody's huge batch or costly filters."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import requests

from flowcatalyst.core.tasks import Tasks
from tests.api.dispatching import on_sqlite
from tests.api.subscribing import EVENTS, Subscribing
from tests.support.patience import PATIENCE_S

LONGEST_TURN_S = 0.05  # of the processor: what others on the machine take does not count

pytestmark = on_sqlite


async def post(shop: Subscribing, path: str, body: bytes) -> int:
    """From a thread: what the sender does is not the loop's work."""
    headers = {"Content-Type": "application/json"}
    url = f"{shop.running.listening.url}{path}"
    answer = await asyncio.to_thread(requests.post, url, data=body, headers=headers, timeout=PATIENCE_S)
    return answer.status_code


@asynccontextmanager
async def no_long_turns() -> AsyncIterator[None]:
    turns, tasks = [0.0], Tasks()

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    tasks.spawn(watch())
    yield
    await tasks.cancel()
    assert max(turns) < LONGEST_TURN_S


def large(kinds: int = 6000) -> dict[str, Any]:
    return {"name": "x", "a": [{"b": number, "c": "y" * 20} for number in range(kinds)]}


async def test_a_batch_as_large_as_a_request_may_be_holds_nobody_up(shop: Subscribing) -> None:
    body = msgspec.json.encode({"events": [shop.event("x", data=large())] * 60})
    async with no_long_turns():
        assert await post(shop, f"{EVENTS}/batch", body) == 200


async def test_brackets_without_end_hold_nobody_up(shop: Subscribing) -> None:
    body = b'{"type":"a","source":"s","data":' + b"[" * 7_000_000 + b"]" * 7_000_000 + b"}"
    async with no_long_turns():
        assert await post(shop, EVENTS, body) == 400


async def test_costly_conditions_of_many_subscriptions_hold_nobody_up(shop: Subscribing) -> None:
    for number in range(50):
        condition = f"$..[?@.c == 'q{number}'] || $.a[?@.b > 5990 && @.c == 'z{number}']"
        await shop.subscribe(f"s{number}", filters=[{"jsonpath": condition}], status="PAUSED")
    async with no_long_turns():
        assert await post(shop, EVENTS, msgspec.json.encode(shop.event("x", data=large()))) == 201
        batch = {"events": [shop.event("x")] * 1000}
        assert await post(shop, f"{EVENTS}/batch", msgspec.json.encode(batch)) == 200
