"""GET /metrics, for Prometheus."""

from litestar import Response, get
from prometheus_client import CONTENT_TYPE_LATEST

from flowcatalyst.web.dependencies import TheMetrics


@get("/metrics", tags=["Monitoring"], summary="Metrics for Prometheus", media_type="text/plain")
async def get_metrics(metrics: TheMetrics) -> Response[bytes]:
    """Prometheus text format. Counters are read when asked for, at most once a second."""
    return Response(await metrics.render(), media_type=CONTENT_TYPE_LATEST)
