"""SimulatedHttp: an HTTP client whose endpoints are functions. The mediator above it is the real one."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

from flowcatalyst.core.errors import ConnectError, DeliveryError, RequestTimeoutError
from flowcatalyst.core.targets import Target
from flowcatalyst.http.contract import Response
from flowcatalyst.http.mediator import MESSAGE_ID

# (now, message id) -> how long the answer takes, and the answer: a response or the way in which there is none.
Behaviour = Callable[[float, str], tuple[float, Response | DeliveryError]]


class SimulatedHttp:
    """Answers each request as the behaviour of its host says, after the time that takes."""

    def __init__(self, behaviours: Mapping[str, Behaviour], timeout_s: float) -> None:
        self._behaviours = behaviours
        self._timeout_s = timeout_s

    async def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Response:
        latency_s, answer = self._answer(target, headers, body, lines)
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        await asyncio.sleep(min(latency_s, limit_s))
        if latency_s > limit_s:
            raise RequestTimeoutError(f"no response within {limit_s:g} s")
        if isinstance(answer, DeliveryError):
            raise answer
        return answer

    def _answer(
        self, target: Target, headers: Sequence[tuple[str, str]], body: bytes, lines: str
    ) -> tuple[float, Response | DeliveryError]:
        behaviour = self._behaviours.get(target.host)
        if behaviour is None:
            raise ConnectError(f"there is no host {target.host}")
        message_id = unquote(lines.partition(f"{MESSAGE_ID}: ")[2].partition("\r\n")[0])
        return behaviour(asyncio.get_running_loop().time(), message_id)

    async def close(self) -> None:
        """Nothing to close."""


def respond(status: int, body: bytes = b"", **headers: str) -> Response:
    """A response; header names with underscores for dashes."""
    fields = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Response(status, fields, body)
