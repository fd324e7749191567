"""JSON request bodies: decoded strictly, with an error that names the place.

Litestar's own decoding would turn "5" into 5 and say less about what is wrong.
"""

from collections.abc import Sequence
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
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        fault = fault_in(error, _fields(decoder.type))
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


def _fields(body_type: Any) -> dict[str, list[str]]:
    """The fields of a body, each with what it may be if only certain values will do: an error alone does not say."""
    fields: dict[str, list[str]] = {}
    for structure in _alternatives(msgspec.inspect.type_info(body_type)):
        if isinstance(structure, msgspec.inspect.StructType):
            for its_field in structure.fields:
                kinds = _alternatives(its_field.type)
                fields[its_field.encode_name] = _choices(kinds)
                entries = [one.item_type for one in kinds if isinstance(one, msgspec.inspect.ListType)]
                if entries and (choices := _choices(entries)):
                    fields[f"{its_field.encode_name}[]"] = choices
    return fields


def _choices(kinds: Sequence[msgspec.inspect.Type]) -> list[str]:
    return [str(member.value) for one in kinds if isinstance(one, msgspec.inspect.EnumType) for member in one.cls]


def _alternatives(found: msgspec.inspect.Type) -> Sequence[msgspec.inspect.Type]:
    return found.types if isinstance(found, msgspec.inspect.UnionType) else [found]


def require_json_type(request: Request[Any, Any, Any]) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        given = f"not {media_type}" if media_type else "and there was none"
        detail = f"the body has to come with Content-Type: application/json, {given}"
        raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
