"""GET /metrics, for Prometheus."""

from typing import Final

from litestar import Response, get
from prometheus_client import CONTENT_TYPE_LATEST

from flowcatalyst.api.dependencies import TheMetrics

_FORMAT: Final = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")  # Litestar adds it to all text


@get("/metrics", tags=["Monitoring"], summary="Metrics for Prometheus", media_type="text/plain")
async def get_metrics(metrics: TheMetrics) -> Response[bytes]:
    """Prometheus text format. Counters are read when asked for, at most once a second."""
    return Response(await metrics.render(), media_type=_FORMAT)
