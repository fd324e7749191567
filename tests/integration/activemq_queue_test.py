"""What is special to ActiveMQ: what its connections, schedulers, producers and credentials do to our promises."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop
from proton import Message, symbol

from flowcatalyst.clock import SystemClock
from flowcatalyst.errors import QueueUnavailableError
from flowcatalyst.message import Settled
from flowcatalyst.queues import activemq, activemq_takeover, amqp_message
from flowcatalyst.queues.activemq import ActiveMqQueue, AmqpLogin
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp_connection import AmqpConnection, AmqpRefusedError
from flowcatalyst.queues.contract import Outgoing
from tests.conformance.bench import bodies, grouped, in_order, nothing_comes, take
from tests.servers import free_port
from tests.servers.activemq import ActiveMqServer, activemq_server, send_by_jms
from tests.servers.artemis import ArtemisServer, artemis_server

OK, GONE, FAILED = Settled.OK, Settled.GONE, Settled.FAILED
PASSWORD = "s3cret-Pässword"
_numbers = count(1)

Server = ActiveMqServer | ArtemisServer
Client = Callable[..., ActiveMqQueue]


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    with activemq_server(tmp_path_factory.mktemp("activemq")) as server:
        yield server


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtemisServer]:
    with artemis_server(tmp_path_factory.mktemp("artemis")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActiveMqServer]:
    folder = tmp_path_factory.mktemp("guarded")
    with activemq_server(folder, user="router", password=PASSWORD, tls=True) as server:
        yield server


@pytest.fixture(params=["classic", "artemis"])
def broker(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def queue_name() -> str:
    return f"orders.{next(_numbers)}"


@pytest.fixture
async def client(queue_name: str) -> AsyncIterator[Client]:
    """Makes clients of the test's queue and closes them."""
    made: list[ActiveMqQueue] = []

    def make(
        *servers: Server,
        port: int = 0,
        tls: bool = False,
        login: AmqpLogin | None = None,
        clock: SystemClock | None = None,
    ) -> ActiveMqQueue:
        hosts = tuple(("127.0.0.1", port or server.port) for server in servers)
        address = AmqpAddress(hosts, queue_name, tls=tls)
        made.append(ActiveMqQueue("orders", address, clock or SystemClock(), login=login or AmqpLogin()))
        return made[-1]

    yield make
    for queue in made:
        await queue.close()


def cut(queue: ActiveMqQueue) -> None:
    """The connection breaks without a word."""
    assert queue._connection is not None
    queue._connection.abort()


async def send(server: Server, queue_name: str, *messages: Message) -> None:
    """As an AMQP application that is not ours does it."""
    connection = await AmqpConnection.connect(
        "127.0.0.1", server.port, user=None, password=None, tls=None, limit_s=5, clock=SystemClock()
    )
    await connection.open_sender(queue_name, 5)
    await connection.send([bytes(message.encode()) for message in messages], 5)
    await connection.close(2)


async def failure_of(call: Awaitable[Any]) -> str:
    with pytest.raises(QueueUnavailableError) as raised:
        await call
    return str(raised.value)


# Producers


async def test_messages_of_a_jms_application_come_in_order_with_their_group(
    classic: ActiveMqServer, queue_name: str, client: Client
) -> None:
    names = [f"{group}{number}" for number in range(1, 21) for group in "abc"]
    await asyncio.to_thread(send_by_jms, classic.openwire_url, queue_name, [(name[0], name) for name in names])
    queue = client(classic)
    taken = await take(queue, len(names))
    assert sorted(bodies(taken)) == sorted(names)
    assert in_order(bodies(taken))
    assert all(one.group == one.body[:1] for one in taken)
    assert len({one.broker_id for one in taken}) == len(names)
    cut(queue)
    again = await take(queue, len(names))
    assert [(one.broker_id, one.body) for one in again] == [(one.broker_id, one.body) for one in taken]


