"""GET /: what a new user sees first."""

from importlib.resources import files
from typing import Final

from litestar import Response, get

from flowcatalyst.api.browser_headers import POLICY, page_policy

_PAGE: Final = files("flowcatalyst.api").joinpath("home.html").read_text("utf-8")
_HEADERS: Final = {POLICY: page_policy(_PAGE)}


@get("/", media_type="text/html", include_in_schema=False)
async def get_home() -> Response[str]:
    """A page with live numbers and the way to everything else."""
    return Response(_PAGE, media_type="text/html", headers=_HEADERS)
