"""GET /: what a new user sees first."""

from importlib.resources import files
from typing import Final

from litestar import get

_PAGE: Final = files("flowcatalyst.web").joinpath("home.html").read_text("utf-8")


@get("/", media_type="text/html", include_in_schema=False)
async def get_home() -> str:
    """A page with live numbers and the way to everything else."""
    return _PAGE
