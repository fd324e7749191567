"""GET / and what its page is made of: the dashboard. It holds no data, so it needs no credentials; its requests do."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import Request, Response, get
from litestar.params import PathParameter

from flowcatalyst.api.browser_headers import OWN_FILES_POLICY, POLICY
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.dashboard.assets import INDEX, Asset, load_assets

_ASSETS: Final = load_assets()
# A browser asks each time whether what it has is still good: pages of two versions do not mix after an update.
_CACHE: Final = {"Cache-Control": "no-cache"}


@get("/", media_type="text/html", include_in_schema=False)
async def get_home(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The page."""
    return _answer(request, _ASSETS[INDEX], {POLICY: OWN_FILES_POLICY})


@get("/dashboard/{path:path}", include_in_schema=False)
async def get_dashboard_file(
    request: Request[Any, Any, Any],
    path: Annotated[str, PathParameter(description="Path of the file")],
) -> Response[bytes]:
    """A script, a style or a picture of the page."""
    asset = _ASSETS.get(path.lstrip("/"))
    if asset is None:
        raise ProblemError(HTTPStatus.NOT_FOUND, "there is no such file of the dashboard")
    return _answer(request, asset, {})


def _answer(request: Request[Any, Any, Any], asset: Asset, headers: dict[str, str]) -> Response[bytes]:
    headers = {**headers, **_CACHE, "ETag": asset.etag}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(b"", status_code=HTTPStatus.NOT_MODIFIED, headers=headers, media_type=asset.media_type)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
