"""Where spans go: to a collector by OTLP over HTTP, from a thread of its own and in a bounded queue.

What this does not set, the SDK takes from the OTEL_* variables of the environment.
"""

import asyncio
import logging
import threading
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from flowcatalyst import __version__
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.outage_log import REPEAT_S

FLUSH_LIMIT_S: Final = 2.0  # at a stop; what was not sent by then is lost
FLUSHER: Final = "flush traces"  # its thread
DEFAULT_SERVICE: Final = "flowcatalyst"
_SDK: Final = logging.getLogger("opentelemetry")

log = structlog.get_logger("flowcatalyst.tracing")


class TraceExport:
    """A provider of tracers whose spans are sent, from here to `close`."""

    def __init__(
        self, clock: Clock, instance: str, endpoint: str | None, sample_ratio: float | None, service: str | None
    ) -> None:
        resource = Resource.create({SERVICE_INSTANCE_ID: instance, SERVICE_VERSION: __version__})
        unnamed = str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service")
        if service or unnamed:
            resource = resource.merge(Resource({SERVICE_NAME: service or DEFAULT_SERVICE}))
        sampler = None if sample_ratio is None else ParentBasedTraceIdRatio(sample_ratio)
        self.provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._words = _SdkWords(clock)
        _SDK.addHandler(self._words)
        self._exporter = OTLPSpanExporter(endpoint)
        self.provider.add_span_processor(BatchSpanProcessor(self._exporter))

    async def close(self) -> None:
        """Send what is left, for a moment. A collector that hangs keeps a thread that nobody waits for."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self.provider.shutdown()
            _SDK.removeHandler(self._words)
            if not loop.is_closed():
                loop.call_soon_threadsafe(flushed.set)

        threading.Thread(target=flush, name=FLUSHER, daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_LIMIT_S):
                await flushed.wait()
        except TimeoutError:
            log.warning("traces_not_sent", action="traces_not_sent", error="the collector did not take them in time")
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its pauses between tries


class _SdkWords(logging.Handler):
    """What the SDK says, one line a minute: a collector that is away is told of for each batch, with a traceback."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if (now := self._clock.monotonic()) < self._quiet_until:
            return
        self._quiet_until = now + REPEAT_S
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f" {type(error).__name__}: {error}" if error is not None else "")
        log.warning("traces_not_sent", action="traces_not_sent", error=text)
