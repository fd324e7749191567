"""Targets that no attempt could ever reach are refused when a message or a job is accepted."""

from http import HTTPStatus

from flowcatalyst.api.dependencies import ServedRouter
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.core.errors import TargetRefusedError
from flowcatalyst.core.targets import parse_target


def check_may_be_called(app: ServedRouter, what: str, target: str) -> None:
    """Refuse a target that every attempt would be refused for, as far as that is known without asking a resolver."""
    parts = parse_target(target)
    try:
        app.egress.check(parts.host, parts.port)
    except TargetRefusedError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"{what} cannot be called: {error}") from None
