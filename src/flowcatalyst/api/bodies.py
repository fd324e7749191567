"""JSON request bodies: decoded strictly, with an error that names the place.

Litestar's own decoding would turn "5" into 5 and say less about what is wrong.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect
from litestar import Request

from flowcatalyst.api.problems import FieldProblem, ProblemError
from flowcatalyst.core.json_words import Fault, fault_in, why_not_json

T = TypeVar("T")
_SOME_ENTRY: Final = "[...]"  # of an object with any keys, as msgspec names it
_LONGEST_KEY: Final = 60


async def read_json(request: Request[Any, Any, Any], decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type, or a problem that says what is wrong with it."""
    body = await request.body()
    require_json_type(request)
    return decode_json(body, decoder)


async def read_optional_json(request: Request[Any, Any, Any], decoder: msgspec.json.Decoder[T]) -> T | None:
    """Like `read_json`; None if there is no body at all."""
    if not (body := await request.body()):
        return None
    require_json_type(request)
    return decode_json(body, decoder)


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T], called: str = "the body") -> T:
    """`called` is what an error calls the whole of it."""
    body_type: Any = decoder.type
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        fault = fault_in(error, _fields(body_type))
        if fault.field.endswith(_SOME_ENTRY) and fault.said.startswith("must be text"):
            fault = Fault(_first_not_text(body, fault.field.removesuffix(_SOME_ENTRY)) or fault.field, fault.said)
        problem = FieldProblem(fault.field, fault.said)
        raise ProblemError(HTTPStatus.BAD_REQUEST, fault.sentence(called), [problem]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"{called} is not valid JSON: {why_not_json(error)}") from None


def _first_not_text(body: bytes, path: str) -> str | None:
    """The first entry of the object at `path` that is no text: msgspec does not say which one it was."""
    found = msgspec.json.decode(body)
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    entries = found.items() if isinstance(found, dict) else ()
    return next((f"{path}.{key[:_LONGEST_KEY]}" for key, value in entries if not isinstance(value, str)), None)


@cache
def _fields(body_type: Any) -> Mapping[str, Sequence[str]]:
    """The fields of a body and of the objects in it by their paths, each with what it may be if only certain values
    will do: an error alone does not say."""
    fields: dict[str, Sequence[str]] = {}
    _add_fields("", msgspec.inspect.type_info(body_type), fields)
    return fields


def _add_fields(path: str, found: msgspec.inspect.Type, fields: dict[str, Sequence[str]]) -> None:
    kinds = _alternatives(found)
    if path:
        fields[path] = _choices(kinds)
    for kind in kinds:
        if isinstance(kind, msgspec.inspect.StructType):
            for one in kind.fields:
                _add_fields(f"{path}.{one.encode_name}" if path else one.encode_name, one.type, fields)
        elif isinstance(kind, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)):
            _add_fields(f"{path}[]", kind.item_type, fields)
        elif isinstance(kind, msgspec.inspect.DictType):
            _add_fields(f"{path}[]", kind.value_type, fields)


def _choices(kinds: Sequence[msgspec.inspect.Type]) -> list[str]:
    return [str(member.value) for one in kinds if isinstance(one, msgspec.inspect.EnumType) for member in one.cls]


def _alternatives(found: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    return found.types if isinstance(found, msgspec.inspect.UnionType) else [found]


def require_json_type(request: Request[Any, Any, Any], *others: str) -> None:
    """`others` are the types that are read too: the caller looked for them."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        given = f"not {media_type}" if media_type else "and there was none"
        types = " or ".join(("application/json", *others))
        detail = f"the body has to come with Content-Type: {types}, {given}"
        raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
