"""What the tests of ActiveMQ share."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from proton import Message

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Settled
from flowcatalyst.queues.amqp.connection import AmqpConnection
from flowcatalyst.queues.amqp.queue import ActiveMqQueue
from tests.servers.activemq import ActiveMqServer
from tests.servers.artemis import ArtemisServer

OK, GONE, FAILED = Settled.OK, Settled.GONE, Settled.FAILED
PASSWORD = "s3cret-Pässword"
Server = ActiveMqServer | ArtemisServer
Client = Callable[..., ActiveMqQueue]


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
