"""Times in queries."""

from datetime import UTC, datetime
from http import HTTPStatus

import msgspec

from flowcatalyst.api.problems import FieldProblem, ProblemError


def time_of(name: str, text: str | None) -> datetime | None:
    """As RFC 3339 has it; without a zone it is UTC. A number is no time: of what unit would it be?"""
    if text is None:
        return None
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        detail = f"{name}: {text!r} is not a time such as 2026-01-31T12:00:00Z"
        raise ProblemError(HTTPStatus.BAD_REQUEST, detail, [FieldProblem(name, detail)]) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def seconds_of(name: str, text: str | None) -> float | None:
    """Since the epoch."""
    moment = time_of(name, text)
    return None if moment is None else moment.timestamp()
