"""Cursors of pages: where the next page begins, in a form that nobody should read anything into."""

import base64
import binascii
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from flowcatalyst.api.problems import FieldProblem, ProblemError

T = TypeVar("T")


def cursor_of(place: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def read_cursor(cursor: str, kind: Any) -> Any:
    """The place that a cursor of ours names. Raises 400 for one that we did not make."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=kind)
    except (msgspec.DecodeError, binascii.Error, ValueError, UnicodeError):
        detail = "cursor: it is not one that a page of this list ended with"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail, [FieldProblem("cursor", detail)]) from None