async def test_a_message_without_an_id_has_the_same_identity_on_each_connection(
    broker: Server, queue_name: str, client: Client
) -> None:
    await send(broker, queue_name, Message(body="one", durable=True), Message(body="two", durable=True, group_id="g"))
    queue = client(broker)
    first = await take(queue, 2)
    cut(queue)
    second = await take(queue, 2)
    assert [one.broker_id for one in first] == [one.broker_id for one in second]
    assert len({one.broker_id for one in first}) == 2


async def test_ids_that_a_producer_begins_anew_are_not_mistaken_for_old_ones(
    broker: Server, queue_name: str, client: Client
) -> None:
    queue = client(broker)
    await send(broker, queue_name, Message(body="yesterday", id=1, durable=True))
    [first] = await take(queue, 1)
    await queue.ack([first])
    await send(broker, queue_name, Message(body="today", id=1, durable=True))
    [second] = await take(queue, 1)
    assert first.broker_id != second.broker_id


async def test_every_kind_of_body_is_handed_over(broker: Server, queue_name: str, client: Client) -> None:
    kinds: list[Any] = ["text", b"\x00bytes\xff", {"id": "x", "n": 1}, ["a", 2], None, 7, symbol("s")]
    queue = client(broker)
    await send(broker, queue_name, *(Message(body=kind, id=f"{n:032}", durable=True) for n, kind in enumerate(kinds)))
    await send(broker, queue_name, Message(body=b"data section", inferred=True, durable=True))
    taken = await take(queue, len(kinds) + 1)
    handed = [one.body for one in taken]
    assert handed[:2] == ["text", b"\x00bytes\xff"]
    assert handed[-1] == b"data section"
    assert all(isinstance(body, str | bytes) for body in handed)
    assert len(handed) == len(kinds) + 1
    assert await queue.ack(taken) == [OK] * len(taken)


def test_what_is_no_amqp_message_is_handed_over_as_it_came() -> None:
    assert amqp_message.read(b"\x00Sgarbage").body == b"\x00Sgarbage"


# Order


async def test_order_survives_a_connection_that_breaks_with_messages_in_hand(broker: Server, client: Client) -> None:
    names = [f"{group}{number}" for number in range(1, 31) for group in "ab"]
    queue = client(broker)
    await queue.publish(grouped(*names))
    held = await take(queue, 20)
    assert await queue.ack(held[:3]) == [OK] * 3
    cut(queue)
    assert await queue.ack(held[3:5]) == [GONE, GONE]
    assert await queue.nack(held[5:6], 0.0) == [GONE]
    assert await queue.nack(held[5:6], 1.0) == [GONE]
    assert await queue.extend(held[6:7], 60.0) == [GONE]
    again = await take(queue, len(names) - 3)
    assert bodies(again) == names[3:]
    assert [one.broker_id for one in again[:17]] == [one.broker_id for one in held[3:]]
    assert await queue.ack(held[3:5]) == [GONE, GONE]
    assert await queue.ack(again) == [OK] * len(again)
    assert await nothing_comes(queue, 0.5)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another receiver"])
