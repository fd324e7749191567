"""Lists in answers: no larger than a page, however much there is, and with a link or a cursor to what follows."""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response
from litestar.params import QueryParameter

MAX_LIST_BYTES: Final = 1024 * 1024
READ_AT_ONCE: Final = 100  # of a store, which may read far more of an item than is shown
MAX_OFFSET: Final = 1_000_000
Offset = Annotated[
    int,
    QueryParameter(ge=0, le=MAX_OFFSET, description="How many to skip; the Link header of a page leads to the next"),
]

T = TypeVar("T")
C = TypeVar("C")


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


async def items_that_fit(
    read: Callable[[int, C | None], Awaitable[tuple[Sequence[T], C | None]]],
    limit: int,
    cursor: C | None,
    at_once: int = READ_AT_ONCE,
) -> tuple[list[T], C | None]:
    """Up to `limit` items from a cursor on, one at least and no more than a page has, and the cursor of what follows.

    `read` gives up to so many from a cursor on, as they are shown, and the cursor of what follows those. If not all of
    them fit it is asked once more, for as many as do: only it knows the cursor behind each.
    """
    shown: list[T] = []
    size = 0
    while len(shown) < limit:
        most = min(limit - len(shown), at_once)
        part, following = await read(most, cursor)
        fitting = 0
        for item in part:
            size += len(msgspec.json.encode(item)) + 1
            if size > MAX_LIST_BYTES and (shown or fitting):
                break
            fitting += 1
        if fitting < len(part):
            if fitting:
                part, cursor = await read(fitting, cursor)
                shown += part
            break
        shown += part
        cursor = following
        if cursor is None or len(part) < most:
            break
    return shown, cursor


def behind(names: Sequence[str], most: int, cursor: str | None) -> tuple[Sequence[str], str | None]:
    """Up to so many of names in order that come behind one, and the cursor of what follows."""
    begin = 0 if cursor is None else bisect_right(names, cursor)
    shown = names[begin : begin + most]
    return shown, shown[-1] if len(names) > begin + most else None
