"""Errors towards clients: RFC 9457 problem details, always with a sentence, never with a stack trace."""

import re
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException

from flowcatalyst.control.acting import JobGroupError, TooManyPausesError
from flowcatalyst.control.dead_letters import NoFrontError, NoTargetError, ReplayedError, UnknownQueueError
from flowcatalyst.core.errors import INSIDE, FlowCatalystError, InvalidMessageError, QueueUnavailableError, StorageError
from flowcatalyst.core.json_words import in_words
from flowcatalyst.core.webhook import InvalidSecretError
from flowcatalyst.dispatch.api_keys import InvalidKeyError, KeyStateError
from flowcatalyst.dispatch.catalog import TooManySubscriptionsError
from flowcatalyst.dispatch.catalog_entries import InvalidPoolError
from flowcatalyst.dispatch.event import InvalidEventError
from flowcatalyst.dispatch.rotation import TooManySecretsError
from flowcatalyst.dispatch.sealing import SealError
from flowcatalyst.dispatch.store.contract import CursorError, JobStateError, UnknownJobError
from flowcatalyst.dispatch.store.platform_contract import (
    CodeTakenError,
    StaleEntryError,
    UnknownEntryError,
    UnknownEventError,
)
from flowcatalyst.dispatch.subscription import InvalidSubscriptionError
from flowcatalyst.dispatch.tokens import InvalidTokenError
from flowcatalyst.queues.front import GroupInHandError

_ONLY_IN_JSON: Final = re.compile(r" \| null(?=`)")  # a parameter that may be left out cannot be null
_NOT_TEXT: Final = ", not text"  # which every parameter is
PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024

log = structlog.get_logger("flowcatalyst.web")


class FieldProblem(msgspec.Struct, rename="camel"):
    """What is wrong with one field or parameter."""

    field: str
    message: str


class Problem(msgspec.Struct, rename="camel", kw_only=True):
    """An error as RFC 9457 describes it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | msgspec.UnsetType = msgspec.UNSET


class ProblemError(HTTPException):
    """Answer with this status and sentence."""

    def __init__(self, status: HTTPStatus, detail: str, errors: list[FieldProblem] | None = None) -> None:
        super().__init__(detail=detail, status_code=status)
        self.errors = errors or []

    def body(self) -> Problem:
        return Problem(
            title=HTTPStatus(self.status_code).phrase,
            status=self.status_code,
            detail=self.detail,
            errors=self.errors or msgspec.UNSET,
        )


_IN_WORDS: Final = {
    HTTPStatus.NOT_FOUND: "there is nothing at {method} {path}; GET /schema lists what there is",
    HTTPStatus.METHOD_NOT_ALLOWED: "{path} does not answer to {method}",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "the request body is larger than {limit}",
}

_STATUS_OF: Final[dict[type[FlowCatalystError], HTTPStatus]] = {
    InvalidMessageError: HTTPStatus.BAD_REQUEST,
    UnknownQueueError: HTTPStatus.CONFLICT,
    NoFrontError: HTTPStatus.CONFLICT,
    ReplayedError: HTTPStatus.CONFLICT,
    NoTargetError: HTTPStatus.CONFLICT,
    GroupInHandError: HTTPStatus.CONFLICT,
    JobGroupError: HTTPStatus.CONFLICT,
    TooManyPausesError: HTTPStatus.CONFLICT,
    UnknownJobError: HTTPStatus.NOT_FOUND,
    JobStateError: HTTPStatus.CONFLICT,
    CursorError: HTTPStatus.BAD_REQUEST,
    InvalidTokenError: HTTPStatus.UNAUTHORIZED,
    InvalidEventError: HTTPStatus.BAD_REQUEST,
    InvalidSubscriptionError: HTTPStatus.BAD_REQUEST,
    InvalidPoolError: HTTPStatus.BAD_REQUEST,
    InvalidSecretError: HTTPStatus.BAD_REQUEST,
    TooManySecretsError: HTTPStatus.CONFLICT,
    UnknownEventError: HTTPStatus.NOT_FOUND,
    UnknownEntryError: HTTPStatus.NOT_FOUND,
    CodeTakenError: HTTPStatus.CONFLICT,
    TooManySubscriptionsError: HTTPStatus.CONFLICT,
    StaleEntryError: HTTPStatus.CONFLICT,
    InvalidKeyError: HTTPStatus.BAD_REQUEST,
    KeyStateError: HTTPStatus.CONFLICT,
    SealError: HTTPStatus.SERVICE_UNAVAILABLE,
    QueueUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def problem_response(error: ProblemError, headers: dict[str, str] | None = None) -> Response[Problem]:
    return Response(error.body(), status_code=error.status_code, media_type=PROBLEM_MEDIA_TYPE, headers=headers)


def _of_problem(request: Request[Any, Any, Any], error: ProblemError) -> Response[Problem]:
    return problem_response(error)


def _of_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """Litestar's own errors, in our words."""
    status = HTTPStatus(error.status_code)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _of_bug(request, error)
    found = error.extra if isinstance(error.extra, list) else []
    errors = [_of_parameter(request, one.get("key", ""), one.get("message", "")) for one in found]
    detail = error.detail
    if errors:
        detail = "; ".join(f"parameter {one.field!r} {one.message}" for one in errors)
    elif status in _IN_WORDS:
        detail = _IN_WORDS[status].format(method=request.method, path=request.url.path, limit=_limit_of(request))
        if allowed := {name.lower(): value for name, value in (error.headers or {}).items()}.get("allow"):
            detail += f", only to {allowed}"
    return problem_response(ProblemError(status, detail, errors), dict(error.headers or {}))


def _limit_of(request: Request[Any, Any, Any]) -> str:
    """Of the body. A route with a limit of its own takes no list that could come in parts."""
    handler: Any = request.scope.get("route_handler")  # none, where there is nothing
    most = MAX_REQUEST_BYTES if handler is None else handler.resolve_request_max_body_size() or MAX_REQUEST_BYTES
    return f"{most >> 10} KiB" if most < MAX_REQUEST_BYTES else f"{most >> 20} MiB: send it in parts"


def _of_parameter(request: Request[Any, Any, Any], key: str, text: str) -> FieldProblem:
    handler = request.route_handler
    signatures = [
        handler.parsed_fn_signature,
        *(one.parsed_fn_signature for one in handler.resolve_dependencies().values()),
    ]
    parameter = next((one.parameters[key] for one in signatures if key in one.parameters), None)
    if parameter is None:
        return FieldProblem(key, in_words(text))
    name = getattr(parameter.kwarg_definition, "name", None) or key
    choices = [
        str(member.value)
        for kind in (parameter.annotation, *parameter.args)
        if isinstance(kind, type) and issubclass(kind, Enum)
        for member in kind
    ]
    return FieldProblem(name, in_words(_ONLY_IN_JSON.sub("", text), choices).removesuffix(_NOT_TEXT))


def _of_our_error(request: Request[Any, Any, Any], error: FlowCatalystError) -> Response[Problem]:
    for kind, status in _STATUS_OF.items():
        if isinstance(error, kind):
            return problem_response(ProblemError(status, str(error)))
    return _of_bug(request, error)


def _of_bug(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    log.error(
        "request_failed",
        action="request_failed",
        method=request.method,
        path=request.url.path,
        error=repr(error),
        exc_info=error,
    )
    return problem_response(ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, INSIDE))


EXCEPTION_HANDLERS: Final[dict[int | type[Exception], Any]] = {
    ProblemError: _of_problem,
    HTTPException: _of_http_exception,
    FlowCatalystError: _of_our_error,
    Exception: _of_bug,
}