async def test_order_survives_receivers_that_die_while_they_take_over(
    broker: Server, client: Client, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes over a part of what the one before it left behind, and dies of it."""
    names = [f"a{number}" for number in range(1, 31)]
    first = client(broker)
    await first.publish(grouped(*names))
    held = await take(first, 25)
    await first.ack(held[:2])
    bystanders = [client(broker) for _ in range(others)]
    for bystander in bystanders:
        await bystander._receiving()
    cut(first)
    for count_taken in (10, 7, 12):
        with monkeypatch.context() as patched:
            patched.setattr(activemq_takeover, "QUIET_S", 0.0)  # it is dead before it has fetched all
            victim = client(broker)
            await take(victim, count_taken)
            cut(victim)
            await asyncio.sleep(0.3)  # until the broker knows
    survivor = client(broker)
    assert bodies(await take(survivor, 28)) == names[2:]


async def test_a_group_goes_over_in_order_when_its_receiver_dies(broker: Server, client: Client) -> None:
    first, second, sender = client(broker), client(broker), client(broker)
    await first.receive(1, 0.0)
    await second.receive(1, 0.0)
    await sender.publish(grouped("a1"))
    owner, other = (first, second) if (held := await take(first, 1, 2.0)) else (second, first)
    held = held or await take(second, 1)
    await sender.publish(grouped(*(f"a{number}" for number in range(2, 11))))
    held += await take(owner, 4)
    assert bodies(held) == ["a1", "a2", "a3", "a4", "a5"]
    assert await nothing_comes(other, 0.5)
    await owner.ack(held[:2])
    cut(owner)
    assert bodies(await take(other, 8)) == [f"a{number}" for number in range(3, 11)]


async def test_what_is_given_back_at_once_keeps_its_place(broker: Server, client: Client) -> None:
    queue = client(broker)
    await queue.publish(grouped(*(f"a{number}" for number in range(1, 9))))
    held = await take(queue, 4)
    held[1].failures = 2
    assert await queue.nack([held[3], held[1]], 0.0) == [OK, OK]
    assert await queue.ack(held[1:2]) == [GONE]
    again = await take(queue, 6)
    assert bodies(again) == ["a2", "a4", "a5", "a6", "a7", "a8"]
    assert [(one.failures, one.receive_count) for one in again[:3]] == [(2, 2), (0, 2), (0, 1)]
    assert await queue.ack([held[0], held[2], *again]) == [OK] * 8


async def test_a_receiver_takes_no_more_from_the_others_than_it_asked_for(broker: Server, client: Client) -> None:
    modest, other = client(broker), client(broker)
    await modest.publish([Outgoing(str(number)) for number in range(10)])
    await modest.receive(2, 5.0)
    assert len(await take(other, 9, 3.0)) >= 8


async def test_what_comes_after_a_receive_was_cancelled_is_there_for_the_next(broker: Server, client: Client) -> None:
    queue, sender = client(broker), client(broker)
    receiving = asyncio.gather(queue.receive(10, 10.0))
    await asyncio.sleep(0.5)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await sender.publish(grouped("a1", "a2"))
    assert bodies(await take(queue, 2)) == ["a1", "a2"]


# Giving back with a delay


async def test_a_delayed_copy_is_the_same_message(broker: Server, queue_name: str, client: Client) -> None:
    properties = {"tenant": "x", "n": 1}
    await send(
        broker,
        queue_name,
        Message(body=b"\x01", inferred=True, group_id="g", durable=True, id=5, properties=properties),
    )
    queue = client(broker)
    [first] = await take(queue, 1)
    for failures in (1, 2, 3):  # a copy of a copy, too
        first.failures = failures
        assert await queue.nack([first], 0.6) == [OK]
        assert await nothing_comes(queue, 0.3)
        [again] = await take(queue, 1)
        assert (again.broker_id, again.body, again.group) == (first.broker_id, b"\x01", "g")
        assert again.failures == failures
        sent = Message()
        sent.decode(again.receipt.arrival.raw)
        assert properties.items() <= (sent.properties or {}).items()
        first = again
    assert await queue.ack([first]) == [OK]
    assert await nothing_comes(queue, 1.0)
    assert list(queue.advice) == []


async def test_a_crash_after_the_copy_was_sent_leaves_two_never_none(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_instead(connection: AmqpConnection, *_: object) -> None:
        connection.abort()

    queue = client(broker)
    await queue.publish(grouped("a1"))
    [first] = await take(queue, 1)
    first.failures = 1
    with monkeypatch.context() as patched:
        patched.setattr(AmqpConnection, "accept", break_instead)
        assert await queue.nack([first], 1.5) == [GONE]
    [original] = await take(queue, 1)
    [copy] = await take(queue, 1)
    assert (original.broker_id, copy.broker_id) == (first.broker_id, first.broker_id)
    assert (original.failures, copy.failures) == (0, 1)
    assert await queue.ack([copy]) == [OK]  # the router knows one message and settles its newest receipt
    cut(queue)
    assert await nothing_comes(queue, 1.0)


async def test_without_a_scheduler_a_delayed_message_waits_here_and_there_is_advice(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_message, "_DELIVERY_DELAY", symbol("x-opt-unknown"))  # as a broker that ignores it
    queue = client(broker)
    await queue.publish(grouped("a1", "b1"))
    first, second = await take(queue, 2)
    first.failures = 4
    assert await queue.nack([first], 1.5) == [OK]
    assert await nothing_comes(queue, 1.0)
    assert list(queue.advice) == [activemq.NO_SCHEDULER]
    [again] = await take(queue, 1)
    assert (again.broker_id, again.failures) == (first.broker_id, 4)
    assert await queue.ack([again, second]) == [OK, OK]


async def test_a_message_that_cannot_be_sent_again_waits_here(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AmqpRefusedError("amqp:unauthorized-access", "not allowed to write")

    queue = client(broker)
    await queue.publish(grouped("a1"))
    [first] = await take(queue, 1)
    monkeypatch.setattr(AmqpConnection, "send", refuse)
    assert await queue.nack([first], 1.0) == [OK]
    assert await nothing_comes(queue, 0.6)
    assert "not allowed to write" in queue.advice[0]
    [again] = await take(queue, 1)
    assert (again.body, again.receive_count) == ("a1", 2)
    assert await queue.ack([again]) == [OK]


# Connections


async def test_a_silent_broker_is_an_error_soon_and_a_quiet_one_is_not(
    broker: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activemq, "IDLE_S", 3.0)
    monkeypatch.setattr(activemq, "CONFIRM_S", 1.0)
    queue = client(broker)
    await queue.publish(grouped("a1", "b1"))
    first, second = await take(queue, 2)
    connection = queue._connection
    assert await nothing_comes(queue, 5.0)
    assert queue._connection is connection
    broker.pause()
    try:
        assert await queue.ack([first]) == [FAILED]
        assert "does not answer" in await failure_of(queue.receive(10, 10.0))
        assert "does not answer" in await failure_of(queue.receive(10, 0.0))
        await queue.close()
    finally:
        broker.resume()
    assert await queue.ack([second]) == [GONE]


async def test_a_message_is_ours_until_its_connection_ends(broker: Server, client: Client) -> None:
    queue = client(broker)
    await queue.publish(grouped("a1", "b1", "c1"))
    first, second, third = await take(queue, 3)
    await queue.ack([third])
    assert [queue.holds(one) for one in (first, second)] == [True, True]
    cut(queue)
    assert [queue.holds(one) for one in (first, second)] == [False, False]
    again = await take(queue, 2)
    assert [queue.holds(one) for one in (first, second, *again)] == [False, False, True, True]
    assert await queue.nack([first], 0.0) == [GONE]  # and nothing is shown a second time
    await queue.close()
    assert [queue.holds(one) for one in again] == [False, False]


class JumpingClock(SystemClock):
    """Time passes at once, as it does for a process that was paused."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0
        self.monotonic = lambda: time.monotonic() + self.ahead_s


async def test_a_message_is_no_longer_ours_when_the_broker_was_not_heard_for_too_long(
    broker: Server, client: Client
) -> None:
    clock = JumpingClock()
    queue = client(broker, clock=clock)
    await queue.publish(grouped("a1"))
    [first] = await take(queue, 1)
    connection = queue._connection
    assert connection is not None
    clock.ahead_s += connection.patience_s * 0.9
    assert queue.holds(first)
    clock.ahead_s += connection.patience_s
    assert not queue.holds(first)
    connection.data_received(b"\x00\x00\x00\x08\x02\x00\x00\x00")  # an empty frame that had been on its way
    assert not queue.holds(first)
    [again] = await take(queue, 1)
    assert (again.broker_id, queue.holds(again)) == (first.broker_id, True)


@pytest.mark.parametrize("server", [activemq_server, artemis_server])
async def test_we_give_up_before_the_broker_does_and_speak_often_enough(
    server: Callable[..., AbstractContextManager[Server]], client: Client, tmp_path: Path
) -> None:
    idle_s = 3.0
    with server(tmp_path, idle_s=idle_s) as impatient:
        queue = client(impatient)
        await queue.publish(grouped("a1"))
        [first] = await take(queue, 1)
        connection = queue._connection
        assert connection is not None
        assert connection.patience_s <= idle_s / 4  # half of what the broker promises, which is half of what it bears
        assert await nothing_comes(queue, idle_s * 2)
        assert queue._connection is connection
        assert await queue.ack([first]) == [OK]
        await queue.close()


async def test_another_host_is_tried_when_one_is_away(classic: ActiveMqServer, client: Client, queue_name: str) -> None:
    hosts = (("127.0.0.1", free_port()), ("127.0.0.1", classic.port))
    queue = ActiveMqQueue("orders", AmqpAddress(hosts, queue_name), SystemClock(), login=AmqpLogin())
    await queue.publish(grouped("a1"))
    assert bodies(await take(queue, 1)) == ["a1"]
    await queue.close()


async def test_a_closed_queue_can_be_opened_again(broker: Server, client: Client) -> None:
    queue = client(broker)
    await queue.publish(grouped("a1"))
    await queue.close()
    assert "closed" in await failure_of(queue.receive(1, 0.0))
    await queue.open()
    assert bodies(await take(queue, 1)) == ["a1"]


async def test_a_port_that_speaks_something_else_is_told(classic: ActiveMqServer, client: Client) -> None:
    text = await failure_of(client(classic, port=classic.openwire_port).receive(1, 0.0))
    assert f"127.0.0.1:{classic.openwire_port}" in text
    assert "AMQP" in text or "does not answer" in text


def test_it_works_on_the_loop_that_the_router_runs_on(guarded: ActiveMqServer, queue_name: str) -> None:
    async def there_and_back(port: int, tls: bool) -> None:
        login = AmqpLogin("router", PASSWORD, guarded.ca_path)
        address = AmqpAddress((("127.0.0.1", port),), queue_name, tls=tls)
        queue = ActiveMqQueue("orders", address, SystemClock(), login=login)
        await queue.publish(grouped("a1", "a2"))
        first, second = await take(queue, 2)
        assert await queue.ack([first]) == [OK]
        cut(queue)
        [again] = await take(queue, 1)
        assert again.broker_id == second.broker_id
        assert await queue.ack([again]) == [OK]
        await queue.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(there_and_back(guarded.port, tls=False))
        runner.run(there_and_back(guarded.tls_port, tls=True))


# Credentials and TLS


async def test_the_right_user_gets_in_with_and_without_tls(guarded: ActiveMqServer, client: Client) -> None:
    login = AmqpLogin("router", PASSWORD, guarded.ca_path)
    await client(guarded, login=login).publish([Outgoing("a" * 200_000, "a")])
    [delivery] = await take(client(guarded, port=guarded.tls_port, tls=True, login=login), 1)
    assert len(delivery.body) == 200_000
    assert PASSWORD not in repr(login)


@pytest.mark.parametrize(
    "login", [AmqpLogin("router", "wrong-" + PASSWORD), AmqpLogin("nobody", PASSWORD), AmqpLogin()], ids=repr
)
async def test_others_are_told_that_they_are_not_let_in(
    guarded: ActiveMqServer, client: Client, login: AmqpLogin
) -> None:
    text = await failure_of(client(guarded, login=login).receive(1, 0.0))
    assert "is not let in: check activemq.user and activemq.password" in text
    assert f"127.0.0.1:{guarded.port}" in text
    assert PASSWORD not in text


async def test_an_unknown_authority_is_told(guarded: ActiveMqServer, client: Client, tmp_path: Path) -> None:
    login = AmqpLogin("router", PASSWORD)
    text = await failure_of(client(guarded, port=guarded.tls_port, tls=True, login=login).receive(1, 0.0))
    assert "certificate is not trusted" in text
    assert "activemq.ca_file" in text
    login = AmqpLogin("router", PASSWORD, tmp_path / "absent.pem")
    text = await failure_of(client(guarded, port=guarded.tls_port, tls=True, login=login).receive(1, 0.0))
    assert "absent.pem" in text
    login = AmqpLogin("router", PASSWORD, guarded.ca_path)
    text = await failure_of(client(guarded, tls=True, login=login).receive(1, 0.0))
    assert "TLS failed" in text
