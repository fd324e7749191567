"""A process with a PostgreSQL job store: it takes all jobs it can have, says which, and acks them when it is told to.
What it says begins with >, other lines are its log.

python -m tests.support.job_worker PORT SCHEMA
"""

import asyncio
import sys

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Attempt, Outcome, Result
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from flowcatalyst.storage.postgres import PostgresServer


async def work(port: int, schema: str) -> None:
    clock = SystemClock()
    store = PostgresJobStore(PostgresServer((("127.0.0.1", port),), "postgres", "postgres", schema=schema), clock)
    await store.open()
    deliveries = await store.queue.receive(100, 60.0)
    print(">", *(delivery.pointer.id for delivery in deliveries), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for delivery in deliveries:
        delivery.attempt = Attempt(clock.wall(), 0.1, Outcome(Result.SUCCESS, status=200))
    results = await store.queue.ack(deliveries)
    print(">", *(result.value for result in results), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(work(int(sys.argv[1]), sys.argv[2]))
