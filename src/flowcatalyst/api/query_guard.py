"""Refuses query parameters that a route does not have: a filter with a typo would otherwise filter nothing.

What a route has is what the OpenAPI document says of it, so there is one list of parameters and everybody can read it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.openapi.spec.enums import OpenAPIType

from flowcatalyst.api.openapi import operations
from flowcatalyst.api.problems import FieldProblem, ProblemError
from flowcatalyst.core.spelling import nearest


@dataclass(slots=True, frozen=True)
class Known:
    """What a value of a parameter may be."""

    any_text: bool
    repeats: bool  # it may be there several times


Parameters = dict[str, Known]


class QueryGuard:
    """Knows the query parameters of every documented operation. A route that is not documented has none."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Parameters] = {}  # by path and method

    def learn(self, document: Any) -> None:
        """To be called once, when the document is complete."""
        for path, method, operation in operations(document):
            parameters = [one for one in operation.parameters or [] if one.param_in == "query"]
            self._known[path, method] = {one.name: _known(one.schema) for one in parameters}

    async def refuse_unknown(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """A Litestar guard for every route. It is async only because Litestar would run it in a thread otherwise."""
        if not connection.scope["query_string"]:
            return
        place = (connection.scope["path_template"], str(connection.scope.get("method", "GET")))
        wrong = list(_problems(self._known.get(place, {}), connection.query_params.dict()))
        if wrong:
            detail = "; ".join(f"query parameter {one.field!r} {one.message}" for one in wrong)
            raise ProblemError(HTTPStatus.BAD_REQUEST, detail, wrong)


def _known(schema: Any) -> Known:
    any_text = schema.type == OpenAPIType.STRING and not schema.format and not schema.enum
    is_list = schema.type == OpenAPIType.ARRAY
    return Known(any_text or is_list, is_list)


def _problems(known: Parameters, given: dict[str, list[str]]) -> Iterator[FieldProblem]:
    listed = f"known here: {', '.join(known)}" if known else "there are none here"
    for name, values in sorted(given.items()):
        if name not in known:
            near = nearest(name, known)
            yield FieldProblem(name, f"is unknown{f' (did you mean {near!r}?)' if near else ''}; {listed}")
        elif len(values) > 1 and not known[name].repeats:
            yield FieldProblem(name, "is given more than once")
        elif values[0].lower() == "null" and not known[name].any_text:  # Litestar would take it as left out
            yield FieldProblem(name, "cannot be null; leave it out")
