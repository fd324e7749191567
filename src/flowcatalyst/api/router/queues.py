"""/monitoring/queue-stats and /monitoring/consumer-health: what the queues hold, and whether they are polled."""

import asyncio
from typing import Any

import msgspec
from litestar import Request, Response, get

from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.listing import Offset, page_from
from flowcatalyst.control.health import polling_consumers
from flowcatalyst.queues.address import shown_uri
from flowcatalyst.queues.contract import Queue
from flowcatalyst.router.watch import SILENT_CONSUMER_S


class QueueView(msgspec.Struct, rename="camel"):
    """What a queue holds."""

    name: str
    uri: str  # without credentials; empty: it is no longer configured
    waiting: int | None  # null: the queue did not tell, or its broker never does
    leased: int | None
    delayed: int | None
    oldest_message_ms: int | None  # since it was published, whatever its state; null: the queue is empty or cannot tell
    seconds_since_poll: float | None  # null: not polled yet
    last_error: str  # why the queue cannot be asked; empty if it can


class ConsumerView(msgspec.Struct, rename="camel"):
    """The poller of one queue."""

    queue: str
    healthy: bool
    seconds_since_poll: float | None  # null: no poll succeeded yet
    waits_for_capacity: bool  # the pools are full, so it does not ask for more
    restarts: int
    last_error: str  # why the newest poll failed; empty if it did not


@get("/monitoring/queue-stats", tags=["Monitoring"], summary="Queues")
async def get_queue_stats(
    request: Request[Any, Any, Any], app: TheApp, offset: Offset = 0
) -> Response[list[QueueView]]:
    """How many messages each queue holds: waiting to be received, leased by a router, or delayed.

    The numbers may be a second old: all who ask share one reading. A queue that cannot be asked is listed without
    numbers; others do not wait. At most about 1 MiB of them: if there are more, the Link header leads to them.
    """
    listed = list(app.queues_to_show().items())[offset:]
    views = await asyncio.gather(*(_queue_view(app, name, queue) for name, queue in listed))
    return page_from(request, views, offset)


@get("/monitoring/consumer-health", tags=["Monitoring"], summary="Consumers")
async def get_consumer_health(
    request: Request[Any, Any, Any], app: TheApp, offset: Offset = 0
) -> Response[list[ConsumerView]]:
    """One for each queue that is polled; none on a standby. One without a poll for a minute is restarted. At most about
    1 MiB of them: if there are more, the Link header leads to them.
    """
    now = app.clock.monotonic()
    listed = list(polling_consumers(app).items())[offset:]
    views = (
        ConsumerView(
            queue=name,
            healthy=consumer.silent_s(now) < SILENT_CONSUMER_S and not consumer.reports.last_error,
            seconds_since_poll=_since(consumer.reports.last_poll_at, now),
            waits_for_capacity=consumer.waits_for_capacity,
            restarts=consumer.restarts,
            last_error=consumer.reports.last_error,
        )
        for name, consumer in listed
    )
    return page_from(request, views, offset)


async def _queue_view(app: ServedRouter, name: str, queue: Queue) -> QueueView:
    consumer = polling_consumers(app).get(name)
    since = None if consumer is None else _since(consumer.reports.last_poll_at, app.clock.monotonic())
    configured = app.config.queues.get(name)
    uri = shown_uri(configured.uri) if configured else ""
    reading = await app.depths.of(queue)
    if reading.depth is None:
        last_error = reading.last_error or ("" if consumer is None else consumer.reports.last_error)
        return QueueView(name, uri, None, None, None, None, since, last_error)
    depth = reading.depth
    oldest_ms = None if depth.oldest_at is None else round(max(0.0, app.clock.wall() - depth.oldest_at) * 1000)
    return QueueView(name, uri, depth.waiting, depth.leased, depth.delayed, oldest_ms, since, "")


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)
