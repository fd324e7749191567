"""The real ActiveMQ and Artemis behave as tests rely on: they keep what is durable, and ask for a password."""

from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Message, SSLDomain, symbol
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from tests.servers.activemq import ActiveMqServer, activemq_server, send_by_jms
from tests.servers.artemis import ArtemisServer, artemis_server

AMQP_LIMIT_S = 20


class Queue(LinkOption):  # type: ignore[misc]
    """Tells Artemis that an address it does not know yet is a queue, not a topic."""

    def apply(self, link: Any) -> None:
        terminus = link.source if link.is_receiver else link.target
        terminus.capabilities.put_object(symbol("queue"))


def amqp(server: ActiveMqServer | ArtemisServer) -> BlockingConnection:
    return BlockingConnection(server.url, timeout=AMQP_LIMIT_S)


def send(server: ActiveMqServer | ArtemisServer, queue: str, *bodies: str) -> None:
    connection = amqp(server)
    try:
        sender = connection.create_sender(queue, options=Queue())
        for body in bodies:
            sender.send(Message(body=body, durable=True))
    finally:
        connection.close()


def received(server: ActiveMqServer | ArtemisServer, queue: str, count: int) -> list[Message]:
    connection = amqp(server)
    try:
        receiver = connection.create_receiver(queue, credit=count, options=Queue())
        messages = []
        for _ in range(count):
            messages.append(receiver.receive(timeout=AMQP_LIMIT_S))
            receiver.accept()
        return messages
    finally:
        connection.close()


def test_activemq_keeps_a_durable_message_when_it_is_killed(tmp_path: Path) -> None:
    with activemq_server(tmp_path) as server:
        send(server, "orders", "first", "second")
        server.kill()
        server.start()
        assert [message.body for message in received(server, "orders", 2)] == ["first", "second"]


def test_a_jms_message_arrives_over_amqp_with_its_group(tmp_path: Path) -> None:
    with activemq_server(tmp_path, user="router", password="secret") as server:
        send_by_jms(server.openwire_url, "orders", [("customer-1", '{"ä": 1}'), ("", "without")])
        first, second = received(server, "orders", 2)
        assert (first.group_id, first.body) == ("customer-1", '{"ä": 1}')
        assert (second.group_id, second.body) == (None, "without")


def test_activemq_asks_for_a_password_and_shows_a_certificate(tmp_path: Path) -> None:
    with activemq_server(tmp_path, user="router", password="secret", tls=True) as server:
        send(server, "orders", "first")
        with pytest.raises(ConnectionException):
            BlockingConnection(server.url_for("router:wrong@"), timeout=AMQP_LIMIT_S, reconnect=False)
        trust = SSLDomain(SSLDomain.MODE_CLIENT)
        trust.set_trusted_ca_db(str(server.ca_path))
        trust.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
        url = f"amqps://router:secret@localhost:{server.tls_port}"
        BlockingConnection(url, timeout=AMQP_LIMIT_S, ssl_domain=trust).close()


def test_artemis_keeps_a_durable_message_when_it_is_killed(tmp_path: Path) -> None:
    with artemis_server(tmp_path, user="router", password="secret", queues=["prepared"]) as server:
        send(server, "orders", "first", "second")
        send(server, "prepared", "third")
        server.kill()
        server.start()
        assert [message.body for message in received(server, "orders", 2)] == ["first", "second"]
        assert [message.body for message in received(server, "prepared", 1)] == ["third"]
        with pytest.raises(ConnectionException):
            BlockingConnection(server.url_for("router:wrong@"), timeout=AMQP_LIMIT_S, reconnect=False)
