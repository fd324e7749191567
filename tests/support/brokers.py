"""Every kind of queue that the router is tested on from end to end, each with a real server of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import parse_pointer
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.postgres.owners import LAPSE_S, RENEW_EVERY_S
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.queues.sqs import connection as sqs_connection
from flowcatalyst.simulation.checker import RECEIVER_RULES
from tests.servers.activemq import activemq_server
from tests.servers.elasticmq import elasticmq_server
from tests.servers.nats import nats_server
from tests.servers.postgres import postgres_server
from tests.servers.process import ServerProcess
from tests.support.patience import PATIENCE_S

QUEUE: Final = "orders"
LEASE_S: Final = 3.0
# A queue that shows messages in any order cannot be held to this.
UNORDERED_RULES: Final = [rule for rule in RECEIVER_RULES if rule != "first attempts in order"]


@dataclass(slots=True, frozen=True)
class Kind:
    """A broker, how to start it and what its queues are called."""

    name: str
    server: Callable[[Path], Any]
    uri: str  # with places for host:port and queue
    keeps_order: bool = True
    forgets_order: bool = False  # killed and started again, it has lost their order
    shows_at_once: bool = False  # what somebody who vanished had; else when its lease ends
    lease_s: float = LEASE_S


KINDS: Final = (
    Kind(
        "elasticmq-fifo",
        elasticmq_server,
        "http://{address}/123456789012/{queue}.fifo?create=true",
        forgets_order=True,
    ),
    Kind(
        "elasticmq-standard",
        elasticmq_server,
        "http://{address}/123456789012/{queue}?create=true",
        keeps_order=False,
    ),
    Kind("nats", nats_server, "nats://{address}/{queue}?consumer=router&create=true", shows_at_once=True),
    Kind("activemq", activemq_server, "amqp://{address}/{queue}", shows_at_once=True),
    Kind(
        "postgres",
        postgres_server,
        "postgresql://{address}/postgres?queue={queue}",
        lease_s=LAPSE_S + 2 * RENEW_EVERY_S,
    ),
)


@dataclass(slots=True)
class Place:
    """One queue at a running broker that nobody used before."""

    kind: Kind
    server: ServerProcess
    queue: str
    folder: Path
    port: int = 0  # of something in front of the server; 0: the server's own
    visibility_s: float = LEASE_S

    @property
    def uri(self) -> str:
        return self.kind.uri.format(address=f"127.0.0.1:{self.port or self.server.port}", queue=self.queue)

    @property
    def settings(self) -> dict[str, Any]:
        """What a router needs to know of it."""
        queue = {"name": QUEUE, "uri": self.uri, "connections": 2, "visibility_s": self.visibility_s}
        others = {"sqs": {"wait_time_s": 2}, "postgres": {"user": "postgres"}}
        return {"embedded": {"queues": []}, "queues": [queue], **others}

    @property
    def quiet_s(self) -> float:
        """When nothing came for so long, nothing will."""
        return 1.0 if self.kind.shows_at_once else max(self.kind.lease_s, self.visibility_s) + 2.0

    @property
    def toml(self) -> str:
        queue = (
            f'[[queues]]\nname = "{QUEUE}"\nuri = "{self.uri}"\nconnections = 2\nvisibility_s = {self.visibility_s}\n'
        )
        return f'{queue}[sqs]\nwait_time_s = 2\n[postgres]\nuser = "postgres"\n'

    @property
    def rules(self) -> list[str]:
        """By which a receiver judges."""
        return list(RECEIVER_RULES) if self.kind.keeps_order else UNORDERED_RULES

    def client(self) -> BrokerQueue:
        """A client of our own, not open yet."""
        clock = SystemClock()
        store = EmbeddedStore(self.folder / "unused.db", clock)
        factory = QueueFactory(store, load_settings(**self.settings), clock)
        factory.add_publishers([QueueConfig(QUEUE, self.uri, visibility_s=self.visibility_s)])
        return factory.publishers[QUEUE]

    async def publish(self, messages: list[Outgoing]) -> None:
        client = self.client()
        await client.open()
        try:
            await client.publish(messages)
        finally:
            await client.close()

    async def left(self) -> list[str]:
        """The ids of all messages that are still in the queue, in hand of somebody who vanished or not."""
        client = self.client()
        await client.open()
        try:
            found: list[str] = []
            while batch := await client.receive(10, self.quiet_s):
                found += [parse_pointer(delivery.body).id for delivery in batch]
                await client.ack(batch)
            return found
        finally:
            await client.close()


class Places:
    """Starts the servers when they are first needed and keeps them up; queues are named one after the other."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._servers: dict[Any, ServerProcess] = {}
        self._count = 0

    def new(self, kind: Kind) -> Place:
        if kind.server not in self._servers:
            folder = self._folder / f"server-{len(self._servers)}"
            folder.mkdir()
            self._servers[kind.server] = self._stack.enter_context(kind.server(folder))
        self._count += 1
        queue = f"orders-{self._count}"
        folder = self._folder / queue
        folder.mkdir()
        return Place(kind, self._servers[kind.server], queue, folder)


@contextmanager
def places(folder: Path) -> Iterator[Places]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        # To load a client of SQS takes half a second of processor time, which is long where others work too.
        patch.setattr(sqs_connection, "CONNECT_LIMIT_S", PATIENCE_S)
        yield Places(folder, stack)


all_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
