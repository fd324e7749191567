"""Two real router processes at work on one ActiveMQ or PostgreSQL, and one of them loses its connection.

The broker hands all that the one had to the other. What was in flight at that moment may be repeated; everything else
is delivered once, in order, by one of them at a time. `TWO_ROUTERS_SEEDS=20` plays so many seeds on each broker.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.postgres.owners import LAPSE_S
from flowcatalyst.sandbox.order_judge import SeededId
from tests.crash.scene import PATIENT_MS
from tests.servers.activemq import activemq_server
from tests.servers.artemis import artemis_server
from tests.support.brokers import KINDS as BROKERS
from tests.support.brokers import Kind, Place, Places, places
from tests.support.patient_router import SLOWER
from tests.support.router_process import RouterProcess, Waits, router_process
from tests.support.tcp_proxy import TcpProxy, tcp_proxy
from tests.support.two_routers import WitnessOfTwo

GROUPS, PER_GROUP = 40, 25
OWNED_BY_FIRST: Final = 16  # groups: fewer than its pool has slots, so each is at work
FAILING: Final = 0.1  # of the messages, once
ANSWER_S: Final = 0.08
ACKS_TAKE_S: Final = 0.5  # on a busy machine
NOTICED_S: Final = 0.5
CUT_S: Final = 3.0
IDLE_S: Final = 12.0  # of the brokers; a quarter of it is the patience of the routers
PAUSE_S: Final = IDLE_S + 3.0
PATIENT_BUILD: Final = "tests.support.patient_router"
SEEDS: Final = range(1, int(os.environ.get("TWO_ROUTERS_SEEDS", "1")) + 1)
KINDS: Final = (
    Kind("activemq", partial(activemq_server, idle_s=IDLE_S), "amqp://{address}/{queue}", shows_at_once=True),
    Kind("artemis", partial(artemis_server, idle_s=IDLE_S), "amqp://{address}/{queue}", shows_at_once=True),
)
POSTGRES: Final = next(kind for kind in BROKERS if kind.name == "postgres")
on_both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
on_each = pytest.mark.parametrize("kind", [*KINDS, POSTGRES], ids=lambda kind: kind.name)
with_seeds = pytest.mark.parametrize("seed", SEEDS)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@with_seeds
@on_both
async def test_what_a_router_whose_connection_broke_had_is_delivered_by_the_other_and_by_nobody_else(
    brokers: Places, kind: Kind, seed: int
) -> None:
    async with two_routers(brokers.new(kind), seed) as play:
        await play.until_both_work()
        play.proxy.cut_clients()
        await play.until_first_noticed()  # else what it starts before it reads of the break would count as a mistake
        await play.first_is_cut_off()
        play.proxy.cut_server()
        await asyncio.sleep(CUT_S)
        await play.proxy.mend()
        await play.until_all_is_delivered()


@with_seeds
@on_each
async def test_what_a_router_that_slept_had_is_delivered_by_the_other_and_by_nobody_else(
    brokers: Places, kind: Kind, seed: int
) -> None:
    async with two_routers(brokers.new(kind), seed) as play:
        await play.until_both_work()
        await play.first.pause(while_it_waits=True)
        await play.first_is_cut_off()
        await asyncio.sleep(PAUSE_S)
        play.first.resume()
        await play.until_all_is_delivered()


@with_seeds
async def test_a_router_that_is_cut_off_from_postgres_for_a_moment_keeps_what_it_has(
    brokers: Places, seed: int
) -> None:
    async with two_routers(brokers.new(POSTGRES), seed, PATIENT_BUILD) as play:
        await play.until_both_work()
        play.proxy.cut()
        await asyncio.sleep(CUT_S * SLOWER)
        await play.proxy.mend()
        await play.until_all_is_delivered()
        assert "owner_lapsed" not in play.first.log.read_text()


@with_seeds
async def test_what_a_router_that_is_cut_off_from_postgres_for_longer_had_is_delivered_by_the_other(
    brokers: Places, seed: int
) -> None:
    async with two_routers(brokers.new(POSTGRES), seed) as play:
        await play.until_both_work()
        play.proxy.cut()
        async with asyncio.timeout(2 * LAPSE_S):
            while "owner_lapsed" not in play.first.log.read_text():
                await asyncio.sleep(0.002)
        await play.first_is_cut_off(LAPSE_S)  # none of its acks came through since then
        await asyncio.sleep(CUT_S)
        await play.proxy.mend()
        await play.until_all_is_delivered()


class Play:
    """The first router reaches the broker through a proxy, the second directly."""

    def __init__(self, place: Place, seed: int, witness: WitnessOfTwo, proxy: TcpProxy, first: RouterProcess) -> None:
        self.place = place
        self.witness = witness
        self.proxy = proxy
        self.first = first
        self._luck = random.Random(seed)
        self._published = 0

    async def until_both_work(self) -> None:
        """Until a moment at which the first router is in the middle of its groups."""
        await self._until_takes_a_share("second")
        names = [f"run.g{group}.{position}" for group in range(GROUPS) for position in range(3, PER_GROUP + 1)]
        self.witness.script = {name: ["500"] for name in names if self._luck.random() < FAILING}
        gates = [f"run.g{group}.2" for group in range(GROUPS)]
        self.witness.script |= {name: ["hang"] for name in gates}  # nobody is further when all are published
        await self.publish("run", range(OWNED_BY_FIRST, GROUPS), range(1, 2))
        await self.publish("run", range(GROUPS), range(2, PER_GROUP + 1))
        for name in gates:
            self.witness.script.pop(name)
        self.witness.end_hanging("ok")
        if self.place.kind is POSTGRES:  # no group belongs to a router there: whoever asks gets it
            await self.witness.until_arrived(self.witness.arrivals + self._luck.randint(2 * GROUPS, 10 * GROUPS))
            await self.witness.catch_up()
            return
        wanted = len(self.witness.attempts_of("first")) + OWNED_BY_FIRST * self._luck.randint(2, PER_GROUP // 2)
        while len(self.witness.attempts_of("first")) < wanted:
            await self.witness.until_arrived(self.witness.arrivals + self._luck.randint(1, 10))
        await self.witness.catch_up()

    async def until_first_noticed(self) -> None:
        with suppress(TimeoutError):  # a router without room does not ask its queue: it has noticed, but says nothing
            async with asyncio.timeout(NOTICED_S):
                while "poll_failed" not in self.first.log.read_text():
                    await asyncio.sleep(0.002)

    async def first_is_cut_off(self, acks_take_s: float = ACKS_TAKE_S) -> None:
        """The broker gives away what the first router has, not before this returns."""
        await self.witness.catch_up()
        self.witness.lost_its_broker("first", acks_take_s)

    async def until_all_is_delivered(self) -> None:
        await self.witness.until_acked(self._published)
        await self._until_takes_a_share("first")

    async def _until_takes_a_share(self, name: str) -> None:
        """Publish new groups until the router gets one of them."""
        before = len(self.witness.attempts_of(name))
        while len(self.witness.attempts_of(name)) == before:
            await self.publish(f"{name}-{self._published}", range(GROUPS), range(1, 3))
            await self.witness.until_acked(self._published)

    async def publish(self, run: str, groups: range, positions: range) -> None:
        """Groups of other runs are other groups."""
        outgoing = [self._message(run, group, position) for position in positions for group in groups]
        self.witness.published(outgoing)
        self._published += len(outgoing)
        await self.place.publish(outgoing)

    def _message(self, run: str, group: int, position: int) -> Outgoing:
        message_id = SeededId(run, f"g{group}", position)
        pointer = MessagePointer(id=str(message_id), mediation_target=f"{self.witness.url}/{run}")
        return Outgoing(encode_pointer(pointer).decode(), f"{run}.g{group}")


@asynccontextmanager
async def two_routers(place: Place, seed: int, module: str = "flowcatalyst") -> AsyncIterator[Play]:
    """At its end all promises are checked."""
    witness = WitnessOfTwo(seed)
    witness.answer_after_s = ANSWER_S
    folders = [place.folder / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    async with witness.running(), tcp_proxy(place.server.port) as proxy:
        through_proxy = Waits(timeout_ms=PATIENT_MS, more=replace(place, port=proxy.port).toml)
        async with router_process(folders[0], through_proxy, module=module) as first:
            witness.watch("first", first)
            play = Play(place, seed, witness, proxy, first)
            await play.publish("run", range(OWNED_BY_FIRST), range(1, 2))
            await witness.until_acked(OWNED_BY_FIRST)  # these groups belong to it from now on
            directly = Waits(timeout_ms=PATIENT_MS, more=place.toml)
            async with router_process(folders[1], directly, module=module) as second:
                witness.watch("second", second)
                yield play
                ends = await asyncio.gather(first.terminate(), second.terminate())
                assert [code for code, _ in ends] == [0, 0], ends
                await witness.router_stopped()
        left = await place.left()
        violations = await witness.violations(folders[0] / "data", left)
        assert violations == [], f"{len(violations)} violations, the first:\n" + "\n".join(violations[:20])
        assert left == []
