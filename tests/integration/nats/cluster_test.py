"""The router on a JetStream cluster that loses its leader under load."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from tests.integration.broker_router_test import assert_every_promise_was_kept, publish, routing, until_settled
from tests.integration.chaos_test import messages
from tests.servers.nats_cluster import NatsCluster, nats_cluster
from tests.support.brokers import Kind, Place
from tests.support.witness import Witness

STREAM, CONSUMER = "ORDERS", "router"
NANO = 1_000_000_000
AWAY_S = 3.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    with nats_cluster(tmp_path / "servers") as running:
        yield running


async def test_a_cluster_that_loses_its_leader_twice_loses_no_message_and_no_order(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    await _create_replicated(cluster)
    kind = Kind(
        "nats-cluster", nats_cluster, f"nats://{cluster.addresses}/{{queue}}?consumer={CONSUMER}", shows_at_once=True
    )
    some = next(iter(cluster.members.values()))
    place, witness = Place(kind, some, STREAM, tmp_path), Witness(fault_rate=0.1)
    async with witness.running():
        outgoing = messages(witness.url, groups=8, per_group=40)
        await publish(place, witness, outgoing)
        async with routing(place, witness) as app:
            for acked in (40, 160):
                await witness.until_acked(acked)
                assert len(witness.acked) < len(outgoing)
                leader = cluster.members[await _leader(cluster)]
                leader.kill()
                await asyncio.sleep(AWAY_S)
                await asyncio.to_thread(leader.start)
            await witness.until_acked(len(outgoing))
            await until_settled(app, place, witness)
        await assert_every_promise_was_kept(place, witness)


async def _create_replicated(cluster: NatsCluster) -> None:
    connection = await nats.connect(cluster.urls)
    stream = {
        "name": STREAM,
        "subjects": [f"{STREAM}.>"],
        "retention": "workqueue",
        "duplicate_window": 300 * NANO,
        "num_replicas": 3,
    }
    await _ask(connection, f"STREAM.CREATE.{STREAM}", stream)
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "ack_wait": 3 * NANO, "max_ack_pending": 5000}
    request = {"stream_name": STREAM, "config": config}
    await _ask(connection, f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", request)
    await connection.close()


async def _leader(cluster: NatsCluster) -> str:
    """The server that answers for the consumer; waits until one was elected."""
    connection = await nats.connect(cluster.urls)
    leader = ""
    async with asyncio.timeout(60):
        while not leader:
            info = await _ask(connection, f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            leader = info["cluster"].get("leader", "")
            await asyncio.sleep(0.1)
    await connection.close()
    return leader


async def _ask(connection: Client, what: str, request: object = None) -> dict[str, Any]:
    """Again and again until the cluster has a leader who answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await connection.request(f"$JS.API.{what}", json.dumps(request).encode() if request else b"")
            except NatsError:
                result: dict[str, Any] = {"error": "no answer"}
            else:
                result = json.loads(answer.data)
            if "error" not in result:
                return result
            await asyncio.sleep(0.2)
