"""One JetStream stream with its clients, and how they crash."""

import itertools
import json
from typing import Any

import nats
from nats.aio.client import Client

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Settled
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats.queue import NatsLogin, NatsQueue
from tests.conformance.bench import bodies
from tests.servers.nats import NatsServer

OK, GONE = Settled.OK, Settled.GONE
MINUTE_S, SHORT_S = 60.0, 2.0
NANO = 1_000_000_000
numbers = itertools.count(1)


class Scene:
    """One stream, its clients, and a plain connection to the server."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.address = NatsAddress((server.url,), f"S{next(numbers)}", "router", create=True)
        self._queues: list[NatsQueue] = []
        self._plain: Client | None = None

    def queue(self, visibility_s: float = MINUTE_S, **address: Any) -> NatsQueue:
        values = {name: getattr(self.address, name) for name in NatsAddress.__slots__} | address
        queue = NatsQueue("q", NatsAddress(**values), SystemClock(), visibility_s=visibility_s, login=NatsLogin())
        self._queues.append(queue)
        return queue

    async def plain(self) -> Client:
        if self._plain is None or not self._plain.is_connected:
            self._plain = await nats.connect(self.server.url)
        return self._plain

    async def api(self, subject: str, request: object = None) -> dict[str, Any]:
        answer = await (await self.plain()).request(
            f"$JS.API.{subject}", json.dumps(request).encode() if request else b""
        )
        result: dict[str, Any] = json.loads(answer.data)
        assert "error" not in result, result
        return result

    async def stream(self, **config: Any) -> None:
        name = self.address.stream
        defaults = {"name": name, "subjects": [f"{name}.>"], "duplicate_window": 300 * NANO}
        await self.api(f"STREAM.CREATE.{name}", defaults | config)

    async def consumer(self, **config: Any) -> None:
        name, durable = self.address.stream, self.address.consumer
        defaults = {"durable_name": durable, "ack_policy": "explicit", "ack_wait": 60 * NANO, "max_ack_pending": 5000}
        request = {"stream_name": name, "config": defaults | config}
        await self.api(f"CONSUMER.DURABLE.CREATE.{name}.{durable}", request)

    async def state(self) -> dict[str, Any]:
        return await self.api(f"CONSUMER.INFO.{self.address.stream}.{self.address.consumer}")

    async def pull_elsewhere(self, count: int) -> list[Any]:
        """As a client would that takes messages and never settles them."""
        connection = await self.plain()
        inbox = await connection.subscribe(connection.new_inbox())
        request = json.dumps({"batch": count, "no_wait": True}).encode()
        where = f"$JS.API.CONSUMER.MSG.NEXT.{self.address.stream}.{self.address.consumer}"
        await connection.publish(where, request, inbox.subject)
        taken = [await inbox.next_msg(2) for _ in range(count)]
        await inbox.unsubscribe()
        return taken

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()
        if self._plain is not None:
            await self._plain.close()


async def crash(queue: NatsQueue) -> None:
    """Its connection is cut; it settles nothing."""
    assert queue._session is not None
    queue._session.link._connection.abort()
    await queue._session.link.close()
    queue._session = None


async def drained(queue: NatsQueue, within_s: float = 1.0) -> list[str]:
    """Receive and ack until nothing more comes."""
    seen: list[str] = []
    while batch := await queue.receive(7, within_s):
        seen += bodies(batch)
        assert set(await queue.ack(batch)) == {OK}
    return seen


def names(groups: str, count: int) -> list[str]:
    return [f"{group}{number}" for number in range(1, count + 1) for group in groups]
