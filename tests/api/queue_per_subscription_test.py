"""A queue for each subscription: a pool names the queue, and each subscription a pool of its own (docs/adr/0025)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowcatalyst.core.message import MessagePointer, parse_pointer
from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.queues.contract import Outgoing, Published
from tests.api.running import until
from tests.api.subscribing import POOLS, Subscribing, subscribing


@dataclass(slots=True)
class Broker:
    """The way into a queue in memory. Its router is played by the test."""

    sent: list[Outgoing] = field(default_factory=list)

    async def publish(self, messages: list[Outgoing]) -> list[Published]:
        self.sent += messages
        return [Published("1") for _ in messages]

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def pointer(self, place: int) -> MessagePointer:
        """What was published at this place, when it is."""

        async def is_there() -> bool:
            return len(self.sent) > place

        await until(is_there)
        return parse_pointer(self.sent[place].body)


@asynccontextmanager
async def shop_with(folder: Path, store: dict[str, str], **brokers: Broker) -> AsyncIterator[Subscribing]:
    """Subscriptions `orders` and `mails`, each with a pool of its own, whose queue has its name."""
    platform = {"public_url": "http://platform.example", "secret_key": new_secret_key()} | store
    async with subscribing(folder, platform=platform) as shop:
        shop.running.app.factory.publishers |= brokers  # type: ignore[arg-type]
        for code in ("orders", "mails"):
            made = await shop.client.post(POOLS, {"code": f"FOR-{code}", "concurrency": 2, "queue": code})
            assert made.status == 201, made.text
            await shop.subscribe(code, mode="BLOCK_ON_ERROR", dispatchPoolCode=f"FOR-{code}")
        yield shop


async def call_back(shop: Subscribing, pointer: MessagePointer) -> Any:
    headers = {"Authorization": f"Bearer {pointer.auth_token}"}
    return (await shop.client.post("/api/dispatch/process", {"messageId": pointer.id}, headers=headers)).json


async def test_jobs_of_each_subscription_go_to_the_queue_of_its_pool(tmp_path: Path, store: dict[str, str]) -> None:
    orders, mails = Broker(), Broker()
    async with shop_with(tmp_path, store, orders=orders, mails=mails) as shop:
        await shop.send("a", messageGroup="g")
        await shop.send("b", messageGroup="g")
        for code, broker in (("orders", orders), ("mails", mails)):
            for place in range(2):
                pointer = await broker.pointer(place)
                assert (pointer.pool_code, pointer.message_group_id) == (f"FOR-{code}", f"{code}:g")
                assert await call_back(shop, pointer) == {"ack": True}
            await shop.until_got(code, "a", "b")
            assert len(broker.sent) == 2


async def test_a_subscription_moves_to_another_queue_with_all_that_waits_in_order(
    tmp_path: Path, store: dict[str, str]
) -> None:
    orders, mails, others = Broker(), Broker(), Broker()
    async with shop_with(tmp_path, store, orders=orders, mails=mails, others=others) as shop:
        for name in "abc":
            await shop.send(name, messageGroup="g")
        out = await orders.pointer(0)
        changed = await shop.client.request("PATCH", f"{POOLS}/FOR-orders", json={"queue": "others"})
        assert (changed.status, changed.json["queue"]) == (200, "others")
        assert others.sent == []  # one of the group is out, and stays it
        assert await call_back(shop, out) == {"ack": True}
        for place in range(2):
            assert await call_back(shop, await others.pointer(place)) == {"ack": True}
        await shop.until_got("orders", "a", "b", "c")
        assert (len(orders.sent), len(others.sent)) == (1, 2)
