"""Raw queues on real brokers: foreign bodies reach the target as they are, in the order of their groups."""

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import load_settings
from flowcatalyst.queues.contract import Outgoing
from tests.api.running import until
from tests.support.brokers import KINDS, QUEUE, Place, Places, places
from tests.support.http_servers import Call, RawServer, raw_server, reply

GROUPS, PER_GROUP = 3, 4
QUICK = {"backoff_s": [0.02, 0.04], "nack_delay_s": 1.0, "longest_s": 1.0, "follower_s": 0.3}
ORDERED = [kind for kind in KINDS if kind.keeps_order]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@dataclass
class Shop:
    """An endpoint that knows nothing of FlowCatalyst: it takes orders, and fails the first ones for a while."""

    failures: Counter[bytes] = field(default_factory=Counter)  # by body: how many are to come
    taken: list[bytes] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    server: RawServer = field(init=False)

    async def __call__(self, call: Call) -> None:
        self.calls.append(call)
        if self.failures[call.body] > 0:
            self.failures[call.body] -= 1
            await call.send(reply(500))
        else:
            self.taken.append(call.body)
            await call.send(reply(200))

    def told(self, name: str) -> list[str | None]:
        wanted = name.lower()
        return [next((v for k, v in call.headers.items() if k.lower() == wanted), None) for call in self.calls]

    def first_attempts(self, key: str) -> dict[str, list[int]]:
        """The numbers of the orders of each group, as they first came."""
        found: dict[str, list[int]] = defaultdict(list)
        for body in dict.fromkeys(call.body for call in self.calls):
            order = json.loads(body)
            found[order[key]].append(order["n"])
        return found


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    async with raw_server(made) as made.server:
        yield made


@asynccontextmanager
async def routing(folder: Path, settings: dict[str, Any], target: str, **raw: Any) -> AsyncIterator[App]:
    settings["queues"][0]["raw"] = {"target": target, "pool": "ORDERS", **raw}
    pools = [{"code": "ORDERS", "concurrency": 8}]
    app = App(load_settings(data_dir=folder / "data", retry=QUICK, pools=pools, **settings))
    async with app.running():
        yield app
    assert app.stopped_clean


def order(group: int, number: int) -> bytes:
    """As another producer writes it."""
    return b'{ "order":"g%d",\t"n": %d, "poolCode": "NONE", "messageGroupId": "wrong", "sum":1.50 }' % (group, number)


def orders() -> list[tuple[int, bytes]]:
    return [(group, order(group, number)) for number in range(PER_GROUP) for group in range(GROUPS)]


async def until_taken(shop: Shop, count: int) -> None:
    async def enough() -> bool:
        return len(shop.taken) >= count

    await until(enough)


async def publish(app: App, place: Place | None, messages: list[Outgoing]) -> None:
    if place is None:
        await app.queues[QUEUE].publish(messages)
    else:
        await place.publish(messages)


def embedded() -> dict[str, Any]:
    return {"embedded": {"queues": []}, "queues": [{"name": QUEUE, "uri": f"embedded:{QUEUE}"}]}


@pytest.fixture(params=["embedded", *(kind.name for kind in ORDERED)])
def place(request: pytest.FixtureRequest, brokers: Places) -> Place | None:
    return next((brokers.new(kind) for kind in ORDERED if kind.name == request.param), None)


async def test_foreign_bodies_arrive_as_they_are_in_the_order_of_the_brokers_groups(
    place: Place | None, tmp_path: Path
) -> None:
    settings = embedded() if place is None else place.settings
    async with shop() as endpoint:
        endpoint.failures = Counter({order(group, 0): 4 for group in range(GROUPS)})
        async with routing(tmp_path, settings, endpoint.server.url("/hook")) as app:
            await publish(app, place, [Outgoing(body.decode(), f"g{group}") for group, body in orders()])
            await until_taken(endpoint, GROUPS * PER_GROUP)
            assert set(app.engine.router.pools) == {"ORDERS"}  # whatever pool the bodies name
    assert sorted(endpoint.taken) == sorted(body for _, body in orders())
    assert endpoint.first_attempts("order") == {f"g{group}": list(range(PER_GROUP)) for group in range(GROUPS)}
    assert {call.path for call in endpoint.calls} == {"/hook"}
    groups = [json.loads(call.body)["order"] for call in endpoint.calls]
    assert endpoint.told("X-FlowCatalyst-Group") == groups
    ids = {
        (call.body, told) for call, told in zip(endpoint.calls, endpoint.told("X-FlowCatalyst-Message-Id"), strict=True)
    }
    assert len(ids) == GROUPS * PER_GROUP  # the same for every attempt
    attempts = [
        n
        for call, n in zip(endpoint.calls, endpoint.told("X-FlowCatalyst-Attempt"), strict=True)
        if call.body == order(0, 0)
    ]
    assert attempts == ["1", "2", "3", "4", "5"]


