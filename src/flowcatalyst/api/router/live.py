"""/monitoring/live: what the router does, once a second, for as long as somebody listens."""

from http import HTTPStatus

from litestar import get
from litestar.response import Stream

from flowcatalyst.api.dependencies import TheLiveFeed
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.live_feed import MOST_LISTENERS


@get("/monitoring/live", tags=["Monitoring"], summary="What the router does, live", media_type="text/event-stream")
async def get_live(live: TheLiveFeed) -> Stream:
    """Server-sent events without an end: `overview`, once a second, is JSON with health and its reasons, rates of the
    last second, what is in flight, in the router and in the queues, warnings, dead letters and the busiest pools. All
    listeners share one reading; there may be 100 of them.
    """
    if not live.is_running:
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "the router does not run: try again when it does")
    if not live.has_capacity:
        detail = f"{MOST_LISTENERS} others listen already: close a page that shows this router, or try again later"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    return Stream(live.listen(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
