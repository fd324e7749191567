"""Bodies of PUT and PATCH of a subscription: what GET answered may come back, with what cannot be changed in it."""

from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from litestar import Request

from flowcatalyst.api.bodies import decode_json, read_json, require_json_type
from flowcatalyst.api.dispatch.subscription_views import SubscriptionView
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.dispatch.subscription import Subscription

T = TypeVar("T")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _names(kind: type[msgspec.Struct]) -> set[str]:
    return {one.encode_name for one in msgspec.structs.fields(kind)}


MAX_SUBSCRIPTION_BYTES: Final = 256 * 1024  # filters of the largest size fit; to read 16 MiB of them takes a second
READ_ONLY: Final = frozenset(_names(SubscriptionView) - _names(Subscription))


async def read_new(request: Request[Any, Any, Any], decoder: msgspec.json.Decoder[T]) -> T:
    """A subscription that is to be made."""
    await _check_size(request)
    return await read_json(request, decoder)


async def _check_size(request: Request[Any, Any, Any]) -> None:
    if (size := len(await request.body())) > MAX_SUBSCRIPTION_BYTES:
        detail = f"the body has {size} bytes, more than the {MAX_SUBSCRIPTION_BYTES} that a subscription may have"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)


async def read_edit(
    request: Request[Any, Any, Any], decoder: msgspec.json.Decoder[T], code: str, *, with_code: bool
) -> T:
    """What is to become of a subscription. Read-only fields are passed over; its code and its secret stay."""
    await _check_size(request)
    body = await request.body()
    require_json_type(request)
    try:
        members = _members.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_json(body, decoder)  # raises, and says why
    if "secret" in members:
        detail = f"secret is not changed here: POST /api/subscriptions/{code}/rotate-secret gives it another one"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    given = _text(members.get("code"))
    if given is not None and given != code:
        detail = f"code is {given[:100]!r} and the path says {code!r}: the code of a subscription stays"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail)
    passed_over = READ_ONLY if with_code or given is None else READ_ONLY | {"code"}
    if not members.keys() & passed_over:
        return decode_json(body, decoder)
    return decode_json(msgspec.json.encode({k: v for k, v in members.items() if k not in passed_over}), decoder)


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
