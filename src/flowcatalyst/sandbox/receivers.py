"""The built-in receivers: what each of them answers, where they are, and what they have seen."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from flowcatalyst.core.clock import IdSource
from flowcatalyst.sandbox.order_judge import OrderJudge
from flowcatalyst.sandbox.webhooks import WebhookReceiver

SLOW_MS: Final = 100
PENDING_S: Final = 30


class Sandbox:
    """What somebody who tries the router out has of it besides the router: receivers, and a judge of what they saw."""

    def __init__(self, ids: IdSource) -> None:
        self.ids = ids
        self.judge = OrderJudge()
        self.webhooks = WebhookReceiver(ids)
        self.address: tuple[str, int] | None = None  # host and port of the receivers, as their router reaches them

    @property
    def url(self) -> str:
        """Where the router reaches them, which its egress guard permits."""
        assert self.address is not None, "known once the API listens"
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(slots=True, frozen=True)
class Answer:
    status: int
    ack: bool = False
    delay_seconds: int | None = None
    retry_after_s: int | None = None

    @property
    def for_good(self) -> bool:
        """The router will not send the message again."""
        if self.status == HTTPStatus.OK:
            return self.ack
        return 400 <= self.status < 500 and self.status != HTTPStatus.TOO_MANY_REQUESTS


_DONE: Final = Answer(200, ack=True)


def _faulty(ids: IdSource, delay_s: int) -> Answer:
    """Fails in ways that lose nothing: there is no 4xx among them."""
    roll = ids.rng.random()
    if roll < 0.70:
        return _DONE
    if roll < 0.85:
        return Answer(500)
    if roll < 0.95:
        return Answer(429, retry_after_s=1)
    return Answer(200, delay_seconds=1)


RECEIVERS: Final[dict[str, Callable[[IdSource, int], Answer]]] = {
    "fast": lambda ids, delay_s: _DONE,
    "slow": lambda ids, delay_s: _DONE,
    "faulty": _faulty,
    "fail": lambda ids, delay_s: Answer(500),
    "success": lambda ids, delay_s: _DONE,
    "pending": lambda ids, delay_s: Answer(200, delay_seconds=delay_s),
    "client-error": lambda ids, delay_s: Answer(400),
    "server-error": lambda ids, delay_s: Answer(500),
}
