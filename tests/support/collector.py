"""A collector of OpenTelemetry that takes traces by OTLP over HTTP, and shows their spans in few words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_servers import RawServer, raw_server


@dataclass(slots=True, frozen=True)
class SeenSpan:
    trace: str
    id: str
    parent: str
    name: str
    kind: int
    began: int
    ended: int
    failed: bool
    said: str
    about: dict[str, Any]
    service: dict[str, Any]


class Collector:
    def __init__(self, server: RawServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url("")

    def spans(self) -> list[SeenSpan]:
        """In the order of their beginnings."""
        return sorted(
            (span for call in self.server.requests for span in spans_in(call.body)), key=lambda one: one.began
        )

    def of(self, message: str) -> tuple[list[SeenSpan], list[SeenSpan]]:
        """The spans of a message, and those of its attempts."""
        about = [span for span in self.spans() if span.about["messaging.message.id"] == message]
        return [span for span in about if span.name != "POST"], [span for span in about if span.name == "POST"]


def spans_in(body: bytes) -> list[SeenSpan]:
    return [
        SeenSpan(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code == 2,
            span.status.message,
            _plain(span.attributes),
            _plain(group.resource.attributes),
        )
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    async with raw_server() as server:
        yield Collector(server)
