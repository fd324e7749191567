"""The whole router on real brokers: strict order while a head fails, and a broker that goes away under load."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Outgoing
from tests.integration.chaos_test import messages
from tests.support.brokers import KINDS, QUEUE, UNORDERED_RULES, Kind, Place, Places, all_kinds, places
from tests.support.tcp_proxy import tcp_proxy
from tests.support.witness import Witness

GIVE_BACK_S = 1.0  # stands for the 30 s of production
ROUNDS = 5  # in which the head fails, each of them three attempts
AWAY_S = 2.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


class Loud(Witness):
    """A witness that keeps a log of what arrived, as an operator would read it."""

    def __init__(self, fault_rate: float = 0.0) -> None:
        super().__init__(fault_rate)
        self.log: list[str] = []

    def _choose(self, message_id: str) -> str:
        how = super()._choose(message_id)
        self.log.append(f"{message_id} -> {how}")
        return how


@asynccontextmanager
async def routing(place: Place, witness: Witness) -> AsyncIterator[App]:
    """A router in this process; everything it had was settled or given back at the end."""
    app = App(
        load_settings(
            data_dir=place.folder / "data",
            retry={"backoff_s": [0.02, 0.04], "nack_delay_s": GIVE_BACK_S, "longest_s": GIVE_BACK_S, "follower_s": 0.3},
            mediator={"http": {"timeout_ms": 500, "version": "HTTP_1_1"}},
            **place.settings,
        )
    )
    witness.router_started()
    async with app.running():
        yield app
    assert app.stopped_clean
    await witness.router_stopped()


async def publish(place: Place, witness: Witness, outgoing: list[Outgoing]) -> None:
    witness.published(outgoing)
    await place.publish(outgoing)


async def assert_every_promise_was_kept(place: Place, witness: Witness, rules: Sequence[str] | None = None) -> None:
    left = await place.left()
    violations = await witness.violations(place.folder / "data", left, rules or place.rules)
    assert violations == [], "\n".join(violations)
    assert left == []


@all_kinds
async def test_a_head_that_fails_five_times_in_a_row_is_passed_by_nobody(brokers: Places, kind: Kind) -> None:
    place, witness = brokers.new(kind), Loud()
    witness.script = {"run.g0.1": ["500"] * 3 * ROUNDS}
    async with witness.running():
        await publish(place, witness, messages(witness.url, groups=3, per_group=4))
        async with routing(place, witness):
            await witness.until_acked(12)
        first_group = [line for line in witness.log if ".g0." in line]
        if kind.keeps_order:
            failures = ["run.g0.1 -> 500"] * 3 * ROUNDS
            assert first_group == [*failures, *(f"run.g0.{number} -> ok" for number in range(1, 5))]
        others = [line for line in witness.log if ".g0." not in line]
        assert Counter(others).most_common(1)[0][1] == 1  # bystanders were tried once
        await assert_every_promise_was_kept(place, witness)


@all_kinds
async def test_a_broker_that_is_killed_under_load_loses_nothing_and_the_router_recovers(
    brokers: Places, kind: Kind
) -> None:
    place, witness = brokers.new(kind), Loud(fault_rate=0.1)
    async with witness.running():
        outgoing = messages(witness.url, groups=8, per_group=15)
        await publish(place, witness, outgoing)
        async with routing(place, witness) as app:
            await witness.until_acked(20)
            place.server.kill()
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(place.server.start)
            await witness.until_acked(len(outgoing))
            await until_settled(app, place, witness)
            await _until_polls_succeed(app)
            told = {warning.code for warning in app.warnings.recent()}
            assert {WarningCode.QUEUE_UNAVAILABLE, WarningCode.QUEUE_RECOVERED} <= told
        # ElasticMQ restores its messages in any order and without its locks; the next test judges order there.
        await assert_every_promise_was_kept(place, witness, UNORDERED_RULES if kind.forgets_order else None)


@all_kinds
async def test_a_broker_that_cannot_be_reached_for_a_while_costs_neither_messages_nor_order(
    brokers: Places, kind: Kind
) -> None:
    place, witness = brokers.new(kind), Loud(fault_rate=0.1)
    async with witness.running(), tcp_proxy(place.server.port) as proxy:
        place.port = proxy.port
        outgoing = messages(witness.url, groups=8, per_group=12)
        await publish(place, witness, outgoing)
        async with routing(place, witness) as app:
            await witness.until_acked(20)
            proxy.cut()
            await asyncio.sleep(AWAY_S)
            await proxy.mend()
            await witness.until_acked(len(outgoing))
            await until_settled(app, place, witness)
            await _until_polls_succeed(app)
            told = {warning.code for warning in app.warnings.recent()}
            assert {WarningCode.QUEUE_UNAVAILABLE, WarningCode.QUEUE_RECOVERED} <= told
        await assert_every_promise_was_kept(place, witness)


async def test_a_broker_that_stands_still_for_a_while_costs_neither_messages_nor_order(brokers: Places) -> None:
    """Its clients need not notice: a poll may outlast it. On SQS, whose calls may take longest."""
    [kind] = [kind for kind in KINDS if kind.name == "elasticmq-fifo"]
    # What it has in hand stays its own meanwhile, also where a machine is slow to go on.
    place, witness = replace(brokers.new(kind), visibility_s=5 * AWAY_S), Loud(fault_rate=0.1)
    async with witness.running():
        outgoing = messages(witness.url, groups=8, per_group=12)
        await publish(place, witness, outgoing)
        async with routing(place, witness) as app:
            await witness.until_acked(20)
            place.server.pause()
            await asyncio.sleep(AWAY_S)
            place.server.resume()
            await witness.until_acked(len(outgoing))
            await until_settled(app, place, witness)
            await _until_polls_succeed(app)
        await assert_every_promise_was_kept(place, witness)


@all_kinds
async def test_stops_and_starts_amid_failures_lose_and_reorder_nothing(brokers: Places, kind: Kind) -> None:
    place, witness = brokers.new(kind), Loud(fault_rate=0.3)
    async with witness.running():
        await publish(place, witness, messages(witness.url, groups=6, per_group=10))
        for life in range(1, 3):
            async with routing(place, witness):
                await witness.until_acked(20 * life)
        witness.fault_rate = 0.0
        async with routing(place, witness):
            await witness.until_acked(60)
        await assert_every_promise_was_kept(place, witness)


async def _until_polls_succeed(app: App) -> None:
    async with asyncio.timeout(60):  # an empty long poll takes a while to succeed
        while app.consumers[QUEUE].reports.last_error:
            await asyncio.sleep(0.1)


async def until_settled(app: App, place: Place, witness: Witness) -> None:
    """Until nothing more comes: what was delivered but not acked before the broker went is shown again."""
    arrivals = -1
    while arrivals != witness.arrivals or len(app.tracker):
        arrivals = witness.arrivals
        await asyncio.sleep(place.quiet_s)
