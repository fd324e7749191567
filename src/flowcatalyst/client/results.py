"""What became of what was published: a result for each, or an error that says what to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one job or event."""

    status: int  # 201: made; 200: it was there, by its key; 4xx: refused
    item: dict[str, Any] | None = None  # as the platform has it
    problem: str | None = None  # why it was refused

    @property
    def ok(self) -> bool:
        return self.problem is None

    @property
    def repeated(self) -> bool:
        """Whether it was there already: an earlier call, or an earlier attempt of this one, made it."""
        return self.status == HTTPStatus.OK


class ClientError(Exception):
    """Not everything was published.

    `results` are those of what came before the failure; `unsent` is the rest, with the keys it was sent under. To
    publish `unsent` again makes nothing twice, also if the failed request was taken and only its answer was lost.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.results: Sequence[Result] = ()
        self.unsent: Sequence[dict[str, Any]] = ()


class RefusedError(ClientError):
    """The platform refused the request as it is: change it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AccessError(RefusedError):
    """The credentials are missing, wrong, or may not do this."""


class UnavailableError(ClientError):
    """No answer that counts, after all attempts: try again later."""


class UnexpectedAnswerError(ClientError):
    """What answered is no FlowCatalyst: is the address right?"""
