"""A consumer that is restarted makes a new connection: one that is half dead is the usual cause of its silence."""

import asyncio
from collections.abc import Iterator

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Demand
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from tests.integration.broker_router_test import assert_every_promise_was_kept, publish, routing, until_settled
from tests.integration.chaos_test import messages
from tests.support.brokers import QUEUE, Kind, Places, all_kinds, places
from tests.support.rig import RecordingQueue, Rig, SilentLog, outgoings
from tests.support.tcp_proxy import tcp_proxy
from tests.support.witness import Witness


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


class HalfDead(RecordingQueue):
    """Its connection takes what it is asked and answers nothing, until a new one is made."""

    answers = False

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        await asyncio.sleep(wait_s)
        if not self.answers:
            raise QueueUnavailableError("it does not answer")
        return await super().receive(limit, wait_s, demand)

    async def reconnect(self) -> None:
        self.answers = True


class Hanging(HalfDead):
    """The same, and to end the old connection takes for ever."""

    async def reconnect(self) -> None:
        self.answers = True
        await asyncio.sleep(1e9)


@pytest.mark.virtual_time
@pytest.mark.parametrize("kind", [HalfDead, Hanging])
async def test_a_silent_consumer_gets_a_new_connection_with_its_new_poll_loop(kind: type[HalfDead]) -> None:
    rig = Rig()
    queue = kind("q", rig.clock)
    await queue.publish(outgoings(["m1", "m2"]))
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    engine.start({"q": queue}, {"DEFAULT-POOL": PoolLimits(concurrency=2)}, rig.endpoint, SilentLog())
    await asyncio.sleep(55)
    assert rig.endpoint.started == []
    await asyncio.sleep(125)
    assert rig.endpoint.started == ["m1", "m2"]
    codes = {warning.code for warning in rig.warnings.recent()}
    assert (WarningCode.CONSUMER_RESTART_FAILED in codes) == (kind is Hanging)
    await engine.stop()


@all_kinds
async def test_a_restart_amid_deliveries_over_a_connection_that_swallows_everything_costs_neither_messages_nor_order(
    brokers: Places, kind: Kind
) -> None:
    place, witness = brokers.new(kind), Witness(fault_rate=0.1)
    async with witness.running(), tcp_proxy(place.server.port) as proxy:
        place.port = proxy.port
        outgoing = messages(witness.url, groups=8, per_group=12)
        await publish(place, witness, outgoing)
        async with routing(place, witness) as app:
            await witness.until_acked(20)
            proxy.swallow()
            before = proxy.connections
            await app.engine.restart_consumer(QUEUE)
            await witness.until_acked(len(outgoing))
            assert proxy.connections > before
            await until_settled(app, place, witness)
        await assert_every_promise_was_kept(place, witness)


@pytest.mark.virtual_time
async def test_connections_that_a_queue_cannot_use_are_told_of() -> None:
    rig = Rig()
    queues = {
        "locks groups": RecordingQueue("locks groups", rig.clock),
        "does not": RecordingQueue("does not", rig.clock, ordered=False),
        "asks for one": RecordingQueue("asks for one", rig.clock, ordered=False),
    }
    engine = Engine(rig.dead_letters, rig.warnings, rig.clock)
    connections = {"locks groups": 4, "does not": 4, "asks for one": 1}
    engine.start(queues, {}, rig.endpoint, SilentLog(), connections=connections)
    [warning] = rig.warnings.recent()
    assert warning.code is WarningCode.QUEUE_SETUP
    assert "queue does not: connections = 4 is ignored" in warning.message
    await engine.stop()
