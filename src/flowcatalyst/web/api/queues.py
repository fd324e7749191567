"""/monitoring/queue-stats and /monitoring/consumer-health: what the queues hold, and whether they are polled."""

import asyncio
from typing import Any

import msgspec
from litestar import Request, Response, get

from flowcatalyst.app import App
from flowcatalyst.operations.config_source import masked
from flowcatalyst.operations.health import polling_consumers
from flowcatalyst.operations.watch import SILENT_CONSUMER_S
from flowcatalyst.queues.consumer import Consumer
from flowcatalyst.queues.contract import Queue
from flowcatalyst.web.dependencies import TheApp
from flowcatalyst.web.listing import Offset, page_from


class QueueView(msgspec.Struct, rename="camel"):
    """What a queue holds."""

    name: str
    uri: str  # without credentials; empty: it is no longer configured
    waiting: int | None  # null: the queue did not tell, or its broker never does
    leased: int | None
    delayed: int | None
    seconds_since_poll: float | None  # null: not polled yet
    trouble: str  # why the queue cannot be asked; empty if it can


class ConsumerView(msgspec.Struct, rename="camel"):
    """The poller of one queue."""

    queue: str
    healthy: bool
    seconds_since_poll: float | None  # null: no poll succeeded yet
    waits_for_room: bool  # the pools are full, so it does not ask for more
    restarts: int
    trouble: str  # why the newest poll failed; empty if it did not


@get("/monitoring/queue-stats", tags=["Monitoring"], summary="Queues")
async def get_queue_stats(
    request: Request[Any, Any, Any], app: TheApp, offset: Offset = 0
) -> Response[list[QueueView]]:
    """How many messages each queue holds: waiting to be received, leased by a router, or delayed.

    The numbers may be a second old: all who ask share one reading. A queue that cannot be asked is listed without
    numbers; it holds up nobody else. At most about 1 MiB of them: if there are more, the Link header leads to them.
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
    return page_from(request, (_consumer_view(name, consumer, now) for name, consumer in listed), offset)


def _consumer_view(name: str, consumer: Consumer, now: float) -> ConsumerView:
    return ConsumerView(
        queue=name,
        healthy=consumer.silent_s(now) < SILENT_CONSUMER_S and not consumer.trouble,
        seconds_since_poll=_since(consumer.last_poll_at, now),
        waits_for_room=consumer.waits_for_room,
        restarts=consumer.restarts,
        trouble=consumer.trouble,
    )


async def _queue_view(app: App, name: str, queue: Queue) -> QueueView:
    consumer = polling_consumers(app).get(name)
    since = None if consumer is None else _since(consumer.last_poll_at, app.clock.monotonic())
    configured = app.config.queues.get(name)
    uri = masked(configured.uri) if configured else ""
    reading = await app.depths.of(queue)
    if reading.depth is None:
        trouble = reading.trouble or ("" if consumer is None else consumer.trouble)
        return QueueView(name, uri, None, None, None, since, trouble)
    depth = reading.depth
    return QueueView(name, uri, depth.waiting, depth.leased, depth.delayed, since, "")


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 3)
