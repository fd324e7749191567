"""Connections to ActiveMQ: silent, broken and closed ones, credentials and TLS."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import uvloop

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.address import AmqpAddress
from flowcatalyst.queues.amqp import queue as activemq
from flowcatalyst.queues.amqp.queue import ActiveMqQueue, AmqpLogin
from flowcatalyst.queues.contract import Outgoing
from tests.conformance.bench import bodies, grouped, nothing_comes, take
from tests.integration.activemq.scene import FAILED, GONE, OK, PASSWORD, Client, Server, cut, failure_of
from tests.servers import free_port
from tests.servers.activemq import ActiveMqServer, activemq_server
from tests.servers.artemis import artemis_server

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
    assert [queue.still_ours(one) for one in (first, second)] == [True, True]
    cut(queue)
    assert [queue.still_ours(one) for one in (first, second)] == [False, False]
    again = await take(queue, 2)
    assert [queue.still_ours(one) for one in (first, second, *again)] == [False, False, True, True]
    assert await queue.nack([first], 0.0) == [GONE]  # and nothing is shown a second time
    await queue.close()
    assert [queue.still_ours(one) for one in again] == [False, False]


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
    assert queue.still_ours(first)
    clock.ahead_s += connection.patience_s
    assert not queue.still_ours(first)
    connection.data_received(b"\x00\x00\x00\x08\x02\x00\x00\x00")  # an empty frame that had been on its way
    assert not queue.still_ours(first)
    [again] = await take(queue, 1)
    assert (again.broker_id, queue.still_ours(again)) == (first.broker_id, True)


@pytest.mark.parametrize("server", [activemq_server, artemis_server])
async def test_we_give_up_before_the_broker_does_and_speak_often_enough(
    server: Callable[..., AbstractContextManager[Server]], client: Client, tmp_path: Path
) -> None:
    idle_s = 8.0  # we bear a silence of 2 s, which a busy machine takes now and then
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
    assert "is refused: check activemq.user and activemq.password" in text
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
