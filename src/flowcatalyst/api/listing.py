"""Lists in answers: no larger than a page, however much there is, and with a link to the next page if there is more."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response
from litestar.params import QueryParameter

MAX_LIST_BYTES: Final = 1024 * 1024
MAX_OFFSET: Final = 1_000_000
Offset = Annotated[
    int,
    QueryParameter(ge=0, le=MAX_OFFSET, description="How many to skip; the Link header of a page leads to the next"),
]

T = TypeVar("T")


def page_of(
    request: Request[Any, Any, Any],
    items: Iterable[T],
    next_query: Callable[[int, T], dict[str, int]],
    *,
    more: bool = False,
) -> Response[list[T]]:
    """As many of the items as fit, one at least, as JSON.

    If there are others, or the caller knows of `more`, a Link header says where: the same query but for what
    `next_query` makes of the number of items here and the last of them.
    """
    shown: list[bytes] = []
    size, last = 0, None
    for item in items:
        encoded = msgspec.json.encode(item)
        size += len(encoded) + 1
        if shown and size > MAX_LIST_BYTES:
            more = True
            break
        shown.append(encoded)
        last = item
    headers = {}
    if more and last is not None:
        query = urlencode({**request.query_params.dict(), **next_query(len(shown), last)}, doseq=True)
        headers["Link"] = f'<{request.url.path}?{query}>; rel="next"'
    content: Any = b"[%b]" % b",".join(shown)
    return Response(content, media_type="application/json", headers=headers)


def page_from(
    request: Request[Any, Any, Any], items: Iterable[T], offset: int, *, more: bool = False
) -> Response[list[T]]:
    """A page of what comes after the first `offset` items, which the caller left out."""
    return page_of(request, items, lambda shown, last: {"offset": offset + shown}, more=more)