async def test_a_path_names_the_group_and_a_body_without_it_becomes_a_dead_letter(
    place: Place | None, tmp_path: Path
) -> None:
    settings = embedded() if place is None else place.settings
    together = None if place is not None and place.kind.name == "nats" else "all"
    async with shop() as endpoint:
        endpoint.failures = Counter({order(0, 0): 5})
        raw = {"group": "$.order", "content_type": "application/vnd.shop+json", "headers": {"X-Shop": "7"}}
        async with routing(tmp_path, settings, endpoint.server.url("/hook"), **raw) as app:
            foreign = Outgoing('{"n": 1}', together)
            sent = [Outgoing(body.decode(), together) for _, body in orders()]
            await publish(app, place, [sent[0], foreign, *sent[1:]])
            await until_taken(endpoint, GROUPS * PER_GROUP)
            [letter] = await app.dead_letters.page()
    assert letter.reason == (
        "$.order does not lead to the group of the message: there is nothing where text or a whole number is expected"
    )
    assert letter.body == '{"n": 1}'
    assert endpoint.first_attempts("order") == {f"g{group}": list(range(PER_GROUP)) for group in range(GROUPS)}
    if place is None or place.kind.name not in ("elasticmq-fifo", "postgres"):  # they show more of a group after acks
        assert endpoint.told("X-FlowCatalyst-Group")[-1] == "g0"  # the others did not wait for it
    assert set(endpoint.told("X-Shop")) == {"7"}
    assert set(endpoint.told("Content-Type")) == {"application/vnd.shop+json"}


async def test_a_group_of_the_body_is_kept_in_order_across_groups_of_the_broker(
    place: Place | None, tmp_path: Path
) -> None:
    """The broker would show the second one while the first is nacked: it knows nothing of their group."""
    settings = embedded() if place is None else place.settings
    async with shop() as endpoint:
        endpoint.failures = Counter({order(0, 0): 5})
        async with routing(tmp_path, settings, endpoint.server.url("/hook"), group="$.order") as app:

            async def has_begun() -> bool:
                return bool(endpoint.calls)

            await publish(app, place, [Outgoing(order(0, 0).decode(), "a")])
            await until(has_begun)
            await publish(app, place, [Outgoing(order(0, 1).decode(), "b"), Outgoing(order(1, 0).decode(), "c")])
            await until_taken(endpoint, 3)
    assert [call.body for call in endpoint.calls if b"g0" in call.body] == [*[order(0, 0)] * 6, order(0, 1)]
    assert endpoint.taken[0] == order(1, 0)


async def test_a_producer_of_jetstream_needs_to_know_nothing(brokers: Places, tmp_path: Path) -> None:
    place = brokers.new(next(kind for kind in KINDS if kind.name == "nats"))
    settings = place.settings
    settings["queues"][0]["uri"] += "&groupToken=all"
    async with shop() as endpoint, routing(tmp_path, settings, endpoint.server.url("/hook")) as app:

        async def is_made() -> bool:
            return app.engine.consumers[QUEUE].reports.last_poll_at is not None

        await until(is_made)
        client = await nats.connect(f"nats://127.0.0.1:{place.server.port}")
        try:
            stream = client.jetstream()
            for number in range(3):
                headers = {"Nats-Msg-Id": f"shop-{number}"}
                await stream.publish(f"{place.queue}.eu.new", b"\xff\x00<order n='%d'/>" % number, headers=headers)
        finally:
            await client.close()
        await until_taken(endpoint, 3)
    assert endpoint.taken == [b"\xff\x00<order n='%d'/>" % number for number in range(3)]
    assert endpoint.told("X-FlowCatalyst-Group") == [f"{place.queue}.eu.new"] * 3
    assert endpoint.told("X-FlowCatalyst-Message-Id") == ["shop-0", "shop-1", "shop-2"]


async def test_a_target_on_a_private_network_is_refused_as_for_any_message(tmp_path: Path) -> None:
    settings = {**embedded(), "egress": {"allow_private": False}}
    async with shop() as endpoint, routing(tmp_path, settings, endpoint.server.url("/hook")) as app:
        await publish(app, None, [Outgoing("{}", "g")])

        async def is_dead() -> bool:
            return await app.dead_letters.count() == 1

        await until(is_dead)
        [letter] = await app.dead_letters.page()
    assert endpoint.calls == []
    assert "127.0.0.1" in letter.reason


async def test_a_dead_letter_of_a_raw_queue_is_replayed_as_it_was(tmp_path: Path) -> None:
    async with shop() as endpoint, routing(tmp_path, embedded(), endpoint.server.url("/hook"), id="$.n") as app:
        await publish(app, None, [Outgoing('{"x": "no id"}', "g")])

        async def is_dead() -> bool:
            return await app.dead_letters.count() == 1

        await until(is_dead)
        [letter] = await app.dead_letters.page()
        assert "$.n does not lead to the id of the message" in letter.reason
        await app.dead_letters.replay(letter, app.queues)
        await until(is_dead)  # again, in its queue's own way
    assert endpoint.calls == []
