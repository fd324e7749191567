"""`flowcatalyst move` from the embedded queue to real brokers, also if it is killed on its way."""

import asyncio
import itertools
import os
import sys
from collections.abc import Iterator

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.support.brokers import KINDS, Kind, Place, Places, places
from tests.support.router_process import ROOT

GROUPS = [f"g{number}" for number in range(7)]
EACH = 60
ORDERED = [kind for kind in KINDS if kind.keeps_order]
COUNTED = [kind for kind in ORDERED if kind.name in ("nats", "postgres")]


def message(group: str, number: int) -> Outgoing:
    pointer = MessagePointer(f"{group}.{number}", "http://127.0.0.1:9/", message_group_id=group)
    return Outgoing(encode_pointer(pointer).decode(), group)


MESSAGES = [message(group, number) for number in range(EACH) for group in GROUPS]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as made:
        yield made


class Scene:
    """An embedded queue with messages, and an empty one at a broker that the settings name."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.folder
        (self.folder / "flowcatalyst.toml").write_text(place.toml)

    def embedded(self) -> EmbeddedQueue:
        (self.folder / "data").mkdir(exist_ok=True)
        return EmbeddedQueue(EmbeddedStore(self.folder / "data" / "queue.db", SystemClock()), "default")

    async def fill(self) -> None:
        queue = self.embedded()
        await queue.open()
        await queue.publish(MESSAGES)
        await queue.close()

    async def start(
        self, *options: str, source: str = "embedded:default", target: str = "orders"
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowcatalyst", "move", "--from", source, "--to", target, *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )

    async def move(self, *options: str, source: str = "embedded:default", target: str = "orders") -> tuple[str, str]:
        process = await self.start(*options, source=source, target=target)
        output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return output.decode(), errors.decode()

    async def arrived(self, queue: BrokerQueue, wait_s: float) -> dict[str, list[str]]:
        """What it holds, by group, in the order in which it shows it; it is empty afterwards."""
        found: dict[str, list[str]] = {group: [] for group in GROUPS}
        await queue.open()
        while batch := await queue.receive(10, wait_s):
            for one in batch:
                assert one.group is not None
                found[one.group].append(str(one.body) if isinstance(one.body, str) else one.body.decode())
            await queue.ack(batch)
        await queue.close()
        return found


def in_order() -> dict[str, list[str]]:
    return {group: [message(group, number).body for number in range(EACH)] for group in GROUPS}


@pytest.mark.parametrize("kind", ORDERED, ids=lambda kind: kind.name)
async def test_messages_come_to_a_broker_and_back_in_the_order_of_their_groups(brokers: Places, kind: Kind) -> None:
    scene = Scene(brokers.new(kind))
    await scene.fill()
    output, _ = await scene.move()
    assert output == f"{len(MESSAGES)} messages moved from queue default to queue orders.\n"
    output, errors = await scene.move("--wait", "5", "--create", source="orders", target="embedded:back")
    assert output == f"{len(MESSAGES)} messages moved from queue orders to queue back.\n"
    assert "whether a router polls queue orders cannot be told for sure" in errors
    back = EmbeddedQueue(EmbeddedStore(scene.folder / "data" / "queue.db", SystemClock()), "back")
    assert await scene.arrived(back, 0.0) == in_order()


@pytest.mark.parametrize("kind", COUNTED, ids=lambda kind: kind.name)
async def test_killed_again_and_again_it_loses_doubles_and_reorders_nothing(brokers: Places, kind: Kind) -> None:
    """Both brokers deduplicate, and it is run again at once."""
    scene = Scene(brokers.new(kind))
    await scene.fill()
    source = scene.embedded()
    await source.open()
    kills = 0
    for at_least in itertools.count(40, 90):
        process = await scene.start("--force")
        while process.returncode is None and len(MESSAGES) - (await source.depth()).waiting < at_least:
            await asyncio.sleep(0.002)
        if process.returncode is not None:
            break
        process.kill()
        await process.communicate()
        await source.store.reap()
        kills += 1
        if at_least > len(MESSAGES):
            break
    await source.close()
    await scene.move()
    assert kills >= 2
    assert await scene.arrived(scene.place.client(), 2.0) == in_order()
