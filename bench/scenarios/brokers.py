"""Queues of brokers: does a stuck pool let the others of its queue pass?"""

import time

from tests.servers.activemq import ActiveMqServer
from tests.servers.nats import NatsServer

from bench.scenarios.stage import SILENCE, Figure, Stage, message, seconds, until

IN_FRONT = 3000
SETTINGS = """
[[pools]]
code = "DEFAULT-POOL"
concurrency = 1

[[pools]]
code = "STUCK"
concurrency = 10

[[pools]]
code = "OTHER"
concurrency = 10

[[queues]]
name = "orders"
uri = "{uri}"
"""


async def jetstream(stage: Stage) -> list[Figure]:
    """JetStream: 3,000 messages of 1,000 groups for a pool whose endpoint hangs, then 20 for another pool."""
    server = NatsServer(stage.folder / "nats")
    stage.at_the_end(server.kill)
    return await _behind_a_stuck_pool(stage, f"{server.url}/ORDERS?consumer=router&create=true")


async def activemq(stage: Stage) -> list[Figure]:
    """ActiveMQ: 3,000 messages of 1,000 groups for a pool whose endpoint hangs, then 20 for another pool."""
    server = ActiveMqServer(stage.folder / "activemq")
    stage.at_the_end(server.kill)
    return await _behind_a_stuck_pool(stage, f"{server.url}/orders")


async def _behind_a_stuck_pool(stage: Stage, uri: str) -> list[Figure]:
    silent = await stage.receiver(lambda _: SILENCE)
    healthy = await stage.receiver()
    router = await stage.router(SETTINGS.format(uri=uri))
    await router.publish(
        (message(f"S{number}", silent.url(), "STUCK", f"group-{number % 1000}") for number in range(IN_FRONT)), "orders"
    )
    start = time.monotonic()
    await router.publish((message(f"H{number}", healthy.url(), "OTHER") for number in range(20)), "orders")
    done = await until(lambda: len(healthy.delivered()) == 20, 60)
    times = healthy.delivered().values()
    return [
        Figure("messages of the other pool delivered within 60 s", f"{len(times)} of 20"),
        Figure("the last of them after", seconds(max(times) - start if done else None, 60)),
        Figure("requests that hang meanwhile", f"{len(silent.arrivals)} of 10 slots"),
    ]
