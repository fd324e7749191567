"""Tracing as the settings have it. Nothing of OpenTelemetry is loaded unless it is on."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from flowcatalyst.control.settings import TracingSettings
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.pool_tools import AttemptLog, Attempts

if TYPE_CHECKING:
    from flowcatalyst.http.tracing import Tracing

RELEASED_PERIOD_S: Final = 5.0
OURS: Final = "flowcatalyst"  # the embedded queue, and the store of jobs
# The scheme of a queueUri -> `messaging.system`, by the names that OpenTelemetry has for them.
_SYSTEMS: Final = {
    "sqs": "aws_sqs",
    "http": "aws_sqs",
    "https": "aws_sqs",
    "nats": "nats",
    "tls": "nats",
    "amqp": "activemq",
    "amqps": "activemq",
    "postgres": "postgresql",
    "postgresql": "postgresql",
}


def system_of(queue: str, configs: Mapping[str, QueueConfig]) -> str:
    """What kind of broker a queue belongs to."""
    config = configs.get(queue)
    return OURS if config is None else _SYSTEMS.get(config.uri.partition(":")[0].lower(), OURS)


def load_tracing() -> None:
    """Raise `ConfigurationError` with what to install unless all of it is there."""
    with needs_extra("otel", "opentelemetry", "requests", what="tracing.enabled", package="opentelemetry-sdk"):
        import flowcatalyst.http.trace_export
        import flowcatalyst.http.tracing  # noqa: F401


@asynccontextmanager
async def tracing_of(
    settings: TracingSettings, clock: Clock, instance: str, queues: Callable[[], Mapping[str, QueueConfig]]
) -> "AsyncIterator[Tracing | None]":
    """Tracing from here to the end of the block; None if it is off. Raises `ConfigurationError`."""
    if not settings.enabled:
        yield None
        return
    load_tracing()
    from flowcatalyst.http.trace_export import TraceExport
    from flowcatalyst.http.tracing import Tracing

    export = TraceExport(clock, instance, settings.endpoint, settings.sample_ratio, settings.service_name)
    tracing = Tracing(export.provider, clock, lambda queue: system_of(queue, queues()))
    try:
        yield tracing
    finally:
        await tracing.end_released()
        await export.close()


def traced(tracing: "Tracing | None", attempts: Attempts, log: AttemptLog) -> tuple[Attempts, AttemptLog]:
    """Attempts and their log with spans; if it is off, just these."""
    if tracing is None:
        return attempts, log
    from flowcatalyst.http.tracing import TracedAttempts, TracedLog

    return TracedAttempts(attempts, tracing), TracedLog(log)
