"""What is deleted or purged at a broker while a router works on it is told of; no stop says that nothing was lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from proton import Message

from flowcatalyst.app.router import App
from flowcatalyst.control.health import assess
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.warnings import Warning, WarningCode, WarningFilter  # noqa: A004 - the word operators know
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp.queue import ActiveMqQueue, AmqpLogin
from flowcatalyst.queues.contract import BrokerQueue
from flowcatalyst.queues.nats.losses import SAME_CONSUMER_S
from flowcatalyst.queues.nats.queue import NatsQueue
from flowcatalyst.queues.sqs.queue import SqsQueue
from tests.conformance.bench import grouped, take
from tests.integration.chaos_test import messages
from tests.servers.artemis import artemis_server
from tests.support.brokers import KINDS, QUEUE, Kind, Place, Places, places
from tests.support.patience import PATIENCE_S
from tests.support.router_process import Waits, router_process
from tests.support.witness import Witness

BY_NAME = {kind.name: kind for kind in KINDS}
NATS = BY_NAME["nats"]
SQS = [BY_NAME["elasticmq-fifo"], BY_NAME["elasticmq-standard"]]
TOLD_WITHIN_S = 40.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


async def delete(place: Place) -> None:
    """As an operator does it."""
    if place.kind is NATS:
        await jetstream(place, f"STREAM.DELETE.{place.queue}")
    else:
        await sqs_call(place, "delete_queue")


async def purge(place: Place) -> None:
    if place.kind is NATS:
        await jetstream(place, f"STREAM.PURGE.{place.queue}")
    else:
        await sqs_call(place, "purge_queue")


async def jetstream(place: Place, subject: str) -> None:
    connection = await nats.connect(f"nats://127.0.0.1:{place.server.port}")
    answer = json.loads((await connection.request(f"$JS.API.{subject}")).data)
    await connection.close()
    assert "error" not in answer, answer


async def sqs_call(place: Place, operation: str) -> None:
    async with client_of(place) as client:
        assert isinstance(client, SqsQueue)
        await client._connection.call(operation)


@asynccontextmanager
async def client_of(place: Place) -> AsyncIterator[BrokerQueue]:
    client = place.client()
    await client.open()
    try:
        yield client
    finally:
        await client.close()


def losses(queue: BrokerQueue) -> list[tuple[str, int | None]]:
    found = [(loss.text, loss.messages) for loss in queue.losses]
    queue.losses.clear()
    return found


# JetStream


async def publish_patiently(queue: BrokerQueue) -> None:
    """A server that still removes the files of a deleted stream may refuse messages of the new one for a moment."""
    async with asyncio.timeout(TOLD_WITHIN_S):
        while True:
            with suppress(QueueUnavailableError):
                await queue.publish(grouped("b1"))
                return
            await asyncio.sleep(0.1)


async def test_a_stream_that_was_made_anew_is_told_of_with_what_it_held(brokers: Places) -> None:
    place = brokers.new(NATS)
    async with client_of(place) as queue:
        await queue.publish(grouped(*(f"a{number}" for number in range(1, 31))))
        assert len(await take(queue, 5)) == 5
        await queue.ack([(await take(queue, 1))[0]])
        assert losses(queue) == []
        await delete(place)
        assert await queue.receive(10, 0.2) == []
        [(text, count)] = losses(queue)
        assert f"stream {place.queue} was deleted and created again: it held 29 messages" in text
        assert count == 29
        await publish_patiently(queue)
        assert len(await take(queue, 1)) == 1
        assert losses(queue) == []


@pytest.mark.parametrize("then_published", [0, 40])
async def test_messages_that_were_purged_before_they_were_delivered_are_told_of(
    brokers: Places, then_published: int
) -> None:
    place = brokers.new(NATS)
    async with client_of(place) as queue:
        await queue.publish(grouped(*(f"a{number}" for number in range(1, 31))))
        held = await take(queue, 5)
        await queue.depth()
        assert losses(queue) == []
        await purge(place)
        await queue.publish(grouped(*(f"b{number}" for number in range(1, then_published + 1))))
        await queue.depth()
        [(text, count)] = losses(queue)
        assert "at least 25 messages vanished from stream" in text
        assert count == 25
        await queue.ack(held)
        for _ in range(then_published):
            await queue.ack(await take(queue, 1))
        await queue.depth()
        assert losses(queue) == []


async def test_deliveries_redeliveries_and_acks_are_not_taken_for_losses(brokers: Places) -> None:
    place = brokers.new(NATS)
    async with client_of(place) as queue, client_of(place) as publisher:
        for round_number in range(6):
            await publisher.publish(grouped(*(f"{group}{round_number}" for group in "abcdefgh")))
            batch = await take(queue, 8)
            await queue.depth()
            await queue.nack(batch[:4], 0.0 if round_number % 2 else 0.1)
            await queue.depth()
            await queue.ack(batch[4:])
            again = await take(queue, 4)
            await queue.depth()
            await queue.ack(again)
            if round_number == 3:
                await queue.reconnect()
        await queue.depth()
        assert losses(queue) == []


async def test_a_consumer_that_was_made_anew_is_told_of_and_its_messages_come_again(brokers: Places) -> None:
    place = brokers.new(NATS)
    async with client_of(place) as queue:
        await queue.publish(grouped("a1", "a2", "a3"))
        held = await take(queue, 2)
        await asyncio.sleep(2 * SAME_CONSUMER_S)  # before that it might be the same one
        await jetstream(place, f"CONSUMER.DELETE.{place.queue}.router")
        again = await take(queue, 3)
        assert {delivery.broker_id for delivery in held} <= {delivery.broker_id for delivery in again}
        [(text, count)] = losses(queue)
        assert "consumer router of stream" in text
        assert "what was not acknowledged will be delivered again" in text
        assert count == 0


# SQS


@pytest.mark.parametrize("kind", SQS, ids=lambda kind: kind.name)
async def test_an_sqs_queue_that_was_made_anew_is_told_of_with_what_it_held(brokers: Places, kind: Kind) -> None:
    place = brokers.new(kind)
    async with client_of(place) as queue:
        assert losses(queue) == []  # the first creation loses nothing
        await queue.publish(grouped(*(f"a{number}" for number in range(1, 13))))
        await queue.depth()
        await delete(place)
        async with asyncio.timeout(TOLD_WITHIN_S):
            while not queue.losses:
                with suppress(QueueUnavailableError):  # once: it does not exist
                    await queue.receive(10, 1)
        [(text, count)] = losses(queue)
        assert "was deleted and created again: it held 12 messages when last seen" in text
        assert count == 12
        await queue.publish(grouped("b1"))
        assert len(await take(queue, 1)) == 1
        assert losses(queue) == []


class LaterClock(SystemClock):
    """One that can be put forward: what SQS said of its depth is old then."""

    def __init__(self) -> None:
        super().__init__()
        machine = self.monotonic
        self.ahead_s = 0.0
        self.monotonic = lambda: machine() + self.ahead_s


@pytest.mark.parametrize("kind", SQS, ids=lambda kind: kind.name)
async def test_an_sqs_queue_that_was_purged_is_told_of(brokers: Places, kind: Kind) -> None:
    place, clock = brokers.new(kind), LaterClock()
    async with client_of(place) as queue:
        assert isinstance(queue, SqsQueue)
        queue._clock = clock
        await queue.publish(grouped(*(f"{group}1" for group in "abcdefghijkl")))
        held = await take(queue, 4)
        await queue.depth()
        await queue.ack(held[:2])
        await purge(place)
        clock.ahead_s += 61.0
        await queue.depth()
        [(text, count)] = losses(queue)
        assert count in (10, 8)  # one of the servers keeps what is in flight
        assert f"about {count} more messages are gone than this router received" in text


@pytest.mark.parametrize("kind", SQS, ids=lambda kind: kind.name)
async def test_what_was_acked_or_taken_by_others_is_not_taken_for_a_loss(brokers: Places, kind: Kind) -> None:
    place, clock = replace(brokers.new(kind), visibility_s=PATIENCE_S), LaterClock()  # `theirs` is seen to be in hand
    async with client_of(place) as queue, client_of(place) as other:
        assert isinstance(queue, SqsQueue)
        queue._clock = clock
        await queue.publish(grouped(*(f"{group}1" for group in "abcdefghijkl")))
        ours, theirs = await take(queue, 4), await take(other, 4)
        await queue.depth()
        await queue.ack(ours)
        await other.ack(theirs)
        await other.ack(await take(other, 4))
        clock.ahead_s += 61.0
        await queue.depth()
        await queue.publish(grouped("z1"))
        await queue.ack(await take(queue, 1))
        clock.ahead_s += 61.0
        await queue.depth()
        assert losses(queue) == []


# ActiveMQ: AMQP tells of a queue that is deleted, but Artemis only.


async def test_an_artemis_queue_that_is_deleted_under_its_receiver_is_told_of(tmp_path: Path) -> None:
    with artemis_server(tmp_path) as server:
        address = AmqpAddress((("127.0.0.1", server.port),), "orders.deleted")
        queue, operator = (ActiveMqQueue("orders", one, SystemClock(), login=AmqpLogin()) for one in (address, address))
        await queue.publish(grouped("a1", "b1", "c1"))
        assert len(await take(queue, 2)) == 2
        connection = await operator._dial()
        await connection.open_sender("activemq.management", 5)
        command = Message(
            body=json.dumps(["orders.deleted", True, True]),
            properties={"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "destroyQueue"},
        )
        await connection.send([bytes(command.encode())], 5)
        async with asyncio.timeout(TOLD_WITHIN_S):
            while not queue.losses:
                with suppress(QueueUnavailableError):  # once: it was deleted
                    await queue.receive(10, 0.2)
        [(text, count)] = losses(queue)
        assert "queue orders.deleted was deleted at the broker" in text
        assert count is not None
        await connection.close(2)
        await queue.close()


# The router


@pytest.mark.parametrize("kind", [NATS, SQS[0]], ids=lambda kind: kind.name)
async def test_a_router_warns_of_a_queue_that_was_made_anew_and_is_not_healthy_until_somebody_saw_it(
    brokers: Places, kind: Kind
) -> None:
    place, witness = brokers.new(kind), Witness()
    async with witness.running():
        app = App(load_settings(data_dir=place.folder / "data", **place.settings))
        await place.publish(messages(witness.url, groups=3, per_group=4))
        async with app.running():
            await witness.until_acked(12)
            await delete(place)
            warning = await lost_warning(app)
            assert QUEUE in warning.message
            assert warning.severity == "ERROR"
            assert [reason.part for reason in assess(app)[1] if reason.part == "messages"] == ["messages"]
            app.warnings.acknowledge(warning.id)
            assert [reason.part for reason in assess(app)[1] if reason.part == "messages"] == []
        assert app.losses


async def lost_warning(app: App) -> Warning:
    async with asyncio.timeout(TOLD_WITHIN_S):
        while True:
            for warning in app.warnings.recent():
                if warning.code is WarningCode.MESSAGES_LOST:
                    return warning
            await asyncio.sleep(0.05)


def remove(folder: Path) -> None:
    for path in folder.glob("queue.db*"):
        path.unlink()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_of_embedded_queues_that_is_removed_is_told_of_and_what_it_held_is_delivered(
    tmp_path: Path, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowcatalyst.queues.embedded.store.REAP_EVERY_S", 0.1)
    witness = Witness()
    async with witness.running():
        app = App(load_settings(data_dir=tmp_path, embedded={"queues": ["empty", QUEUE]}))
        async with app.running():
            outgoing = messages(witness.url, groups=3, per_group=10)
            witness.script = {"run.g0.1": ["hang"]}
            await app.queues[QUEUE].publish(outgoing)
            await witness.until_arrived(1)
            remove(tmp_path)
            if replaced:
                (tmp_path / "queue.db").write_bytes(b"")
            warning = await lost_warning(app)
            what = "was replaced by another file" if replaced else "was removed"
            assert f"queue.db {what} while it was open: put it back, and do not stop the router" in warning.message
            with pytest.raises(Exception, match="while it was open"):
                await app.queues[QUEUE].publish(outgoing[:1])
            witness.end_hanging("ok")
            await witness.until_acked(len(outgoing))
            async with asyncio.timeout(TOLD_WITHIN_S):
                while "while it was open" not in app.consumers[QUEUE].reports.last_error:
                    await asyncio.sleep(0.05)
            [of] = app.warnings.recent(WarningFilter(code=WarningCode.MESSAGES_LOST))
            assert of.message.startswith(f"queue {QUEUE}: ")


async def test_a_file_that_is_put_back_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowcatalyst.queues.embedded.store.REAP_EVERY_S", 0.1)
    witness = Witness()
    async with witness.running():
        app = App(load_settings(data_dir=tmp_path, embedded={"queues": [QUEUE]}))
        async with app.running():
            moved = tmp_path / "moved.db"
            (tmp_path / "queue.db").rename(moved)
            async with asyncio.timeout(TOLD_WITHIN_S):
                while not app.store.moved:
                    await asyncio.sleep(0.05)
            moved.rename(tmp_path / "queue.db")
            async with asyncio.timeout(TOLD_WITHIN_S):
                while app.store.moved:
                    await asyncio.sleep(0.05)
            outgoing = messages(witness.url, groups=2, per_group=2)
            await app.queues[QUEUE].publish(outgoing)
            await witness.until_acked(4)
            assert all(one.acknowledged for one in app.warnings.recent(WarningFilter(code=WarningCode.MESSAGES_LOST)))
    assert app.losses == []


async def test_a_stop_after_a_loss_does_not_say_that_nothing_was_lost(brokers: Places) -> None:
    place = brokers.new(NATS)
    async with client_of(place) as queue:
        assert isinstance(queue, NatsQueue)
        async with Witness().running():
            waits = Waits(more=place.toml)
            async with router_process(place.folder, waits, command=("router",)) as router:
                await queue.publish(grouped("a1"))
                async with asyncio.timeout(TOLD_WITHIN_S):
                    while "message_unreadable" not in router.log.read_text():
                        await asyncio.sleep(0.05)
                await queue.publish(grouped("a2"))
                await delete(place)
                async with asyncio.timeout(TOLD_WITHIN_S):
                    while "messages_lost" not in router.log.read_text():
                        await asyncio.sleep(0.05)
                code, said = await router.terminate()
    assert code == 0
    assert "Nothing was lost" not in said
    assert f"stream {place.queue} was deleted and created again" in said
